"""Time over a wireless network (Mestoukirdi et al. 2022, section V-D), by the ledger."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtailor._base.choice import require, require_one_of
from fedtailor.aggregation.accounting.ledger import MODEL_KINDS

if TYPE_CHECKING:
    import polars as pl

FORWARD = 1 / 3
"""The cost of a forward pass, divided by the cost of a gradient."""


@dataclass(frozen=True)
class Wireless:
    """A server that broadcasts to clients whose computing time is random.

        T_round = streams T_dl + passes (T_min + H_m / mu) + uploads rho T_dl

    Computing times are T_min plus an exponential delay of mean 1/mu, the server waits
    for the slowest of m clients (H_m is the m-th harmonic number), each distinct
    downlink model takes T_dl and is heard by all clients. All times are in one unit of
    your choice. Only vectors of the model's size take time; scalars, examples and the
    like do not.

    The paper defines rho and the computing time. Two things are our reading: that a
    round is the sum of its three parts, and that computing takes time in proportion to
    the passes through a client's data, which the paper takes for one in every method.

    Attributes:
        rho: the time of a model's uplink divided by that of its downlink, T_ul / T_dl (2
            to 4 in wireless networks).
        t_min: the shortest computing time of a client for one pass through its training
            samples.
        mean_delay: the mean random delay 1/mu of a client in such a pass; 0 for reliable
            clients.
        t_dl: the time of one model's downlink.
        uplink: whether all clients send at the same time, or one after the other.

    Example:
        >>> from fedtailor.aggregation.accounting import Wireless
        >>> Wireless(rho=2.0, t_min=1.0, mean_delay=1.0).uplink
        'simultaneous'
    """

    rho: float
    t_min: float
    mean_delay: float
    t_dl: float = 1.0
    uplink: Literal["simultaneous", "sequential"] = "simultaneous"

    def __post_init__(self) -> None:
        require(self.rho > 0, f"rho is {self.rho}; it must be above 0")
        require(self.t_min >= 0, f"t_min is {self.t_min}; it must be 0 or more")
        require(
            self.mean_delay >= 0,
            f"mean_delay is {self.mean_delay}; it must be 0 or more",
        )
        require(self.t_dl > 0, f"t_dl is {self.t_dl}; it must be above 0")
        require_one_of(self.uplink, ("simultaneous", "sequential"), "uplink")

    def times(
        self, ledger: "pl.DataFrame", rounds: ArrayLike, *, samples: float | None = None
    ) -> NDArray[np.float64]:
        """Time until the clients hold the models after some numbers of rounds.

        A probe counts as a round of its own, before the first round. m is the number of
        clients that answer; or of all clients that compute, if none answers. The time
        includes the delivery of the models: after any round it takes as long as the
        ledger's `delivery` after the last round. Before the first round, and if the ledger
        has no delivery, it takes no time.

        Args:
            ledger: `Ledger.frame()` of a run.
            rounds: [n] numbers of rounds done.
            samples: the number of training samples of a client, the mean over clients.
                With it, the number of passes is computed from the ledger: examples
                divided by samples, where a forward pass counts as a third of a gradient
                (which is a forward pass and a backward pass of twice its cost). None =
                every exchange is one pass, as in the paper.

        Returns:
            [n] times, in the unit of `t_dl`; 0 after 0 rounds.

        Raises:
            ValueError: the ledger does not have so many rounds, or `samples` is not
                above 0.
        """
        require(
            samples is None or samples > 0, f"samples is {samples}; it must be above 0"
        )
        rounds = np.asarray(rounds, np.int64)
        durations = self._round_times(ledger, samples)
        is_recorded = (rounds >= 0) & (rounds <= len(durations))
        if not is_recorded.all():
            raise ValueError(
                f"the ledger has {len(durations)} rounds; there is no time for"
                f" {rounds.tolist()}"
            )
        # elapsed[t] is the time after t rounds, without the delivery of the models.
        elapsed = np.concatenate([[0.0], np.cumsum(durations)])
        delivery = np.where(rounds > 0, self._delivery_time(ledger), 0.0)
        return elapsed[rounds] + delivery

    def _delivery_time(self, ledger: "pl.DataFrame") -> float:
        """The time of sending the final models, each stream once."""
        import polars as pl

        sent = (pl.col("phase") == "delivery") & (pl.col("direction") == "down")
        models = pl.col("kind").is_in(list(MODEL_KINDS))
        streams = ledger.filter(sent & models)["streams"].sum()
        return self.t_dl * float(streams)

    def _round_times(
        self, ledger: "pl.DataFrame", samples: float | None
    ) -> NDArray[np.float64]:
        """The duration of every round, with the probe that precedes it."""
        import polars as pl

        clients = pl.col("clients")
        unicasts = pl.col("unicasts")
        answers = pl.col("direction") == "up"
        models = pl.col("kind").is_in(list(MODEL_KINDS))
        models_down = models & (pl.col("direction") == "down")
        models_up = models & answers
        # If all clients send at the same time, the uplink takes the time of one client's
        # models. If they send one after the other, it takes the time of all models.
        simultaneous = self.uplink == "simultaneous"
        uploads = unicasts / clients if simultaneous else unicasts
        work = pl.col("gradients") + FORWARD * pl.col("forwards")
        # One row for each exchange: a round may have two, when a probe precedes it.
        exchanges = (
            ledger.filter(pl.col("phase").is_in(["probe", "round"]))
            .group_by("round", "phase")
            .agg(
                streams=pl.col("streams").filter(models_down).sum(),
                uploads=uploads.filter(models_up).sum(),
                # The server waits for the clients that answer; if none does, for all.
                slowest_of=pl.coalesce(clients.filter(answers).max(), clients.max()),
                # The number of examples of a client, the mean over clients.
                examples=work.sum() / clients.max(),
            )
        )
        streams = exchanges["streams"].to_numpy()
        uploads_of_round = exchanges["uploads"].to_numpy()
        # The expected maximum of m independent exponential delays is their mean times
        # H_m.
        slowest_delay = self.mean_delay * _harmonic(exchanges["slowest_of"].to_numpy())
        passes = 1.0 if samples is None else exchanges["examples"].to_numpy() / samples
        # T_round, as in the docstring of the class.
        computing = passes * (self.t_min + slowest_delay)
        sending = self.t_dl * (streams + self.rho * uploads_of_round)
        durations = computing + sending
        # A probe's time is added to the round that it precedes.
        rounds = exchanges["round"].to_numpy()
        return np.bincount(rounds, weights=durations).astype(np.float64)


WIRELESS_PRESETS: Mapping[str, Wireless] = {
    "slow uplink, unreliable clients": Wireless(rho=4, t_min=1, mean_delay=1),
    "fast uplink": Wireless(rho=2, t_min=1, mean_delay=0),
    "wired": Wireless(rho=1, t_min=1, mean_delay=0),
}
"""The three systems of Mestoukirdi et al. 2022, figure 5, in units of T_dl."""


def time_to_reach(
    target: float,
    accuracies: Mapping[int, float],
    ledger: "pl.DataFrame",
    system: Wireless,
    *,
    samples: float | None = None,
) -> float | None:
    """Time until a target accuracy is reached.

    Args:
        target: the accuracy to reach.
        accuracies: number of rounds done -> accuracy.
        ledger: `Ledger.frame()` of the run.
        system: the network.
        samples: training samples of a client, the mean over clients, see
            `Wireless.times`.

    Returns:
        Time of the first evaluation whose accuracy is at least `target`; None if there
        is none.

    Example:
        >>> from fedtailor.aggregation.accounting import Wireless, time_to_reach
        >>> system = Wireless(rho=2.0, t_min=1.0, mean_delay=1.0)
        >>> time_to_reach(0.7, {1: 0.5, 2: 0.7}, run.ledger.frame(), system) > 0
        True
    """
    first = min((t for t in accuracies if accuracies[t] >= target), default=None)
    return (
        None if first is None else float(system.times(ledger, first, samples=samples))
    )


def _harmonic(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """H_m = sum_{k <= m} 1/k for every m."""
    terms = 1.0 / np.arange(1, counts.max(initial=0) + 1)
    sums = np.concatenate([[0.0], np.cumsum(terms)])
    return sums[counts]

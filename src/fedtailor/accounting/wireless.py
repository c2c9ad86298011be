"""Time over a wireless network: the model of Mestoukirdi et al. 2022, section V-D, on
top of the ledger.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtailor.accounting.ledger import MODEL_KINDS
from fedtailor.protocol import require

if TYPE_CHECKING:
    import polars as pl

FORWARD = 1 / 3
"""Cost of a forward pass over that of a gradient."""


@dataclass(frozen=True)
class Wireless:
    """A server that broadcasts to clients of random computing time; all times in one
    unit of your choice.

        T_round = streams T_dl + passes (T_min + H_m / mu) + uploads rho T_dl

    Computing times are T_min plus an exponential delay of mean 1/mu, the server waits
    for the slowest of m clients (H_m is the m-th harmonic number), each distinct
    downlink model takes T_dl and is heard by all clients. The paper defines rho and the
    computing time; that a round is the sum of its three parts is our reading, and so is
    that clients compute longer in proportion to their passes through their data, which
    the paper takes for one in every method. Only vectors of the model's size take time;
    scalars, examples and the like do not.

    Attributes:
        rho: time of a model's uplink over that of its downlink, T_ul / T_dl (2 to 4 in
            wireless networks).
        t_min: the least computing time of a client for one pass through its training
            samples.
        mean_delay: mean random delay 1/mu of a client in such a pass; 0 for reliable
            clients.
        t_dl: time of one model's downlink.
        uplink: whether all clients send at once, or one after the other.
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
        uplinks = ("simultaneous", "sequential")
        require(
            self.uplink in uplinks,
            f"uplink is {self.uplink!r}; it must be one of {', '.join(uplinks)}",
        )

    def times(
        self, ledger: "pl.DataFrame", rounds: ArrayLike, *, samples: float | None = None
    ) -> NDArray[np.float64]:
        """Time from the start until the models of numbers of rounds [n] are with the
        clients, from `Ledger.frame()`.

        A probe counts as a round of its own, before the first. m is the number of
        clients that answer, or of all that compute where nobody answers. After any
        round the clients are handed as many models as the ledger says of the last
        (`delivery`); before the first, and where the ledger has no delivery, none.

        Args:
            ledger: what travelled and what was computed.
            rounds: [n] numbers of rounds done.
            samples: training samples of a client, the mean over clients. With them,
                passes are counted from the ledger: examples over samples, a forward
                pass for a third of a gradient (which is a forward pass and a backward
                pass of twice its cost). Without them, every exchange is one pass, as in
                the paper.

        Returns:
            [n] times, in the unit of `t_dl`; 0 after 0 rounds.

        Raises:
            ValueError: the ledger does not have so many rounds, or `samples` is not
                above 0.
        """
        require(
            samples is None or samples > 0, f"samples is {samples}; it must be above 0"
        )
        wanted = np.asarray(rounds, np.int64)
        # elapsed[t]: the time after t rounds, before the models of the last one are
        # handed out
        elapsed = np.concatenate([[0.0], np.cumsum(self._round_times(ledger, samples))])
        if wanted.size and (wanted.min() < 0 or wanted.max() >= len(elapsed)):
            raise ValueError(
                f"the ledger has {len(elapsed) - 1} rounds; there is no time for"
                f" {wanted.tolist()}"
            )
        return elapsed[wanted] + np.where(wanted > 0, self._delivery_time(ledger), 0.0)

    def _delivery_time(self, ledger: "pl.DataFrame") -> float:
        """Until the final models have been sent, each stream once."""
        import polars as pl

        sent = (pl.col("phase") == "delivery") & (pl.col("direction") == "down")
        streams = ledger.filter(sent & pl.col("kind").is_in(list(MODEL_KINDS)))[
            "streams"
        ].sum()
        return self.t_dl * float(streams)

    def _round_times(
        self, ledger: "pl.DataFrame", samples: float | None
    ) -> NDArray[np.float64]:
        """The duration of every round, with the probe that precedes it."""
        import polars as pl

        sends = pl.col("direction") == "down"
        answers = pl.col("direction") == "up"
        models = pl.col("kind").is_in(list(MODEL_KINDS))
        # One row for each exchange: a round may have two, when a probe precedes it.
        exchanges = (
            ledger.filter(pl.col("phase").is_in(["probe", "round"]))
            .group_by("round", "phase")
            .agg(
                streams=pl.col("streams").filter(sends & models).sum(),
                uploads=(pl.col("unicasts") / pl.col("clients"))
                .filter(answers & models)
                .sum(),
                all_uploads=pl.col("unicasts").filter(answers & models).sum(),
                awaited=pl.coalesce(
                    pl.col("clients").filter(answers).max(), pl.col("clients").max()
                ),
                # examples of all clients that compute, over their number
                examples=(pl.col("gradients") + FORWARD * pl.col("forwards")).sum()
                / pl.col("clients").max(),
            )
        )
        # models that one client sends, all sending at once; or that all clients send,
        # one after the other
        uploads = exchanges[
            "uploads" if self.uplink == "simultaneous" else "all_uploads"
        ].to_numpy()
        passes = 1.0 if samples is None else exchanges["examples"].to_numpy() / samples
        # The expected maximum of m independent exponential delays is their mean times
        # H_m.
        slowest_delay = self.mean_delay * _harmonic(exchanges["awaited"].to_numpy())
        computing = passes * (self.t_min + slowest_delay)
        sending = self.t_dl * (exchanges["streams"].to_numpy() + self.rho * uploads)
        # T_round of the class's docstring; a probe's time is added to the round that it
        # precedes.
        durations = computing + sending
        return np.bincount(exchanges["round"].to_numpy(), weights=durations).astype(
            np.float64
        )


WIRELESS_PRESETS: Mapping[str, Wireless] = {
    "slow uplink, unreliable clients": Wireless(rho=4, t_min=1, mean_delay=1),
    "fast uplink": Wireless(rho=2, t_min=1, mean_delay=0),
    "wired": Wireless(rho=1, t_min=1, mean_delay=0),
}
"""The three systems of Mestoukirdi et al. 2022, figure 5, in units of T_dl."""


def accuracy_by_time(
    accuracies: Mapping[int, float],
    ledger: "pl.DataFrame",
    system: Wireless,
    *,
    samples: float | None = None,
) -> "pl.DataFrame":
    """Accuracy against time.

    Args:
        accuracies: number of rounds done -> accuracy.
        ledger: `Ledger.frame()` of the run.
        system: the network.
        samples: training samples of a client, the mean over clients, see
            `Wireless.times`.

    Returns:
        Columns round, time and accuracy, one row for each evaluation, in the order of
        rounds.
    """
    import polars as pl

    rounds = sorted(accuracies)
    times = system.times(ledger, rounds, samples=samples)
    return pl.DataFrame(
        {
            "round": rounds,
            "time": times,
            "accuracy": [float(accuracies[t]) for t in rounds],
        }
    )


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
    """
    reached = [t for t in sorted(accuracies) if accuracies[t] >= target]
    return float(system.times(ledger, reached[0], samples=samples)) if reached else None


def _harmonic(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """H_m = sum_{k <= m} 1/k for every m."""
    terms = 1.0 / np.arange(1, counts.max(initial=0) + 1)
    sums = np.concatenate([[0.0], np.cumsum(terms)])
    return sums[counts]

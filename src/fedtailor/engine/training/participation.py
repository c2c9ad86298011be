"""Sampling of the clients that report in a round."""

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.protocol import draw_bits, draw_uniform, next_power_of_two


@dataclass(frozen=True)
class Participation:
    """Sampling of clients, keyed by client id (independent of the order of listing).

    Attributes:
        fraction: the share of the seen clients that report in a round, in (0, 1]:
            max(floor(fraction * m), 1) clients.
        count: the number of reporters, instead of a share.
        sampling: None = a fixed number of clients is drawn without replacement, each with
            equal probability. "samples": the same, but the clients are drawn one after
            another with probabilities in proportion to their training samples n_i (Li et
            al. 2020, FedProx; they average such reporters with equal weights, which the
            method's `weights="uniform"` does). "poisson": each client reports with
            probability `fraction`, independently of all others, so that the number of
            reporters varies and may be 0 (the accounting of noise on sums assumes this).

    Example:
        >>> five = ft.run(
        ...     ft.FedAvg(), federation, ft.models.logistic(), rounds=2,
        ...     participation=ft.Participation(count=5),
        ... )
        >>> five.ledger.totals().models_up  # five clients in each of two rounds
        10
    """

    fraction: float = 1.0
    count: int | None = None
    sampling: Literal["samples", "poisson"] | None = None

    has_plain_type: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require(
            0 < self.fraction <= 1,
            f"participation fraction is {self.fraction}; it must be in (0, 1]",
        )
        require(
            self.count is None or self.count >= 1,
            f"participation count is {self.count}; it must be 1 or more",
        )
        require(
            self.sampling in (None, "samples", "poisson"),
            f"participation sampling is {self.sampling!r}; it must be 'samples',"
            " 'poisson' or None",
        )
        require(
            self.sampling != "poisson" or self.count is None,
            "Poisson participation takes a probability (fraction), not a count of"
            " clients",
        )

    def reporters(self, clients: int) -> int:
        """How many of `clients` report in a round; under Poisson sampling, the expected
        number.

        Raises:
            ValueError: a count above the number of clients.
        """
        if self.count is None:
            # 1e-9 corrects products just below an integer, such as 0.29 times 100.
            return max(int(self.fraction * clients + 1e-9), 1)
        require(
            self.count <= clients,
            f"participation count {self.count} exceeds the {clients} seen clients",
        )
        return self.count

    def capacity(self, clients: int) -> int:
        """The number of clients that programs are compiled for when `clients` report
        (`Cohort.capacity`).

        Returns:
            8, 12, 16, 24, 32, ... under Poisson sampling, where the number of reporters
            varies; otherwise 0.
        """
        if self.sampling != "poisson":
            return 0
        # There are few sizes, because a program is compiled for each of them.
        power = next_power_of_two(max(clients, 8))
        return power * 3 // 4 if clients <= power * 3 // 4 else power

    def sample(
        self,
        ids: NDArray[np.uint64],
        seed: int,
        round: int,
        sizes: NDArray[np.int64] | None = None,
    ) -> NDArray[np.bool_]:
        """Choose the clients that report in a round.

        Args:
            ids: [m] the ids of the clients.
            seed: the run's seed.
            round: the round (0-based).
            sizes: [m] the number of training samples, which `sampling="samples"` needs.

        Returns:
            [m] whether each client reports. It depends on seed, round and id only, not on
            the order of the clients.
        """
        if self.sampling == "poisson":
            return draw_uniform(seed, "participation", round, ids) < self.fraction
        count = self.reporters(len(ids))
        if count == len(ids):
            return np.ones(count, bool)
        # The clients that `order` has first, without sorting a million of them.
        draws = self._draws(ids, seed, round, sizes)
        last = np.partition(draws, count - 1)[count - 1]
        reporting = draws < last
        equal = np.flatnonzero(draws == last)
        reporting[equal[: count - np.count_nonzero(reporting)]] = True
        return reporting

    def order(
        self,
        ids: NDArray[np.uint64],
        seed: int,
        round: int,
        sizes: NDArray[np.int64] | None = None,
    ) -> NDArray[np.int64]:
        """The order in which clients are drawn for a round; arguments as of `sample`.

        Returns:
            [m] indices of clients. The first of them report.
        """
        return np.argsort(self._draws(ids, seed, round, sizes), kind="stable")

    def _draws(
        self,
        ids: NDArray[np.uint64],
        seed: int,
        round: int,
        sizes: NDArray[np.int64] | None,
    ) -> NDArray[Any]:
        """[m] a number for every client: those with the smallest ones report. So clients
        are drawn without replacement, and with equal probability if `sampling` is uniform.
        """
        draws: NDArray[Any] = draw_bits(seed, "participation", round, ids)
        if self.sampling == "samples":
            assert sizes is not None
            # Exponential variables with rates n_i: that of client i is the smallest one
            # with probability n_i / sum n_j.
            uniform = (draws.astype(np.float64) + 0.5) / 2.0**64
            draws = -np.log(uniform) / np.maximum(sizes, _NO_SAMPLES)
        return draws


_NO_SAMPLES = 1e-9
"""The rate of a client without samples: it is drawn only if there is no other client."""

Sampling = Literal["uniform", "samples", "poisson"]
"""The names of `Participation.sampling` in files and on the command line; "uniform" stands
for None."""


def as_participation(
    value: Participation | float | int, sampling: Sampling = "uniform"
) -> Participation:
    """Convert a number to a `Participation`, in Python, in files and on the command line.

    Args:
        value: up to 1, a share of the seen clients (1 or 1.0 = all of them); from 2, a
            number of clients. A `Participation` is returned unchanged.
        sampling: "samples": clients are drawn in proportion to their training samples.
            "poisson": the number is the probability with which each client reports,
            independently of all others.

    Returns:
        The participation that the number stands for.

    Raises:
        ValueError: the number is neither a share nor a number of clients.

    Example:
        >>> from fedtailor.engine.training import as_participation
        >>> as_participation(0.5).fraction
        0.5
    """
    if isinstance(value, Participation):
        return value
    require(
        isinstance(value, int | float),
        f"participation is {value!r}; it must be a share of the clients (up to 1), a"
        " number of them (from 2), or a Participation",
    )
    if sampling != "uniform":
        require(
            sampling == "samples" or value <= 1,
            f"participation is {value}; of Poisson sampling it must be a probability,"
            " up to 1",
        )
        return replace(as_participation(value), sampling=sampling)
    if value <= 1:
        return Participation(fraction=float(value))
    require(
        math.isfinite(value) and value == int(value),
        f"participation is {value}; it must be a share of the clients (up to 1) or a"
        " number (from 2)",
    )
    return Participation(count=int(value))

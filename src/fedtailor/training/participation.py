"""Who reports in a round."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedtailor.protocol import draw_bits, require


@dataclass(frozen=True)
class Participation:
    """Sampling without replacement, keyed by client id (independent of the order of listing).

    Attributes:
        fraction: share of the seen clients that report in a round, in (0, 1]; max(floor(fraction * m), 1) clients.
        count: number of reporters instead of a share.
        weights: None = every client is as likely; "samples" = one after another is drawn of those that are left, in
            proportion to its training samples n_i (Li et al. 2020, FedProx; they average such reporters with equal
            weights, which the method's `weights="uniform"` does).
    """

    fraction: float = 1.0
    count: int | None = None
    weights: Literal["samples"] | None = None

    def __post_init__(self) -> None:
        require(self.weights in (None, "samples"), f"participation weights is {self.weights!r}; it must be 'samples'")
        require(0 < self.fraction <= 1, f"participation fraction is {self.fraction}; it must be in (0, 1]")
        require(self.count is None or self.count >= 1, f"participation count is {self.count}; it must be 1 or more")

    def reporters(self, clients: int) -> int:
        """How many of `clients` report in a round.

        Raises:
            ValueError: a count above the number of clients.
        """
        if self.count is None:
            return max(int(self.fraction * clients + 1e-9), 1)
        require(self.count <= clients, f"participation count {self.count} exceeds the {clients} seen clients")
        return self.count

    def sample(
        self, ids: NDArray[np.uint64], seed: int, round: int, sizes: NDArray[np.int64] | None = None
    ) -> NDArray[np.bool_]:
        """Who of the clients [m] reports in a round [m].

        Args:
            sizes: training samples [m], which `weights="samples"` needs.
        """
        report = np.ones(len(ids), bool)
        if (wanted := self.reporters(len(ids))) < len(ids):
            order: NDArray[Any] = draw_bits(seed, "participation", round, ids)
            if self.weights == "samples":
                assert sizes is not None
                # the first of exponential clocks of rates n_i to ring is client i with probability n_i / sum n_j
                order = -np.log((order.astype(np.float64) + 0.5) / 2.0**64) / np.maximum(sizes, _LEAST)
            report[np.argsort(order, kind="stable")[wanted:]] = False
        return report


_LEAST = 1e-9
"""Counts as the samples of a client that has none: it is drawn when no other is left."""

Sampling = Literal["uniform", "samples"]
"""How a file or the command line says `Participation.weights`."""


def as_participation(value: Participation | float | int, sampling: Sampling = "uniform") -> Participation:
    """A `Participation` from one number, the same in Python, in files and on the command line: up to 1 it is a share
    of the seen clients (1 = all of them, written as 1 or 1.0), from 2 on it is a number of them.

    Args:
        value: the number; a `Participation` stays as it is.
        sampling: whether every client is as likely, or in proportion to its training samples.

    Raises:
        ValueError: it is neither.
    """
    if isinstance(value, Participation):
        return value
    weights = "samples" if sampling == "samples" else None
    if value <= 1:
        return Participation(fraction=float(value), weights=weights)
    whole = math.isfinite(value) and value == int(value)
    require(whole, f"participation is {value}; it must be a share of the clients (up to 1) or a number (from 2)")
    return Participation(count=int(value), weights=weights)

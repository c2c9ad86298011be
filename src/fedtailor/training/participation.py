"""Who reports in a round."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtailor.protocol import draw_bits, require


@dataclass(frozen=True)
class Participation:
    """Uniform sampling without replacement, keyed by client id (independent of the order of listing).

    Attributes:
        fraction: share of the seen clients that report in a round, in (0, 1]; max(floor(fraction * m), 1) clients.
        count: number of reporters instead of a share.
    """

    fraction: float = 1.0
    count: int | None = None

    def __post_init__(self) -> None:
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

    def sample(self, ids: NDArray[np.uint64], seed: int, round: int) -> NDArray[np.bool_]:
        """Who of the clients [m] reports in a round [m]."""
        report = np.ones(len(ids), bool)
        if (wanted := self.reporters(len(ids))) < len(ids):
            report[np.argsort(draw_bits(seed, "participation", round, ids), kind="stable")[wanted:]] = False
        return report


def as_participation(value: Participation | float | int) -> Participation:
    """A `Participation` from one number, the same in Python, in files and on the command line: up to 1 it is a share
    of the seen clients (1 = all of them, written as 1 or 1.0), from 2 on it is a number of them.

    Raises:
        ValueError: it is neither.
    """
    if isinstance(value, Participation):
        return value
    if value <= 1:
        return Participation(fraction=float(value))
    whole = math.isfinite(value) and value == int(value)
    require(whole, f"participation is {value}; it must be a share of the clients (up to 1) or a number (from 2)")
    return Participation(count=int(value))

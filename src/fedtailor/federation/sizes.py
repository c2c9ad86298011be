"""How many samples clients hold.

Laws for their sizes, and the division of a data set by them.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedtailor.federation.checks import check_finite
from fedtailor.protocol import require


class SizeLaw(Protocol):
    """Draws positive sizes."""

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """`count` independent sizes, in samples."""
        ...


@dataclass(frozen=True)
class Uniform:
    """Sizes uniform in [low, high] samples.

    Tang et al. 2021, section 6: 400 to 5,000.
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        _check_finite(self, "low", "high")
        require(
            0 < self.low <= self.high,
            f"sizes from {self.low} to {self.high}; need 0 < low <= high",
        )

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
        return rng.uniform(self.low, self.high, count)


@dataclass(frozen=True)
class LogNormal:
    """Sizes factor * (exp(N(mu, sigma^2)) + offset).

    The public federations use it: the synthetic task of FedProx LogNormal(4, 2,
    offset=50), that of pFedMe the same with factor 5, the letters of FedProx
    LogNormal(4, 1, offset=5), the digits of FedProx LogNormal(0, 2) for each class of a
    client.
    """

    mu: float = 4.0
    sigma: float = 2.0
    offset: float = 0.0
    factor: float = 1.0

    def __post_init__(self) -> None:
        _check_finite(self, "mu", "sigma", "offset", "factor")
        require(self.sigma >= 0, f"sigma is {self.sigma}; it must be 0 or more")
        require(
            self.offset >= 0 and self.factor > 0,
            "offset must be 0 or more, and factor above 0",
        )

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
        return self.factor * (rng.lognormal(self.mu, self.sigma, count) + self.offset)


@dataclass(frozen=True)
class PowerLaw:
    """Sizes with density proportional to n^-exponent (bounded Pareto).

    They lie between `low` and `high` samples.
    """

    exponent: float = 2.0
    low: float = 10.0
    high: float = 1000.0

    def __post_init__(self) -> None:
        _check_finite(self, "exponent", "low", "high")
        require(self.exponent > 0, f"exponent is {self.exponent}; it must be above 0")
        require(
            0 < self.low <= self.high,
            f"sizes from {self.low} to {self.high}; need 0 < low <= high",
        )

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
        # The inverse of the distribution function, at uniform numbers; for the exponent
        # 1 it is its limit, log-uniform.
        u = rng.uniform(size=count)
        power = 1 - self.exponent
        if power == 0:
            return self.low * (self.high / self.low) ** u
        low, high = self.low**power, self.high**power
        return (low + u * (high - low)) ** (1 / power)


def _check_finite(law: SizeLaw, *names: str) -> None:
    """Refuse a law with a setting that is no finite number."""
    for name in names:
        check_finite(getattr(law, name), name)


def client_sizes(
    stock: int,
    clients: int,
    law: SizeLaw | None,
    min_samples: int,
    use_all: bool,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Draw the sizes of clients.

    Args:
        stock: samples that there are.
        clients: how many clients, m.
        law: what sizes are drawn from; None = equal sizes that use all samples.
        min_samples: the least size.
        use_all: scale the sizes so that all samples are used.
        rng: the source of randomness.

    Returns:
        Samples of each client [m].

    Raises:
        ValueError: as `allocate`.
    """
    wanted = np.ones(clients) if law is None else law.draw(clients, rng)
    return allocate(
        stock, wanted, min_samples=min_samples, use_all=use_all or law is None
    )


def allocate(
    stock: int, wanted: NDArray[np.float64], *, min_samples: int, use_all: bool
) -> NDArray[np.int64]:
    """Divide samples in whole numbers.

    Args:
        stock: samples that there are.
        wanted: what each holder would like to have.
        min_samples: what each gets at least.
        use_all: use the whole stock, in proportion to `wanted` beyond the minimum; else
            each gets what it wanted, all scaled down by one factor where the stock is
            too small.

    Returns:
        Samples of each holder, in sum at most the stock.

    Raises:
        ValueError: the stock does not even hold `min_samples` for everybody, or the sum
            of `wanted` is no finite number above 0.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        total = wanted.sum()
    require(
        np.isfinite(total) and total > 0,
        f"the clients' sizes sum to {total}; choose other ones",
    )
    if stock < min_samples * len(wanted):
        raise ValueError(
            f"{stock} samples are not enough for {len(wanted)} clients with at least"
            f" {min_samples} each; use fewer clients or more data"
        )
    # The minimum for everybody first; what is wanted beyond it shares the rest.
    rest = stock - min_samples * len(wanted)
    if not use_all:
        more = np.maximum(wanted - min_samples, 0)
        factor = min(1.0, rest / max(more.sum(), 1.0))
        return min_samples + np.floor(more * factor).astype(np.int64)
    # Cumulative shares rounded down, so that parts sum to the whole; 1e-9 against sums
    # just below an integer.
    ends = np.floor(np.cumsum(wanted) / total * rest + 1e-9).astype(np.int64)
    return min_samples + np.diff(np.minimum(ends, rest), prepend=0)

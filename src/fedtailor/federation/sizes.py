"""How many samples clients hold.

Distributions of their sizes (size laws), and the division of a data set by them.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedtailor.federation.checks import check_finite
from fedtailor.protocol import require


class SizeLaw(Protocol):
    """A distribution of positive sizes."""

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
    """Require finite parameters of a distribution."""
    for name in names:
        check_finite(getattr(law, name), name)


def client_sizes(
    samples: int,
    clients: int,
    law: SizeLaw | None,
    min_samples: int,
    use_all: bool,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Draw the sizes of clients.

    Args:
        samples: number of samples of the data set.
        clients: number of clients m.
        law: distribution of the sizes; None = equal sizes that use all samples.
        min_samples: the smallest size.
        use_all: scale the sizes so that all samples are used.
        rng: the source of randomness.

    Returns:
        Samples of each client [m].

    Raises:
        ValueError: as `allocate`.
    """
    # Without a distribution, equal weights by which all samples are shared out.
    requested = np.ones(clients) if law is None else law.draw(clients, rng)
    return allocate(
        samples, requested, min_samples=min_samples, use_all=use_all or law is None
    )


def allocate(
    samples: int, requested: NDArray[np.float64], *, min_samples: int, use_all: bool
) -> NDArray[np.int64]:
    """Divide samples among clients, in whole numbers.

    Args:
        samples: number of samples to divide.
        requested: the number that each client asks for [m].
        min_samples: the number that each client gets at least.
        use_all: give away all samples: first `min_samples` to each client, then the
            rest in proportion to `requested`. Otherwise each client gets what it asked
            for (and at least `min_samples`); if there are too few samples, what they
            ask for beyond `min_samples` is scaled down by one factor.

    Returns:
        Samples of each client [m], whose sum is at most `samples`.

    Raises:
        ValueError: there are fewer than `min_samples` for each client, or the sum of
            `requested` is no finite number above 0.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        total = requested.sum()
    require(
        np.isfinite(total) and total > 0,
        f"the clients' sizes sum to {total}; choose other ones",
    )
    if samples < min_samples * len(requested):
        raise ValueError(
            f"{samples} samples are not enough for {len(requested)} clients with at least"
            f" {min_samples} each; use fewer clients or more data"
        )
    # Every client gets the minimum. The rest is divided by what they ask for.
    rest = samples - min_samples * len(requested)
    if not use_all:
        more = np.maximum(requested - min_samples, 0)
        factor = min(1.0, rest / max(more.sum(), 1.0))
        return min_samples + np.floor(more * factor).astype(np.int64)
    # Cumulative sums are rounded down, not the parts, so that the parts sum to the
    # whole. 1e-9: rounding may leave a cumulative sum just below an integer.
    ends = np.floor(np.cumsum(requested) / total * rest + 1e-9).astype(np.int64)
    return min_samples + np.diff(np.minimum(ends, rest), prepend=0)

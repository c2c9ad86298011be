"""Distributions of the clients' sizes, and the division of a data set by sizes."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.data.federation.checks import check_finite


class SizeLaw(Protocol):
    """A distribution of positive sizes, in samples.

    Example:
        >>> from fedtailor.data.federation import IID, Uniform  # a size law
        >>> len(IID(clients=3, sizes=Uniform(5, 10))(data, seed=0))
        3
    """

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Draw `count` independent sizes."""
        ...


@dataclass(frozen=True)
class Uniform:
    """Sizes uniform in [low, high] samples.

    Tang et al. 2021, section 6: 400 to 5,000.

    Example:
        >>> from fedtailor.data.federation import IID, Uniform
        >>> sizes = [
        ...     len(rows) for rows in IID(clients=3, sizes=Uniform(5, 10))(data, seed=0)
        ... ]
        >>> min(sizes) >= 5 and max(sizes) <= 10
        True
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

    Many published federations use this distribution: the synthetic task of FedProx
    LogNormal(4, 2, offset=50), that of pFedMe the same with factor 5, the letters of
    FedProx LogNormal(4, 1, offset=5), and the digits of FedProx LogNormal(0, 2) for
    each class of a client.

    Example:
        >>> from fedtailor.data.federation import IID, LogNormal
        >>> len(IID(clients=3, sizes=LogNormal(mu=2.0, sigma=0.5))(data, seed=0))
        3
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
    """Sizes in [low, high] with density ~ n^-exponent (bounded Pareto).

    Example:
        >>> from fedtailor.data.federation import IID, PowerLaw
        >>> len(IID(clients=3, sizes=PowerLaw(low=5, high=20))(data, seed=0))
        3
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
        # Apply the inverse of the distribution function to uniform numbers. For
        # exponent 1 its limit is the log-uniform distribution.
        u = rng.uniform(size=count)
        power = 1 - self.exponent
        if power == 0:
            return self.low * (self.high / self.low) ** u
        low, high = self.low**power, self.high**power
        return (low + u * (high - low)) ** (1 / power)


def _check_finite(distribution: SizeLaw, *names: str) -> None:
    """Require finite parameters of a distribution."""
    for name in names:
        check_finite(getattr(distribution, name), name)


def client_sizes(
    samples: int,
    clients: int,
    distribution: SizeLaw | None,
    min_samples: int,
    use_all: bool,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Draw the sizes of clients.

    Args:
        samples: number of samples of the data set.
        clients: number of clients m.
        distribution: of the sizes; None = equal sizes that use all samples.
        min_samples: the smallest size.
        use_all: scale the sizes so that all samples are used.
        rng: random generator.

    Returns:
        Number of samples of each client [m].

    Raises:
        ValueError: as for `allocate`.
    """
    if distribution is None:
        requested, use_all = np.ones(clients), True
    else:
        requested = distribution.draw(clients, rng)
    return allocate(samples, requested, min_samples=min_samples, use_all=use_all)


def allocate(
    samples: int, requested: NDArray[np.float64], *, min_samples: int, use_all: bool
) -> NDArray[np.int64]:
    """Divide samples among clients.

    Args:
        samples: number of samples to divide.
        requested: number of samples that each client requests [m].
        min_samples: smallest number of samples of a client.
        use_all: use all samples: each client gets `min_samples`, and the rest is
            divided in proportion to `requested`. If False, each client gets the number
            that it requests, and at least `min_samples`. If there are too few samples
            for that, the requests above `min_samples` are scaled down by a common
            factor.

    Returns:
        Number of samples of each client [m], with a sum of at most `samples`.

    Raises:
        ValueError: there are fewer than `min_samples` samples per client, or the sum of
            `requested` is not a finite number above 0.
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
    # Every client gets `min_samples`, and the rest is divided.
    rest = samples - min_samples * len(requested)
    if not use_all:
        more = np.maximum(requested - min_samples, 0)
        factor = min(1.0, rest / max(more.sum(), 1.0))
        return min_samples + np.floor(more * factor).astype(np.int64)
    # Round the cumulative sums down, so that the parts sum to `rest`. 1e-9: a rounding
    # error may leave a cumulative sum just below an integer.
    ends = np.floor(np.cumsum(requested) / total * rest + 1e-9).astype(np.int64)
    return min_samples + np.diff(np.minimum(ends, rest), prepend=0)

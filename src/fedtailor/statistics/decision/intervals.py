"""Confidence intervals of paired differences over rows or clients and over seeds."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

MIN_SEEDS = 3
"""With fewer seeds, intervals do not generalize to other seeds.

With two seeds, Student's quantile is already 12.7.
"""
_MIN_LOG_P = -300.0
"""Smaller p-values count as 0."""


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence interval and two-sided p-value.

    The null hypothesis is that the true value is 0. The interval excludes 0 exactly
    where p is below 1 - confidence. Without any data all four numbers are NaN. Where
    the data do not determine the uncertainty (one row, one client), the interval is
    infinite and p is 1.

    Example:
        >>> from fedtailor.statistics.decision import mean_interval
        >>> found = mean_interval(np.array([1.0, 2.0, 3.0]))
        >>> found.estimate, round(found.low, 3), round(found.high, 3)
        (2.0, -0.484, 4.484)
    """

    estimate: float
    low: float
    high: float
    p: float

    @property
    def verdict(self) -> str:
        """Returns "helps" or "hurts" if the interval excludes 0, else "cannot tell".

        A positive estimate means better.
        """
        if self.low > 0:
            return "helps"
        if self.high < 0:
            return "hurts"
        return "cannot tell"


def two_way_interval(
    differences: Float[np.ndarray, "seeds clients"], confidence: float = 0.95
) -> Interval:
    """The mean paired difference of two methods over clients and seeds.

    The differences are not independent: one client appears in several seeds, and all
    clients of a seed share a federated training. Clients and seeds are therefore
    crossed clusters. The variance of the mean is the variance of the clients' means
    over seeds, plus the variance of the seeds' means over clients, minus the variance
    of the residual, which both contain; it is at least the variance of the residual.
    Components of clients and seeds have as many degrees of freedom as there are
    clusters, minus one (see `student_interval`).

    A bootstrap that resamples clients with all their seeds, and seeds with all their
    clients, has the same limit for infinitely many draws, apart from its bias, which is
    large for three seeds. With fewer than `MIN_SEEDS` seeds only clients count as
    random, and the interval does not generalize to other seeds.

    Args:
        differences: NaN where a client was not measured in a seed. A client or a seed
            without any difference is ignored.
        confidence: confidence level of the interval.

    Returns:
        The mean over clients of their means over seeds, and its interval. All values
        are NaN if there is no difference.

    Example:
        >>> from fedtailor.statistics.decision import two_way_interval
        >>> found = two_way_interval(np.array([[1.0, 2.0], [2.0, 3.0], [1.5, 2.5]]))
        >>> found.estimate
        2.0
    """
    center, components = _mean_and_components(differences)
    return student_interval(center, components, confidence)


def two_way_variance(differences: Float[np.ndarray, "seeds clients"]) -> float:
    """The variance of the mean in `two_way_interval`; NaN without any difference."""
    _, components = _mean_and_components(differences)
    return sum((variance for variance, _ in components), 0.0) if components else np.nan


def _mean_and_components(
    differences: Float[np.ndarray, "seeds clients"],
) -> tuple[float, list[tuple[float, int]]]:
    """The mean over clients and seeds, and the components of its variance."""
    values = np.asarray(differences, np.float64)
    is_measured = ~np.isnan(values)
    seeds = is_measured.any(axis=1)
    clients = is_measured.any(axis=0)
    values = values[seeds][:, clients]
    if not values.size:
        return np.nan, []
    client_means = np.nanmean(values, axis=0)
    seed_means = np.nanmean(values, axis=1)
    n_clients = len(client_means)
    # A single client does not determine the variance between clients.
    client_variance = (
        float(client_means.var(ddof=1)) / n_clients if n_clients > 1 else np.inf
    )
    components = _variance_components(
        client_variance, n_clients - 1, seed_means, values
    )
    return float(client_means.mean()), components


def student_interval(
    center: float,
    components: Sequence[tuple[float, int]],
    confidence: float,
) -> Interval:
    """A confidence interval for a mean whose variance has several components.

    Each component V_k is estimated from few values. The half-width is the square root
    of sum_k t_k^2 V_k, where t_k is the quantile of Student's t for the component's
    degrees of freedom. This is exact for one component and conservative for several
    (Cochran's rule). Satterthwaite's degrees of freedom are too optimistic where three
    seeds happen to agree.

    Args:
        center: center of the interval.
        components: for each component its part V_k of the variance of the mean
            (infinite where it cannot be estimated) and its degrees of freedom.
        confidence: confidence level of the interval, in (0, 1).

    Returns:
        The interval, and the p-value of the hypothesis that the mean is 0: the level at
        which the interval just excludes 0.
    """
    # SciPy takes 30 MB, which clients of a federation of machines never need.
    from scipy import optimize, special

    if np.isnan(center):
        return Interval(np.nan, np.nan, np.nan, np.nan)

    def half_width(log_alpha: float) -> float:
        """The half-width of the interval at level alpha.

        The argument is log(alpha), because p may be as small as 1e-100 and the
        tolerance of a root finder is absolute.
        """
        alpha = np.exp(log_alpha)
        squared_width = 0.0
        for variance, df in components:
            # 0 times an infinite quantile would be NaN.
            if variance > 0:
                squared_width += variance * special.stdtrit(df, alpha / 2) ** 2
        return float(np.sqrt(squared_width))

    total = sum(variance for variance, _ in components)
    if not np.isfinite(total):
        return Interval(center, -np.inf, np.inf, 1.0)
    width = half_width(np.log1p(-confidence))
    low, high = center - width, center + width
    if center == 0:
        return Interval(center, low, high, 1.0)
    if total == 0 or half_width(_MIN_LOG_P) <= abs(center):
        return Interval(center, low, high, 0.0)
    # p is the level at which the interval just reaches 0.
    solution = optimize.root_scalar(
        lambda log_p: half_width(log_p) - abs(center), bracket=(_MIN_LOG_P, 0.0)
    )
    return Interval(center, low, high, float(np.exp(solution.root)))


def _variance_components(
    client_variance: float,
    df: int,
    seed_means: NDArray[np.float64],
    values: NDArray[np.float64],
) -> list[tuple[float, int]]:
    """Splits the variance of a mean into a component of clients and one of seeds.

    Both components contain the variance of the residual, which must count once. It is
    subtracted from the component with more degrees of freedom, because subtracting it
    from the other one would leave a difference of two uncertain numbers. Where a client
    was not measured in a seed, the residual is unknown and nothing is subtracted.

    The mean is never more certain than its residual allows: where few clients and seeds
    agree by chance and both components are small, what is missing up to the residual's
    variance is a third component.

    Args:
        client_variance: the variance of the mean over clients, including the residual.
        df: degrees of freedom of `client_variance`.
        seed_means: [seeds] means over clients.
        values: [seeds, clients], NaN where a client was not measured in a seed.

    Returns:
        For each component the variance and its degrees of freedom.
    """
    seeds, clients = values.shape
    if seeds < MIN_SEEDS:
        return [(client_variance, df)]
    seed_variance = float(seed_means.var(ddof=1)) / seeds
    if clients == 1 or np.isnan(values).any():
        return [(client_variance, df), (seed_variance, seeds - 1)]
    client_means = values.mean(axis=0)
    seed_means = values.mean(axis=1, keepdims=True)
    residual = values - client_means - seed_means + values.mean()
    residual_df = (seeds - 1) * (clients - 1)
    squares = float(np.square(residual).sum())
    residual_variance = squares / residual_df / values.size
    if df >= seeds - 1:
        client_variance = max(client_variance - residual_variance, 0.0)
    else:
        seed_variance = max(seed_variance - residual_variance, 0.0)
    missing = max(residual_variance - client_variance - seed_variance, 0.0)
    return [
        (client_variance, df),
        (seed_variance, seeds - 1),
        (missing, residual_df),
    ]

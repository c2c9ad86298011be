"""Confidence intervals of paired differences, over test rows or clients and over seeds."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

LEAST_SEEDS = 3
"""With fewer seeds, intervals say nothing of other seeds than those at hand.

Of two seeds Student's quantile is 12.7.
"""
_LEAST_LOG_P = -300.0
"""Smaller p-values count as 0."""


@dataclass(frozen=True)
class Interval:
    """An estimate, its confidence interval and the p-value of "it is 0" (two-sided).

    The interval excludes 0 exactly where p is below 1 - confidence. Without anything to
    estimate from all are NaN; where nothing tells the uncertainty (one row, one client)
    the interval is infinite and p is 1.
    """

    estimate: float
    low: float
    high: float
    p: float

    @property
    def verdict(self) -> str:
        """The verdict "helps" or "hurts" if the interval excludes 0, else "cannot tell".

        Positive is better.
        """
        if self.low > 0:
            return "helps"
        if self.high < 0:
            return "hurts"
        return "cannot tell"


def two_way_interval(
    differences: Float[np.ndarray, "seeds clients"], confidence: float = 0.95
) -> Interval:
    """The mean paired difference of two methods, over clients and over seeds.

    A client's differences in several seeds are no independent observations, and neither
    are those of all clients in one seed, for they share a federated training: clients
    and seeds are crossed clusters. The variance of the mean is that of the clients'
    means over seeds, plus that of the seeds' means over clients, less the residual's,
    which both contain; each source has the degrees of freedom of its number less one
    (`student_interval`). That is what a bootstrap that draws clients with all their
    seeds, and seeds with all their clients, would give with infinitely many draws, but
    for its bias, which is large for three seeds. With fewer than three seeds only
    clients vary, and nothing is said of other seeds.

    Args:
        differences: NaN where a client was not measured in a seed. A client, or seed,
            without any difference is left out.
        confidence: of the interval.

    Returns:
        The mean over clients of their means over seeds, and its interval; all NaN
        without any difference.
    """
    values = np.asarray(differences, np.float64)
    is_known = ~np.isnan(values)
    seeds = is_known.any(axis=1)
    clients = is_known.any(axis=0)
    values = values[seeds][:, clients]
    if not values.size:
        return Interval(np.nan, np.nan, np.nan, np.nan)
    by_client = np.nanmean(values, axis=0)
    by_seed = np.nanmean(values, axis=1)
    count = len(by_client)
    # One client says nothing of how clients vary.
    over_clients = float(by_client.var(ddof=1)) / count if count > 1 else np.inf
    sources = variance_sources(over_clients, count - 1, by_seed, values)
    return student_interval(float(by_client.mean()), sources, confidence)


def student_interval(
    centre: float,
    sources: Sequence[tuple[float, int]],
    confidence: float,
    *,
    estimate: float | None = None,
) -> Interval:
    """An interval for a mean whose variance has several sources.

    Each source's variance V_k is estimated from few values. The half-width is the root
    of the sum of t_k^2 V_k, with each source's own quantile of Student's t: exact with
    a single source, and wider than needed with several (Cochran's rule; Satterthwaite's
    degrees of freedom are too optimistic where three seeds happen to agree).

    Args:
        centre: of the interval.
        sources: for each source V_k, its part of the variance of the mean (infinite
            where it cannot be estimated), and its degrees of freedom.
        confidence: of the interval, in (0, 1).
        estimate: what to report, where it is not the centre.

    Returns:
        The interval, and the p-value of "the mean is 0": the level at which the
        interval would just exclude 0.
    """
    # SciPy takes 30 MB, which clients of a federation of machines never need.
    from scipy import optimize, special

    estimate = centre if estimate is None else estimate
    if np.isnan(centre):
        return Interval(np.nan, np.nan, np.nan, np.nan)

    def half_width(log_alpha: float) -> float:
        """Of the interval at level alpha, in logarithms: p may be as small as 1e-100,
        and the steps of a root finder are absolute."""
        alpha = np.exp(log_alpha)
        square = 0.0
        for variance, degrees in sources:
            # 0 times an infinite quantile would be NaN.
            if variance > 0:
                square += variance * special.stdtrit(degrees, alpha / 2) ** 2
        return float(np.sqrt(square))

    total = sum(variance for variance, _ in sources)
    if not np.isfinite(total):
        return Interval(estimate, -np.inf, np.inf, 1.0)
    width = half_width(np.log1p(-confidence))
    low, high = centre - width, centre + width
    if centre == 0:
        return Interval(estimate, low, high, 1.0)
    if total == 0 or half_width(_LEAST_LOG_P) <= abs(centre):
        return Interval(estimate, low, high, 0.0)
    # p is the level at which the interval just reaches 0.
    solution = optimize.root_scalar(
        lambda log_p: half_width(log_p) - abs(centre), bracket=(_LEAST_LOG_P, 0.0)
    )
    return Interval(estimate, low, high, float(np.exp(solution.root)))


def variance_sources(
    over_rows: float,
    degrees: int,
    by_seed: NDArray[np.float64],
    values: NDArray[np.float64],
) -> list[tuple[float, int]]:
    """The parts of the variance of a mean that come from rows and from seeds.

    Both contain the variance of the residual, which must count once. It is subtracted
    from the part with more degrees of freedom: subtracted from the other one it would
    leave a difference of two uncertain numbers. It is not known, and not subtracted,
    where rows differ from seed to seed.

    Args:
        over_rows: the variance of the mean over rows, residual included.
        degrees: its degrees of freedom.
        by_seed: [seeds] means over rows.
        values: [seeds, rows].

    Returns:
        For each source its part of the variance, and its degrees of freedom.
    """
    seeds, rows = values.shape
    if seeds < LEAST_SEEDS:
        return [(over_rows, degrees)]
    over_seeds = float(by_seed.var(ddof=1)) / seeds
    residual_variance = 0.0
    if rows > 1 and not np.isnan(values).any():
        row_means = values.mean(axis=0)
        seed_means = values.mean(axis=1, keepdims=True)
        residual = values - row_means - seed_means + values.mean()
        residual_degrees = (seeds - 1) * (rows - 1)
        squares = float(np.square(residual).sum())
        residual_variance = squares / residual_degrees / values.size
    if degrees >= seeds - 1:
        over_rows = max(over_rows - residual_variance, 0.0)
    else:
        over_seeds = max(over_seeds - residual_variance, 0.0)
    return [(over_rows, degrees), (over_seeds, seeds - 1)]

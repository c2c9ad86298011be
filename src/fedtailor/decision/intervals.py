"""Confidence intervals of paired differences that vary over two things: test rows (or
clients) and training seeds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

LEAST_SEEDS = 3
"""From fewer seeds nothing can be said of others (of two, Student's quantile is 12.7):
intervals then speak of the trainings at hand."""
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
        """ "helps" or "hurts" where the interval excludes 0 (positive is better), else
        "cannot tell".
        """
        if self.low > 0:
            return "helps"
        return "hurts" if self.high < 0 else "cannot tell"


def two_way_interval(
    differences: Float[np.ndarray, "seeds clients"], confidence: float = 0.95
) -> Interval:
    """The mean paired difference of two methods, over clients and seeds as they might
    have been drawn.

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
            without any is left out.
        confidence: of the interval.

    Returns:
        The mean over clients of their means over seeds, and its interval; all NaN
        without any difference.
    """
    values = np.asarray(differences, np.float64)
    known = ~np.isnan(values)
    values = values[known.any(axis=1)][:, known.any(axis=0)]
    if not values.size:
        return Interval(np.nan, np.nan, np.nan, np.nan)
    by_client = np.nanmean(values, axis=0)
    by_seed = np.nanmean(values, axis=1)
    clients = len(by_client)
    # One client says nothing of how clients vary.
    over_clients = float(by_client.var(ddof=1)) / clients if clients > 1 else np.inf
    sources = variance_sources(over_clients, clients - 1, by_seed, values)
    return student_interval(float(by_client.mean()), sources, confidence)


def student_interval(
    centre: float,
    sources: Sequence[tuple[float, int]],
    confidence: float,
    *,
    estimate: float | None = None,
) -> Interval:
    """An interval for a mean whose variance has several sources, each estimated from
    few values.

    The reach is the root of the sum of t_k^2 V_k, with each source's own quantile of
    Student's t: exact where one source is all there is, and wider than needed in
    between (Cochran's rule; Satterthwaite's degrees of freedom are too optimistic where
    three seeds happen to agree).

    Args:
        centre: of the interval.
        sources: of each the variance of the mean that it brings (infinite where it
            cannot be judged), and its degrees of freedom.
        confidence: of the interval, in (0, 1).
        estimate: what to report, where it is not the centre.

    Returns:
        The interval, and the p-value of "the mean is 0": the level at which the
        interval would just exclude 0.
    """
    from scipy import (
        optimize,
        special,
    )  # 30 MB, which clients of a federation of machines never need

    estimate = centre if estimate is None else estimate
    if np.isnan(centre):
        return Interval(np.nan, np.nan, np.nan, np.nan)

    # In logarithms, since p-values of 1e-100 do occur and a root finder's steps are
    # absolute.
    def reach(log_alpha: float) -> float:
        alpha = np.exp(log_alpha)
        square = 0.0
        for variance, degrees in sources:
            # Else 0 times an infinite quantile would be NaN.
            if variance > 0:
                square += variance * special.stdtrit(degrees, alpha / 2) ** 2
        return float(np.sqrt(square))

    total = sum(variance for variance, _ in sources)
    if not np.isfinite(total):
        return Interval(estimate, -np.inf, np.inf, 1.0)
    half_width = reach(np.log1p(-confidence))
    low, high = centre - half_width, centre + half_width
    if centre == 0:
        return Interval(estimate, low, high, 1.0)
    if total == 0 or reach(_LEAST_LOG_P) <= abs(centre):
        return Interval(estimate, low, high, 0.0)
    solution = optimize.root_scalar(
        lambda log_p: reach(log_p) - abs(centre), bracket=(_LEAST_LOG_P, 0.0)
    )
    return Interval(estimate, low, high, float(np.exp(solution.root)))


def variance_sources(
    over_rows: float,
    degrees: int,
    by_seed: NDArray[np.float64],
    values: NDArray[np.float64],
) -> list[tuple[float, int]]:
    """The variance of the mean that comes from rows and from seeds, each with its
    degrees of freedom.

    Both contain the residual's part, which is taken off the one with more degrees of
    freedom: the other one would then be a difference of two uncertain numbers. Where
    rows differ from seed to seed it is not known, and nothing is taken off.

    Args:
        over_rows: the variance over rows, residual included.
        degrees: its degrees of freedom.
        by_seed: [seeds] means over rows.
        values: [seeds, rows].
    """
    seeds, rows = values.shape
    if seeds < LEAST_SEEDS:
        return [(over_rows, degrees)]
    over_seeds = float(by_seed.var(ddof=1)) / seeds
    residual_variance = 0.0
    if rows > 1 and not np.isnan(values).any():
        by_row = values.mean(axis=0)
        residual = values - by_row - values.mean(axis=1, keepdims=True) + values.mean()
        residual_degrees = (seeds - 1) * (rows - 1)
        residual_variance = (
            float(np.square(residual).sum()) / residual_degrees / values.size
        )
    if degrees >= seeds - 1:
        over_rows = max(over_rows - residual_variance, 0.0)
    else:
        over_seeds = max(over_seeds - residual_variance, 0.0)
    return [(over_rows, degrees), (over_seeds, seeds - 1)]

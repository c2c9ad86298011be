"""Metrics that are means over one client's test rows, with confidence intervals."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from fedtailor.decision.intervals import Interval, student_interval, variance_components

_MAX_BLOCK_SIZE = 1 << 22
"""Numbers that a bootstrap holds in memory at a time (32 MiB)."""


@dataclass(frozen=True)
class Score:
    """A score of each test row, and the metric that follows from it.

    Attributes:
        column: column of the table of rows: "loss", "correct" or "squared_error".
        higher_is_better: whether a larger mean is better.
        root: whether the metric is the square root of the mean (RMSE).
        bounds: the range of a row's score, or None if it is unbounded.
    """

    column: str
    higher_is_better: bool
    root: bool = False
    bounds: tuple[float, float] | None = None

    @property
    def sign(self) -> float:
        """1 if higher is better, else -1."""
        return 1.0 if self.higher_is_better else -1.0

    def metric(self, means: NDArray[np.float64]) -> NDArray[np.float64]:
        """Computes the metric from means over rows."""
        return np.sqrt(means) if self.root else means

    def linear(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Linearizes the metric: each row's contribution [seeds, rows], to first order.

        The contributions are exact up to a constant; for a root they follow from the
        delta method.
        """
        if not self.root:
            return scores
        roots = np.sqrt(np.nanmean(scores, axis=1, keepdims=True))
        return scores / np.where(roots > 0, 2 * roots, 1.0)


SCORES = {
    "accuracy": Score("correct", higher_is_better=True, bounds=(0.0, 1.0)),
    "loss": Score("loss", higher_is_better=False),
    "rmse": Score("squared_error", higher_is_better=False, root=True),
}
"""Metrics that follow from the table of test rows, by name."""


def metric_interval(
    scores: Float[np.ndarray, " rows"], score: Score, confidence: float = 0.95
) -> Interval:
    """One client's metric in one run, with an interval over test rows.

    The interval covers the sampling of the client's test rows, not the randomness of
    training. A proportion (accuracy) has Wilson's interval (1927), which is valid for
    few rows and near 0 and 1. A mean has Student's interval, and a root the interval of
    the delta method.

    Args:
        scores: scores of the test rows.
        score: the kind of score.
        confidence: confidence level of the interval.
    """
    values = np.asarray(scores, np.float64)
    rows = len(values)
    if not rows:
        return Interval(np.nan, np.nan, np.nan, np.nan)
    estimate = float(score.metric(values.mean(keepdims=True))[0])
    if score.bounds == (0.0, 1.0):
        # SciPy takes 30 MB, which clients of a federation of machines never need.
        from scipy import stats

        correct = round(float(values.sum()))
        proportion = stats.binomtest(correct, rows).proportion_ci(confidence, "wilson")
        return Interval(estimate, float(proportion.low), float(proportion.high), np.nan)
    linear = score.linear(values[None])[0]
    variance = float(linear.var(ddof=1)) / rows if rows > 1 else np.inf
    interval = student_interval(estimate, [(variance, rows - 1)], confidence)
    return replace(interval, low=max(interval.low, 0.0), p=np.nan)


def bootstrap_gains(
    base: Float[np.ndarray, "seeds rows"],
    methods: Float[np.ndarray, "methods seeds rows"],
    score: Score,
    seed: int = 0,
    draws: int = 1000,
    confidence: float = 0.95,
) -> tuple[
    Float[np.ndarray, "methods seeds"], Float[np.ndarray, " seeds"], list[Interval]
]:
    """One client's gains over a base method, with paired bootstrap intervals.

    Test rows are resampled with replacement. Each resampled row carries its scores by
    all methods in all seeds, so this gives the row component of the variance. The seed
    component is the variance of the seeds' gains divided by the number of seeds, which
    is what resampling seeds gives apart from its bias. Both components form an interval
    as in `two_way_interval`. With fewer than `MIN_SEEDS` seeds there is only the row
    component, and the interval does not generalize to other seeds.

    Where two methods differ on a handful of rows, all in one direction, the bootstrap
    underestimates the variance. If a row's score is bounded (accuracy), two pseudo-rows
    are therefore added, one in favour of each method, as Bonett and Price (2012) do for
    paired proportions. With several seeds their size is the largest difference of any
    row's mean.

    Args:
        base: scores of the base method; NaN where a row is not in a seed's test split.
        methods: scores of the other methods; NaN where `base` is NaN, and in each seed
            that a method was not run with.
        score: the kind of score.
        seed: random seed of the bootstrap.
        draws: number of bootstrap samples.
        confidence: confidence level of the intervals.

    Returns:
        The metric of each method in each seed (NaN where it was not run), the metric of
        the base in each seed, and for each method the interval of its mean gain over
        the seeds that it shares with the base. A positive gain means better.
    """
    # Counting every row once gives the metric itself.
    unit_counts = np.ones((1, base.shape[1]))
    base_values = score.metric(_resampled_means(unit_counts, base)[0])
    values = [
        score.metric(_resampled_means(unit_counts, scores)[0]) for scores in methods
    ]
    intervals = []
    for scores, value in zip(methods, values, strict=True):
        is_shared_seed = ~np.isnan(value) & ~np.isnan(base_values)
        seed_gains = score.sign * (value - base_values)[is_shared_seed]
        intervals.append(
            _gain_interval(
                base[is_shared_seed],
                scores[is_shared_seed],
                seed_gains,
                score,
                seed,
                draws,
                confidence,
            )
        )
    return np.array(values).reshape(len(methods), len(base)), base_values, intervals


def _gain_interval(
    base: NDArray[np.float64],
    scores: NDArray[np.float64],
    seed_gains: NDArray[np.float64],
    score: Score,
    seed: int,
    draws: int,
    confidence: float,
) -> Interval:
    """The interval of one method's mean gain over seeds.

    Args:
        base: scores of the base [seeds, rows].
        scores: scores of the method [seeds, rows].
        seed_gains: [seeds] the method's gain in each seed.
        score, seed, draws, confidence: see `bootstrap_gains`.
    """
    if not len(seed_gains):
        return Interval(np.nan, np.nan, np.nan, np.nan)
    is_tested = ~np.isnan(base).all(axis=0)
    base, scores = base[:, is_tested], scores[:, is_tested]
    rows = base.shape[1]
    differences = score.linear(scores) - score.linear(base)
    if score.bounds is not None:
        base, scores = _add_pseudo_rows(base, scores, score.bounds)
    n_resampled = base.shape[1]
    row_variance = np.inf
    if rows > 1:
        gains = []
        for counts in _resampled_counts(seed, n_resampled, draws):
            gains.append(score.sign * _resampled_gains(counts, base, scores, score))
        # The variance of a mean over n rows drawn with replacement is (n - 1) / n of
        # the unbiased estimate.
        correction = n_resampled / max(n_resampled - 1, 1)
        row_variance = correction * float(np.concatenate(gains).var())
    unit_counts = np.ones((1, n_resampled))
    center = score.sign * float(_resampled_gains(unit_counts, base, scores, score)[0])
    components = variance_components(row_variance, rows - 1, seed_gains, differences)
    interval = student_interval(
        center, components, confidence, estimate=float(seed_gains.mean())
    )
    if score.bounds is None:
        return interval
    # Differences of bounded scores are bounded themselves.
    score_range = score.bounds[1] - score.bounds[0]
    return replace(
        interval,
        low=max(interval.low, -score_range),
        high=min(interval.high, score_range),
    )


def _add_pseudo_rows(
    base: NDArray[np.float64], scores: NDArray[np.float64], bounds: tuple[float, float]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Adds one row in favour of each method; returns both scores [seeds, rows + 2]."""
    low, high = bounds
    largest_difference = float(np.abs(np.nanmean(scores - base, axis=0)).max())
    size = max(largest_difference, (high - low) / len(base))
    low_scores = np.full((len(base), 1), low)
    high_scores = np.full((len(base), 1), low + size)
    base = np.concatenate([base, low_scores, high_scores], axis=1)
    scores = np.concatenate([scores, high_scores, low_scores], axis=1)
    return base, scores


def _resampled_counts(
    seed: int, rows: int, draws: int
) -> Iterator[NDArray[np.float64]]:
    """Yields blocks [draws, rows] of how often each row is drawn.

    The counts are the same for all methods, and for all clients with equally many rows.
    """
    draws_per_block = max(_MAX_BLOCK_SIZE // rows, 1)
    for start in range(0, draws, draws_per_block):
        yield _count_block(seed, rows, start, min(draws - start, draws_per_block))


@lru_cache(maxsize=4)
def _count_block(seed: int, rows: int, start: int, draws: int) -> NDArray[np.float64]:
    """The block of `_resampled_counts` that starts with draw number `start`."""
    rng = np.random.default_rng([seed, rows, start])
    probabilities = np.full(rows, 1 / rows)
    return rng.multinomial(rows, probabilities, size=draws).astype(np.float64)


def _resampled_gains(
    counts: NDArray[np.float64],
    base: NDArray[np.float64],
    scores: NDArray[np.float64],
    score: Score,
) -> NDArray[np.float64]:
    """The difference of the metrics in each draw, averaged over seeds [draws].

    Args:
        counts: how often each row is drawn [draws, rows].
        base, scores: scores of both methods [seeds, rows].
        score: the kind of score.
    """
    method_values = score.metric(_resampled_means(counts, scores))
    base_values = score.metric(_resampled_means(counts, base))
    gains = method_values - base_values  # [draws, seeds]
    # A draw may miss all rows of a seed's small split; the gain of that seed is NaN.
    is_defined = ~np.isnan(gains)
    totals = np.where(is_defined, gains, 0.0).sum(axis=1)
    seed_counts = is_defined.sum(axis=1)
    return np.divide(
        totals, seed_counts, out=np.zeros(len(gains)), where=seed_counts > 0
    )


def _resampled_means(
    counts: NDArray[np.float64], scores: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Mean scores in each draw and seed [draws, seeds]; NaN where no row was drawn.

    Args:
        counts: how often each row is drawn [draws, rows].
        scores: [seeds, rows], NaN where a row is not in a seed's test split.
    """
    is_tested = ~np.isnan(scores)
    sums = counts @ np.where(is_tested, scores, 0.0).T
    row_counts = counts @ is_tested.T.astype(np.float64)
    undefined = np.full(row_counts.shape, np.nan)
    return np.divide(sums, row_counts, out=undefined, where=row_counts > 0)

"""Metrics as means over one client's test rows, and intervals that follow from rows."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from fedtailor.decision.intervals import Interval, student_interval, variance_sources

_COUNTS_AT_ONCE = 1 << 22
"""Numbers in memory at once during a bootstrap (32 MiB)."""


@dataclass(frozen=True)
class Score:
    """A score of each test row, and the metric that follows from it.

    Attributes:
        column: of the table of rows: "loss", "correct" or "squared_error".
        higher_is_better: whether a large mean is good.
        root: the metric is the root of the mean (RMSE).
        bounds: the range of a row's score, where it has one.
    """

    column: str
    higher_is_better: bool
    root: bool = False
    bounds: tuple[float, float] | None = None

    @property
    def sign(self) -> float:
        """1 where high is good, else -1."""
        return 1.0 if self.higher_is_better else -1.0

    def metric(self, means: NDArray[np.float64]) -> NDArray[np.float64]:
        """The metric, from means over rows."""
        return np.sqrt(means) if self.root else means

    def linear(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Each row's contribution [seeds, rows] to the metric, to first order.

        Up to a constant; for a root, by the delta method.
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

    The interval is for other test rows of the same client; it says nothing of other
    trainings. A share of rows (accuracy) has Wilson's interval (1927), which holds for
    few rows and near 0 and 1; a mean has Student's, and a root that of the delta
    method.

    Args:
        scores: of the test rows.
        score: the kind of score.
        confidence: of the interval.
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
        wilson = stats.binomtest(correct, rows).proportion_ci(confidence, "wilson")
        return Interval(estimate, float(wilson.low), float(wilson.high), np.nan)
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
    """One client's gains over the base, with intervals of a paired bootstrap.

    Test rows are drawn with replacement, a row with its scores by all methods in all
    seeds, which gives the variance that comes from rows. That from seeds is the
    variance of the seeds' gains over their number: what drawing seeds gives, but for
    its bias, which is large for three seeds. The two make an interval as in
    `two_way_interval`; with fewer than three seeds rows alone do, and nothing is said
    of other seeds.

    A handful of rows on which two methods differ, all in one direction, would make a
    bootstrap too sure of itself: where a row's score has bounds (accuracy), two rows
    are added, one in favour of either method, as Bonett and Price (2012) do for paired
    proportions. With several seeds their size is the largest difference of any row's
    mean.

    Args:
        base: scores of the method to compare with; NaN where a row is not in a seed's
            test split.
        methods: scores of the others; NaN where the base's are, or for a seed that a
            method lacks.
        score: what the scores are.
        seed: of the draws.
        draws: bootstrap samples.
        confidence: of the intervals.

    Returns:
        The methods' metric in each seed (NaN where lacking), the base's, and for each
        method its mean gain over the seeds that it shares with the base; positive is
        better.
    """
    # Where every row counts once, the result is the metric itself.
    once = np.ones((1, base.shape[1]))
    base_values = score.metric(_means(once, base)[0])
    values = [score.metric(_means(once, scores)[0]) for scores in methods]
    intervals = []
    for scores, value in zip(methods, values, strict=True):
        shared = ~np.isnan(value) & ~np.isnan(base_values)
        by_seed = score.sign * (value - base_values)[shared]
        intervals.append(
            _gain_interval(
                base[shared], scores[shared], by_seed, score, seed, draws, confidence
            )
        )
    return np.array(values).reshape(len(methods), len(base)), base_values, intervals


def _gain_interval(
    base: NDArray[np.float64],
    scores: NDArray[np.float64],
    by_seed: NDArray[np.float64],
    score: Score,
    seed: int,
    draws: int,
    confidence: float,
) -> Interval:
    """The interval of one method's gain.

    Args:
        base: scores of the base [seeds, rows].
        scores: of the method [seeds, rows].
        by_seed: the gain in each seed.
        score, seed, draws, confidence: see `bootstrap_gains`.
    """
    if not len(by_seed):
        return Interval(np.nan, np.nan, np.nan, np.nan)
    was_tested = ~np.isnan(base).all(axis=0)
    base, scores = base[:, was_tested], scores[:, was_tested]
    rows = base.shape[1]
    differences = score.linear(scores) - score.linear(base)
    if score.bounds is not None:
        base, scores = _with_two_rows(base, scores, score.bounds)
    resampled_rows = base.shape[1]
    over_rows = np.inf
    if rows > 1:
        gains = []
        for counts in _resampled_counts(seed, resampled_rows, draws):
            gains.append(score.sign * _gain(counts, base, scores, score))
        # The variance of a mean over n rows drawn with replacement is (n - 1) / n of
        # the unbiased estimate.
        correction = resampled_rows / max(resampled_rows - 1, 1)
        over_rows = correction * float(np.concatenate(gains).var())
    once = np.ones((1, resampled_rows))
    centre = score.sign * float(_gain(once, base, scores, score)[0])
    sources = variance_sources(over_rows, rows - 1, by_seed, differences)
    interval = student_interval(
        centre, sources, confidence, estimate=float(by_seed.mean())
    )
    if score.bounds is None:
        return interval
    # Differences of bounded scores are bounded themselves.
    largest = score.bounds[1] - score.bounds[0]
    return replace(
        interval, low=max(interval.low, -largest), high=min(interval.high, largest)
    )


def _with_two_rows(
    base: NDArray[np.float64], scores: NDArray[np.float64], bounds: tuple[float, float]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Add a row in favour of either method: scores [seeds, rows + 2] of both."""
    low, high = bounds
    largest_difference = float(np.abs(np.nanmean(scores - base, axis=0)).max())
    size = max(largest_difference, (high - low) / len(base))
    worse = np.full((len(base), 1), low)
    better = np.full((len(base), 1), low + size)
    base = np.concatenate([base, worse, better], axis=1)
    scores = np.concatenate([scores, better, worse], axis=1)
    return base, scores


def _resampled_counts(
    seed: int, rows: int, draws: int
) -> Iterator[NDArray[np.float64]]:
    """How often each row is drawn, for a block of draws at a time [draws, rows].

    The counts are the same for all methods, and for all clients of one size.
    """
    at_once = max(_COUNTS_AT_ONCE // rows, 1)
    for start in range(0, draws, at_once):
        yield _counts(seed, rows, start, min(draws - start, at_once))


@lru_cache(maxsize=4)
def _counts(seed: int, rows: int, start: int, draws: int) -> NDArray[np.float64]:
    """The block of `_resampled_counts` that begins with draw number `start`."""
    rng = np.random.default_rng([seed, rows, start])
    equal = np.full(rows, 1 / rows)
    return rng.multinomial(rows, equal, size=draws).astype(np.float64)


def _gain(
    counts: NDArray[np.float64],
    base: NDArray[np.float64],
    scores: NDArray[np.float64],
    score: Score,
) -> NDArray[np.float64]:
    """The difference of metrics in each draw, a mean over seeds [draws].

    Args:
        counts: how often each row counts [draws, rows].
        base, scores: of both methods [seeds, rows].
        score: the kind of score.
    """
    method_values = score.metric(_means(counts, scores))
    base_values = score.metric(_means(counts, base))
    gains = method_values - base_values  # [draws, seeds]
    # A draw may have no row of a seed's small split, and then no gain in that seed.
    is_known = ~np.isnan(gains)
    totals = np.where(is_known, gains, 0.0).sum(axis=1)
    numbers = is_known.sum(axis=1)
    return np.divide(totals, numbers, out=np.zeros(len(gains)), where=numbers > 0)


def _means(
    counts: NDArray[np.float64], scores: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Means of scores in each draw and seed [draws, seeds]; NaN without any row.

    Args:
        counts: how often each row counts [draws, rows].
        scores: [seeds, rows], NaN where a row is not in a seed's split.
    """
    is_known = ~np.isnan(scores)
    sums = counts @ np.where(is_known, scores, 0.0).T
    numbers = counts @ is_known.T.astype(np.float64)
    without_rows = np.full(numbers.shape, np.nan)
    return np.divide(sums, numbers, out=without_rows, where=numbers > 0)

"""A metric as a mean over test rows, and intervals that follow from the rows: of one
client, in one run or several.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from fedtailor.decision.intervals import Interval, student_interval, variance_sources

_COUNTS_AT_ONCE = 1 << 22
"""Numbers that a bootstrap holds at once (32 MiB)."""


@dataclass(frozen=True)
class Score:
    """What is known of each test row, and how a method's metric follows from it.

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
        """Each row's part [seeds, rows] in the metric, to first order, up to a
        constant.
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
    """One client's metric in one run, as it might be on other test rows of its; nothing
    is said of other trainings.

    A share of rows (accuracy) has Wilson's interval (1927), which holds for few rows
    and near 0 and 1; a mean has Student's, and a root that of the delta method.

    Args:
        scores: of the test rows.
        score: what they are.
        confidence: of the interval.
    """
    values = np.asarray(scores, np.float64)
    rows = len(values)
    if not rows:
        return Interval(np.nan, np.nan, np.nan, np.nan)
    estimate = float(score.metric(values.mean(keepdims=True))[0])
    if score.bounds == (0.0, 1.0):
        from scipy import (
            stats,
        )  # 30 MB, which clients of a federation of machines never need

        right = round(float(values.sum()))
        wilson = stats.binomtest(right, rows).proportion_ci(confidence, "wilson")
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
    """One client's gains over the base, each with the interval of a paired bootstrap
    over test rows and seeds.

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
    once = np.ones((1, base.shape[1]))  # every row counts once: the metric itself
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
    """The interval of one method's gain, from scores [seeds, rows] and the seeds' gains
    [seeds].
    """
    if not len(by_seed):
        return Interval(np.nan, np.nan, np.nan, np.nan)
    present = ~np.isnan(base).all(axis=0)
    base, scores = base[:, present], scores[:, present]
    rows = base.shape[1]
    differences = score.linear(scores) - score.linear(base)
    if score.bounds is not None:
        base, scores = _with_two_rows(base, scores, score.bounds)
    resampled_rows = base.shape[1]
    gains = []
    for counts in _resampled(seed, resampled_rows, draws):
        gains.append(score.sign * _gain(counts, base, scores, score))
    # The variance of a mean over n rows drawn with replacement is (n - 1) / n of the
    # unbiased estimate.
    correction = resampled_rows / max(resampled_rows - 1, 1)
    over_rows = correction * float(np.concatenate(gains).var()) if rows > 1 else np.inf
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
    """Both methods' scores [seeds, rows + 2], with one more row in favour of either."""
    low, high = bounds
    largest_difference = float(np.abs(np.nanmean(scores - base, axis=0)).max())
    size = max(largest_difference, (high - low) / len(base))
    worse = np.full((len(base), 1), low)
    better = np.full((len(base), 1), low + size)
    base = np.concatenate([base, worse, better], axis=1)
    scores = np.concatenate([scores, better, worse], axis=1)
    return base, scores


def _resampled(seed: int, rows: int, draws: int) -> Iterator[NDArray[np.float64]]:
    """How often each row is drawn, [some draws, rows] at a time; the same for all
    methods, and clients of one size.
    """
    at_once = max(_COUNTS_AT_ONCE // rows, 1)
    for start in range(0, draws, at_once):
        yield _counts(seed, rows, start, min(draws - start, at_once))


@lru_cache(maxsize=4)
def _counts(seed: int, rows: int, start: int, draws: int) -> NDArray[np.float64]:
    """`_resampled` from draw number `start` on."""
    rng = np.random.default_rng([seed, rows, start])
    return rng.multinomial(rows, np.full(rows, 1 / rows), size=draws).astype(np.float64)


def _gain(
    counts: NDArray[np.float64],
    base: NDArray[np.float64],
    scores: NDArray[np.float64],
    score: Score,
) -> NDArray[np.float64]:
    """Mean over seeds of the difference of metrics [draws], for rows that count so
    often [draws, rows].
    """
    gains = score.metric(_means(counts, scores)) - score.metric(_means(counts, base))
    # A draw may hold no row of a small split: it then has no gain of that seed.
    known = ~np.isnan(gains)
    total = np.where(known, gains, 0.0).sum(axis=1)
    return np.divide(
        total, known.sum(axis=1), out=np.zeros(len(gains)), where=known.any(axis=1)
    )


def _means(
    counts: NDArray[np.float64], scores: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Means [draws, seeds] of scores [seeds, rows] over rows that count so often
    [draws, rows]; NaN without any.
    """
    known = ~np.isnan(scores)
    sums = counts @ np.where(known, scores, 0.0).T
    numbers = counts @ known.T.astype(np.float64)
    return np.divide(
        sums, numbers, out=np.full(numbers.shape, np.nan), where=numbers > 0
    )

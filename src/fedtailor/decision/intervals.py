"""Confidence intervals of paired differences that vary over two things: test rows (or clients) and training seeds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

_COUNTS_AT_ONCE = 1 << 22
"""Numbers that a bootstrap holds at once (32 MiB)."""
LEAST_SEEDS = 3
"""From fewer seeds nothing can be said of others (of two, Student's quantile is 12.7): intervals then speak of the
trainings at hand."""
_LEAST_LOG_P = -300.0
"""Smaller p-values count as 0."""


@dataclass(frozen=True)
class Interval:
    """An estimate, its confidence interval and the p-value of "it is 0" (two-sided).

    The interval excludes 0 exactly where p is below 1 - confidence. Without anything to estimate from all are NaN;
    where nothing tells the uncertainty (one row, one client) the interval is infinite and p is 1.
    """

    estimate: float
    low: float
    high: float
    p: float

    @property
    def verdict(self) -> str:
        """ "helps" or "hurts" where the interval excludes 0 (positive is better), else "cannot tell"."""
        if self.low > 0:
            return "helps"
        return "hurts" if self.high < 0 else "cannot tell"


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
        """Each row's part [seeds, rows] in the metric, to first order, up to a constant."""
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


def two_way_interval(differences: Float[np.ndarray, "seeds clients"], confidence: float = 0.95) -> Interval:
    """The mean paired difference of two methods, over clients and seeds as they might have been drawn.

    A client's differences in several seeds are no independent observations, and neither are those of all clients in
    one seed, for they share a federated training: clients and seeds are crossed clusters. The variance of the mean is
    that of the clients' means over seeds, plus that of the seeds' means over clients, less the residual's, which both
    contain; each source has the degrees of freedom of its number less one (`student_interval`). That is what a
    bootstrap that draws clients with all their seeds, and seeds with all their clients, would give with infinitely
    many draws, but for its bias, which is large for three seeds. With fewer than three seeds only clients vary, and
    nothing is said of other seeds.

    Args:
        differences: NaN where a client was not measured in a seed. A client, or seed, without any is left out.
        confidence: of the interval.

    Returns:
        The mean over clients of their means over seeds, and its interval; all NaN without any difference.
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
    sources = _sources(over_clients, clients - 1, by_seed, values)
    return student_interval(float(by_client.mean()), sources, confidence)


def student_interval(
    centre: float,
    sources: Sequence[tuple[float, int]],
    confidence: float,
    *,
    estimate: float | None = None,
) -> Interval:
    """An interval for a mean whose variance has several sources, each estimated from few values.

    The reach is the root of the sum of t_k^2 V_k, with each source's own quantile of Student's t: exact where one
    source is all there is, and wider than needed in between (Cochran's rule; Satterthwaite's degrees of freedom are
    too optimistic where three seeds happen to agree).

    Args:
        centre: of the interval.
        sources: of each the variance of the mean that it brings (infinite where it cannot be judged), and its
            degrees of freedom.
        confidence: of the interval, in (0, 1).
        estimate: what to report, where it is not the centre.

    Returns:
        The interval, and the p-value of "the mean is 0": the level at which the interval would just exclude 0.
    """
    from scipy import optimize, special  # 30 MB, which clients of a federation of machines never need

    estimate = centre if estimate is None else estimate
    if np.isnan(centre):
        return Interval(np.nan, np.nan, np.nan, np.nan)

    # In logarithms, since p-values of 1e-100 do occur and a root finder's steps are absolute.
    def reach(log_alpha: float) -> float:
        alpha = np.exp(log_alpha)
        squares = (variance * special.stdtrit(df, alpha / 2) ** 2 for variance, df in sources if variance > 0)
        return float(np.sqrt(sum(squares, 0.0)))

    total = sum(variance for variance, _ in sources)
    if not np.isfinite(total):
        return Interval(estimate, -np.inf, np.inf, 1.0)
    half_width = reach(np.log1p(-confidence))
    low, high = centre - half_width, centre + half_width
    if centre == 0:
        return Interval(estimate, low, high, 1.0)
    if total == 0 or reach(_LEAST_LOG_P) <= abs(centre):
        return Interval(estimate, low, high, 0.0)
    solution = optimize.root_scalar(lambda log_p: reach(log_p) - abs(centre), bracket=(_LEAST_LOG_P, 0.0))
    return Interval(estimate, low, high, float(np.exp(solution.root)))


def metric_interval(scores: Float[np.ndarray, " rows"], score: Score, confidence: float = 0.95) -> Interval:
    """One client's metric in one run, as it might be on other test rows of its; nothing is said of other trainings.

    A share of rows (accuracy) has Wilson's interval (1927), which holds for few rows and near 0 and 1; a mean has
    Student's, and a root that of the delta method.

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
        from scipy import stats  # see above

        found = stats.binomtest(round(float(values.sum())), rows).proportion_ci(confidence, "wilson")
        return Interval(estimate, float(found.low), float(found.high), np.nan)
    linear = score.linear(values[None])[0]
    variance = float(linear.var(ddof=1)) / rows if rows > 1 else np.inf
    found = student_interval(estimate, [(variance, rows - 1)], confidence)
    return replace(found, low=max(found.low, 0.0), p=np.nan)


def bootstrap_gains(
    base: Float[np.ndarray, "seeds rows"],
    methods: Float[np.ndarray, "methods seeds rows"],
    score: Score,
    seed: int = 0,
    draws: int = 1000,
    confidence: float = 0.95,
) -> tuple[Float[np.ndarray, "methods seeds"], Float[np.ndarray, " seeds"], list[Interval]]:
    """One client's gains over the base, each with the interval of a paired bootstrap over test rows and seeds.

    Test rows are drawn with replacement, a row with its scores by all methods in all seeds, which gives the variance
    that comes from rows. That from seeds is the variance of the seeds' gains over their number: what drawing seeds
    gives, but for its bias, which is large for three seeds. The two make an interval as in `two_way_interval`; with
    fewer than three seeds rows alone do, and nothing is said of other seeds.

    A handful of rows on which two methods differ, all in one direction, would make a bootstrap too sure of itself:
    where a row's score has bounds (accuracy), two rows are added, one in favour of either method, as Bonett and Price
    (2012) do for paired proportions. With several seeds their size is the largest difference of any row's mean.

    Args:
        base: scores of the method to compare with; NaN where a row is not in a seed's test split.
        methods: scores of the others; NaN where the base's are, or for a seed that a method lacks.
        score: what the scores are.
        seed: of the draws.
        draws: bootstrap samples.
        confidence: of the intervals.

    Returns:
        The methods' metric in each seed (NaN where lacking), the base's, and for each method its mean gain over the
        seeds that it shares with the base; positive is better.
    """
    once = np.ones((1, base.shape[1]))  # every row counts once: the metric itself
    base_values = score.metric(_means(once, base)[0])
    values = [score.metric(_means(once, scores)[0]) for scores in methods]
    intervals = []
    for scores, value in zip(methods, values, strict=True):
        shared = ~np.isnan(value) & ~np.isnan(base_values)
        by_seed = score.sign * (value - base_values)[shared]
        intervals.append(_gain_interval(base[shared], scores[shared], by_seed, score, seed, draws, confidence))
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
    """The interval of one method's gain, from scores [seeds, rows] and the seeds' gains [seeds]."""
    if not len(by_seed):
        return Interval(np.nan, np.nan, np.nan, np.nan)
    present = ~np.isnan(base).all(axis=0)
    base, scores = base[:, present], scores[:, present]
    rows = base.shape[1]
    differences = score.linear(scores) - score.linear(base)
    if score.bounds is not None:
        base, scores = _with_two_rows(base, scores, score.bounds)
    resampled_rows = base.shape[1]
    gains = [score.sign * _gain(counts, base, scores, score) for counts in _resampled(seed, resampled_rows, draws)]
    # The variance of a mean over n rows drawn with replacement is (n - 1) / n of the unbiased estimate.
    correction = resampled_rows / max(resampled_rows - 1, 1)
    over_rows = correction * float(np.concatenate(gains).var()) if rows > 1 else np.inf
    centre = score.sign * float(_gain(np.ones((1, resampled_rows)), base, scores, score)[0])
    sources = _sources(over_rows, rows - 1, by_seed, differences)
    interval = student_interval(centre, sources, confidence, estimate=float(by_seed.mean()))
    if score.bounds is None:
        return interval
    # Differences of bounded scores are bounded themselves.
    largest = score.bounds[1] - score.bounds[0]
    return replace(interval, low=max(interval.low, -largest), high=min(interval.high, largest))


def _with_two_rows(
    base: NDArray[np.float64], scores: NDArray[np.float64], bounds: tuple[float, float]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Both methods' scores [seeds, rows + 2], with one more row in favour of either."""
    low, high = bounds
    largest_difference = float(np.abs(np.nanmean(scores - base, axis=0)).max())
    size = max(largest_difference, (high - low) / len(base))
    worse = np.full((len(base), 1), low)
    better = np.full((len(base), 1), low + size)
    return np.concatenate([base, worse, better], axis=1), np.concatenate([scores, better, worse], axis=1)


def _resampled(seed: int, rows: int, draws: int) -> Iterator[NDArray[np.float64]]:
    """How often each row is drawn, [some draws, rows] at a time; the same for all methods, and clients of one size."""
    at_once = max(_COUNTS_AT_ONCE // rows, 1)
    for start in range(0, draws, at_once):
        yield _counts(seed, rows, start, min(draws - start, at_once))


@lru_cache(maxsize=4)
def _counts(seed: int, rows: int, start: int, draws: int) -> NDArray[np.float64]:
    rng = np.random.default_rng([seed, rows, start])
    return rng.multinomial(rows, np.full(rows, 1 / rows), size=draws).astype(np.float64)


def _gain(
    counts: NDArray[np.float64], base: NDArray[np.float64], scores: NDArray[np.float64], score: Score
) -> NDArray[np.float64]:
    """Mean over seeds of the difference of metrics [draws], for rows that count so often [draws, rows]."""
    gains = score.metric(_means(counts, scores)) - score.metric(_means(counts, base))
    # A draw may hold no row of a small split: it then has no gain of that seed.
    known = ~np.isnan(gains)
    total = np.where(known, gains, 0.0).sum(axis=1)
    return np.divide(total, known.sum(axis=1), out=np.zeros(len(gains)), where=known.any(axis=1))


def _means(counts: NDArray[np.float64], scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Means [draws, seeds] of scores [seeds, rows] over rows that count so often [draws, rows]; NaN without any."""
    known = ~np.isnan(scores)
    sums = counts @ np.where(known, scores, 0.0).T
    numbers = counts @ known.T.astype(np.float64)
    return np.divide(sums, numbers, out=np.full(numbers.shape, np.nan), where=numbers > 0)


def _sources(
    over_rows: float, degrees: int, by_seed: NDArray[np.float64], values: NDArray[np.float64]
) -> list[tuple[float, int]]:
    """The variance of the mean that comes from rows and from seeds, each with its degrees of freedom.

    Both contain the residual's part, which is taken off the one with more degrees of freedom: the other one would then
    be a difference of two uncertain numbers. Where rows differ from seed to seed it is not known, and nothing is
    taken off.

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
        residual = values - values.mean(axis=0) - values.mean(axis=1, keepdims=True) + values.mean()
        residual_degrees = (seeds - 1) * (rows - 1)
        residual_variance = float(np.square(residual).sum()) / residual_degrees / values.size
    if degrees >= seeds - 1:
        over_rows = max(over_rows - residual_variance, 0.0)
    else:
        over_seeds = max(over_seeds - residual_variance, 0.0)
    return [(over_rows, degrees), (over_seeds, seeds - 1)]

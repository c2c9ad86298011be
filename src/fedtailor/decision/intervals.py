"""Confidence intervals of paired differences that vary over two things: test rows (or clients) and training seeds."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray
from scipy import stats

_WEIGHTS_AT_ONCE = 1 << 22
"""Numbers that a bootstrap holds at once (32 MiB)."""


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

    def metric(self, means: NDArray[np.float64]) -> NDArray[np.float64]:
        """The metric, from means over rows."""
        return np.sqrt(means) if self.root else means


SCORES = {
    "accuracy": Score("correct", higher_is_better=True, bounds=(0.0, 1.0)),
    "loss": Score("loss", higher_is_better=False),
    "rmse": Score("squared_error", higher_is_better=False, root=True),
}
"""Metrics that follow from the table of test rows, by name."""


def student_interval(
    estimate: float, variances: ArrayLike, degrees: ArrayLike, confidence: float, *, shown: float | None = None
) -> Interval:
    """estimate +- t sqrt(sum of variances), with the degrees of freedom of Satterthwaite (1946).

    Args:
        estimate: centre of the interval.
        variances: [k] of the estimate, one for each source; infinite where a source cannot be judged.
        degrees: [k] on how many independent values, less one, each rests.
        confidence: of the interval, in (0, 1).
        shown: the estimate to report, where it is not the centre.
    """
    parts, freedom = np.asarray(variances, np.float64), np.asarray(degrees, np.float64)
    shown, variance = estimate if shown is None else shown, float(parts.sum())
    if np.isnan(estimate):
        return Interval(np.nan, np.nan, np.nan, np.nan)
    if not np.isfinite(variance):
        return Interval(shown, -np.inf, np.inf, 1.0)
    if variance == 0:
        return Interval(shown, estimate, estimate, 1.0 if estimate == 0 else 0.0)
    used = parts > 0
    shares = parts[used] / variance
    df = 1 / float((shares**2 / freedom[used]).sum())
    error = np.sqrt(variance)
    reach = stats.t.ppf((1 + confidence) / 2, df) * error
    return Interval(shown, estimate - reach, estimate + reach, float(2 * stats.t.sf(abs(estimate) / error, df)))


def two_way_interval(differences: Float[np.ndarray, "seeds clients"], confidence: float = 0.95) -> Interval:
    """The mean paired difference of two methods, over clients and seeds as they might have been drawn.

    A client's differences in several seeds are no independent observations, and neither are those of all clients in
    one seed, for they share a federated training. So the variance of the mean is that of the clients' means over
    seeds, plus that of the seeds' means over clients, each on as many degrees of freedom as there are clients or
    seeds, less one: what a cluster bootstrap that draws clients with all their seeds, and seeds with all their
    clients, converges to, with Student's quantile in place of the normal one. What neither explains is counted twice,
    which errs on the side of caution. With one seed only clients vary, and nothing is said of other seeds.

    Args:
        differences: NaN where a client was not measured in a seed. A client, or seed, without any is left out.
        confidence: of the interval.
    """
    values = np.asarray(differences, np.float64)
    known = ~np.isnan(values)
    values, known = values[:, known.any(axis=0)], known[:, known.any(axis=0)]
    values, known = values[known.any(axis=1)], known[known.any(axis=1)]
    if not values.size:
        return Interval(np.nan, np.nan, np.nan, np.nan)
    by_client, by_seed = np.nanmean(values, axis=0), np.nanmean(values, axis=1)
    clients, seeds = len(by_client), len(by_seed)
    over_clients = by_client.var(ddof=1) / clients if clients > 1 else np.inf
    over_seeds = by_seed.var(ddof=1) / seeds if seeds > 1 else 0.0
    return student_interval(
        float(by_client.mean()), [over_clients, over_seeds], [max(clients - 1, 1), max(seeds - 1, 1)], confidence
    )


def bootstrap_gains(
    base: Float[np.ndarray, "seeds rows"],
    methods: Float[np.ndarray, "methods seeds rows"],
    score: Score,
    rng: np.random.Generator,
    draws: int = 1000,
    confidence: float = 0.95,
) -> tuple[Float[np.ndarray, "methods seeds"], Float[np.ndarray, " seeds"], list[Interval]]:
    """One client's gains over the base, each with the interval of a paired bootstrap over test rows and seeds.

    Test rows are drawn with replacement, a row with its scores by all methods in all seeds; the variance of the
    gain's mean over seeds under this is that of the rows. To it the variance of the seeds' gains over their number is
    added (what drawing seeds gives, but for its bias, which is large for three seeds), and the interval is Student's.
    A handful of rows on which two methods differ, all in one direction, would make a bootstrap too sure of itself; as
    Bonett and Price (2012) do for paired proportions, two rows are added, one in favour of either method: (0, 1) and
    (1, 0) for accuracy, else the row on which they differ most, and the same with methods exchanged.

    Args:
        base: scores of the method to compare with; NaN where a row is not in a seed's test split.
        methods: scores of the others; NaN where the base's are, or for a seed that a method lacks.
        score: what the scores are.
        rng: draws the rows.
        draws: bootstrap samples.
        confidence: of the intervals.

    Returns:
        The methods' metric in each seed (NaN where lacking), the base's, and for each method its mean gain over the
        seeds that it shares with the base; positive is better.
    """
    sign = 1.0 if score.higher_is_better else -1.0
    weights_base = ~np.isnan(base)
    own = _means(np.ones((1, base.shape[1])), base)[0]
    values = np.stack([_means(np.ones((1, base.shape[1])), scores)[0] for scores in methods]) if len(methods) else (
        np.zeros((0, len(base))))  # fmt: skip
    shared = ~np.isnan(values) & weights_base.any(axis=1)
    samples = [
        _extended(base[use], scores[use], score) if use.any() else None
        for use, scores in zip(shared, methods, strict=True)
    ]
    drawn = _resampled_gains(samples, base.shape[1], score, rng, draws)
    intervals = []
    for use, pair, gains, mine in zip(shared, samples, drawn, values, strict=True):
        if pair is None:
            intervals.append(Interval(np.nan, np.nan, np.nan, np.nan))
            continue
        by_seed = sign * (score.metric(mine[use]) - score.metric(own[use]))
        rows, seeds = int(weights_base[use].any(axis=0).sum()), len(by_seed)
        over_rows = float(gains.var(ddof=1)) if rows > 1 else np.inf
        over_seeds = float(by_seed.var(ddof=1)) / seeds if seeds > 1 else 0.0
        centre = sign * float(_gain(np.ones((1, pair[0].shape[1])), pair, score)[0])
        interval = student_interval(
            centre, [over_rows, over_seeds], [max(rows - 1, 1), max(seeds - 1, 1)], confidence,
            shown=float(by_seed.mean()),
        )  # fmt: skip
        intervals.append(interval)
    return score.metric(values), score.metric(own), intervals


def _extended(
    base: NDArray[np.float64], scores: NDArray[np.float64], score: Score
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Both methods' scores [seeds, rows + 2], with one more row in favour of either."""
    if score.bounds is not None:
        low, high = (np.full((len(base), 1), bound) for bound in score.bounds)
    else:
        widest = np.nanargmax(np.abs(scores - base))
        low, high = (np.full((len(base), 1), values.flat[widest]) for values in (base, scores))
    return np.concatenate([base, low, high], axis=1), np.concatenate([scores, high, low], axis=1)


def _resampled_gains(
    pairs: list[tuple[NDArray[np.float64], NDArray[np.float64]] | None],
    rows: int,
    score: Score,
    rng: np.random.Generator,
    draws: int,
) -> NDArray[np.float64]:
    """Gains [pairs, draws] (up to their sign) on rows drawn with replacement, the same ones for all methods."""
    gains, drawn = np.zeros((len(pairs), draws)), 0
    extended = rows + 2
    while drawn < draws:
        some = min(draws - drawn, max(_WEIGHTS_AT_ONCE // extended, 1))
        counts = rng.multinomial(extended, np.full(extended, 1 / extended), size=some).astype(np.float64)
        for index, pair in enumerate(pairs):
            if pair is not None:
                gains[index, drawn : drawn + some] = _gain(counts, pair, score)
        drawn += some
    return gains


def _gain(
    counts: NDArray[np.float64], pair: tuple[NDArray[np.float64], NDArray[np.float64]], score: Score
) -> NDArray[np.float64]:
    """Mean over seeds of the difference of metrics, for rows that count so often [draws, rows]."""
    base, scores = pair
    gains = score.metric(_means(counts, scores)) - score.metric(_means(counts, base))
    # A draw may hold no row of a small split; the seed then tells nothing.
    known = ~np.isnan(gains)
    return np.divide(np.where(known, gains, 0).sum(axis=1), known.sum(axis=1), out=np.zeros(len(gains)),
                     where=known.any(axis=1))  # fmt: skip


def _means(counts: NDArray[np.float64], scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Means [draws, seeds] of scores [seeds, rows] over rows that count so often [draws, rows]; NaN without any."""
    known = ~np.isnan(scores)
    total = counts @ known.T.astype(np.float64)
    return np.divide(counts @ np.where(known, scores, 0.0).T, total, out=np.full(total.shape, np.nan), where=total > 0)

"""Confidence intervals of paired differences over rows or clients and over seeds."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

MIN_SEEDS = 3
"""With fewer seeds, intervals do not generalize to other seeds.

With two seeds, Student's quantile is already 12.7.
"""
LEARNT = 0.5
"""The variance of a difference due to training rows, in units of that due to as many test
rows: a half for least squares with few inputs (`benchmarks/mean_gains.py`)."""
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


@dataclass(frozen=True)
class Splits:
    """How each seed splits the rows of each client.

    Attributes:
        test: share of a client's rows that one seed tests.
        folds: the number of seeds that together test every row once; None where each
            seed draws its test rows at random.

    Example:
        >>> from fedtailor.statistics.decision import Splits
        >>> Splits(0.2, folds=5).overlap(10)
        0.111...
    """

    test: float
    folds: int | None = None

    def overlap(self, seeds: int) -> float:
        """The share of one seed's test rows that another seed tests, mean over pairs."""
        if self.folds is None:
            return self.test
        # Parts of one division have no row in common.
        others = max(seeds - self.folds, 0) / max(seeds - 1, 1)
        return others * self.test


def two_way_interval(
    differences: Float[np.ndarray, "seeds clients"], confidence: float = 0.95
) -> Interval:
    """The mean paired difference of two methods, for clients like these.

    The differences are not independent: one client appears in several seeds, and all
    clients of a seed share a federated training. Clients and seeds are therefore
    crossed clusters. The variance of the mean is that of the clients' means over seeds,
    which contains what single clients vary by from seed to seed, and what seeds add to
    all clients alike. Both have as many degrees of freedom as there are clusters, minus
    one (see `student_interval`).

    With fewer than `MIN_SEEDS` seeds only clients count as random, and the interval does
    not generalize to other seeds.

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
    center, components = _of_clients_like_these(_measured(differences))
    return student_interval(center, components, confidence)


def two_way_variance(differences: Float[np.ndarray, "seeds clients"]) -> float:
    """The variance of the mean in `two_way_interval`; NaN without any difference."""
    _, components = _of_clients_like_these(_measured(differences))
    return sum((variance for variance, _ in components), 0.0) if components else np.nan


def resampled_interval(
    differences: Float[np.ndarray, "seeds clients"],
    splits: Splits,
    confidence: float = 0.95,
) -> Interval:
    """The mean paired difference of two methods, for these clients and new rows of them.

    Args:
        differences: as for `two_way_interval`, of `MIN_SEEDS` seeds or more.
        splits: how seeds divide the rows.
        confidence: confidence level of the interval.

    Example:
        >>> from fedtailor.statistics.decision import Splits, resampled_interval
        >>> values = np.array([[1.0, 2.0], [2.0, 3.0], [1.5, 2.5]])
        >>> resampled_interval(values, Splits(0.2)).estimate
        2.0
    """
    center, components = _of_these_clients(_measured(differences), splits)
    return student_interval(center, components, confidence)


def resampled_variance(
    differences: Float[np.ndarray, "seeds clients"], splits: Splits
) -> float:
    """The variance of the mean in `resampled_interval`; NaN without any difference."""
    _, components = _of_these_clients(_measured(differences), splits)
    return sum((variance for variance, _ in components), 0.0) if components else np.nan


Components = list[tuple[float, float]]
"""Parts of the variance of a mean, each with its degrees of freedom."""


def _measured(
    differences: Float[np.ndarray, "seeds clients"],
) -> Float[np.ndarray, "s c"]:
    """The differences of the seeds and clients that have any."""
    values = np.asarray(differences, np.float64)
    is_measured = ~np.isnan(values)
    return values[is_measured.any(axis=1)][:, is_measured.any(axis=0)]


def _of_clients_like_these(
    values: Float[np.ndarray, "s c"],
) -> tuple[float, Components]:
    """The mean over clients and seeds, and the components of its variance.

    The mean is never more certain than the clients' changes from seed to seed allow:
    where few clients agree by chance, what is missing is a third component.
    """
    if not values.size:
        return np.nan, []
    means = np.nanmean(values, axis=0)
    seeds, clients = values.shape
    # A single client does not determine the variance between clients.
    between = float(means.var(ddof=1)) / clients if clients > 1 else np.inf
    components: Components = [(between, clients - 1)]
    if seeds >= MIN_SEEDS:
        own, degrees, common = _over_seeds(values)
        missing = max((own - common) / seeds - between, 0.0)
        components += [(common / seeds, seeds - 1), (missing, degrees)]
    return float(means.mean()), components


def _of_these_clients(
    values: Float[np.ndarray, "s c"], splits: Splits
) -> tuple[float, Components]:
    """As `_of_clients_like_these`, where clients would be the same.

    What changes from seed to seed for single clients has two causes. Other test rows
    count by the share of them that seeds have in common, and models vary with their
    training rows, which seeds share as well, by a part of that again (`LEARNT`).
    Trainings that only happened to do better are independent. They are what repetitions
    differ by, in each of which every row is tested. Without repetitions all is laid to
    the rows, and for random splits only to these (Nadeau and Bengio 2003).
    """
    if not values.size:
        return np.nan, []
    seeds, folds = len(values), splits.folds
    own, degrees, common = _over_seeds(values)
    trained = 0.0
    if folds is not None and seeds >= 2 * folds and seeds % folds == 0:
        repeated = values.reshape(-1, folds, values.shape[1])
        tested = (~np.isnan(repeated)).sum(axis=1)
        sums = np.nansum(repeated, axis=1)
        means = np.divide(
            sums, tested, out=np.full(sums.shape, np.nan), where=tested > 0
        )
        between, certainty, _ = _over_seeds(means)
        # Of few clients this is a guess, and too much of it makes the interval narrow.
        trained = min(folds * between * certainty / (certainty + 2), own)
    overlap = splits.overlap(seeds)
    of_rows = (own - trained) / (1 - overlap)
    share = overlap + (1 - overlap) / seeds
    if folds is not None:
        share += LEARNT * splits.test / (1 - splits.test)
    center = float(np.nanmean(values, axis=0).mean())
    return center, [
        (of_rows * share + trained / seeds, degrees),
        (common / seeds, seeds - 1),
    ]


def _over_seeds(values: Float[np.ndarray, "s c"]) -> tuple[float, float, float]:
    """What a seed's mean over clients varies by from seed to seed.

    Returns:
        The variance due to changes of single clients (other test rows, and trainings that
        do better for one client), its degrees of freedom, and the variance due to
        changes that all clients have in common. Infinite with a single seed.
    """
    is_measured = ~np.isnan(values)
    several = is_measured.sum(axis=0) > 1
    if not several.any():
        return np.inf, 1, 0.0
    values, is_measured = values[:, several], is_measured[:, several]
    counts = is_measured.sum(axis=0)
    seeds, clients = values.shape
    changes = np.where(is_measured, values - np.nanmean(values, axis=0), 0.0)
    variances = np.square(changes).sum(axis=0) / (counts - 1)
    # What each seed adds to the mean over clients.
    by_seed = (changes * seeds / counts).mean(axis=1)
    total = float(np.square(by_seed).sum()) / (seeds - 1)
    squares = float((np.square(variances) / (counts - 1)).sum())
    # Satterthwaite's degrees of freedom of a sum of variances.
    degrees = float(variances.sum()) ** 2 / squares if squares > 0 else 1.0
    if clients == 1:
        return total, degrees, 0.0
    own = float((variances * seeds / counts).sum()) / clients**2
    # Each client's variance contains what is common, which their mean has once.
    own = max(own - total / clients, 0.0) * clients / (clients - 1)
    degrees = max(degrees * (clients - 1) / clients, 1.0)
    return own, degrees, max(total - own, 0.0)


def student_interval(
    center: float,
    components: Sequence[tuple[float, float]],
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


def wilson_interval(proportion: float, rows: float, confidence: float) -> Interval:
    """Wilson's (1927) interval of a proportion of rows, without a p-value.

    Args:
        proportion: from 0 to 1.
        rows: their number, which weights may make a fraction.
        confidence: such as 0.95.
    """
    # SciPy takes 30 MB, which clients of a federation of machines never need.
    from scipy import special

    square = float(special.ndtri((1 + confidence) / 2)) ** 2 / rows
    center = (proportion + square / 2) / (1 + square)
    spread = proportion * (1 - proportion) * square + square**2 / 4
    half_width = float(np.sqrt(spread)) / (1 + square)
    return Interval(
        proportion,
        max(center - half_width, 0.0),
        min(center + half_width, 1.0),
        np.nan,
    )

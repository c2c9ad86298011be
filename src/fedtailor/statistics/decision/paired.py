"""Differences of two methods on the same test rows, and the variance that seeds add.

The worth of a method (see `Score.worth`) for one client differs from seed to seed by
three causes: other test rows (A, where each seed splits the rows differently), rows that another
training answers otherwise (E), and trainings that are better or worse as a whole (B).
Rows determine A and E for each client. B is what seeds vary by beyond that; a client's
few seeds do not determine it, but those of all clients together do.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray

from fedtailor.statistics.decision.intervals import MIN_SEEDS
from fedtailor.statistics.decision.row_scores import Score

_FIT_STEPS = 3
"""Steps of least squares whose weights follow from the fit before."""
_LEAST_SHARE = 0.1
"""No client's variance counts as less than this share of their mean."""


@dataclass(frozen=True)
class PairedRows:
    """Two methods on the test rows of one client, in the seeds that both have.

    Attributes:
        values: [s] the metric of the method in each seed.
        base_values: [s] the metric of the base.
        differences: [s] worth of the method less that of the base.
        center: center of the interval of the mean difference.
        row_variance: variance of `center` over test rows, A and E.
        degrees: its degrees of freedom.
        in_seed: mean over seeds of the variance over test rows of one difference.
        between_seeds: what of the variance of `differences` rows explain.
        overlap: share of one seed's test rows that another seed has, mean over pairs.
        rows: number of distinct test rows.
        seeds: [s] the seeds, as positions.
    """

    values: Float[np.ndarray, " s"]
    base_values: Float[np.ndarray, " s"]
    differences: Float[np.ndarray, " s"]
    center: float
    row_variance: float
    degrees: int
    in_seed: float
    between_seeds: float
    overlap: float
    rows: int
    seeds: NDArray[np.intp]


def compare_rows(
    base: Float[np.ndarray, "s rows"],
    other: Float[np.ndarray, "s rows"],
    truth: Float[np.ndarray, "s rows"],
    score: Score,
) -> PairedRows | None:
    """Compares a method with the base on one client's test rows.

    Where two methods differ on a handful of rows, all in one direction, the variance
    over rows is too small. If the metric is a mean of bounded scores (accuracy), two
    pseudo-rows are therefore added, one in favour of each method, as Bonett and Price
    (2012) do for paired proportions. With several seeds their size is the largest
    that a row has: its sum over seeds, by the number of seeds.

    Args:
        base: scores of the base; NaN where a row is not in a seed's test split.
        other: scores of the method; NaN where `base` is NaN, and in each seed that it
            was not run with.
        truth: truths of the rows, see `Score.prepare`.
        score: the metric.

    Returns:
        None if no seed is shared in which the metric is defined for both.
    """
    shared = ~np.isnan(base).all(axis=1) & ~np.isnan(other).all(axis=1)
    values, base_values = (
        np.array([_value(scores[s], truth[s], score) for s in np.flatnonzero(shared)])
        for scores in (other, base)
    )
    defined = ~np.isnan(values) & ~np.isnan(base_values)
    seeds = np.flatnonzero(shared)[defined]
    if not len(seeds):
        return None
    base, other, truth = base[seeds], other[seeds], truth[seeds]
    is_tested = ~np.isnan(base)
    rows = is_tested.any(axis=0)
    base, other, truth, is_tested = (
        array[:, rows] for array in (base, other, truth, is_tested)
    )
    differences, influence = _influence(base, other, truth, score)
    tested, overlap = is_tested.sum(axis=1), overlap_of_seeds(is_tested)
    if overlap < 1:
        # Seeds have other rows, which deviate from those of all seeds, not only from
        # those of their own: it is all that a single row of a seed tells.
        changes = (differences - differences.mean()) / tested
        changes *= np.sqrt(len(seeds) / (len(seeds) - 1))
        influence = influence + is_tested * changes[:, None]
    in_seed, plain_variance = variances_over_rows(influence)
    center, row_variance = float(differences.mean()), plain_variance
    if score.bounds is not None and score.is_mean_of_rows:
        center, row_variance = _with_pseudo_rows(
            np.nansum((other - base) / is_tested.sum(axis=1, keepdims=True), axis=0)
            / len(seeds),
            plain_variance,
            (score.bounds[1] - score.bounds[0]) / len(seeds),
        )
    # A single row does not tell how rows vary.
    if is_tested.shape[1] < 2 or (tested.min() < 2 and overlap == 1):
        row_variance = in_seed = np.inf
    count = len(seeds)
    first_truth = np.take_along_axis(truth, is_tested.argmax(axis=0)[None], axis=0)[0]
    row_variance = max(row_variance, score.least_variance(first_truth))
    return PairedRows(
        values=values[defined],
        base_values=base_values[defined],
        differences=differences,
        center=center,
        row_variance=row_variance,
        degrees=score.degrees(first_truth),
        in_seed=in_seed,
        between_seeds=explained_between_seeds(in_seed, plain_variance, count),
        overlap=overlap,
        rows=int(rows.sum()),
        seeds=seeds,
    )


def variances_over_rows(
    influence: Float[np.ndarray, "s rows"],
) -> tuple[float, float]:
    """The variance over rows of one seed's value, and of the mean over seeds.

    Args:
        influence: of each row on the value of each seed; 0 where it was not tested.
    """
    in_seed = float(np.square(influence).sum(axis=1).mean())
    return in_seed, float(np.square(influence.mean(axis=0)).sum())


def explained_between_seeds(in_seed: float, of_mean: float, seeds: int) -> float:
    """What of the variance of values over seeds their rows explain.

    Args:
        in_seed, of_mean: see `variances_over_rows`.
        seeds: number of seeds.
    """
    if seeds < 2:
        return 0.0
    return max(seeds / (seeds - 1) * (in_seed - of_mean), 0.0)


@dataclass(frozen=True)
class SeedVariance:
    """The part of the variance of a mean difference over seeds that rows do not explain.

    Attributes:
        own: [m] what seeds add to each client alone.
        common: what seeds add to all clients alike, such as a good initial model.
        own_degrees: degrees of freedom of `own`.
        common_degrees: degrees of freedom of `common`.
    """

    own: Float[np.ndarray, " m"]
    common: Float[np.ndarray, " m"]
    own_degrees: int
    common_degrees: int

    def components(self, client: int) -> list[tuple[float, int]]:
        """Both parts for one client, for `student_interval`."""
        parts = [
            (float(self.own[client]), self.own_degrees),
            (float(self.common[client]), self.common_degrees),
        ]
        return [(variance, degrees) for variance, degrees in parts if degrees > 0]


def seed_variance(clients: Sequence[PairedRows]) -> SeedVariance:
    """Estimates what seeds add to the variance of mean differences, over all clients.

    The variance of a client's differences over seeds, less what rows explain, is taken
    as b + c v, where v is the variance over rows of one seed's difference: luck may be
    the same for all clients, or grow where rows are few. Both b and c are at least 0
    and fitted to all clients with `MIN_SEEDS` seeds or more.

    Where each seed splits the rows differently, trainings of different seeds share rows, so that
    the mean over seeds varies by more than a share of 1 / seeds: by 1 / seeds + n_test /
    n_train (Nadeau and Bengio 2003). The share of test rows follows from how many of
    them two seeds have in common.

    Args:
        clients: the comparisons of one method with the base.
    """
    count = len(clients)
    nothing = SeedVariance(np.zeros(count), np.zeros(count), 0, 0)
    measured = [
        paired
        for paired in clients
        if len(paired.seeds) >= MIN_SEEDS and np.isfinite(paired.in_seed)
    ]
    if not measured:
        return nothing
    in_seed = np.array([paired.in_seed for paired in measured])
    by_rows = np.array([paired.between_seeds for paired in measured])
    total = np.array([paired.differences.var(ddof=1) for paired in measured])
    fitted = _fit(in_seed, total - by_rows, by_rows)
    common = _common(measured, fitted(in_seed), by_rows)
    scale = np.array([_scale(paired) for paired in clients])
    in_seed = np.array([paired.in_seed for paired in clients])
    added = fitted(np.where(np.isfinite(in_seed), in_seed, 0.0))
    most_seeds = max(len(paired.seeds) for paired in measured)
    degrees = sum(len(paired.seeds) - 1 for paired in measured)
    own_degrees = degrees - (most_seeds - 1)
    if own_degrees == 0:
        common = np.inf
    common_part = np.minimum(added, common)
    return SeedVariance(
        own=scale * (added - common_part),
        common=scale * common_part,
        own_degrees=own_degrees,
        common_degrees=most_seeds - 1,
    )


def variance_over_seeds(
    clients: Sequence[PairedRows], slopes: Float[np.ndarray, " m"]
) -> tuple[float, int] | None:
    """The variance over seeds of the mean over clients of their gains, and its degrees of
    freedom, S - 1; None without `MIN_SEEDS` seeds.

    Unlike the parts of `seed_variance` it is not a difference of two estimates, which
    would be 0 in every other case, and no interval could then hold its level.

    Args:
        clients: the comparisons of one method with the base.
        slopes: [m] of each client, what its gain grows by with its difference.
    """
    is_measured = [len(it.seeds) >= MIN_SEEDS for it in clients]
    measured = [it for it, known in zip(clients, is_measured, strict=True) if known]
    if not measured:
        return None
    seeds = np.unique(np.concatenate([it.seeds for it in measured]))
    # Of each seed the sum of the clients' deviations from their own means.
    deviations = np.zeros(len(seeds))
    for it, slope in zip(measured, slopes[is_measured], strict=True):
        own = slope * (it.differences - it.differences.mean())
        deviations[np.searchsorted(seeds, it.seeds)] += own
    degrees = len(seeds) - 1
    variance = float(np.square(deviations).sum()) / degrees / len(measured) ** 2
    return variance * float(np.mean([_scale(it) for it in measured])), degrees


def _value(
    scores: NDArray[np.float64], truth: NDArray[np.float64], score: Score
) -> float:
    tested = ~np.isnan(scores)
    return score.value(scores[tested], truth[tested])


def _influence(
    base: NDArray[np.float64],
    other: NDArray[np.float64],
    truth: NDArray[np.float64],
    score: Score,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The difference of worths in each seed, and each row's influence on it [s, rows]."""
    differences = np.zeros(len(base))
    influence = np.zeros(base.shape)
    for s in range(len(base)):
        tested = ~np.isnan(base[s])
        base_worth, of_base = score.worth(base[s, tested], truth[s, tested])
        worth, of_other = score.worth(other[s, tested], truth[s, tested])
        differences[s] = worth - base_worth
        influence[s, tested] = (of_other - of_base) / tested.sum()
    return differences, influence


def _with_pseudo_rows(
    shares: NDArray[np.float64], variance: float, smallest: float
) -> tuple[float, float]:
    """Mean and variance of a mean over rows after one row more in favour of each method.

    Args:
        shares: [rows] what each row adds to the mean difference.
        variance: the variance of the mean difference over rows.
        smallest: least difference of a pseudo-row.
    """
    count = len(shares)
    different = shares[shares != 0] * count
    size = smallest
    if len(different):
        size = max(float(np.sqrt(np.square(different).mean())), smallest)
    mean = float(shares.sum())
    squares = variance * count * max(count - 1, 1)
    squares += 2 * size**2 + 2 * count / (count + 2) * mean**2
    return mean * count / (count + 2), squares / ((count + 1) * (count + 2))


def overlap_of_seeds(is_tested: Bool[np.ndarray, "s rows"]) -> float:
    """The share of one seed's rows that another has; of two seeds at least."""
    count = len(is_tested)
    if count < 2:
        return 1.0
    sizes = is_tested.sum(axis=1)
    tested = is_tested.astype(np.float64)
    in_both = tested @ tested.T
    shares = in_both / np.sqrt(np.outer(sizes, sizes))
    return float((shares.sum() - count) / (count * (count - 1)))


def _scale(paired: PairedRows) -> float:
    """The variance of a mean over seeds, in units of the variance between seeds."""
    count = len(paired.seeds)
    if count < MIN_SEEDS:
        return 0.0
    if paired.overlap >= 1:
        return 1 / count
    # Parts of a cross-validation have no row in common.
    share = paired.overlap or 1 / count
    return 1 / count + share / (1 - share)


def _fit(
    in_seed: NDArray[np.float64],
    excess: NDArray[np.float64],
    by_rows: NDArray[np.float64],
) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
    """Fits b + c v to what seeds add, by least squares in units of the variances."""
    # SciPy takes 30 MB, which clients of a federation of machines never need.
    from scipy import optimize

    constant, slope = 0.0, 0.0
    for _ in range(_FIT_STEPS):
        scale = by_rows + constant + slope * in_seed
        scale = np.maximum(scale, _LEAST_SHARE * scale.mean())
        if not scale.all():
            scale = np.ones(len(scale))
        columns = np.stack([1 / scale, in_seed / scale], axis=1)
        (constant, slope), _ = optimize.nnls(columns, excess / scale)

    def fitted(variances: NDArray[np.float64]) -> NDArray[np.float64]:
        return constant + slope * variances

    return fitted


def _common(
    measured: Sequence[PairedRows],
    added: NDArray[np.float64],
    by_rows: NDArray[np.float64],
) -> float:
    """What seeds add to all clients alike: the variance of the clients' mean, less what
    it would be without.
    """
    seeds = measured[0].seeds
    for paired in measured[1:]:
        seeds = np.intersect1d(seeds, paired.seeds)
    if len(seeds) < MIN_SEEDS:
        return 0.0
    variances = by_rows + added
    variances = np.maximum(variances, _LEAST_SHARE * variances.mean())
    if not variances.all():
        return 0.0
    weights = 1 / variances
    weights /= weights.sum()
    differences = np.array(
        [paired.differences[np.isin(paired.seeds, seeds)] for paired in measured]
    )
    of_mean = float((weights @ differences).var(ddof=1))
    squares = np.square(weights)
    # The mean has the whole of what is common, and of each client's rest a small share.
    shared = of_mean - float(squares @ variances)
    return max(shared / max(1 - float(squares.sum()), _LEAST_SHARE), 0.0)

"""Every client's gain over training alone, with an interval and a verdict."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Float
from numpy.typing import NDArray

from fedtailor._base.documentation import see
from fedtailor.statistics.decision.intervals import student_interval
from fedtailor.statistics.decision.paired import PairedRows, compare_rows, seed_variance
from fedtailor.statistics.decision.row_scores import SCORES, Score

_STEPS = 200
"""Deviations of true values that `hierarchical` averages over."""
COLUMNS: dict[str, type[pl.DataType]] = {
    "client": pl.String,
    "method": pl.String,
    "value": pl.Float64,
    "base_value": pl.Float64,
    "gain": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "p": pl.Float64,
    "verdict": pl.String,
    "expected": pl.Float64,
    "expected_low": pl.Float64,
    "expected_high": pl.Float64,
    "test_rows": pl.Int64,
    "seeds": pl.Int64,
}
"""Columns of the table that `client_gains` returns."""


def client_gains(
    rows: pl.DataFrame,
    base: str = "local",
    metric: str | Score = "accuracy",
    *,
    confidence: float = 0.95,
) -> pl.DataFrame:
    """Estimates each client's gain by each method over the method `base`.

    The interval of a gain contains what other test rows might give, and with three
    seeds or more what other seeds might give. What seeds add to the variance beyond
    rows is estimated from all clients together (see `seed_variance`), as three seeds of
    one client do not determine it. With fewer seeds a client's interval depends on its
    own rows only, and does not generalize to other seeds.

    `low`, `high`, `p` and `verdict` are of one client and method alone: if a client has
    no gain, the verdict "helps" has probability at most (1 - confidence) / 2. Of 100
    clients without any gain, two or three "help" and as many "hurt" by chance. `p_holm`
    is corrected for all lines of the table: where there is no gain at all, it is below
    1 - confidence in any line with probability at most 1 - confidence. `best_method`
    makes a statement on all clients together.

    `expected` is the gain shrunk towards the mean gain of all clients with the same
    method (the more uncertain, the more), with an interval (see `hierarchical`): the
    single gains of few test rows scatter more than the true ones, and the largest are
    too large. With fewer than `MIN_CLIENTS` clients it is the gain itself.

    Args:
        rows: one row for each method, seed, client and test row, with the columns
            `method`, `seed`, `client`, `row` (the number of the example, the same in
            all runs) and the columns of the score.
        base: the method to compare with.
        metric: "accuracy", "loss", "rmse", "r2" (one target), "roc_auc" (two classes),
            or a `Score`.
        confidence: confidence level of the intervals.

    Returns:
        A table with one row for each client and each method other than the base, in the
        order of first appearance. `value` and `base_value` are means over the seeds
        that both methods have. A positive `gain` means better; `low` and `high` are
        the ends of its interval and `p` its p-value. `verdict` is "helps", "hurts" or
        "cannot tell". `test_rows` counts distinct test rows.

    Raises:
        ValueError: the base or a column is missing, the metric is unknown, a test row
            occurs twice, or two methods were not tested on the same rows.

    Example:
        >>> from fedtailor.statistics.decision import client_gains
        >>> client_gains(rows).select("client", "method", "gain")
        shape: (3, 3)
        ┌────────┬────────┬──────┐
        │ client ┆ method ┆ gain │
        │ ---    ┆ ---    ┆ ---  │
        │ str    ┆ str    ┆ f64  │
        ╞════════╪════════╪══════╡
        │ a      ┆ fedavg ┆ 0.25 │
        │ b      ┆ fedavg ┆ 0.25 │
        │ c      ┆ fedavg ┆ 0.25 │
        └────────┴────────┴──────┘
    """
    score = find_score(metric)
    pairs = paired_rows(rows, base, score)
    others = list(pairs)
    clients = rows["client"].unique(maintain_order=True).to_list()
    records = {
        method: _gains_of_method(method, pairs[method], score, confidence)
        for method in others
    }
    in_order = [
        records[method][client]
        for client in clients
        for method in others
        if client in records[method]
    ]
    table = pl.DataFrame(in_order, schema=COLUMNS)
    adjusted = holm(table["p"].to_numpy())
    return table.with_columns(p_holm=pl.Series(adjusted, dtype=pl.Float64))


def paired_rows(
    rows: pl.DataFrame, base: str, score: Score
) -> dict[str, dict[str, PairedRows]]:
    """Each method compared with the base on the same test rows: method -> client -> pair.

    Args, Raises: as for `client_gains`.
    """
    require_columns(rows, ("method", "seed", "client", "row", *score.columns))
    methods = rows["method"].unique(maintain_order=True).to_list()
    if base not in methods:
        raise ValueError(
            f"there are no test rows of {base!r} to compare with; run it too, or choose"
            f" from {methods}"
        )
    others = [method for method in methods if method != base]
    rows = score.prepare(rows)
    pairs: dict[str, dict[str, PairedRows]] = {method: {} for method in others}
    for (name,), client_rows in rows.group_by(["client"], maintain_order=True):
        client = str(name)
        error_message = (
            f"client {client!r} has a test row twice for one method and seed; give"
            " each row its number"
        )
        scores, seeds = dense_array(client_rows, methods, "row", "score", error_message)
        truths, _ = dense_array(client_rows, methods, "row", "truth", error_message)
        of_base = methods.index(base)
        rest = [methods.index(method) for method in others]
        _require_same_rows(scores[of_base], scores[rest], base, others, client, seeds)
        for method, index in zip(others, rest, strict=True):
            pair = compare_rows(scores[of_base], scores[index], truths[of_base], score)
            if pair is not None:
                pairs[method][client] = pair
    return pairs


def _gains_of_method(
    method: str, pairs: dict[str, PairedRows], score: Score, confidence: float
) -> dict[str, dict[str, Any]]:
    """The lines of one method: client -> column -> value."""
    of_seeds = seed_variance(list(pairs.values()))
    intervals, variances = [], []
    for index, pair in enumerate(pairs.values()):
        # A single row of a class does not tell how rows of its class vary.
        row_variance = pair.row_variance if pair.degrees > 0 else np.inf
        components = [
            (row_variance, max(pair.degrees, 1)),
            *of_seeds.components(index),
        ]
        intervals.append(student_interval(pair.center, components, confidence))
        variances.append(sum(variance for variance, _ in components))
    differences = np.array([pair.differences.mean() for pair in pairs.values()])
    expected = hierarchical(differences, np.array(variances), confidence)
    if expected is None:
        expected = np.array(
            [
                (difference, it.low, it.high)
                for difference, it in zip(differences, intervals, strict=True)
            ]
        )
    # Differences of bounded scores are bounded themselves.
    limit = np.inf if score.bounds is None else score.bounds[1] - score.bounds[0]
    records = {}
    for (client, pair), interval, likely in zip(
        pairs.items(), intervals, expected, strict=True
    ):
        value, base_value = float(pair.values.mean()), float(pair.base_values.mean())
        records[client] = {
            "client": client,
            "method": method,
            "value": value,
            "base_value": base_value,
            "gain": (value - base_value) * (1.0 if score.higher_is_better else -1.0),
            "low": max(score.gain(interval.low, base_value), -limit),
            "high": min(score.gain(interval.high, base_value), limit),
            "p": interval.p,
            "verdict": interval.verdict,
            "expected": score.gain(float(likely[0]), base_value),
            "expected_low": max(score.gain(float(likely[1]), base_value), -limit),
            "expected_high": min(score.gain(float(likely[2]), base_value), limit),
            "test_rows": pair.rows,
            "seeds": len(pair.seeds),
        }
    return records


MIN_CLIENTS = 3
"""Fewer clients do not show how their true gains vary."""


def hierarchical(
    estimates: Float[np.ndarray, " n"],
    variances: Float[np.ndarray, " n"],
    confidence: float = 0.95,
) -> Float[np.ndarray, "n 3"] | None:
    """What the true values are, if they are normal around a mean of their own.

    The mean and the deviation t of the true values have flat priors (Gelman 2006). Given
    t, an estimate is moved towards the mean by v / (v + t^2), see `shrink`; the result
    is the mean over all t by how well they explain the estimates, so that its interval
    contains that t is not known.

    Args:
        estimates: [n] estimates.
        variances: [n] their variances v; infinite where nothing is known of one.
        confidence: confidence level of the intervals.

    Returns:
        Of each value the mean and the ends of its interval; None with fewer than
        `MIN_CLIENTS` estimates of known variance, or if one is certain.

    Example:
        >>> from fedtailor.statistics.decision import hierarchical
        >>> hierarchical(np.array([0.0, 1.0, 8.0]), np.ones(3)).round(1)
        array([[ 0.1, -1.9,  2. ],
               [ 1.1, -0.9,  3. ],
               [ 7.8,  5.9,  9.8]])
    """
    known = np.isfinite(variances)
    if known.sum() < MIN_CLIENTS or (variances[known] <= 0).any():
        return None
    from scipy import special

    values, errors = estimates[known], variances[known]
    most = 10 * float(np.sqrt(values.var(ddof=1) + errors.mean()))
    # Dense where t is small: its square is what counts.
    deviations = most * np.linspace(0, 1, _STEPS) ** 2
    between = np.square(deviations)[:, None]
    weights = 1 / (errors + between)
    sums = weights.sum(axis=1)
    means = weights @ values / sums
    squares = (np.square(values - means[:, None]) * weights).sum(axis=1)
    log_density = 0.5 * (np.log(weights).sum(axis=1) - np.log(sums) - squares)
    density = np.exp(log_density - log_density.max()) * np.gradient(deviations)
    density /= density.sum()
    # [t, n]; the error of an unknown value is as large as t.
    kept = np.zeros((_STEPS, len(estimates)))
    kept[:, known] = between * weights
    rest = np.broadcast_to(between, kept.shape).copy()
    rest[:, known] = kept[:, known] * errors
    centers = means[:, None] + kept * np.where(known, estimates - means[:, None], 0.0)
    spread = rest + np.square(1 - kept) / sums[:, None]
    mean = density @ centers
    variance = density @ (spread + np.square(centers)) - np.square(mean)
    width = special.ndtri((1 + confidence) / 2) * np.sqrt(np.maximum(variance, 0.0))
    return np.stack([mean, mean - width, mean + width], axis=1)


def shrink(
    estimates: NDArray[np.float64], variances: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Shrinks estimates towards their common mean, each by how uncertain it is.

    If the true values are normal around a mean with a variance t, and the estimates
    normal around them, the expected true values are the estimates moved towards the
    mean by v / (v + t), where t is `between_variance`.

    Args:
        estimates: [n] estimates.
        variances: [n] their variances v; infinite where nothing is known of one.

    Returns:
        [n] the expected true values.

    Example:
        >>> from fedtailor.statistics.decision import shrink
        >>> shrink(np.array([0.0, 4.0]), np.array([1.0, 1.0]))
        array([0.25, 3.75])
    """
    known = np.isfinite(variances)
    if known.sum() < 2:
        return estimates.copy()
    values, errors = estimates[known], np.maximum(variances[known], 0.0)
    # Without any error nothing is to be shrunk.
    if values.var(ddof=1) == 0 or (errors == 0).any():
        return estimates.copy()
    between = between_variance(values, errors)
    weights = 1 / (errors + between)
    mean = float(weights @ values / weights.sum())
    kept = np.divide(
        between, between + variances, out=np.zeros(len(variances)), where=known
    )
    return mean + kept * (estimates - mean)


def between_variance(values: NDArray[np.float64], errors: NDArray[np.float64]) -> float:
    """The variance of the true values of which these are estimates, at which the
    estimates scatter as they should (Paule and Mandel 1982).

    Args:
        values: [n] estimates, two or more.
        errors: [n] their variances, above 0.
    """

    def excess(between: float) -> float:
        weights = 1 / (errors + between)
        mean = float(weights @ values / weights.sum())
        squares = np.square(values - mean) * weights
        return float(squares.sum()) - (len(values) - 1)

    if excess(0.0) <= 0:
        return 0.0
    from scipy import optimize

    high = float(values.var(ddof=1))
    while excess(high) > 0:
        high *= 2
    solution = optimize.root_scalar(excess, bracket=(0.0, high))
    return float(solution.root)


def holm(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Adjusts p-values for multiple testing (Holm 1979).

    Rejecting each hypothesis whose adjusted p-value is below alpha makes the
    probability of any false rejection at most alpha.

    Args:
        p: [n] p-values; NaN marks a missing test, which is not counted.

    Returns:
        [n] adjusted p-values, NaN where `p` is NaN.

    Example:
        >>> from fedtailor.statistics.decision import holm
        >>> holm(np.array([0.01, 0.04, 0.03]))
        array([0.03, 0.06, 0.06])
    """
    p = np.asarray(p, np.float64)
    adjusted = np.full(p.shape, np.nan)
    valid = np.flatnonzero(~np.isnan(p))
    smallest_first = valid[np.argsort(p[valid], kind="stable")]
    # The smallest p is multiplied by n, the next one by n - 1, and so on. The running
    # maximum keeps the adjusted values in the order of the p-values.
    factors = np.arange(len(smallest_first), 0, -1)
    scaled = p[smallest_first] * factors
    adjusted[smallest_first] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return adjusted


def find_score(metric: str | Score) -> Score:
    if isinstance(metric, Score):
        return metric
    if metric not in SCORES:
        raise ValueError(
            f"gains in {metric!r} do not follow from the table of rows; choose from"
            f" {', '.join(SCORES)}"
        )
    return SCORES[metric]


def require_columns(frame: pl.DataFrame, columns: Sequence[str]) -> None:
    missing = [column for column in columns if column not in frame.columns]
    if missing:
        raise ValueError(
            f"the table lacks the columns {missing}; it has {frame.columns}"
        )


def dense_array(
    table: pl.DataFrame, methods: list[str], axis: str, column: str, error_message: str
) -> tuple[NDArray[np.float64], NDArray[np.generic]]:
    """Converts a column of a table to an array.

    Args:
        table: one row for each method, seed and entry of the last axis.
        methods: the methods, in the order of the first axis.
        axis: the column whose sorted distinct values make the last axis.
        column: the column to convert.
        error_message: message of the error for a cell that occurs twice.

    Returns:
        The array [methods, seeds, axis], NaN where the table has no row, and the sorted
        seeds.

    Raises:
        ValueError: a cell occurs twice.
    """
    seeds, seed = np.unique(table["seed"].to_numpy(), return_inverse=True)
    entries, entry = np.unique(table[axis].to_numpy(), return_inverse=True)
    method = table["method"].cast(pl.Enum(methods)).to_physical()
    shape = len(methods), len(seeds), len(entries)
    cell = np.ravel_multi_index((method.to_numpy(), seed, entry), shape)
    if len(np.unique(cell)) < len(cell):
        raise ValueError(error_message)
    array = np.full(shape, np.nan)
    array.ravel()[cell] = table[column].cast(pl.Float64).to_numpy()
    return array, seeds


def _require_same_rows(
    base: NDArray[np.float64],
    others: NDArray[np.float64],
    name: str,
    names: list[str],
    client: str,
    seeds: NDArray[np.generic],
) -> None:
    """Checks that each method was tested on the same rows as the base.

    Args:
        base: scores [seeds, rows] of the base, NaN where a row was not tested.
        others: scores [methods, seeds, rows] of the other methods.
        name: name of the base.
        names: names of the other methods.
        client: name of the client.
        seeds: [seeds] the seeds.

    Raises:
        ValueError: a method shares a seed with the base but not all of its rows.
    """
    others_tested = ~np.isnan(others)
    base_tested = ~np.isnan(base)
    is_shared_seed = others_tested.any(axis=2) & base_tested.any(axis=1)
    has_other_rows = (others_tested != base_tested).any(axis=2)
    is_mismatch = is_shared_seed & has_other_rows
    if is_mismatch.any():
        method, seed = np.argwhere(is_mismatch)[0]
        raise ValueError(
            f"{names[method]!r} and {name!r} were not tested on the same rows of client"
            f" {client!r} (seed {seeds[seed]}); a paired comparison needs the same"
            f" split{see('errors#rows-that-are-not-paired')}"
        )

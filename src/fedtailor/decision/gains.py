"""Every client's gain over training alone, with an interval and a verdict."""

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedtailor.decision.row_scores import SCORES, Score, bootstrap_gains

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
    "test_rows": pl.Int64,
    "seeds": pl.Int64,
}
"""Columns of the table that `client_gains` returns."""


def client_gains(
    rows: pl.DataFrame,
    base: str = "local",
    metric: str | Score = "accuracy",
    *,
    draws: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> pl.DataFrame:
    """Estimates each client's gain by each method over the method `base`.

    The verdicts are not corrected for multiple testing. If a client has no gain, the
    verdict "helps" has probability at most (1 - confidence) / 2 over the sampling of
    its test rows (and, with three seeds or more, of seeds). Of 100 clients without any
    gain, two or three "help" and as many "hurt" by chance. `best_method` makes a
    statement on all clients together. For a family of clients, apply `holm` to `p`.

    Args:
        rows: one row for each method, seed, client and test row, with the columns
            `method`, `seed`, `client`, `row` (the number of the example, the same in
            all runs) and the column of the score.
        base: the method to compare with.
        metric: "accuracy", "loss", "rmse", or a `Score`.
        draws: number of bootstrap samples.
        confidence: confidence level of the intervals.
        seed: random seed of the bootstrap. A client's interval does not depend on the
            other clients.

    Returns:
        A table with one row for each client and each method other than the base, in the
        order of first appearance. `value` and `base_value` are means over the seeds
        that both methods have. A positive `gain` means better; `low` and `high` are
        the ends of its interval and `p` its p-value. `verdict` is "helps", "hurts" or
        "cannot tell". `test_rows` counts distinct test rows.

    Raises:
        ValueError: the base or a column is missing, the metric is unknown, a test row
            occurs twice, or two methods were not tested on the same rows.
    """
    score = _find_score(metric)
    require_columns(rows, ("method", "seed", "client", "row", score.column))
    methods = rows["method"].unique(maintain_order=True).to_list()
    if base not in methods:
        raise ValueError(
            f"there are no test rows of {base!r} to compare with; run it too, or choose"
            f" from {methods}"
        )
    others = [method for method in methods if method != base]
    records = []
    for (client,), client_rows in rows.group_by(["client"], maintain_order=True):
        error_message = (
            f"client {str(client)!r} has a test row twice for one method and seed; give"
            " each row its number"
        )
        scores, seeds = dense_array(
            client_rows, methods, "row", score.column, error_message
        )
        base_scores = scores[methods.index(base)]
        other_scores = scores[[methods.index(method) for method in others]]
        _require_same_rows(base_scores, other_scores, base, others, str(client), seeds)
        values, base_values, intervals = bootstrap_gains(
            base_scores, other_scores, score, seed, draws, confidence
        )
        for method, value, interval in zip(others, values, intervals, strict=True):
            # The seeds with which both methods were trained.
            is_shared_seed = ~np.isnan(value) & ~np.isnan(base_values)
            if not is_shared_seed.any():
                continue
            is_tested = ~np.isnan(base_scores[is_shared_seed])  # [seeds, rows]
            record = {
                "client": client,
                "method": method,
                "value": value[is_shared_seed].mean(),
                "base_value": base_values[is_shared_seed].mean(),
                "gain": interval.estimate,
                "low": interval.low,
                "high": interval.high,
                "p": interval.p,
                "verdict": interval.verdict,
                "test_rows": int(is_tested.any(axis=0).sum()),
                "seeds": int(is_shared_seed.sum()),
            }
            records.append(record)
    return pl.DataFrame(records, schema=COLUMNS)


def holm(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Adjusts p-values for multiple testing (Holm 1979).

    Rejecting each hypothesis whose adjusted p-value is below alpha makes the
    probability of any false rejection at most alpha.

    Args:
        p: [n] p-values; NaN marks a missing test, which is not counted.

    Returns:
        [n] adjusted p-values, NaN where `p` is NaN.
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


def _find_score(metric: str | Score) -> Score:
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
    method_index = {method: index for index, method in enumerate(methods)}
    method = table["method"].replace_strict(method_index, return_dtype=pl.Int64)
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
            " split"
        )

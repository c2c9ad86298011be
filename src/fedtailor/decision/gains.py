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
"""Columns of `client_gains`."""


def client_gains(
    rows: pl.DataFrame,
    base: str = "local",
    metric: str | Score = "accuracy",
    *,
    draws: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> pl.DataFrame:
    """Each client's gain over the method `base` by each other method.

    For one client and one method the verdict "helps" is wrong in at most (1 -
    confidence) / 2 of repetitions with other test rows of the same client (and, with
    three seeds or more, other seeds) where there is no gain. It is not corrected for
    many clients: of 100 clients without any gain two or three "help" and as many "hurt"
    by chance. For a statement on all clients see `best_method`; for one on a family of
    them apply `holm` to `p`.

    Args:
        rows: a line for each method, seed, client and test row: columns `method`,
            `seed`, `client`, `row` (the number of the example, the same in all runs)
            and the score's.
        base: the method that the others are compared with.
        metric: "accuracy", "loss", "rmse", or a `Score`.
        draws: bootstrap samples.
        confidence: of the intervals.
        seed: of the bootstrap; a client's interval does not depend on which other
            clients there are.

    Returns:
        The columns `client`, `method`, `value`, `base_value` (means over the seeds that
        both have), `gain` (positive is better), `low`, `high`, `p`, `verdict` ("helps",
        "hurts", "cannot tell"), `test_rows` (distinct ones) and `seeds`; a line for
        each client and each method other than the base, in the order of first
        appearance.

    Raises:
        ValueError: the base or a column is missing, a metric is unknown, a row stands
            there twice, or two methods were not tested on the same rows.
    """
    score = _score(metric)
    _require_columns(rows, ("method", "seed", "client", "row", score.column))
    methods = rows["method"].unique(maintain_order=True).to_list()
    if base not in methods:
        raise ValueError(
            f"there are no test rows of {base!r} to compare with; run it too, or choose"
            f" from {methods}"
        )
    others = [method for method in methods if method != base]
    lines = []
    for (client,), part in rows.group_by(["client"], maintain_order=True):
        scores, seeds = _dense(part, methods, score.column, str(client))
        base_scores = scores[methods.index(base)]
        other_scores = scores[[methods.index(method) for method in others]]
        _require_same_rows(base_scores, other_scores, base, others, str(client), seeds)
        values, base_values, intervals = bootstrap_gains(
            base_scores, other_scores, score, seed, draws, confidence
        )
        for method, value, interval in zip(others, values, intervals, strict=True):
            # the seeds with which both methods have been trained
            shared = ~np.isnan(value) & ~np.isnan(base_values)
            if not shared.any():
                continue
            was_tested = ~np.isnan(base_scores[shared])  # [seeds, rows]
            line = {
                "client": client,
                "method": method,
                "value": value[shared].mean(),
                "base_value": base_values[shared].mean(),
                "gain": interval.estimate,
                "low": interval.low,
                "high": interval.high,
                "p": interval.p,
                "verdict": interval.verdict,
                "test_rows": int(was_tested.any(axis=0).sum()),
                "seeds": int(shared.sum()),
            }
            lines.append(line)
    return pl.DataFrame(lines, schema=COLUMNS)


def holm(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Correct p-values for multiple testing (Holm 1979).

    Args:
        p: [n]; NaN stands for a test that was not made, and does not count.

    Returns:
        [n] adjusted p-values (NaN stays NaN): the chance of any false one below alpha
        is at most alpha.
    """
    p = np.asarray(p, np.float64)
    adjusted = np.full(p.shape, np.nan)
    known = np.flatnonzero(~np.isnan(p))
    smallest_first = known[np.argsort(p[known], kind="stable")]
    # The smallest p is multiplied by n, the next one by n - 1, ...; no adjusted value is
    # below one of a smaller p.
    factors = np.arange(len(smallest_first), 0, -1)
    scaled = p[smallest_first] * factors
    adjusted[smallest_first] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return adjusted


def _score(metric: str | Score) -> Score:
    if isinstance(metric, Score):
        return metric
    if metric not in SCORES:
        raise ValueError(
            f"gains in {metric!r} do not follow from the table of rows; choose from"
            f" {', '.join(SCORES)}"
        )
    return SCORES[metric]


def _require_columns(frame: pl.DataFrame, columns: Sequence[str]) -> None:
    missing = [column for column in columns if column not in frame.columns]
    if missing:
        raise ValueError(
            f"the table lacks the columns {missing}; it has {frame.columns}"
        )


def _dense(
    part: pl.DataFrame, methods: list[str], column: str, client: str
) -> tuple[NDArray[np.float64], NDArray[np.generic]]:
    """One client's table of scores as an array.

    Returns:
        The scores [methods, seeds, rows], NaN where there is none, and the seeds.
    """
    seeds, seed = np.unique(part["seed"].to_numpy(), return_inverse=True)
    numbers, row = np.unique(part["row"].to_numpy(), return_inverse=True)
    index = {method: number for number, method in enumerate(methods)}
    method = part["method"].replace_strict(index, return_dtype=pl.Int64).to_numpy()
    shape = len(methods), len(seeds), len(numbers)
    cell = np.ravel_multi_index((method, seed, row), shape)
    if len(np.unique(cell)) < len(cell):
        raise ValueError(
            f"client {client!r} has a test row twice for one method and seed; give each"
            " row its number"
        )
    scores = np.full(shape, np.nan)
    scores.ravel()[cell] = part[column].cast(pl.Float64).to_numpy()
    return scores, seeds


def _require_same_rows(
    base: NDArray[np.float64],
    others: NDArray[np.float64],
    name: str,
    names: list[str],
    client: str,
    seeds: NDArray[np.generic],
) -> None:
    """Refuse methods that were not tested on the same rows as the base.

    Args:
        base: scores [seeds, rows] of the base, NaN where a row was not tested.
        others: scores [methods, seeds, rows] of the other methods.
        name, names: of the base and of the other methods.
        client: its name.
        seeds: the seeds.

    Raises:
        ValueError: a method has a seed in common with the base, but not all its rows.
    """
    others_tested = ~np.isnan(others)
    base_tested = ~np.isnan(base)
    is_shared_seed = others_tested.any(axis=2) & base_tested.any(axis=1)
    has_other_rows = (others_tested != base_tested).any(axis=2)
    differs = is_shared_seed & has_other_rows
    if differs.any():
        method, seed = np.argwhere(differs)[0]
        raise ValueError(
            f"{names[method]!r} and {name!r} were not tested on the same rows of client"
            f" {client!r} (seed {seeds[seed]}); a paired comparison needs the same"
            " split"
        )

"""Would boosted trees gain by missing cells as a branch, and by categories as sets?

`python benchmarks/tree_columns.py` grows scikit-learn's boosted trees of all rows on tables
with missing cells (heart disease, flchain) and with categories of many levels (MathAchieve,
Exam, School, and one that is made: 30 levels with effects, among four numbers). It compares
two encodings of the same columns:

* `cells`: missing cells stay missing, and go left or right by gain, instead of the mean or
  the most frequent category and an input that says "was missing", as tables have them;
* `sets`: a split sends a set of categories to the left, instead of an input for each
  category of five rows or more.

Depth (2 or 4), the least rows in a leaf (3 or 20) and the number of trees (at most 200) are
those of least loss on a fifth of the training rows, for each encoding and split. There are
five folds, three times; a line gives the mean gain in R2 or in the area under the ROC curve
(times 100), with an interval of 95 % over splits (`resampled_interval`). Tables are read
from FEDTAILOR_DATA. `--out FILE.csv` writes the table.
"""

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from measuring import machine
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
)
from sklearn.metrics import log_loss, r2_score, roc_auc_score

from fedtailor._base.groups import MIN_ROWS
from fedtailor.statistics.decision import Splits, resampled_interval

DATA = Path(os.environ.get("FEDTAILOR_DATA", "shared/data"))
FOLDS, REPETITIONS = 5, 3
TREES = 200
GRID = [(depth, least) for depth in (2, 4) for least in (3, 20)]
MADE_ROWS, MADE_LEVELS = 3000, 30


@dataclass(frozen=True)
class Columns:
    """A table: numbers and categories with missing cells, and a target of numbers or of
    two classes."""

    numbers: pl.DataFrame
    categories: pl.DataFrame
    target: np.ndarray
    classifies: bool = False


def columns(
    frame: pl.DataFrame,
    target: str,
    categories: tuple[str, ...],
    classifies: bool = False,
) -> Columns:
    y = frame[target].cast(pl.Float64).to_numpy()
    inputs = frame.drop(target)
    return Columns(
        inputs.drop(categories).cast(pl.Float64),
        inputs.select(pl.col(categories).cast(pl.String)),
        y,
        classifies,
    )


def heart() -> Columns:
    frame = pl.read_csv(DATA / "heart-disease/heart_disease_4hospitals.csv")
    frame = frame.with_columns(num=(pl.col("num") > 0).cast(pl.Int8))
    kinds = ("hospital", "cp", "restecg", "slope", "thal")
    return columns(frame, "num", kinds, True)


def flchain() -> Columns:
    """Death within ten years, as in decision.py."""
    frame = pl.read_csv(DATA / "survival/flchain.csv.gz", null_values="NA")
    frame = frame.drop("rownames", "chapter", "sample.yr")
    known = (pl.col("death") == 1) | (pl.col("futime") >= 3652)
    frame = frame.filter(known).with_columns(
        died=(pl.col("death") == 1) & (pl.col("futime") < 3652)
    )
    return columns(frame.drop("futime", "death"), "died", ("sex",), True)


def math() -> Columns:
    frame = pl.read_csv(DATA / "multilevel/MathAchieve.csv.gz").drop("rownames")
    return columns(frame, "MathAch", ("School", "Minority", "Sex"))


def exam() -> Columns:
    frame = pl.read_csv(DATA / "multilevel/Exam.csv.gz").drop("rownames", "student")
    kinds = ("school", "schgend", "vr", "intake", "sex", "type")
    return columns(frame, "normexam", kinds)


def school() -> Columns:
    frame = pl.read_csv(DATA / "school/school.csv.gz")
    return columns(frame, "score", ("school",))


def made() -> Columns:
    rng = np.random.default_rng(0)
    levels = rng.choice(
        MADE_LEVELS, MADE_ROWS, p=rng.dirichlet(np.full(MADE_LEVELS, 3))
    )
    x = rng.normal(size=(MADE_ROWS, 4))
    effects = rng.normal(size=MADE_LEVELS)
    y = effects[levels] + x[:, 0] + np.sin(2 * x[:, 1]) + rng.normal(size=MADE_ROWS)
    categories = pl.DataFrame({"level": [str(one) for one in levels]})
    return Columns(pl.DataFrame(x, [f"x{i}" for i in range(4)]), categories, y)


TABLES: dict[str, tuple[Callable[[], Columns], tuple[str, ...]]] = {
    "heart": (heart, ("cells", "sets")),
    "flchain": (flchain, ("cells",)),
    "math": (math, ("sets",)),
    "exam": (exam, ("sets",)),
    "school": (school, ("sets",)),
    "made": (made, ("sets",)),
}
"""The tables, and what can be asked of them."""


def encoded(
    table: Columns, train: np.ndarray, *, cells: bool, sets: bool
) -> tuple[np.ndarray, list[int]]:
    """Inputs [rows, inputs], and which of them are categories.

    Args:
        table: the table.
        train: the training rows, which the encoding follows from.
        cells: whether missing cells stay missing.
        sets: whether categories are one input each.
    """
    inputs, kinds = [], []

    def add(values: np.ndarray, absent: np.ndarray) -> None:
        if cells:
            values = np.where(absent, np.nan, values)
        inputs.append(values)

    for column in table.numbers:
        values, absent = column.to_numpy(), column.is_null().to_numpy()
        add(np.where(absent, np.nanmean(values[train]), values), absent)
        if not cells and absent[train].any():
            inputs.append(absent.astype(float))
    for column in table.categories:
        absent = column.is_null().to_numpy()
        counts = column.gather(train).drop_nulls().value_counts(sort=True)
        frequent = counts.filter(pl.col("count") >= MIN_ROWS)[column.name].to_list()
        filled = column.fill_null(frequent[0])
        codes = filled.replace_strict(
            frequent, range(len(frequent)), default=len(frequent)
        ).to_numpy()
        if sets:
            kinds.append(len(inputs))
            add(codes.astype(float), absent)
        else:
            for code in np.unique(codes[train]):
                add((codes == code).astype(float), absent)
        if not cells and absent[train].any():
            inputs.append(absent.astype(float))
    return np.column_stack(inputs), kinds


def score(
    table: Columns, x: np.ndarray, kinds: list[int], parts: tuple[np.ndarray, ...]
) -> float:
    """R2 or the area under the ROC curve on test rows, times 100.

    Args:
        table: the table.
        x: its inputs.
        kinds: inputs that are categories.
        parts: training, validation and test rows.
    """
    train, val, test = parts
    y, best = table.target, (np.inf, np.zeros(0))
    for depth, least in GRID:
        kind = HistGradientBoostingRegressor
        if table.classifies:
            kind = HistGradientBoostingClassifier
        settings: dict[str, Any] = {
            "max_iter": TREES,
            "max_depth": depth,
            "max_leaf_nodes": None,
            "min_samples_leaf": least,
            "early_stopping": False,
            "categorical_features": kinds or None,
        }
        trees = kind(**settings).fit(x[train], y[train])
        if isinstance(trees, HistGradientBoostingClassifier):
            on_val = [it[:, 1] for it in trees.staged_predict_proba(x[val])]
            losses = [log_loss(y[val], it) for it in on_val]
            on_test = trees.staged_predict_proba(x[test])
        else:
            on_val = list(trees.staged_predict(x[val]))
            losses = [np.mean((y[val] - it) ** 2) for it in on_val]
            on_test = trees.staged_predict(x[test])
        least_loss = int(np.argmin(losses))
        if losses[least_loss] < best[0]:
            chosen = next(it for place, it in enumerate(on_test) if place == least_loss)
            best = losses[least_loss], chosen
    if table.classifies:
        return 100 * float(roc_auc_score(y[test], best[1][:, 1]))
    return 100 * r2_score(y[test], best[1])


def splits(rows: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Training, validation and test rows."""
    found = []
    for repetition in range(REPETITIONS):
        order = np.random.default_rng(repetition).permutation(rows)
        for fold in range(FOLDS):
            is_test = np.arange(rows) % FOLDS == fold
            rest = order[~is_test]
            val = rest[: len(rest) // 5]
            found.append((rest[len(rest) // 5 :], val, order[is_test]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "tables", nargs="*", help=f"of {', '.join(TABLES)}; all if none"
    )
    parser.add_argument("--out", type=Path, help="a file for the table")
    args = parser.parse_args()
    found = []
    for name in args.tables or TABLES:
        make, asked = TABLES[name]
        table = make()
        parts = splits(len(table.target))
        present = None
        for what in asked:
            scores: dict[bool, list[float]] = {False: [], True: []}
            for part in parts:
                for new in (False, True):
                    if not new and present is not None:
                        continue
                    here = {"cells": False, "sets": False, what: new}
                    x, kinds = encoded(table, part[0], **here)
                    scores[new].append(score(table, x, kinds, part))
            present = present or scores[False]
            gains = np.array(scores[True]) - np.array(present)
            gain = resampled_interval(gains[:, None], Splits(1 / FOLDS, FOLDS))
            found.append(
                {
                    "table": name,
                    "rows": len(table.target),
                    "asked": what,
                    "metric": "ROC AUC" if table.classifies else "R2",
                    "present": round(float(np.mean(present)), 2),
                    "new": round(float(np.mean(scores[True])), 2),
                    "gain": round(gain.estimate, 2),
                    "low": round(gain.low, 2),
                    "high": round(gain.high, 2),
                }
            )
            print(*found[-1].values(), flush=True)
    print(machine("scikit-learn"))
    if args.out:
        pl.DataFrame(found).write_csv(args.out)


if __name__ == "__main__":
    main()

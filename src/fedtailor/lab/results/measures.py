"""Measures of a run: several kinds of means over clients."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from fedtailor.lab.results.stored import StoredRun


@dataclass(frozen=True)
class Measure:
    """One number of a run, computed from the personal models on test data.

    Attributes:
        title: title of a table of the measure.
        header: header of a column, at most two short lines.
        compute: run -> the number in stored units, or None if the run does not have it.
        warning: a warning to put into each column's header, or "".
        of_runs: runs of all seeds -> the number, where it is not the mean of theirs.
    """

    title: str
    header: str
    compute: Callable[[StoredRun], float | None]
    warning: str = ""
    of_runs: Callable[[Sequence[StoredRun]], float] | None = None


def mean_of_runs(runs: Sequence[StoredRun], metric: str | None = None) -> float:
    """The mean over clients of their means over seeds, which all tests are about.

    It differs from the mean over seeds of the means over clients where a client has no
    value in some seed, such as an area under a curve without rows of both classes.

    Args:
        runs: one for each seed.
        metric: name of the metric. Defaults to the runs' metric.

    Returns:
        NaN if no run has a value.
    """
    values = pl.concat([run.test_values(metric) for run in runs])
    # In a fixed order, so that sums are the same to the last bit.
    means = values.group_by("client", maintain_order=True).agg(pl.col("value").mean())
    return float(means["value"].to_numpy().mean()) if len(means) else float("nan")


def weighted(run: StoredRun) -> float | None:
    """Mean over seen clients, weighted by test samples."""
    scores = run.scores()
    if not len(scores):
        return None
    return float(np.average(scores["value"], weights=scores["test"]))


def largest_decile(run: StoredRun) -> float | None:
    """Mean over the 10 % of the seen clients with the most training samples.

    The mean is weighted by test samples and is over at least one client. Among equally
    large clients, the first ones in the federation's order are used.
    """
    scores = run.scores()
    if not len(scores):
        return None
    count = max(len(scores) // 10, 1)
    by_size = scores.sort("train", descending=True, maintain_order=True)
    largest = by_size.head(count)
    return float(np.average(largest["value"], weights=largest["test"]))


def unseen(run: StoredRun) -> float | None:
    """Mean over clients that never took part in training."""
    values = run.scores(unseen=True)["value"].to_numpy()
    return float(values.mean()) if len(values) else None


def best_on_val(run: StoredRun) -> float | None:
    """Test mean after the first round with the best mean on validation data."""
    val, test = run.curve("val"), run.curve()
    return test[best_round(run, val)] if val and test else None


def best_round(run: StoredRun, curve: Mapping[int, float]) -> int:
    """The first round in which a curve of the run's metric is best."""
    best = max if run.unit.higher_is_better else min
    return best(curve, key=curve.__getitem__)


def best_on_test(run: StoredRun) -> float | None:
    """Test mean after the best round on test data, which is optimistically biased."""
    curve = run.curve()
    return curve[best_round(run, curve)] if curve else None


def _spread_measure(name: str) -> Callable[[StoredRun], float | None]:
    def measure(run: StoredRun) -> float | None:
        return run.spread()[name] if run.is_tested else None

    return measure


MEASURES: Mapping[str, Measure] = {
    "mean": Measure(
        "mean over clients", "mean", _spread_measure("mean"), of_runs=mean_of_runs
    ),
    "weighted": Measure(
        "mean over clients, weighted by test samples", "weighted\nmean", weighted
    ),
    "worst": Measure("worst client", "worst\nclient", _spread_measure("worst")),
    "worst10": Measure(
        "mean over the worst 10 % of clients", "worst\n10 %", _spread_measure("worst10")
    ),
    "std": Measure("standard deviation over clients", "std", _spread_measure("std")),
    "largest10": Measure(
        "mean over the 10 % of clients with most training samples, weighted by test"
        " samples",
        "largest\n10 %",
        largest_decile,
    ),
    "unseen": Measure("mean over clients that never took part", "unseen", unseen),
    "best_val": Measure(
        "mean over clients, best round chosen on val", "best round\non val", best_on_val
    ),
    "max_test": Measure(
        "mean over clients, maximum over rounds on test (only to compare with papers"
        " that publish it)",
        "max over rounds\non test",
        best_on_test,
        warning="max over rounds on test",
    ),
}
"""All measures by name.

They use the values after the last round unless the title says otherwise. The worst loss
is the highest.
"""

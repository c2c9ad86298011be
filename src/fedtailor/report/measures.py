"""What a comparison says of a run: means over clients in several senses."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from fedtailor.report.stored import StoredRun


@dataclass(frozen=True)
class Measure:
    """One number of a run, computed from test data only, of personal models.

    Attributes:
        title: what a table of it is called.
        header: a column's header, two short lines at most.
        of: run -> the number, in stored units; None where the run does not have it.
        warning: what every column must say, where it may be misread.
    """

    title: str
    header: str
    of: Callable[[StoredRun], float | None]
    warning: str = ""


def weighted(run: StoredRun) -> float | None:
    """Mean over seen clients, weighted by test samples."""
    scores = run.scores()
    if not len(scores):
        return None
    return float(np.average(scores["value"], weights=scores["test"]))


def largest_decile(run: StoredRun) -> float | None:
    """Mean over the tenth of the seen clients with most training samples.

    It is weighted by test samples, and has at least one client. Of equally large
    clients the earlier ones in the federation count.
    """
    scores = run.scores()
    if not len(scores):
        return None
    count = max(len(scores) // 10, 1)
    by_size = scores.sort("train", descending=True, maintain_order=True)
    largest = by_size.head(count)
    return float(np.average(largest["value"], weights=largest["test"]))


def unseen(run: StoredRun) -> float | None:
    """Mean over clients that never took part."""
    values = run.scores(unseen=True)["value"].to_numpy()
    return float(values.mean()) if len(values) else None


def best_on_val(run: StoredRun) -> float | None:
    """Test mean after the round that is best on the clients' validation data.

    Of equally good rounds the first one counts.
    """
    val, test = run.curve("val"), run.curve()
    return test[best_round(run, val)] if val and test else None


def best_round(run: StoredRun, curve: Mapping[int, float]) -> int:
    """The first round where a curve of the run's metric is best."""
    best = max if run.unit.higher_is_better else min
    return best(curve, key=curve.__getitem__)


def best_on_test(run: StoredRun) -> float | None:
    """Test mean after the round that is best on test: too good by the choice."""
    curve = run.curve()
    return curve[best_round(run, curve)] if curve else None


def _of_spread(name: str) -> Callable[[StoredRun], float | None]:
    def measure(run: StoredRun) -> float | None:
        return run.spread()[name] if run.is_tested else None

    return measure


MEASURES: Mapping[str, Measure] = {
    "mean": Measure("mean over clients", "mean", _of_spread("mean")),
    "weighted": Measure(
        "mean over clients, weighted by test samples", "weighted\nmean", weighted
    ),
    "worst": Measure("worst client", "worst\nclient", _of_spread("worst")),
    "worst10": Measure(
        "mean over the worst 10 % of clients", "worst\n10 %", _of_spread("worst10")
    ),
    "std": Measure("standard deviation over clients", "std", _of_spread("std")),
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
"""By name.

The last round counts unless the title says otherwise; for losses, the worst is the
highest.
"""

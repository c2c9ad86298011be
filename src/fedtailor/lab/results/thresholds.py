"""Thresholds of two classes: whose rows they are from, and a table of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.data.tables.target import label_text
from fedtailor.engine.storage import Damaged
from fedtailor.lab.results.coverage import predicted_kind
from fedtailor.lab.results.stored import StoredRun
from fedtailor.lab.results.tables import Cell, Number, ReportTable
from fedtailor.models.metrics.rows import WEIGHT
from fedtailor.statistics.decision.intervals import Interval
from fedtailor.statistics.decision.thresholds import (
    ThresholdMeasures,
    ThresholdRule,
    choose_threshold,
    measure_threshold,
)

OWN_ROWS = 50
"""Validation rows of each class from which a client's threshold is its own. Where n
negative rows choose a specificity c, that of new rows is distributed as a beta variable
of standard deviation sqrt(c (1 - c) / (n + 2)): 4 points for 50 rows at 0.9.
"""
RULES = ("f1", "specificity=0.9", "sensitivity=0.9")
"""The rules of reports and model cards."""
MOST_LOG_ODDS = 700.0
"""Larger ones are probabilities of 0 or 1 in double precision."""


@dataclass(frozen=True)
class ChosenThreshold:
    """The threshold of a client.

    Attributes:
        log_odds: those of the second class from which on it is predicted; infinite where
            one class always is.
        is_own: whether it is from the client's own validation rows, not from all clients'.
        positives, negatives: numbers of the validation rows that it is from.
    """

    log_odds: float
    is_own: bool
    positives: int
    negatives: int


@dataclass(frozen=True)
class MeasuredThreshold:
    """How good the thresholds of some clients are on their test rows together.

    Attributes:
        measures: sensitivity, specificity and F1.
        probability: the mean probability of the second class.
        share: how often the second class is true.
    """

    measures: ThresholdMeasures
    probability: float
    share: float


@dataclass(frozen=True)
class Thresholds:
    """The thresholds of all clients, and how good they are on test rows.

    Attributes:
        rule: as it was asked for, such as "specificity=0.9".
        label: of the second class.
        validation: what chooses, with the columns of `prepared_rows`.
        tested: what measures, likewise; None if there are no test rows.
    """

    rule: str
    label: str
    validation: pl.DataFrame
    tested: pl.DataFrame | None
    _known: dict[str, ChosenThreshold] = field(
        default_factory=dict, init=False, repr=False
    )

    def by_rules(self) -> "list[Thresholds]":
        """Those of the same rows by each of `RULES`."""
        return [replace(self, rule=rule) for rule in RULES]

    @cached_property
    def pooled(self) -> ChosenThreshold:
        """The threshold of clients with fewer than `OWN_ROWS` validation rows of a class."""
        return self._chosen(self.validation, is_own=False)

    def of(self, client: str) -> ChosenThreshold:
        """The threshold of a client, which may be one without rows of its own."""
        if client not in self._with_own:
            return self.pooled
        if client not in self._known:
            rows = self.validation.filter(pl.col("client") == client)
            self._known[client] = self._chosen(rows, is_own=True)
        return self._known[client]

    @cached_property
    def _with_own(self) -> frozenset[str]:
        """The clients with enough validation rows of their own."""
        positives = pl.col("is_positive").sum()
        counts = self.validation.group_by("client").agg(
            least=pl.min_horizontal(positives, pl.len() - positives)
        )
        return frozenset(counts.filter(pl.col("least") >= OWN_ROWS)["client"])

    def measured(self, clients: Sequence[str]) -> MeasuredThreshold | None:
        """How good the thresholds of some clients are on their test rows together; None
        without test rows.
        """
        if self.tested is None:
            return None
        rows = self.tested.filter(pl.col("client").is_in(list(clients)))
        if rows.is_empty():
            return None
        names = rows["client"].unique()
        cuts = {name: self.of(name).log_odds for name in names}
        cut = rows["client"].replace_strict(cuts, return_dtype=pl.Float64)
        odds, truth = rows["log_odds"].to_numpy(), rows["is_positive"].to_numpy()
        weights = _weights(rows)
        return MeasuredThreshold(
            measure_threshold(odds >= cut.to_numpy(), truth, weights),
            float(np.average(share_of_log_odds(odds), weights=weights)),
            float(np.average(truth, weights=weights)),
        )

    def _chosen(self, rows: pl.DataFrame, *, is_own: bool) -> ChosenThreshold:
        odds, truth = rows["log_odds"].to_numpy(), rows["is_positive"].to_numpy()
        rule = ThresholdRule.of(self.rule)
        value = choose_threshold(odds, truth, rule, _weights(rows))
        positives = int(truth.sum())
        return ChosenThreshold(value, is_own, positives, len(rows) - positives)


def thresholds_of_rows(
    validation: pl.DataFrame,
    tested: pl.DataFrame | None,
    rule: str,
    label: str,
    path: Path,
) -> Thresholds:
    """The thresholds that a rule chooses on validation rows.

    Args:
        validation: the validation rows, as `prepared_rows` makes them.
        tested: the test rows, likewise.
        rule: see `ThresholdRule.of`.
        label: of the second class.
        path: where the rows are stored, for messages.

    Raises:
        ValueError: there is no such rule, or the rows are all of one class.
    """
    ThresholdRule.of(rule)
    require(
        validation["is_positive"].n_unique() == 2,
        f"all {len(validation):,} validation rows of {path} that count are of one class; a"
        " threshold needs rows of both, so train with more rows for validation (--val)",
    )
    return Thresholds(rule, label, validation, tested)


def prepared_rows(rows: pl.DataFrame, path: Path) -> pl.DataFrame:
    """The rows of two classes that count, as thresholds need them.

    Args:
        rows: outcomes of rows as a run stores them.
        path: where they are stored, for messages.

    Returns:
        The columns client, log_odds (of the second class), is_positive and, if rows have
        weights, weight.

    Raises:
        ValueError: rows were stored by a version that did not have log-odds.
    """
    needed = {"correct", "prediction", "log_odds"}
    require(
        needed <= set(rows.columns),
        f"the rows of {path} are of an earlier version, which stored no log-odds; train"
        " again with --keep-rows",
    )
    is_second = pl.col("prediction") == 1
    odds = pl.col("log_odds").cast(pl.Float64).clip(-MOST_LOG_ODDS, MOST_LOG_ODDS)
    # The log-odds stored are those of the class predicted.
    prepared = rows.select(
        "client",
        pl.when(is_second).then(odds).otherwise(-odds).alias("log_odds"),
        (is_second == pl.col("correct")).alias("is_positive"),
        *([pl.col(WEIGHT).cast(pl.Float64)] if WEIGHT in rows.columns else []),
    )
    if WEIGHT in prepared.columns:
        prepared = prepared.filter(pl.col(WEIGHT) > 0)
    return prepared


def second_label(run: StoredRun) -> str:
    """The label of the second of two classes; "1" where the run is not of a table."""
    if run.preprocessing is None:
        return "1"
    return label_text(run.preprocessing.decode(np.array([1])).tolist()[0])


def share_of_log_odds(odds: Any) -> Any:
    """The probabilities of log-odds."""
    return np.exp(-np.logaddexp(0.0, -odds))


def predicts_two_classes(run: StoredRun) -> bool:
    """Whether a run predicts two classes by their log loss, and has stored rows of them."""
    model = run.manifest["model"]
    is_classes = predicted_kind(run.rows, model["loss"]) == "classes"
    if run.rows is None or not is_classes or model["outputs"] != 2:
        return False
    # Earlier versions stored none.
    return "log_odds" in run.rows.columns


def thresholds_of_stored(run: StoredRun) -> list[Thresholds]:
    """The thresholds of a run by each of `RULES`; empty where there are none, or the run
    has stored no rows.
    """
    if run.rows is None or run.validation is None or not predicts_two_classes(run):
        return []
    try:
        validation = prepared_rows(run.validation, run.path)
        tested = prepared_rows(run.rows, run.path)
        label = second_label(run)
        found = thresholds_of_rows(validation, tested, RULES[0], label, run.path)
        return found.by_rules()
    except Damaged:
        raise
    except ValueError:
        return []


def threshold_table(
    title: str,
    found: Sequence[Thresholds],
    clients: Sequence[str],
    listed: int | None = None,
) -> ReportTable:
    """The thresholds of some clients, and how good they are on test rows.

    Args:
        title: of the table.
        found: the thresholds by each rule, at least one.
        clients: names of the clients.
        listed: the number of clients with lines of their own; None = all. All together
            have lines where they are several.
    """
    label = found[0].label
    columns = [
        "client",
        "threshold for",
        f"validation rows,\n{label} and others",
        f"p({label})\nfrom",
        f"test rows,\n{label} and others",
        "sensitivity,\n%",
        "specificity,\n%",
        "F1,\n%",
        f"mean\np({label}), %",
        f"{label},\n%",
    ]
    lines = [_line(it, [name]) for name in clients[:listed] for it in found]
    if len(clients) > 1:
        lines += [_line(it, clients) for it in found]
    rows = [[cell for cell, _ in line] for line in lines]
    below = [[interval for _, interval in line] for line in lines]
    note = (
        f"{label} is predicted where p({label}) is at least the threshold, which"
        " validation rows chose. Test rows measured it, with 95 % intervals."
    )
    hidden = len(clients) - len(clients[:listed])
    if hidden:
        note += f" {hidden} more clients are not listed; a model card has those of one."
    if not all(found[0].of(name).is_own for name in clients):
        note += (
            f" A client with fewer than {OWN_ROWS} validation rows of a class has the"
            " threshold of all clients' rows together, which reached the share asked for"
            " on these together, not for each client."
        )
    return ReportTable(title, columns, rows, text=2, note=note, below=below)


def _line(thresholds: Thresholds, clients: Sequence[str]) -> list[tuple[Cell, str]]:
    """The cells of a line, with what is below them; several clients are measured together."""
    line: list[tuple[Cell, str]]
    if len(clients) > 1:
        line = [(f"all {len(clients)}", ""), (thresholds.rule, ""), ("", ""), ("", "")]
    else:
        found = thresholds.of(clients[0])
        line = [
            (clients[0], ""),
            (thresholds.rule, ""),
            (
                _rows(found.positives, found.negatives),
                "its own" if found.is_own else "all clients'",
            ),
            _number(float(share_of_log_odds(np.float64(found.log_odds))), 3),
        ]
    measured = thresholds.measured(clients)
    if measured is None:
        return [*line, ("none", ""), *[("-", "")] * 5]
    it = measured.measures
    return [
        *line,
        (_rows(it.positives, it.negatives), ""),
        *(_percent(interval) for interval in (it.sensitivity, it.specificity, it.f1)),
        _number(100 * measured.probability, 1),
        _number(100 * measured.share, 1),
    ]


def _rows(positives: int, negatives: int) -> Number:
    return Number(positives + negatives, f"{positives:,}, {negatives:,}")


def _number(value: float, digits: int) -> tuple[Cell, str]:
    return Number(value, f"{value:.{digits}f}"), ""


def _percent(interval: Interval) -> tuple[Cell, str]:
    if np.isnan(interval.estimate):
        return "-", ""
    share, _ = _number(100 * interval.estimate, 1)
    return share, f"{100 * interval.low:.1f} to {100 * interval.high:.1f}"


def _weights(rows: pl.DataFrame) -> NDArray[np.float64] | None:
    return rows[WEIGHT].to_numpy() if WEIGHT in rows.columns else None

"""Thresholds of models in use: the probability from which on the second of two classes
is predicted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Float
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor._base.printable import markdown_text
from fedtailor.data.tables.target import label_text
from fedtailor.deployment.data import is_of_machines
from fedtailor.deployment.opening import OpenedRun, final_folder, is_export, open_run
from fedtailor.engine.storage import Damaged
from fedtailor.models import Architecture, Model
from fedtailor.models.metrics.rows import WEIGHT
from fedtailor.models.tasks import cross_entropy
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
CARD_RULES = ("f1", "specificity=0.9")
"""The rules whose thresholds a model card has."""
_MOST_LINES = 5
_MOST_LOG_ODDS = 700.0
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
class Thresholds:
    """The thresholds of all clients, and how good they are on test rows.

    Attributes:
        rule: as it was asked for, such as "specificity=0.9".
        label: of the second class.
        own: the thresholds of clients with `OWN_ROWS` validation rows of each class.
        pooled: that of all others.
        tested: outcomes of the run's test rows, with the columns of `_prepared`; None if
            it has none.
    """

    rule: str
    label: str
    own: Mapping[str, ChosenThreshold]
    pooled: ChosenThreshold
    tested: pl.DataFrame | None

    def of(self, client: str) -> ChosenThreshold:
        """The threshold of a client, which may be one without rows of its own."""
        return self.own.get(client, self.pooled)

    def measured(self, clients: Sequence[str]) -> ThresholdMeasures | None:
        """How good the thresholds of some clients are on their test rows together; None
        without test rows.
        """
        rows = self._tested_rows(clients)
        if rows is None:
            return None
        cuts = np.array([self.of(name).log_odds for name in rows["client"]])
        hit = rows["log_odds"].to_numpy() >= cuts
        return measure_threshold(hit, rows["is_positive"].to_numpy(), _weights(rows))

    def mean_probability(self, clients: Sequence[str]) -> tuple[float, float] | None:
        """The mean probability of the second class over the test rows of some clients,
        and how often it is true; None without test rows.
        """
        rows = self._tested_rows(clients)
        if rows is None:
            return None
        share = share_of_log_odds(rows["log_odds"].to_numpy())
        weights = _weights(rows)
        truth = rows["is_positive"].to_numpy()
        return (
            float(np.average(share, weights=weights)),
            float(np.average(truth, weights=weights)),
        )

    def _tested_rows(self, clients: Sequence[str]) -> pl.DataFrame | None:
        if self.tested is None:
            return None
        rows = self.tested.filter(pl.col("client").is_in(list(clients)))
        weights = _weights(rows)
        counted = len(rows) if weights is None else weights.sum()
        return rows if counted > 0 else None


def thresholds_at(
    directory: Path | str, rule: str, model: Model | Architecture | None = None
) -> Thresholds:
    """The thresholds of a run.

    Args:
        directory: of the run.
        rule: see `ThresholdRule.of`.
        model: the model, or its network, if only the user's code knows it.

    Raises:
        ValueError: there is no such rule, or there are none for these models.
    """
    ThresholdRule.of(rule)
    path = Path(directory)
    is_kept = path.is_dir() and (final_folder(path) is not None or is_export(path))
    require(
        not is_kept,
        f"thresholds are from validation rows, which the models in {path} are stored"
        " without; name the run of a method (`fedtailor models` lists those of a"
        " comparison)",
    )
    return thresholds_of(open_run(path, model=model), rule)


def thresholds_of(run: OpenedRun, rule: str) -> Thresholds:
    """The thresholds of a run, chosen on its validation rows.

    Raises:
        ValueError: there is no such rule; the models predict something else than
            probabilities of two classes; or validation rows are missing or of one class.
    """
    asked = ThresholdRule.of(rule)
    predicts_two = run.model.task.predicts_classes and run.model.outputs == 2
    require(
        predicts_two,
        "thresholds are for two classes; these models predict"
        f" {run.model.task.describe(run.model.outputs)}",
    )
    require(
        run.model.task == cross_entropy,
        "thresholds are for probabilities, and these models were not trained by their log"
        " loss; train with the usual loss",
    )
    where = "did not keep (--keep-rows), and its data are not found"
    if is_of_machines(run.manifest):
        where = "does not have: it is the run of machines, which keep their rows"
    rows = run.validation_rows
    require(
        rows is not None,
        f"thresholds need the validation rows, which {run.path} {where}",
    )
    assert rows is not None
    require(
        len(rows) > 0,
        "thresholds are from validation rows, and this run has none; train with rows for"
        " validation (--val 0.2)",
    )
    rows = _prepared(rows, run.path)
    require(
        bool(rows["is_positive"].any()) and not bool(rows["is_positive"].all()),
        f"all {len(rows):,} validation rows of {run.path} that count are of one class; a"
        " threshold needs rows of both, so train with more rows for validation (--val)",
    )
    own = {}
    for (name,), part in rows.group_by("client", maintain_order=True):
        positives = int(part["is_positive"].sum())
        if min(positives, len(part) - positives) >= OWN_ROWS:
            own[str(name)] = _chosen(part, asked, is_own=True)
    label = "1"
    if run.preprocessing is not None:
        label = label_text(run.preprocessing.decode(np.array([1])).tolist()[0])
    tested = None if run.test_rows is None else run.test_rows[0]
    if tested is not None:
        tested = _prepared(tested, run.path)
    return Thresholds(rule, label, own, _chosen(rows, asked, is_own=False), tested)


def threshold_lines(thresholds: Thresholds, clients: Sequence[str]) -> list[str]:
    """What was chosen for some clients, and how good it is on their test rows."""
    lines = []
    for name in clients[:_MOST_LINES]:
        found = thresholds.of(name)
        whose = "its own" if found.is_own else "all clients'"
        value = share_of_log_odds(np.float64(found.log_odds))
        lines.append(
            f"{name}: {thresholds.label} where p({thresholds.label}) is {value:.3f} or more"
            f" ({thresholds.rule}, chosen on {whose} validation rows: {found.positives:,}"
            f" of {thresholds.label}, {found.negatives:,} others);"
            f" {_measured_text(thresholds, [name])}"
        )
    if len(clients) > _MOST_LINES:
        lines.append(
            f"{len(clients) - _MOST_LINES} more clients are not listed; `fedtailor card"
            " RUN --client NAME` prints the thresholds of one"
        )
    if len(clients) > 1:
        lines.append(
            f"these {len(clients)} clients: {_measured_text(thresholds, clients)}"
        )
    pooled = [name for name in clients if not thresholds.of(name).is_own]
    if pooled:
        shown = ", ".join(pooled[:_MOST_LINES])
        more = len(pooled) - _MOST_LINES
        lines.append(
            f"fewer than {OWN_ROWS} validation rows of a class:"
            f" {shown if more <= 0 else f'{shown} and {more} more'}; {thresholds.rule} was"
            " reached on all clients' validation rows together, not for each client"
        )
    return lines


def card_thresholds(run: OpenedRun, client: str) -> list[str]:
    """The thresholds of a client for its model card; empty where there are none."""
    lines = []
    for rule in CARD_RULES:
        try:
            thresholds = thresholds_of(run, rule)
        except Damaged:
            raise
        except ValueError:
            return []
        for line in threshold_lines(thresholds, [client]):
            lines.append(f"- {markdown_text(line)}")
    return lines


def log_odds(outputs: Float[NDArray, "n 2"]) -> Float[NDArray, " n"]:
    """The log-odds of the second of two classes, from outputs of a model."""
    scores = np.asarray(outputs, np.float64)
    return np.clip(scores[:, 1] - scores[:, 0], -_MOST_LOG_ODDS, _MOST_LOG_ODDS)


def share_of_log_odds(odds: Any) -> Any:
    """The probabilities of log-odds."""
    return np.exp(-np.logaddexp(0.0, -odds))


def _prepared(rows: pl.DataFrame, path: Path) -> pl.DataFrame:
    """Client, log-odds of the second class, truth and weight of the rows that count.

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
    odds = pl.col("log_odds").cast(pl.Float64).clip(-_MOST_LOG_ODDS, _MOST_LOG_ODDS)
    # The log-odds stored are those of the class predicted.
    prepared = rows.with_columns(
        log_odds=pl.when(is_second).then(odds).otherwise(-odds),
        is_positive=is_second == pl.col("correct"),
    )
    if WEIGHT in rows.columns:
        prepared = prepared.filter(pl.col(WEIGHT) > 0)
    return prepared


def _weights(rows: pl.DataFrame) -> NDArray[np.float64] | None:
    if WEIGHT not in rows.columns:
        return None
    return rows[WEIGHT].cast(pl.Float64).to_numpy()


def _chosen(
    rows: pl.DataFrame, rule: ThresholdRule, *, is_own: bool
) -> ChosenThreshold:
    truth = rows["is_positive"].to_numpy()
    value = choose_threshold(rows["log_odds"].to_numpy(), truth, rule, _weights(rows))
    positives = int(truth.sum())
    return ChosenThreshold(value, is_own, positives, len(rows) - positives)


def _measured_text(thresholds: Thresholds, clients: Sequence[str]) -> str:
    """Shares of test rows with their 95 % intervals, and the mean probability."""
    found, means = thresholds.measured(clients), thresholds.mean_probability(clients)
    if found is None or means is None:
        return "no test rows"
    return (
        f"{found.positives + found.negatives:,} test rows, {found.positives:,} of"
        f" {thresholds.label}: sensitivity {_percent(found.sensitivity)}, specificity"
        f" {_percent(found.specificity)}, F1 {_percent(found.f1)} (95 % intervals); mean"
        f" p({thresholds.label}) {100 * means[0]:.1f} %, seen {100 * means[1]:.1f} %"
    )


def _percent(interval: Interval) -> str:
    if np.isnan(interval.estimate):
        return "without rows"
    low, high = 100 * interval.low, 100 * interval.high
    return f"{100 * interval.estimate:.1f} % ({low:.1f} to {high:.1f})"

"""What sets and intervals take in of each client's test rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import polars as pl

from fedtailor._base.choice import require
from fedtailor.lab.results.stored import StoredRun
from fedtailor.lab.results.tables import Cell, ReportTable
from fedtailor.models.metrics.rows import WEIGHT
from fedtailor.models.tasks import cross_entropy, loss_of, squared_error
from fedtailor.statistics.conformal import (
    TEMPERATURE,
    Calibration,
    Threshold,
    scores_of_classes,
)
from fedtailor.statistics.decision.intervals import Interval, wilson_interval

COVERAGE = 0.9
"""The share of rows that sets and intervals of reports are to hold."""
NO_ROWS = (
    "sets and intervals are from validation rows, and this run has none; train with rows"
    " for validation (--val 0.2)"
)


@dataclass(frozen=True)
class Coverage:
    """What the sets or intervals of one client took in of its test rows.

    Attributes:
        client: its name.
        threshold: where they are from.
        share: the share of test rows that they took in, with its 95 % interval over rows.
        rows: the number of test rows.
    """

    client: str
    threshold: Threshold
    share: Interval
    rows: int


def calibration_of_rows(
    rows: pl.DataFrame, clients: pl.DataFrame, are_classes: bool
) -> Calibration:
    """The calibration from the outcomes of validation rows.

    Args:
        rows: as a run stores them (`fedtailor.engine.storage.run_files.VALIDATION`).
        clients: the run's table of clients.
        are_classes: whether classes are predicted.

    Raises:
        ValueError: there is no row.
    """
    require(len(rows) > 0, NO_ROWS)
    rows = rows.with_columns(score=pl.Series(scores_of(rows, are_classes)))
    by_client = {
        name: part for (name,), part in rows.group_by("client", maintain_order=True)
    }
    named = clients.filter(pl.col("group").is_not_null())
    groups = {
        name: str(group) for name, group in named.select("client", "group").rows()
    }
    temperatures: dict[str, float | None] = {}
    if are_classes and TEMPERATURE in rows.columns:
        for name, part in by_client.items():
            value = float(part[TEMPERATURE][0])
            temperatures[name] = value if np.isfinite(value) else None
    # Numbers are added up in the unit of the targets' spread, which federated
    # preprocessing has made known to everybody.
    scale = 1.0
    if not are_classes:
        deviation = rows["target"].std()
        assert deviation is None or isinstance(deviation, float)
        scale = deviation or 1.0
    return Calibration.of(
        "classes" if are_classes else "numbers",
        {name: by_client[name]["score"] for name in by_client},
        groups=groups,
        temperatures=temperatures,
        scale=scale,
    )


def predicted_kind(
    rows: pl.DataFrame | None, loss: Any
) -> Literal["classes", "numbers"] | None:
    """What the models of stored rows predict, if there are sets or intervals for it.

    Args:
        rows: outcomes of rows.
        loss: the loss of the models, as a manifest has it.
    """
    if rows is None or rows.is_empty():
        return None
    try:
        trained_by = loss_of(loss)
    except ValueError:
        return None
    if "correct" in rows.columns:
        # Scores are probabilities only of models that are trained by their log loss.
        return "classes" if trained_by == cross_entropy else None
    is_number = rows.schema.get("target") == pl.Float32
    return "numbers" if is_number and trained_by == squared_error else None


def scores_of(rows: pl.DataFrame, are_classes: bool) -> np.ndarray:
    """The conformity scores of stored rows [n]."""
    if are_classes:
        return scores_of_classes(rows["loss"].to_numpy())
    return np.sqrt(rows["squared_error"].cast(pl.Float64).to_numpy())


def coverages(
    calibration: Calibration, tested: pl.DataFrame, coverage: float
) -> list[Coverage]:
    """What sets and intervals took in of test rows, by client.

    Args:
        calibration: of the same run.
        tested: the outcomes of its test rows.
        coverage: the stated share.

    Returns:
        One entry for each client with test rows, in their order.
    """
    are_classes = calibration.kind == "classes"
    tested = tested.with_columns(score=pl.Series(scores_of(tested, are_classes)))
    found = []
    for (name,), rows in tested.group_by("client", maintain_order=True):
        threshold = calibration.threshold(str(name), coverage)
        is_covered = rows["score"].to_numpy() <= threshold.value
        if are_classes:
            # A set holds the most probable class in any case.
            is_covered |= rows["correct"].to_numpy()
        interval = wilson_interval(float(is_covered.mean()), len(rows), 0.95)
        found.append(Coverage(str(name), threshold, interval, len(rows)))
    return found


def source_text(threshold: Threshold) -> str:
    """Whose rows a threshold is from, in words."""
    whose = {
        "own": "its own",
        "group": "its group's",
        "all": "all clients'",
    }[threshold.source]
    return f"{whose} {threshold.rows:,} validation rows"


def coverage_table(
    title: str, seeds: Sequence[StoredRun], coverage: float = COVERAGE
) -> ReportTable | None:
    """What sets or intervals of one method held of each client's test rows.

    Args:
        title: of the table.
        seeds: the runs of the method.
        coverage: the stated share.

    Returns:
        None if no run has stored validation rows of classes or one number.
    """
    by_client: dict[str, list[Coverage]] = {}
    for run in seeds:
        kind = predicted_kind(run.rows, run.manifest["model"]["loss"])
        if kind is None or run.validation is None or run.validation.is_empty():
            continue
        assert run.rows is not None
        calibration = calibration_of_rows(
            run.validation, run.clients, kind == "classes"
        )
        for found in coverages(calibration, run.rows, coverage):
            by_client.setdefault(found.client, []).append(found)
    rows = [_row(found) for found in by_client.values()]
    if not rows:
        return None
    columns = ["client", "threshold from", "test\nrows", "held, %", "from", "to"]
    is_weighted = any(run.rows is not None and WEIGHT in run.rows for run in seeds)
    note = f"{_NOTE} {_UNWEIGHTED}" if is_weighted else _NOTE
    return ReportTable(title, columns, rows, text=2, note=note)


_NOTE = (
    "What a prediction set (of a number: an interval) took in of the test rows, mean over"
    " seeds, with its 95 % interval over as many rows as one seed tests. Sets of a client"
    " with too few validation rows of its own are from all clients' rows, and hold on"
    " average over them only."
)
_UNWEIGHTED = "Each row counts once here, whatever its weight."


def _row(found: Sequence[Coverage]) -> list[Cell]:
    """The cells of one client, whose coverages are those of several seeds."""
    rows = round(float(np.mean([one.rows for one in found])))
    share = float(np.mean([one.share.estimate for one in found]))
    interval = wilson_interval(share, rows, 0.95)
    numbers = [share, interval.low, interval.high]
    return [
        found[0].client,
        {"own": "own rows", "group": "its group", "all": "all clients"}[
            found[0].threshold.source
        ],
        f"{rows:,}",
        *(f"{100 * number:.1f}" for number in numbers),
    ]

"""Thresholds of models in use: the probability from which on the second of two classes
is predicted.
"""

from pathlib import Path

import numpy as np
import polars as pl
from jaxtyping import Float
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.deployment.data import is_of_machines
from fedtailor.deployment.opening import (
    OpenedRun,
    final_folder,
    final_record,
    is_export,
    open_run,
)
from fedtailor.engine.storage import Damaged
from fedtailor.engine.storage.final_models import (
    THRESHOLDS,
    read_threshold_rows,
)
from fedtailor.lab.results.thresholds import (
    MOST_LOG_ODDS,
    RULES,
    Thresholds,
    prepared_rows,
    second_label,
    threshold_table,
    thresholds_of_rows,
)
from fedtailor.models import Architecture, Model
from fedtailor.models.tasks import cross_entropy
from fedtailor.statistics.decision.thresholds import ThresholdRule


def thresholds_at(
    directory: Path | str, rule: str, model: Model | Architecture | None = None
) -> Thresholds:
    """The thresholds of a run, or of final models.

    Args:
        directory: of the run or the final models.
        rule: see `ThresholdRule.of`.
        model: the model, or its network, if only the user's code knows it.

    Raises:
        ValueError: there is no such rule, or there are none for these models.
    """
    ThresholdRule.of(rule)
    path = Path(directory)
    require(
        not path.is_dir() or not is_export(path),
        f"the exported models in {path} are stored without rows, which thresholds are"
        " from; name the run or the final models that they are from (their cards name"
        " some thresholds)",
    )
    run = open_run(path, model=model)
    final = final_folder(path)
    return thresholds_of(run, rule) if final is None else _of_final(final, run, rule)


def thresholds_of(run: OpenedRun, rule: str) -> Thresholds:
    """The thresholds of a run, chosen on its validation rows.

    Raises:
        ValueError: there is no such rule; the models predict something else than
            probabilities of two classes; or validation rows are missing or of one class.
    """
    ThresholdRule.of(rule)
    _require_two_classes(run)
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
    tested = (
        None if run.test_rows is None else prepared_rows(run.test_rows[0], run.path)
    )
    return thresholds_of_rows(
        prepared_rows(rows, run.path), tested, rule, second_label(run.stored), run.path
    )


def _of_final(final: Path, run: OpenedRun, rule: str) -> Thresholds:
    """The thresholds of final models.

    Args:
        final: their directory.
        run: one of them.
        rule: see `ThresholdRule.of`.
    """
    _require_two_classes(run)
    rows = read_threshold_rows(final)
    require(
        rows is not None,
        f"{final} holds no {THRESHOLDS}, which thresholds are from: another version wrote"
        " it, or the comparison had no validation rows; run `fedtailor finalize` again",
    )
    assert rows is not None
    validation, tested = (
        rows.filter(pl.col("split") == split) for split in ("val", "test")
    )
    return thresholds_of_rows(validation, tested, rule, second_label(run.stored), final)


def _require_two_classes(run: OpenedRun) -> None:
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


def thresholds_statement(directory: Path | str) -> str | None:
    """What thresholds of final models are from, in a line; None for others.

    Raises:
        ValueError: the record is damaged.
    """
    record = final_record(Path(directory))
    if record is None:
        return None
    chosen = (
        "thresholds were chosen on the validation rows of the comparison's first split,"
        " by models that it trained without them"
    )
    if record.kept:
        return (
            f"{chosen}; these models were trained on those rows, too, and measured on"
            f" {record.kept:,} test rows, on which they were not trained and nothing was"
            " chosen"
        )
    return (
        f"{chosen}, and measured on its test rows; these models were trained on all of"
        " these rows, and nothing has measured them with the thresholds"
    )


def card_thresholds(run: OpenedRun, final: Path | None, client: str) -> list[str]:
    """The thresholds of a client for its model card; empty where there are none.

    Args:
        run: of the client's model.
        final: the directory of final models that it belongs to; None = none.
        client: its name.
    """
    try:
        rule = RULES[0]
        found = (
            thresholds_of(run, rule) if final is None else _of_final(final, run, rule)
        )
    except Damaged:
        raise
    except ValueError:
        return []
    statement = None if final is None else thresholds_statement(final)
    said = [] if statement is None else ["", f"{statement[0].upper()}{statement[1:]}."]
    return [threshold_table("", found.by_rules(), [client]).markdown().strip(), *said]


def log_odds(outputs: Float[NDArray, "n 2"]) -> Float[NDArray, " n"]:
    """The log-odds of the second of two classes, from outputs of a model."""
    scores = np.asarray(outputs, np.float64)
    return np.clip(scores[:, 1] - scores[:, 0], -MOST_LOG_ODDS, MOST_LOG_ODDS)

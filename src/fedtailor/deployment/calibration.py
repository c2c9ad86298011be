"""Sets and intervals of models in use: whose rows they are from."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from fedtailor._base.choice import require
from fedtailor.deployment.data import is_of_machines
from fedtailor.deployment.opening import (
    OpenedRun,
    final_folder,
    final_record,
    is_export,
    open_run,
)
from fedtailor.engine.storage.calibration_file import CALIBRATION, read_calibration
from fedtailor.lab.results.coverage import calibration_of_rows
from fedtailor.models import Architecture, Model
from fedtailor.models.tasks import cross_entropy, squared_error, task_of
from fedtailor.statistics.conformal import Calibration, conformal_rank


def calibration_at(
    directory: Path | str, model: Model | Architecture | None = None
) -> Calibration:
    """The calibration of a run, of final or of exported models.

    Args:
        directory: of the run, of the final models or of the export.
        model: the model, or its network, if only the user's code knows it.

    Raises:
        ValueError: there is none.
    """
    path = Path(directory)
    final = final_folder(path) if path.is_dir() else None
    if final is None:
        if is_export(path):
            return read_calibration(path)
        return calibration_of(open_run(path, model=model))
    require(
        (final / CALIBRATION).exists(),
        f"{final} holds no {CALIBRATION}, which sets and intervals are from: its models"
        " predict neither classes nor one number",
    )
    return read_calibration(final)


def statement_of_final(directory: Path | str) -> str | None:
    """What sets and intervals of final models promise, in a line; None for others.

    Raises:
        ValueError: the record is damaged.
    """
    record = final_record(Path(directory))
    if record is None:
        return None
    if record.kept:
        return (
            f"sets and intervals are from {record.kept:,} test rows, on which these models"
            " were not trained and nothing was chosen"
        )
    return (
        "sets and intervals are from the test rows of the comparison's first split, and"
        " their promise is one of the models that it trained without them; these were"
        " refitted on all rows, and it holds for them as far as they are no worse"
        " (finalize --keep-test: a promise of their own)"
    )


def calibration_of(run: OpenedRun) -> Calibration:
    """The calibration of a run, from what it stored of validation rows, or its data.

    Raises:
        ValueError: the run predicts neither classes nor one number, has no validation
            rows, or did not store them and its data are not found.
    """
    kind = _kind(run.model)
    where = "did not keep (--keep-rows), and its data are not found"
    if is_of_machines(run.manifest):
        where = "does not have: it is the run of machines, which keep their rows"
    require(
        run.validation_rows is not None,
        f"sets and intervals need the validation rows, which {run.path} {where}",
    )
    assert run.validation_rows is not None
    return calibration_of_rows(
        run.validation_rows, run.stored.clients, kind == "classes"
    )


def notes(
    calibration: Calibration, clients: Iterable[str], coverage: float
) -> list[str]:
    """What the user of sets and intervals is to know, in lines."""
    everything, bad = np.inf, "the error is beyond what histograms tell"
    if calibration.kind == "classes":
        everything, bad = 1.0, "the true class has almost no probability"
    pooled, too_few, unlikely = [], [], []
    for name in clients:
        threshold = calibration.threshold(name, coverage)
        if threshold.source != "own":
            pooled.append(name)
        if conformal_rank(threshold.rows, coverage) > threshold.rows:
            too_few.append(name)
        elif threshold.value >= everything:
            unlikely.append(name)
    share, lines = f"{100 * coverage:g} %", []
    if pooled:
        lines.append(
            f"too few validation rows of their own: {_names(pooled)}; {share} holds on"
            " average over the clients whose rows are pooled, not for each of them"
        )
    if too_few:
        lines.append(
            f"too few validation rows for {share}, everything is taken in:"
            f" {_names(too_few)}"
        )
    if unlikely:
        lines.append(
            f"in more than {100 * (1 - coverage):.3g} % of the validation rows {bad}, so"
            f" that everything is taken in: {_names(unlikely)}"
        )
    return lines


def unweighted_note(weight: str) -> str:
    """What calibration does with the column of the rows' weights, in a line."""
    return (
        "sets, intervals and temperatures count each row once, whatever its"
        f" {weight!r}: shares are of rows, not of weights"
    )


def _names(names: list[str]) -> str:
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"


def _kind(model: Model) -> str:
    """What is predicted: "classes" or "numbers".

    Raises:
        ValueError: something else.
    """
    if model.task == cross_entropy:
        return "classes"
    is_number = model.task == task_of(squared_error) and model.outputs == 1
    require(
        is_number,
        "sets are for classes and intervals for one number; these models predict"
        " something else",
    )
    return "numbers"

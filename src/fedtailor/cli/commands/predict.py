"""`fedtailor predict RUN rows.csv --client X`: what a personal model makes of raw
rows.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from fedtailor._base.printable import csv_of_frame, say, say_status
from fedtailor.cli.advice import as_typed
from fedtailor.cli.options import parse
from fedtailor.cli.output import check_not_input, write_text

_LISTED = 5
"""Clients whose thresholds are printed."""


@dataclass(frozen=True)
class Options:
    """Predict with the personal models of a run, of a comparison that was finalized, of
    an export, or of one enrolled newcomer.

    Models that were trained on a table take its columns by name, in any order; further
    columns may be there. Classes are written by
    their names, the targets of a regression in their own unit.
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run directory, final models (`fedtailor finalize`) or the results that they are
    in, or exported models."""
    rows: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="ROWS")]
    """A table of rows; for models that were trained on arrays, numbers in the order of
    their inputs, or a .npy file.
    """
    client: str | None = None
    """Whose model (default: each row's own client, where the rows name it)."""
    out: Path | None = None
    """Write the predictions to this .csv instead of the standard output."""
    missing: Literal["error", "impute"] = "error"
    """A missing cell of a column that missed none in training: refuse it, or put the
    mean or most frequent value.
    """
    unknown: Literal["error", "other"] = "error"
    """A category that training never saw: refuse it, or treat it as none of the known
    ones.
    """
    keep: tuple[str, ...] = ()
    """Columns of the rows to write next to the predictions, such as an id."""
    probabilities: bool = False
    """Write the probability of every class, too."""
    coverage: float | None = None
    """Write sets of classes, or intervals of a number, that contain the truth in this share
    of rows, such as 0.9: from the client's own validation rows where it has 50, else
    from those of its group or of all clients. Final models: from test rows.
    """
    threshold: str | None = None
    """Of two classes: predict the second (that of --positive) from a probability on that is
    chosen on validation rows (final models: of the comparison). f1: with the highest F1;
    specificity=0.9 or sensitivity=0.9: with at least this share. Probabilities stay as
    they are.
    """
    calibrated: bool = False
    """Divide logits by the client's temperature, so that probabilities are as often right
    as they say on its validation rows.
    """
    times: tuple[float, ...] = ()
    """For survival: the times at which to write the share without the event."""
    model: str | None = None
    """FILE.py:NAME that makes the network, if it is your own code (it is run)."""


def predict(arguments: list[str]) -> int:
    """Writes predictions as comma-separated values."""
    options = parse(Options, arguments, "fedtailor predict")
    from fedtailor.deployment.calibration import (
        calibration_at,
        notes,
        statement_of_final,
        unweighted_note,
    )
    from fedtailor.deployment.opening import models_at
    from fedtailor.deployment.predictions import predictions
    from fedtailor.deployment.thresholds import thresholds_at, thresholds_statement
    from fedtailor.lab.experiments.option_text import given_model
    from fedtailor.lab.results.thresholds import threshold_table

    network = given_model(options.model)
    check_not_input(options.out, options.rows)
    client = None if options.client is None else [options.client]
    models = models_at(options.run, client, network)
    is_calibrated = options.coverage is not None or options.calibrated
    with as_typed():
        calibration = None
        if is_calibrated:
            calibration = calibration_at(options.run, network)
        thresholds = None
        if options.threshold is not None:
            thresholds = thresholds_at(options.run, options.threshold, network)
        table = predictions(
            models,
            options.rows,
            options.client,
            missing=options.missing,
            unknown=options.unknown,
            probabilities=options.probabilities,
            coverage=options.coverage,
            calibrated=options.calibrated,
            calibration=calibration,
            thresholds=thresholds,
            times=options.times,
            keep=options.keep,
        )
    named = table["client"].unique(maintain_order=True) if "client" in table else ()
    asked = list(named) or [options.client or next(iter(models))]
    if thresholds is not None:
        threshold_table("", [thresholds], asked, _LISTED).show(stderr=True)
        if statement := thresholds_statement(options.run):
            say_status(statement)
    used = next(iter(models.values())).preprocessing
    if is_calibrated and used is not None and used.weight is not None:
        say_status(unweighted_note(used.weight))
    if options.coverage is not None and calibration is not None:
        if statement := statement_of_final(options.run):
            say_status(statement)
        for line in notes(calibration, asked, options.coverage):
            say_status(line)
    write_text(csv_of_frame(table), options.out)
    if options.out is not None:
        say(f"{len(table):,} predictions: {options.out.resolve()}")
    return 0

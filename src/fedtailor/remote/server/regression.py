"""Fits a regression over machines: the coordinator's side."""

from collections.abc import Collection
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.aggregation.secure_sums import MAX_CLIENTS, MIN_CLIENTS
from fedtailor.remote.job.job import Job
from fedtailor.remote.job.regression import design_names
from fedtailor.remote.job.statistics import Statistics
from fedtailor.remote.keys.secret import run_identity
from fedtailor.remote.server.steps import StepsServer
from fedtailor.remote.wire.regression import REGRESS, plain_question
from fedtailor.remote.wire.transport import TooFewClients, Transport
from fedtailor.statistics.regression import (
    Fitted,
    Regression,
    RegressionRequest,
    answer_size,
    fit_from_sums,
)


def fit_clients(
    job: Job,
    transport: Transport,
    names: Collection[str],
    *,
    statistics: Statistics | None = None,
    patience: float = 600.0,
) -> tuple[Regression, tuple[str, ...]]:
    """Fit the regression of a job to the rows of all clients.

    Args:
        job: the job, with [regression].
        transport: carries messages to the clients.
        names: of the clients; all of them take part in every sum.
        statistics: statistics of columns, pooled or of the job; None without
            preprocessing.
        patience: how many seconds to retry a sum that a client does not answer.

    Returns:
        The regression, and notes on what was left out, in sentences.

    Raises:
        ValueError: the job has no regression, there are too few clients, or it cannot
            be fitted to their rows.
        TooFewClients: a client did not answer for `patience` seconds, or refused for good.
    """
    require(
        job.regression is not None,
        "the job fits no regression: add the table [regression] to job.toml, and give all"
        " clients the new file",
    )
    assert job.regression is not None
    require(
        MIN_CLIENTS <= len(names) <= MAX_CLIENTS,
        f"a regression adds over {MIN_CLIENTS} to {MAX_CLIENTS} clients, and"
        f" {len(names)} are ready",
    )
    design, settings = design_names(job.schema), job.regression
    with TemporaryDirectory() as folder:
        run = run_identity(Path(folder))
    steps = StepsServer(
        REGRESS, job, transport, sorted(names), run, statistics, patience
    )
    shared = 0

    def ask(request: RegressionRequest) -> NDArray[np.float64]:
        nonlocal shared
        shared = len(request.arrays["shared"]) if request.kind == "begin" else shared
        size = answer_size(request, len(design.names), shared)
        arrays = {name: np.asarray(it) for name, it in request.arrays.items()}
        return steps.sum(plain_question(request), arrays, size)

    try:
        fitted = fit_from_sums(
            ask,
            design.names,
            settings.model,
            levels=design.levels,
            intercept=settings.intercept,
        )
    except TooFewClients:
        raise
    except ValueError as error:
        # A table is given the names of columns to drop, and a job lists those that it has.
        raise ValueError(str(error).replace("with drop", "of the job")) from None
    return fitted.regression, _notes(job, fitted, design.names)


def _notes(job: Job, fitted: Fitted, names: tuple[str, ...]) -> tuple[str, ...]:
    """What was left out, and how columns are read."""
    kept, notes = fitted.kept, []
    if kept.missing:
        notes.append(f"{kept.missing:,} rows are left out, as a cell is missing.")
    classes = job.schema.classes
    if classes is not None:
        notes.append(
            f"Odds are those of {job.schema.target} {classes[1]} against {classes[0]}."
        )
    if fitted.compared:
        levels = [" ".join(names[number].rsplit("=", 1)) for number in fitted.compared]
        notes.append(
            f"Categories are compared with the most frequent: {', '.join(levels)}."
        )
    if kept.left_out:
        notes.append(
            f"{kept.left_out:,} clients whose rows say nothing about the coefficients, as"
            " their outcomes or inputs are all alike, are left out."
        )
    return tuple(notes)

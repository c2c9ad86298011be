"""`fedtailor enroll RUN --data rows.csv --client NAME --out DIR`: a model for a client
that arrives after training.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from fedtailor._base.printable import say
from fedtailor.cli.advice import as_typed
from fedtailor.cli.options import parse


@dataclass(frozen=True)
class Options:
    """Serve a newcomer: from its own labelled rows it gets the model that the run's
    method gives to unseen clients.

    The run itself is not changed. It must find its data again: a table lies where it
    was, or --table says where.
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run directory, or final models (`fedtailor finalize`)."""
    data: Path
    """The newcomer's rows, with the columns of the run's table and the target."""
    client: str
    """The newcomer's name."""
    out: Path
    """A new directory for the newcomer's model; `fedtailor predict DIR` reads it."""
    table: Path | None = None
    """Where the run's table is now, if it was moved."""
    missing: Literal["error", "impute"] = "error"
    """A missing cell of a column that missed none in training: refuse it, or put the
    mean or most frequent value.
    """
    unknown: Literal["error", "other"] = "error"
    """A category that training never saw: refuse it, or treat it as none of the known
    ones.
    """
    model: str | None = None
    """FILE.py:NAME that makes the network, if it is your own code (it is run)."""


def enroll(arguments: list[str]) -> int:
    """Enrolls a newcomer and writes its model."""
    options = parse(Options, arguments, "fedtailor enroll")
    from fedtailor._base.choice import require
    from fedtailor.deployment.opening import open_run
    from fedtailor.deployment.predictions import read_newcomer
    from fedtailor.lab.experiments.option_text import given_model

    is_occupied = options.out.exists() and (
        not options.out.is_dir() or any(options.out.iterdir())
    )
    require(
        not is_occupied,
        f"{options.out} is not empty; name a new directory for the model",
    )
    run = open_run(options.run, model=given_model(options.model), table=options.table)
    require(
        options.client not in run.names,
        f"client {options.client!r} took part in {options.run}; its model is there"
        f" (fedtailor predict {options.run} ROWS --client {options.client!r})",
    )
    with as_typed():
        x, y = read_newcomer(
            run, options.data, missing=options.missing, unknown=options.unknown
        )
    model = run.enroll(x, y, name=options.client)
    say(
        f"{options.client}: a model from {len(x):,} rows:"
        f" {model.save(options.out).resolve()}"
    )
    return 0

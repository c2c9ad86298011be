"""`fedtailor unlearn RUN --client X --out DIR`: train again without a client."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import polars as pl
import tyro

from fedtailor._base.printable import say
from fedtailor.cli.options import check_counts, parse
from fedtailor.cli.progress import progress_of

if TYPE_CHECKING:
    from fedtailor.engine.runs import Run


@dataclass(frozen=True)
class Options:
    """Train a run again, with its own settings, on the data of all other clients.

    The new training reads no row of the client. The old run and the table stay as they
    are: remove them yourself.
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run directory."""
    client: str
    """Whose rows the new training leaves out."""
    out: Path
    """A new directory, for the run without the client."""
    table: Path | None = None
    """Where the run's table is now, if it was moved."""
    devices: int | None = None
    """Devices to use (all by default)."""

    def __post_init__(self) -> None:
        check_counts(self, "devices")

    model: str | None = None
    """FILE.py:NAME that makes the network, if it is your own code (it is run)."""


def _mean_score(run: "Run", clients: Collection[str]) -> float | None:
    """The mean of a run's metric on test after the last round, over some clients; None
    without test rows.
    """
    evaluations = run.frame().filter(
        (pl.col("metric") == run.summary().metric)
        & (pl.col("split") == "test")
        & pl.col("client").is_in(list(clients))
    )
    final_scores = evaluations.filter(pl.col("round") == pl.col("round").max())["value"]
    return float(final_scores.to_numpy().mean()) if len(final_scores) else None


def unlearn(arguments: list[str]) -> int:
    """Trains a run again without a client."""
    options = parse(Options, arguments, "fedtailor unlearn")
    from fedtailor.deployment import open_run
    from fedtailor.deployment import unlearn as retrain
    from fedtailor.engine.executors import Settings
    from fedtailor.lab.experiments.option_text import given_model

    settings = Settings(devices=options.devices)
    run = open_run(
        options.run,
        model=given_model(options.model),
        table=options.table,
        settings=settings,
    )
    rounds = int(run.stored.summary["rounds"])
    with progress_of(f"{run.stored.method} without the client", rounds) as progress:
        retrained = retrain(
            run, options.client, options.out, settings=settings, progress=progress
        )
    remaining_clients = retrained.federation.names
    before, after = (
        _mean_score(run, remaining_clients),
        _mean_score(retrained, remaining_clients),
    )
    count, path = len(remaining_clients), options.out.resolve()
    say(f"Retrained on {count} of {len(run.names)} clients: {path}")
    if after is not None and before is not None:
        say(
            f"Test {run.stored.metric}, mean over these {count} clients: {after:.4f}"
            f" (before: {before:.4f})"
        )
    say(
        f"{options.run} and the data themselves still hold the client; removing them is"
        " up to you."
    )
    return 0

"""`fedtailor forget RUN --client X --out DIR`: train again without a client, and prove that nothing of it is left."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from fedtailor.cli.options import check_counts, parse
from fedtailor.cli.progress import progress_of


@dataclass(frozen=True)
class Options:
    """Train a run again, with its own settings, on the data of all other clients.

    DIR/forgotten.json is the proof: the new files were searched for the client's name, examples, model and state, in
    their bytes and in their cells. The old run and the table stay as they are: remove them yourself.
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run directory."""
    client: str
    """Who is to be forgotten."""
    out: Path
    """A new directory, for the run without the client."""
    table: Path | None = None
    """Where the run's table is now, if it was moved."""
    devices: int | None = None
    """Devices to use (all by default)."""

    def __post_init__(self) -> None:
        check_counts(self, "devices")


def forget(arguments: list[str]) -> int:
    """Retrain without a client."""
    options = parse(Options, arguments, "fedtailor forget")
    from fedtailor.deployment import forget as retrain
    from fedtailor.deployment import open_run
    from fedtailor.deployment.forgetting import PROOF
    from fedtailor.executors import Settings

    settings = Settings(devices=options.devices)
    run = open_run(options.run, table=options.table, settings=settings)
    rounds = int(run.stored.summary["rounds"])
    with progress_of(f"{run.stored.method} without the client", rounds) as progress:
        done = retrain(run, options.client, options.out, settings=settings, progress=progress)
    before, after = run.summary(), done.summary()
    print(f"Retrained on {len(done.federation)} of {len(run.names)} clients: {options.out.resolve()}")
    print(f"mean test {after.metric}: {after.mean:.4f} (with the client: {before.mean:.4f})")
    print(f"Nothing of the client was found in the new directory; what was searched for: {options.out / PROOF}")
    print(f"{options.run} and the data themselves still hold the client; removing them is up to you.")
    return 0

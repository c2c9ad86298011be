"""`fedtailor audit RUN`: whether personal models tell which rows they were trained on."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from fedtailor._base.printable import one_line, say, say_status
from fedtailor.cli.options import check_counts, parse
from fedtailor.cli.output import write_text


@dataclass(frozen=True)
class Options:
    """Attack the personal models of a run as anybody who has them could.

    The numbers are written into the run's directory, and model cards show them. Without
    --shadows and --canaries nothing is trained.
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run directory."""
    shadows: int = 0
    """The number of shadow models for the likelihood-ratio attack (LiRA); each takes as
    long as the run."""
    canaries: int = 0
    """Train once with this number of canaries, which give a lower bound of the epsilon
    of private steps."""
    seed: int = 0
    """Random seed for shadow trainings and canaries."""
    model: str | None = None
    """FILE.py:NAME that makes the network, if it is your own code (it is run)."""
    json: bool = False
    """Print one JSON object."""
    devices: int | None = None
    """Devices to use (all by default)."""

    def __post_init__(self) -> None:
        check_counts(self, "devices")
        for name in ("shadows", "canaries"):
            if getattr(self, name) < 0:
                raise ValueError(
                    f"--{name} is {getattr(self, name)}; it must be 0 or more"
                )


def audit(arguments: list[str]) -> int:
    """Prints what an attack tells of each client's training rows."""
    options = parse(Options, arguments, "fedtailor audit")
    from fedtailor._base.digests import finite
    from fedtailor.deployment.auditing import audit_run, lines_of, write_audit
    from fedtailor.deployment.opening import open_run
    from fedtailor.engine.executors import Settings
    from fedtailor.lab.experiments.option_text import given_model

    settings = Settings(devices=options.devices)
    run = open_run(options.run, model=given_model(options.model), settings=settings)

    def progress(number: int, count: int) -> None:
        say_status(f"training {number} of {count}")

    found = audit_run(
        run,
        shadows=options.shadows,
        canaries=options.canaries,
        seed=options.seed,
        settings=settings,
        progress=progress,
    )
    path = write_audit(found, run.path)
    if options.json:
        write_text(json.dumps(finite(found.as_dict()), allow_nan=False, indent=1), None)
        return 0
    for line in lines_of(found):
        say(one_line(line) if line else "")
    say(f"written to {path.resolve()}; model cards show it")
    return 0

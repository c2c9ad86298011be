"""`fedtailor contributions RESULTS`: what each client's part in the training is worth to the
others.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from fedtailor._base.printable import say, say_status
from fedtailor.cli.options import check_counts, parse
from fedtailor.cli.output import write_text


@dataclass(frozen=True)
class Options:
    """Train again without each client, and report what the others lose without it.

    One sentence a client, in the metric that the runs are judged by, with an interval
    over test rows and, with three seeds or more, over seeds. The clients that are left
    out are tested as newcomers; nothing is written but the answer.
    """

    runs: Annotated[
        tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN")
    ]
    """The results of a comparison, or run directories of one method, one for each seed."""
    method: str | None = None
    """The method of the comparison (default: the recommended one or, where that is
    training alone, the shared one that the decision speaks of)."""
    shapley: bool = False
    """Shapley values, too: with at most 8 clients from all coalitions, which takes
    2^clients trainings a seed; with more clients from sampled orders."""
    permutations: int = 20
    """Orders that are sampled for more than 8 clients."""
    out: Path | None = None
    """Write the numbers to this .json, too."""
    json: bool = False
    """Print one JSON object."""
    devices: int | None = None
    """Devices to use (all by default)."""
    model: str | None = None
    """FILE.py:NAME that makes the network, if it is your own code (it is run)."""

    def __post_init__(self) -> None:
        check_counts(self, "devices", "permutations")


def contributions(arguments: list[str]) -> int:
    """Prints what each client contributes."""
    options = parse(Options, arguments, "fedtailor contributions")
    from fedtailor.deployment.contributions import contributions_of, runs_at
    from fedtailor.engine.executors import Settings
    from fedtailor.lab.experiments.option_text import given_model

    if not options.runs:
        raise ValueError("name the results of a comparison, or runs of one method")
    settings = Settings(devices=options.devices)
    runs = runs_at(options.runs, options.method, settings, given_model(options.model))

    def progress(number: int, most: int) -> None:
        say_status(f"training {number} of at most {most}")

    found = contributions_of(
        runs,
        shapley=options.shapley,
        permutations=options.permutations,
        settings=settings,
        progress=progress,
    )
    content = json.dumps(found.as_dict(), allow_nan=False, indent=1)
    if options.out is not None:
        write_text(content + "\n", options.out)
    if options.json:
        write_text(content, None)
        return 0
    seeds = "1 seed" if found.seeds == 1 else f"{found.seeds} seeds"
    say(f"{found.method}, {seeds}, {found.trainings} more trainings:")
    for sentence in found.sentences():
        say(f"  {sentence}")
    for part in found.contributions:
        if part.shapley is not None:
            value = part.shapley
            say(
                f"  Shapley value of {part.client}: {value.estimate:.4f}"
                f" ({value.low:.4f}, {value.high:.4f})"
            )
    return 0

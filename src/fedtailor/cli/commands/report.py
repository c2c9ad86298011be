"""`fedtailor report RESULTS [EXPERIMENT ...]`: tables and figures of what compare ran."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from fedtailor.cli.options import parse
from fedtailor.report import document
from fedtailor.report.experiment import experiments


@dataclass(frozen=True)
class Options:
    """Tables and figures of experiments that `fedtailor compare` ran, or is running."""

    results: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RESULTS")]
    """The directory with the results."""
    experiments: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="EXPERIMENT")] = ()
    """Which experiments (all by default)."""
    format: document.Format = "terminal"
    """Of the tables on the standard output."""
    out: Path | None = None
    """Write report.md, tables (CSV and LaTeX) and figures (PNG and SVG) below this directory instead."""
    figures: bool = True
    """Draw figures into --out."""


def report(arguments: list[str]) -> int:
    """Print or write the reports of some experiments."""
    options = parse(Options, arguments, "fedtailor report")
    for number, experiment in enumerate(experiments(options.results, options.experiments)):
        if options.out is not None:
            path = document.write(experiment, options.out / experiment.index.name, figures=options.figures)
            print(f"{experiment.index.name}: {path.resolve()}")
        else:
            print("\n" * (number > 0), end="")
            document.show(experiment, options.format)
    return 0

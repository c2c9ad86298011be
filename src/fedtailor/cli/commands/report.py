"""`fedtailor report RESULTS [EXPERIMENT ...]`: tables and figures of what compare
ran.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from fedtailor._base.choice import require
from fedtailor._base.printable import say
from fedtailor.cli.options import parse
from fedtailor.lab.report import document
from fedtailor.lab.report.page import page_of, write_page
from fedtailor.lab.results.experiment import experiments


@dataclass(frozen=True)
class Options:
    """Tables and figures of experiments that `fedtailor compare` ran, or is running."""

    results: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RESULTS")]
    """The directory with the results."""
    experiments: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="EXPERIMENT")
    ] = ()
    """Which experiments (all by default)."""
    format: document.Format = "terminal"
    """The format of the tables on the standard output."""
    details: bool = False
    """On the terminal, all tables of a comparison on a table, too: costs, settings, gains
    of all methods."""
    out: Path | None = None
    """Write report.md, tables (CSV and LaTeX) and figures (PNG and SVG) below this
    directory instead.
    """
    figures: bool = True
    """Draw figures into --out."""
    compact: bool = False
    """Write only report.md and tables.csv, all tables in one file, into --out."""
    json: bool = False
    """The same as --format json."""
    html: Path | None = None
    """Write one experiment as a web page into this file: it needs no network and no
    other file.
    """


def report(arguments: list[str]) -> int:
    """Prints or writes the reports of experiments."""
    options = parse(Options, arguments, "fedtailor report")
    require(
        options.out is not None or not options.compact,
        "--compact says what --out writes; name a directory with --out",
    )
    selected = experiments(options.results, options.experiments)
    if options.html is not None:
        require(
            options.out is None,
            "--html and --out exclude each other; run the command once for each",
        )
        names = ", ".join(experiment.index.name for experiment in selected)
        require(
            len(selected) == 1,
            f"--html takes one experiment, {options.results} has {names}; name one of"
            " them",
        )
        path = write_page(page_of(selected[0]), options.html)
        say(f"{selected[0].index.name}: {path.resolve()}")
        return 0
    for number, experiment in enumerate(selected):
        name = experiment.index.name
        if options.out is not None:
            path = document.write(
                experiment,
                options.out / name,
                figures=options.figures,
                compact=options.compact,
            )
            say(f"{name}: {path.resolve()}")
            continue
        if number:
            say("")
        format_of = "json" if options.json else options.format
        document.show(experiment, format_of, details=options.details)
    return 0

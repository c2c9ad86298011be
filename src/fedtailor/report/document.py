"""A report of an experiment: as text, or as a directory with tables and figures."""

import json
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from fedtailor.report import drawing, overview
from fedtailor.report.comparison import repeated, slug, tables
from fedtailor.report.decision import MOST_LINES, Decision, decisions
from fedtailor.report.experiment import Experiment
from fedtailor.report.tables import Table

Format = Literal["terminal", "markdown", "csv", "latex", "json"]
REPORT = "report.md"


def show(experiment: Experiment, form: Format) -> None:
    """Print what was run (as terminal or Markdown text only) and all tables."""
    shown, decided = tables(experiment), decisions(experiment)
    if form == "terminal":
        _show_facts(experiment)
        said_again = repeated(experiment)
        for name, table in shown.items():
            if name not in said_again:
                print()
                table.show()
        _show_decisions(decided)
    elif form == "markdown":
        print(markdown(experiment, shown, decided))
    elif form == "json":
        print(
            json.dumps(as_dict(experiment, shown, decided), indent=2, allow_nan=False)
        )
    elif form == "csv":
        every = [*shown.values(), *_gain_tables(decided).values()]
        print("\n".join(f"# {table.title}\n{table.csv()}" for table in every))
    else:
        print("\n".join(table.latex() for table in shown.values()))


def write(experiment: Experiment, directory: Path, *, figures: bool = True) -> Path:
    """Write report.md, tables/*.csv and *.tex, and figures/*.png and *.svg; returns the
    path of report.md.

    Raises:
        ValueError: the directory cannot be written.
    """
    shown, decided = tables(experiment), decisions(experiment)
    try:
        (directory / "tables").mkdir(parents=True, exist_ok=True)
        for name, table in {**shown, **_gain_tables(decided)}.items():
            (directory / "tables" / f"{name}.csv").write_text(
                table.csv(), encoding="utf-8"
            )
            (directory / "tables" / f"{name}.tex").write_text(
                table.latex(), encoding="utf-8"
            )
        written, left_out = (
            drawing.draw(experiment, directory / "figures") if figures else ([], [])
        )
        drawn = [
            f"![{path.stem}](figures/{path.name})"
            for path in written
            if path.suffix == ".png"
        ]
        (directory / REPORT).write_text(
            markdown(experiment, shown, decided, [*drawn, *left_out]), encoding="utf-8"
        )
    except OSError as error:
        raise ValueError(
            f"cannot write to {directory}: {error.strerror}; name another directory"
        ) from None
    return directory / REPORT


def markdown(
    experiment: Experiment,
    shown: Mapping[str, Table],
    decided: Sequence[Decision],
    paragraphs: Sequence[str] = (),
) -> str:
    """What was run, the tables, what they decide, and further paragraphs (figures)."""
    facts = "\n".join(f"- {fact}" for fact in overview.facts(experiment))
    parts = [
        f"# {overview.title(experiment)}",
        facts,
        *(table.markdown().rstrip() for table in shown.values()),
    ]
    for decision in decided:
        said = [
            *decision.sentences,
            *(f"Warning: {warning}" for warning in decision.warnings),
        ]
        parts += [
            f"## Decision: {decision.scenario}",
            "\n".join(f"- {sentence}" for sentence in said),
        ]
        parts += [table.markdown().rstrip() for table in _short_tables(decision)]
    return "\n\n".join([*parts, *paragraphs]) + "\n"


def as_dict(
    experiment: Experiment, shown: Mapping[str, Table], decided: Sequence[Decision]
) -> dict[str, Any]:
    """What was run, all tables and what they decide, for JSON."""
    return {
        "experiment": experiment.index.name,
        "title": experiment.index.title,
        "facts": overview.facts(experiment),
        "runs": experiment.index.runs,
        "done": experiment.done,
        "tables": {name: table.as_dict() for name, table in shown.items()},
        "decision": {decision.scenario: decision.as_dict() for decision in decided},
    }


def _gain_tables(decided: Sequence[Decision]) -> dict[str, Table]:
    """The tables of all clients' gains, by the name of their file."""
    tables = {
        f"{slug(decision.scenario)}-gains": decision.table for decision in decided
    }
    return {name: table for name, table in tables.items() if table is not None}


def _short_tables(decision: Decision) -> list[Table]:
    """The table of gains, where people would read it to its end."""
    table = decision.table
    return [table] if table is not None and len(table.rows) <= MOST_LINES else []


def _show_decisions(decided: Sequence[Decision]) -> None:
    """The decisions, wrapped to a terminal's width."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 10_000
    for decision in decided:
        for table in _short_tables(decision):
            print()
            table.show()
        print(f"\nDecision: {decision.scenario}")
        for line in (
            *decision.sentences,
            *(f"Warning: {warning}" for warning in decision.warnings),
        ):
            print(
                textwrap.fill(
                    line,
                    width,
                    initial_indent="  ",
                    subsequent_indent="    ",
                    break_on_hyphens=False,
                )
            )


def _show_facts(experiment: Experiment) -> None:
    """What was run, wrapped to a terminal's width, never in a pipe."""
    title = overview.title(experiment)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 10_000
    for line in (title, *overview.facts(experiment)):
        print(
            textwrap.fill(
                line,
                width,
                subsequent_indent="" if line is title else "  ",
                break_on_hyphens=False,
            )
        )

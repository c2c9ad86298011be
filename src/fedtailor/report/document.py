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
    by_name, decided = tables(experiment), decisions(experiment)
    if form == "terminal":
        _show_facts(experiment)
        # On a terminal nothing is shown twice; files and pages have all tables.
        hidden = repeated(experiment)
        for name, table in by_name.items():
            if name not in hidden:
                print()
                table.show()
        _show_decisions(decided)
    elif form == "markdown":
        print(markdown(experiment, by_name, decided))
    elif form == "json":
        content = as_dict(experiment, by_name, decided)
        print(json.dumps(content, indent=2, allow_nan=False))
    elif form == "csv":
        every = [*by_name.values(), *_gain_tables(decided).values()]
        print("\n".join(f"# {table.title}\n{table.csv()}" for table in every))
    else:
        print("\n".join(table.latex() for table in by_name.values()))


def write(experiment: Experiment, directory: Path, *, figures: bool = True) -> Path:
    """Write report.md, tables/*.csv and *.tex, and figures/*.png and *.svg.

    Returns:
        The path of report.md.

    Raises:
        ValueError: the directory cannot be written.
    """
    by_name, decided = tables(experiment), decisions(experiment)
    report = directory / REPORT
    try:
        folder = directory / "tables"
        folder.mkdir(parents=True, exist_ok=True)
        for name, table in {**by_name, **_gain_tables(decided)}.items():
            (folder / f"{name}.csv").write_text(table.csv(), encoding="utf-8")
            (folder / f"{name}.tex").write_text(table.latex(), encoding="utf-8")
        paragraphs = []
        if figures:
            written, left_out = drawing.draw(experiment, directory / "figures")
            for path in written:
                if path.suffix == ".png":
                    paragraphs.append(f"![{path.stem}](figures/{path.name})")
            paragraphs += left_out
        text = markdown(experiment, by_name, decided, paragraphs)
        report.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ValueError(
            f"cannot write to {directory}: {error.strerror}; name another directory"
        ) from None
    return report


def markdown(
    experiment: Experiment,
    by_name: Mapping[str, Table],
    decided: Sequence[Decision],
    paragraphs: Sequence[str] = (),
) -> str:
    """What was run, the tables, what they decide, and further paragraphs (figures)."""
    parts = [
        f"# {overview.title(experiment)}",
        _bullets(overview.facts(experiment)),
        *(table.markdown().rstrip() for table in by_name.values()),
    ]
    for decision in decided:
        parts.append(f"## Decision: {decision.scenario}")
        parts.append(_bullets(_sentences(decision)))
        parts += [table.markdown().rstrip() for table in _short_tables(decision)]
    return "\n\n".join([*parts, *paragraphs]) + "\n"


def as_dict(
    experiment: Experiment, by_name: Mapping[str, Table], decided: Sequence[Decision]
) -> dict[str, Any]:
    """What was run, all tables and what they decide, for JSON."""
    return {
        "experiment": experiment.index.name,
        "title": experiment.index.title,
        "facts": overview.facts(experiment),
        "runs": experiment.index.runs,
        "done": experiment.done,
        "tables": {name: table.as_dict() for name, table in by_name.items()},
        "decision": {decision.scenario: decision.as_dict() for decision in decided},
    }


def _gain_tables(decided: Sequence[Decision]) -> dict[str, Table]:
    """The tables of all clients' gains, by the name of their file."""
    tables = {
        f"{slug(decision.scenario)}-gains": decision.table for decision in decided
    }
    return {name: table for name, table in tables.items() if table is not None}


def _short_tables(decision: Decision) -> list[Table]:
    """The table of gains, unless it is too long for people to read."""
    table = decision.table
    return [table] if table is not None and len(table.rows) <= MOST_LINES else []


def _sentences(decision: Decision) -> list[str]:
    warnings = (f"Warning: {warning}" for warning in decision.warnings)
    return [*decision.sentences, *warnings]


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _show_decisions(decided: Sequence[Decision]) -> None:
    """Print the decisions, wrapped to a terminal's width."""
    for decision in decided:
        for table in _short_tables(decision):
            print()
            table.show()
        print(f"\nDecision: {decision.scenario}")
        for line in _sentences(decision):
            _print_wrapped(line, "  ", "    ")


def _show_facts(experiment: Experiment) -> None:
    """Print what was run, wrapped to a terminal's width."""
    _print_wrapped(overview.title(experiment), "", "")
    for fact in overview.facts(experiment):
        _print_wrapped(fact, "", "  ")


def _print_wrapped(line: str, first_indent: str, next_indent: str) -> None:
    """Print a line, wrapped to a terminal's width, never in a pipe."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 10_000
    text = textwrap.fill(
        line,
        width,
        initial_indent=first_indent,
        subsequent_indent=next_indent,
        break_on_hyphens=False,
    )
    print(text)

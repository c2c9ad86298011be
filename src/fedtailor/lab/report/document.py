"""A report of an experiment: as text, or as a directory with tables and figures."""

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from fedtailor._base.printable import (
    markdown_text,
    one_line,
    output_width,
    say,
    say_block,
)
from fedtailor.lab.report import drawing, overview
from fedtailor.lab.report.comparison import redundant_tables, slug, tables
from fedtailor.lab.results.decision import MAX_TABLE_ROWS, Decision
from fedtailor.lab.results.decision_file import decisions_of
from fedtailor.lab.results.experiment import StoredExperiment
from fedtailor.lab.results.tables import ReportTable, stacked_csv
from fedtailor.lab.results.verdict import Verdict

Format = Literal["terminal", "markdown", "csv", "latex", "json"]
REPORT_FILE = "report.md"
TABLES_FILE = "tables.csv"

MOST_WARNINGS = 2
"""More caveats than these are left to --details, where a comparison ends."""


def show(
    experiment: StoredExperiment, output_format: Format, *, details: bool = False
) -> None:
    """Prints the report of an experiment in a format.

    Args:
        experiment: the index and its runs.
        output_format: of the tables.
        details: on a terminal, also print all tables of a comparison that ends in a
            verdict; else only that is printed.
    """
    decisions = list(decisions_of(experiment).values())
    verdict = decisions[0].verdict if len(decisions) == 1 else None
    # A comparison of a table is made for its verdict, others are for their tables.
    is_table = [use.use for use in experiment.index.scenarios.values()] == ["table"]
    if output_format == "terminal" and verdict is not None and is_table and not details:
        print_verdict(verdict, decisions[0].warnings)
        return
    tables_by_name = tables(experiment)
    if output_format == "terminal":
        _print_overview(experiment)
        # On a terminal, omit tables whose numbers another table shows.
        hidden = redundant_tables(experiment)
        for name, table in tables_by_name.items():
            if name not in hidden:
                say("")
                table.show()
        _print_decisions(decisions)
        if verdict is not None and is_table:
            say("")
            print_verdict(verdict, ())
    elif output_format == "markdown":
        say_block(markdown(experiment, tables_by_name, decisions))
    elif output_format == "json":
        content = as_dict(experiment, tables_by_name, decisions)
        say_block(json.dumps(content, indent=2, allow_nan=False))
    elif output_format == "csv":
        all_tables = [*tables_by_name.values(), *_gain_tables(decisions).values()]
        say_block(
            "\n".join(
                f"# {one_line(table.title)}\n{table.csv()}" for table in all_tables
            )
        )
    else:
        say_block("\n".join(table.latex() for table in tables_by_name.values()))


def print_verdict(verdict: Verdict, warnings: Sequence[str]) -> None:
    """Prints the end of a comparison: the answer, the evidence, the best candidates, a
    line for each client, and caveats.

    Args:
        verdict: what to print.
        warnings: of the decision; the first `MOST_WARNINGS` are printed.
    """
    for sentence in (verdict.answer, *verdict.evidence):
        _print_wrapped(sentence, "", "  ")
    say("")
    candidates = verdict.candidates_table()
    _print_wrapped(candidates.title, "", "")
    replace(candidates, title="").show()
    clients = verdict.first_screen()
    if verdict.summary or clients is not None:
        say("")
    if verdict.summary:
        _print_wrapped(verdict.summary, "", "")
    if clients is not None:
        clients.show()
    say("")
    listed = [*verdict.warnings, *warnings]
    for warning in listed[:MOST_WARNINGS]:
        _print_wrapped(f"Caveat: {warning}.", "", "  ")
    if len(listed) > MOST_WARNINGS:
        more = len(listed) - MOST_WARNINGS
        say(f"{more} more caveat{'s' if more > 1 else ''}: --details")
    if verdict.advice:
        _print_wrapped(verdict.advice, "", "  ")


def write(
    experiment: StoredExperiment,
    directory: Path,
    *,
    figures: bool = True,
    compact: bool = False,
) -> Path:
    """Writes report.md, tables/*.csv and *.tex, and figures/*.png and *.svg.

    Args:
        experiment: the experiment.
        directory: where the files go.
        figures: whether to draw figures.
        compact: whether to write report.md and tables.csv, which holds all tables,
            and nothing else.

    Returns:
        The path of report.md.

    Raises:
        ValueError: the directory cannot be written.
    """
    tables_by_name = tables(experiment)
    decisions = list(decisions_of(experiment).values())
    report = directory / REPORT_FILE
    all_tables = {**tables_by_name, **_gain_tables(decisions)}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if compact:
            stacked = stacked_csv(all_tables)
            (directory / TABLES_FILE).write_text(stacked, encoding="utf-8")
        else:
            _write_tables(all_tables, directory / "tables")
        paragraphs = []
        if figures and not compact:
            paths, left_out = drawing.draw(experiment, directory / "figures")
            for path in paths:
                if path.suffix == ".png":
                    paragraphs.append(f"![{path.stem}](figures/{path.name})")
            paragraphs += left_out
        text = markdown(experiment, tables_by_name, decisions, paragraphs)
        report.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ValueError(
            f"cannot write to {directory}: {error.strerror}; name another directory"
        ) from None
    return report


def _write_tables(tables_by_name: Mapping[str, ReportTable], folder: Path) -> None:
    """Writes a CSV and a LaTeX file for each table."""
    folder.mkdir(exist_ok=True)
    for name, table in tables_by_name.items():
        (folder / f"{name}.csv").write_text(table.csv(), encoding="utf-8")
        (folder / f"{name}.tex").write_text(table.latex(), encoding="utf-8")


def markdown(
    experiment: StoredExperiment,
    tables_by_name: Mapping[str, ReportTable],
    decisions: Sequence[Decision],
    paragraphs: Sequence[str] = (),
) -> str:
    """The report as Markdown: overview, tables, decisions and further paragraphs."""
    parts = [
        f"# {markdown_text(overview.title(experiment))}",
        _bullet_list(overview.paragraphs(experiment)),
        *(table.markdown().rstrip() for table in tables_by_name.values()),
    ]
    for decision in decisions:
        parts.append(f"## Decision: {markdown_text(decision.scenario)}")
        if decision.verdict is not None:
            parts.append(_bullet_list(verdict_lines(decision.verdict)))
            parts.append(decision.verdict.candidates_table().markdown().rstrip())
            parts.append(decision.verdict.table().markdown().rstrip())
        parts.append(_bullet_list(_decision_lines(decision)))
        parts += [table.markdown().rstrip() for table in _short_tables(decision)]
    return "\n\n".join([*parts, *paragraphs]) + "\n"


def as_dict(
    experiment: StoredExperiment,
    tables_by_name: Mapping[str, ReportTable],
    decisions: Sequence[Decision],
) -> dict[str, Any]:
    """The report as a dict for JSON: overview, tables and decisions."""
    return {
        "experiment": experiment.index.name,
        "title": experiment.index.title,
        "facts": overview.paragraphs(experiment),
        "runs": experiment.index.runs,
        "done": experiment.done,
        "tables": {name: table.as_dict() for name, table in tables_by_name.items()},
        "decision": {decision.scenario: decision.as_dict() for decision in decisions},
    }


def verdict_lines(verdict: Verdict) -> list[str]:
    """All sentences of a verdict, in the order in which they are printed."""
    lines = [verdict.answer, *verdict.evidence, verdict.summary]
    lines += (f"Caveat: {warning}" for warning in verdict.warnings)
    return [line for line in (*lines, verdict.advice) if line]


def _gain_tables(decisions: Sequence[Decision]) -> dict[str, ReportTable]:
    """The tables of all clients' gains, by file name."""
    tables = {
        f"{slug(decision.scenario)}-gains": decision.table for decision in decisions
    }
    return {name: table for name, table in tables.items() if table is not None}


def _short_tables(decision: Decision) -> list[ReportTable]:
    """The table of gains, unless it has more than `MAX_TABLE_ROWS` rows."""
    table = decision.table
    return [table] if table is not None and len(table.rows) <= MAX_TABLE_ROWS else []


def _decision_lines(decision: Decision) -> list[str]:
    warnings = (f"Caveat: {warning}" for warning in decision.warnings)
    return [*decision.conclusions, *warnings]


def _bullet_list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {markdown_text(line)}" for line in lines)


def _print_decisions(decisions: Sequence[Decision]) -> None:
    """Prints the decisions, wrapped to the terminal's width."""
    for decision in decisions:
        for table in _short_tables(decision):
            say("")
            table.show()
        say("", f"Decision: {decision.scenario}")
        for line in _decision_lines(decision):
            _print_wrapped(line, "  ", "    ")


def _print_overview(experiment: StoredExperiment) -> None:
    """Prints what was run, wrapped to the terminal's width."""
    _print_wrapped(overview.title(experiment), "", "")
    for paragraph in overview.paragraphs(experiment):
        _print_wrapped(paragraph, "", "  ")


def _print_wrapped(line: str, first_indent: str, next_indent: str) -> None:
    """Prints a line, wrapped to the terminal's width; a pipe gets it unwrapped."""
    text = textwrap.fill(
        line,
        output_width(),
        initial_indent=first_indent,
        subsequent_indent=next_indent,
        break_on_hyphens=False,
    )
    say_block(text)

"""Tables of text: on the terminal, as Markdown, CSV, LaTeX or JSON."""

import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from fedtailor._base.choice import require
from fedtailor._base.notebook import html_paragraphs, html_table
from fedtailor._base.printable import csv_text, markdown_text, one_line

TABLE_NAME = "(table)"
"""Header of the column that names the table where several are one file; no scenario,
which heads a column too, is called so.
"""
_UNLIMITED = 1_000_000
"""Columns of a table that is measured before it is printed to a pipe."""


@dataclass(frozen=True)
class Number:
    """A numeric cell, usually a mean over runs.

    Attributes:
        mean: the number in the displayed unit; NaN if no run has a value.
        text: the displayed text.
        std: sample standard deviation over runs, or None.
        runs: number of runs of the mean, or None.
        diverged: number of other runs, which diverged.
    """

    mean: float
    text: str
    std: float | None = None
    runs: int | None = None
    diverged: int = 0

    def __str__(self) -> str:
        return self.text


Cell = str | Number


@dataclass(frozen=True)
class ReportTable:
    """A table with a title.

    Attributes:
        title: title, one line; "" if the text above says it.
        columns: [c] headers; a terminal shows their line breaks.
        rows: [r][c] cells.
        below: [r][c] what a terminal and a page show below each cell, Markdown in
            brackets behind it, and files of numbers not at all; or empty.
        text: number of text columns; they come before the numeric columns.
        higher_is_better: index of a column -> direction, for columns whose best number
            is marked (in LaTeX).
        note: explanation of the headers, one line, or "".
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    text: int = 1
    higher_is_better: Mapping[int, bool] = field(default_factory=dict)
    note: str = ""
    below: Sequence[Sequence[str]] = ()

    def __post_init__(self) -> None:
        columns = len(self.columns)
        for row in self.rows:
            require(
                len(row) == columns,
                f"a row has {len(row)} cells, the table {columns} columns",
            )
        require(
            not self.below or [*map(len, self.below)] == [*map(len, self.rows)],
            "there are not as many texts below the cells as cells",
        )

    def first(self, count: int) -> "ReportTable":
        """The table with its first rows."""
        return replace(self, rows=self.rows[:count], below=self.below[:count])

    def select(
        self,
        columns: Sequence[int],
        title: str,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> "ReportTable":
        """Some columns as a table of its own, without a note.

        Args:
            columns: indices of the columns.
            title: title of the new table.
            headers: header -> another header.
        """
        names = [self.columns[column] for column in columns]
        rows = []
        for row in self.rows:
            rows.append([row[column] for column in columns])
        return ReportTable(
            title,
            [headers.get(name, name) for name in names],
            rows,
            text=sum(column < self.text for column in columns),
            higher_is_better={
                number: self.higher_is_better[column]
                for number, column in enumerate(columns)
                if column in self.higher_is_better
            },
        )

    def show(self, *, stderr: bool = False) -> None:
        """Prints the table. Labels are not interpreted as Rich's markup.

        Args:
            stderr: print it on the standard error.
        """
        from rich import box
        from rich.cells import cell_len
        from rich.console import Console
        from rich.measure import Measurement
        from rich.table import Table as RichTable
        from rich.text import Text

        rich_table = RichTable(
            box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True
        )
        for number, column in enumerate(self.columns):
            justify = "left" if number < self.text else "right"
            header = "\n".join(map(one_line, column.split("\n")))
            rich_table.add_column(Text(header), justify=justify, overflow="fold")
        for number, row in enumerate(self.rows):
            cells = [Text(one_line(cell)) for cell in row]
            if self.below:
                for cell, below in zip(cells, self.below[number], strict=True):
                    cell.append(f"\n{one_line(below)}", "dim")
            rich_table.add_row(*cells)
        console = Console(stderr=stderr)
        if not (sys.stderr if stderr else sys.stdout).isatty():
            # A pipe has no width, so nothing is wrapped; also where FORCE_COLOR makes
            # the console call it a terminal. Some letters are two columns wide.
            unlimited = console.options.update(width=_UNLIMITED)
            required_width = Measurement.get(console, unlimited, rich_table).maximum
            texts = (one_line(text) for text in (self.title, self.note))
            console.width = max(required_width, *map(cell_len, texts), 1)
        if self.title:
            console.print(Text(one_line(self.title), "italic"))
        console.print(rich_table)
        if self.note:
            console.print(Text(one_line(self.note), "dim"))

    def _repr_html_(self) -> str:
        """The table in a notebook."""
        shown = html_table(_header_lines(self.columns), self._texts(), self.title)
        return shown + (html_paragraphs([self.note]) if self.note else "")

    def markdown(self) -> str:
        """Converts the table to Markdown."""
        numbers = len(self.columns) - self.text
        alignment = ["---"] * self.text + ["---:"] * numbers
        rows = []
        for row in (self.columns, *self._texts()):
            rows.append(f"| {' | '.join(map(markdown_text, row))} |")
        rows.insert(1, f"| {' | '.join(alignment)} |")
        note = [markdown_text(self.note), ""] if self.note else []
        title = [f"**{markdown_text(self.title)}**", ""] if self.title else []
        return "\n".join([*title, *rows, "", *note])

    def csv(self) -> str:
        """Converts the table to comma-separated values.

        A numeric column contains only numbers and empty cells. Deviations, numbers of
        runs, and numbers of diverged runs have separate columns if there are any.
        """
        columns = self.csv_columns()
        return csv_text(list(columns), zip(*columns.values(), strict=True))

    def csv_columns(self) -> dict[str, list[str]]:
        """The columns of `csv`: header -> one text for each row."""
        columns: dict[str, list[str]] = {}
        for number, header in enumerate(_header_lines(self.columns)):
            columns |= _csv_columns(header, [row[number] for row in self.rows])
        return columns

    def latex(self) -> str:
        """Converts the table to a LaTeX tabular, which needs no package.

        The best number of a column is bold, and so are numbers with the same text.
        """
        best = {
            (row, column)
            for column, higher_is_better in self.higher_is_better.items()
            for row in self._best(column, higher_is_better)
        }
        lines = [
            " & ".join(map(_latex_text, _header_lines(self.columns))) + r" \\",
            r"\hline",
        ]
        for r, row in enumerate(self.rows):
            cells = [_latex_text(cell) for cell in row]
            for c in range(len(cells)):
                if (r, c) in best:
                    cells[c] = rf"\textbf{{{cells[c]}}}"
            lines.append(" & ".join(cells) + r" \\")
        alignment = "l" * self.text + "r" * (len(self.columns) - self.text)
        return "\n".join(
            [
                *(
                    f"% {_on_one_line(text)}"
                    for text in (self.title, self.note)
                    if text
                ),
                rf"\begin{{tabular}}{{{alignment}}}",
                r"\hline",
                *lines,
                r"\hline",
                r"\end{tabular}",
                "",
            ]
        )

    def as_dict(self) -> dict[str, Any]:
        """Converts the table to a dict for JSON, with rows as dicts by header.

        Numbers with a deviation or a number of runs are dicts.
        """
        headers = _header_lines(self.columns)
        rows = []
        for row in self.rows:
            values = map(_json_value, row)
            rows.append(dict(zip(headers, values, strict=True)))
        return {"title": self.title, "note": self.note, "rows": rows}

    def _texts(self) -> list[list[str]]:
        """The cells as text, each with what stands below it in brackets."""
        rows = [list(map(str, row)) for row in self.rows]
        for row, below in zip(rows, self.below, strict=False):
            for column, text in enumerate(below):
                row[column] += f" ({text})" if text else ""
        return rows

    def _best(self, column: int, higher_is_better: bool) -> list[int]:
        """The indices of the rows with the best number in a column."""
        numbers = {
            row_index: cell
            for row_index, row in enumerate(self.rows)
            if isinstance(cell := row[column], Number)
            and not cell.diverged
            and math.isfinite(cell.mean)
        }
        # Means over fewer runs are not comparable: they may omit difficult seeds.
        runs = max((number.runs or 0 for number in numbers.values()), default=0)
        numbers = {
            row_index: number
            for row_index, number in numbers.items()
            if (number.runs or 0) == runs
        }
        # A single number is not marked.
        if len(numbers) < 2:
            return []

        def displayed_mean(number: Number) -> str:
            return number.text.partition(" ")[0]

        # Mark all numbers with the same displayed text.
        select = max if higher_is_better else min
        best = select(numbers.values(), key=lambda number: number.mean)
        return [
            row_index
            for row_index, number in numbers.items()
            if displayed_mean(number) == displayed_mean(best)
        ]


def mean_of(
    values: Sequence[float],
    digits: int = 3,
    mean: float | None = None,
    *,
    deviation: bool = True,
) -> Number:
    """A cell with the mean over runs, such as "0.901 ± 0.012".

    Args:
        values: one value for each run, at least one.
        digits: number of decimals.
        mean: used instead of the mean of the values.
        deviation: whether to add the sample standard deviation and the number of runs.
            A single value has no deviation.
    """
    mean = float(np.mean(values)) if mean is None else mean
    text = f"{mean:.{digits}f}"
    if not deviation:
        return Number(mean, text)
    if len(values) < 2:
        return Number(mean, text, runs=len(values))
    std = float(np.std(values, ddof=1))
    return Number(mean, f"{text} ± {std:.{digits}f}", std, len(values))


def published(figure: str | float) -> Cell:
    """Converts a published figure, such as "76.7 ± 4.0" or 68.2, to a cell.

    Text that is not a number is returned unchanged.
    """
    text = str(figure)
    number, plus_minus = r"(-?\d*\.?\d+)\s*%?", r"(?:±|\+-|\+/-)\s*(\d*\.?\d+)\s*%?"
    match = re.fullmatch(rf"\s*{number}\s*(?:{plus_minus})?\s*", text)
    if match is None:
        return text
    mean, std = match.groups()
    return Number(float(mean), text, None if std is None else float(std))


def stacked_csv(tables: Mapping[str, ReportTable]) -> str:
    """Converts several tables to one file of comma-separated values.

    The column `TABLE_NAME` names the table of a row. The others are the columns of
    all tables; cells of columns that a table does not have are empty.

    Args:
        tables: name -> table.
    """
    columns_of = {name: table.csv_columns() for name, table in tables.items()}
    return stacked_columns(columns_of)


def stacked_columns(columns_of: Mapping[str, Mapping[str, Sequence[str]]]) -> str:
    """`stacked_csv` of tables that are columns of text.

    Args:
        columns_of: name -> header -> one text for each row.
    """
    headers = list(dict.fromkeys(header for of in columns_of.values() for header in of))
    rows = []
    for name, columns in columns_of.items():
        for row in zip(*columns.values(), strict=True):
            cells = dict(zip(columns, row, strict=True))
            rows.append([name, *(cells.get(header, "") for header in headers)])
    return csv_text([TABLE_NAME, *headers], rows)


def _csv_columns(header: str, cells: Sequence[Cell]) -> dict[str, list[str]]:
    """Converts a column to one or more columns of a CSV file: header -> texts."""
    numbers = [cell if isinstance(cell, Number) else None for cell in cells]
    present = [number for number in numbers if number is not None]
    if not present:
        return {header: [str(cell) for cell in cells]}

    def column(text_of: Callable[[Number], str], missing: str) -> list[str]:
        return [missing if number is None else text_of(number) for number in numbers]

    columns = {header: column(lambda number: _precise_text(number.mean), "")}
    if any(number.std is not None for number in present):
        columns[f"{header} std"] = column(lambda number: _precise_text(number.std), "")
    if any(number.runs is not None for number in present):
        columns[f"{header} runs"] = column(lambda number: str(number.runs or 0), "0")
    if any(number.diverged for number in present):
        columns[f"{header} diverged"] = column(lambda number: str(number.diverged), "0")
    return columns


def _precise_text(value: float | None) -> str:
    """Formats a number with ten significant digits; None and NaN become ""."""
    return "" if value is None or math.isnan(value) else f"{value:.10g}"


def _json_value(cell: Cell) -> Any:
    """Converts a cell for JSON: text, a number, or a dict of mean, std and runs."""
    if isinstance(cell, str):
        return cell
    mean = cell.mean if math.isfinite(cell.mean) else None
    if cell.std is None and cell.runs is None and not cell.diverged:
        return mean
    return {"mean": mean, "std": cell.std, "runs": cell.runs, "diverged": cell.diverged}


def _on_one_line(text: str) -> str:
    """Replaces all whitespace by single spaces: labels may have line breaks."""
    return one_line(" ".join(text.split()))


def _header_lines(headers: Sequence[str]) -> list[str]:
    """The headers without line breaks."""
    return [_on_one_line(header) for header in headers]


def _latex_text(cell: Cell) -> str:
    text = _on_one_line(str(cell)).translate(_LATEX)
    # After the end of a row, LaTeX takes these for options of that end.
    return f"{{}}{text}" if text.startswith(("[", "*")) else text


_LATEX = str.maketrans(
    {
        **{character: rf"\{character}" for character in "_%&#${}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        # In LaTeX's oldest fonts these are other characters.
        "<": r"$<$",
        ">": r"$>$",
    }
)

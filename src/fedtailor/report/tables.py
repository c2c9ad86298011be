"""Tables of text: on the terminal, as Markdown, CSV, LaTeX or JSON."""

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedtailor.protocol import require


@dataclass(frozen=True)
class Number:
    """A cell that is a number: a mean over runs, as a rule.

    Attributes:
        mean: in the unit in which it is shown; NaN where no run has one.
        text: how it is shown to people.
        std: sample deviation over runs; None for a single run, or where it is not of
            interest.
        runs: over how many runs; None where it is not of interest.
        diverged: how many further runs diverged.
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
class Table:
    """Rows of cells under columns, with a title.

    Attributes:
        title: one line.
        columns: [c] headers, of several lines on a terminal.
        rows: [r][c] cells.
        text: how many columns, from the left, are text and no numbers.
        higher_is_better: by the place of a column, for those whose best number is to be
            marked (in LaTeX).
        note: what a reader must know to read the headers, one line.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    text: int = 1
    higher_is_better: Mapping[int, bool] = field(default_factory=dict)
    note: str = ""

    def __post_init__(self) -> None:
        wrong = [row for row in self.rows if len(row) != len(self.columns)]
        require(
            not wrong,
            f"a row has {len(wrong[0]) if wrong else 0} cells, the table"
            f" {len(self.columns)} columns",
        )

    def show(self) -> None:
        """Print on the terminal. Labels are shown as they are: square brackets and
        colons are no markup.
        """
        from rich import box
        from rich.console import Console
        from rich.measure import Measurement
        from rich.table import Table as Shown
        from rich.text import Text

        shown = Shown(
            box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True
        )
        for number, column in enumerate(self.columns):
            shown.add_column(
                Text(column),
                justify="left" if number < self.text else "right",
                overflow="fold",
            )
        for row in self.rows:
            shown.add_row(*(Text(str(cell)) for cell in row))
        console = Console()
        if (
            not console.is_terminal
        ):  # a pipe has no width of its own: nothing is to be wrapped there
            needed = Measurement.get(
                console, console.options.update(width=10_000), shown
            ).maximum
            console.width = max(len(self.title), len(self.note), needed)
        console.print(Text(self.title, "italic"))
        console.print(shown)
        if self.note:
            console.print(Text(self.note, "dim"))

    def markdown(self) -> str:
        """As Markdown."""
        numbers = len(self.columns) - self.text
        alignment = ["---"] * self.text + ["---:"] * numbers
        rows = [_piped(row) for row in (_flat(self.columns), alignment, *self.rows)]
        note = [self.note, ""] if self.note else []
        return "\n".join([f"**{_line(self.title)}**", "", *rows, "", *note])

    def csv(self) -> str:
        """As comma-separated values. A column of numbers holds nothing but numbers, and
        empty cells where there are none; deviations, numbers of runs, and runs that
        diverged stand in columns of their own, where there are any."""
        headers, columns = (
            _flat(self.columns),
            [list(column) for column in zip(*self.rows, strict=True)],
        )
        written: dict[str, list[str]] = {}
        for header, cells in zip(
            headers, columns or [[] for _ in headers], strict=True
        ):
            written |= _csv_columns(header, cells)
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(
            [list(written), *zip(*written.values(), strict=True)]
        )
        return text.getvalue()

    def latex(self) -> str:
        """As a LaTeX tabular (needs no package); the best number of a column is bold,
        equally shown ones together.
        """
        best = {
            (row, column)
            for column, higher in self.higher_is_better.items()
            for row in self._best(column, higher)
        }
        cells = [
            [
                rf"\textbf{{{_escaped(cell)}}}" if (r, c) in best else _escaped(cell)
                for c, cell in enumerate(row)
            ]
            for r, row in enumerate(self.rows)
        ]
        lines = [
            " & ".join(row) + r" \\"
            for row in ([_escaped(header) for header in _flat(self.columns)], *cells)
        ]
        frame = [
            (
                rf"\begin{{tabular}}{{{'l' * self.text}{'r' * (len(self.columns) - self.text)}}}"
            ),
            r"\hline",
            lines[0],
            r"\hline",
        ]
        comments = [f"% {_line(text)}" for text in (self.title, self.note) if text]
        return "\n".join(
            [*comments, *frame, *lines[1:], r"\hline", r"\end{tabular}", ""]
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON: title, note and rows, each a dict by column; numbers with a
        deviation or runs are dicts, too.
        """
        headers = _flat(self.columns)
        rows = [
            {name: _plain(cell) for name, cell in zip(headers, row, strict=True)}
            for row in self.rows
        ]
        return {"title": self.title, "note": self.note, "rows": rows}

    def _best(self, column: int, higher: bool) -> list[int]:
        """The rows whose number in a column is the best. Means over fewer runs than
        others have do not take part.
        """
        cells = {
            number: cell
            for number, row in enumerate(self.rows)
            if isinstance(cell := row[column], Number)
            and math.isfinite(cell.mean)
            and not cell.diverged
        }
        runs = max((cell.runs or 0 for cell in cells.values()), default=0)
        cells = {
            number: cell for number, cell in cells.items() if (cell.runs or 0) == runs
        }
        if len(cells) < 2:
            return []
        best = (max if higher else min)(cells.values(), key=lambda cell: cell.mean)
        shown = best.text.partition(" ")[0]
        return [
            number
            for number, cell in cells.items()
            if cell.text.partition(" ")[0] == shown
        ]


def mean_of(
    values: Sequence[float], digits: int = 3, *, deviation: bool = True
) -> Number:
    """The mean of one or more values over runs, with their sample deviation (if wanted)
    where there are two.
    """
    mean = float(np.mean(values))
    if not deviation:
        return Number(mean, f"{mean:.{digits}f}")
    std = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Number(mean, mean_and_deviation(values, digits), std, len(values))


def mean_and_deviation(values: Sequence[float], digits: int = 3) -> str:
    """ "0.901 ± 0.012": mean and sample deviation over seeds (no deviation for one
    seed).
    """
    mean = f"{np.mean(values):.{digits}f}"
    return mean if len(values) < 2 else f"{mean} ± {np.std(values, ddof=1):.{digits}f}"


def published(figure: str | float) -> Cell:
    """A figure of a source as a cell: "76.7 ± 4.0", 68.2, or any other text, which is
    kept as it is.
    """
    match = re.fullmatch(
        r"\s*(-?\d*\.?\d+)\s*%?\s*(?:(?:±|\+-|\+/-)\s*(\d*\.?\d+)\s*%?)?\s*",
        str(figure),
    )
    if match is None:
        return str(figure)
    return Number(
        float(match[1]), str(figure), None if match[2] is None else float(match[2])
    )


def _csv_columns(header: str, cells: Sequence[Cell]) -> dict[str, list[str]]:
    """A column as those of a CSV file: header -> texts."""
    numbers = [cell if isinstance(cell, Number) else None for cell in cells]
    there = [number for number in numbers if number is not None]
    if not there:
        return {header: [str(cell) for cell in cells]}
    columns = {
        header: ["" if number is None else _digits(number.mean) for number in numbers]
    }
    if any(number.std is not None for number in there):
        columns[f"{header} std"] = [
            "" if number is None else _digits(number.std) for number in numbers
        ]
    if any(number.runs is not None for number in there):
        columns[f"{header} runs"] = [
            "0" if number is None else str(number.runs or 0) for number in numbers
        ]
    if any(number.diverged for number in there):
        columns[f"{header} diverged"] = [
            "0" if number is None else str(number.diverged) for number in numbers
        ]
    return columns


def _digits(value: float | None) -> str:
    """A number as text that loses nothing of interest; empty for none and for NaN."""
    return "" if value is None or math.isnan(value) else f"{value:.10g}"


def _plain(cell: Cell) -> Any:
    """A cell as JSON knows it: text, a number, or a dict of mean, std and runs."""
    if isinstance(cell, str):
        return cell
    mean = cell.mean if math.isfinite(cell.mean) else None
    if cell.std is None and cell.runs is None and not cell.diverged:
        return mean
    return {"mean": mean, "std": cell.std, "runs": cell.runs, "diverged": cell.diverged}


def _piped(cells: Sequence[Cell]) -> str:
    return (
        "| " + " | ".join(_line(str(cell)).replace("|", r"\|") for cell in cells) + " |"
    )


def _line(text: str) -> str:
    """Text without line ends, which labels of a file may have."""
    return " ".join(text.split())


def _flat(headers: Sequence[str]) -> list[str]:
    """Headers on one line."""
    return [_line(header) for header in headers]


def _escaped(cell: Cell) -> str:
    return _line(str(cell)).translate(_LATEX)


_LATEX = str.maketrans(
    {
        **{plain: rf"\{plain}" for plain in "_%&#${}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
    }
)

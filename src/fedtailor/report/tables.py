"""Tables of text: on the terminal, as Markdown, CSV, LaTeX or JSON."""

import csv
import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
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
        columns = len(self.columns)
        for row in self.rows:
            require(
                len(row) == columns,
                f"a row has {len(row)} cells, the table {columns} columns",
            )

    def show(self) -> None:
        """Print on the terminal.

        Labels are shown as they are: square brackets and colons are no markup.
        """
        from rich import box
        from rich.console import Console
        from rich.measure import Measurement
        from rich.table import Table as RichTable
        from rich.text import Text

        shown = RichTable(
            box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True
        )
        for number, column in enumerate(self.columns):
            justify = "left" if number < self.text else "right"
            shown.add_column(Text(column), justify=justify, overflow="fold")
        for row in self.rows:
            shown.add_row(*(Text(str(cell)) for cell in row))
        console = Console()
        if not console.is_terminal:
            # A pipe has no width of its own: nothing is to be wrapped there.
            unlimited = console.options.update(width=10_000)
            needed = Measurement.get(console, unlimited, shown).maximum
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
        """As comma-separated values.

        A column of numbers holds nothing but numbers, and empty cells where there are
        none. Deviations, numbers of runs, and runs that diverged stand in columns of
        their own, where there are any.
        """
        columns: dict[str, list[str]] = {}
        for number, header in enumerate(_flat(self.columns)):
            columns |= _csv_columns(header, [row[number] for row in self.rows])
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
        return text.getvalue()

    def latex(self) -> str:
        """As a LaTeX tabular, which needs no package.

        The best number of a column is bold, and those that are shown equally with it.
        """
        best = {
            (row, column)
            for column, higher in self.higher_is_better.items()
            for row in self._best(column, higher)
        }
        lines = [" & ".join(map(_escaped, _flat(self.columns))) + r" \\", r"\hline"]
        for r, row in enumerate(self.rows):
            cells = [_escaped(cell) for cell in row]
            for c in range(len(cells)):
                if (r, c) in best:
                    cells[c] = rf"\textbf{{{cells[c]}}}"
            lines.append(" & ".join(cells) + r" \\")
        alignment = "l" * self.text + "r" * (len(self.columns) - self.text)
        return "\n".join(
            [
                *(f"% {_line(text)}" for text in (self.title, self.note) if text),
                rf"\begin{{tabular}}{{{alignment}}}",
                r"\hline",
                *lines,
                r"\hline",
                r"\end{tabular}",
                "",
            ]
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON: title, note and rows, each a dict by column.

        Numbers with a deviation or runs are dicts, too.
        """
        headers = _flat(self.columns)
        rows = [
            {name: _plain(cell) for name, cell in zip(headers, row, strict=True)}
            for row in self.rows
        ]
        return {"title": self.title, "note": self.note, "rows": rows}

    def _best(self, column: int, higher: bool) -> list[int]:
        """The rows whose number in a column is the best.

        Means over fewer runs than others have do not take part.
        """
        numbers: dict[int, Number] = {}
        for place, row in enumerate(self.rows):
            cell = row[column]
            if not isinstance(cell, Number) or cell.diverged:
                continue
            if math.isfinite(cell.mean):
                numbers[place] = cell
        # A mean over the lucky seeds only would win too easily.
        runs = max((number.runs or 0 for number in numbers.values()), default=0)
        numbers = {
            place: number
            for place, number in numbers.items()
            if (number.runs or 0) == runs
        }
        # A single number is not the best of anything.
        if len(numbers) < 2:
            return []

        def shown_mean(number: Number) -> str:
            return number.text.partition(" ")[0]

        # What a reader sees as equal is marked as equal.
        choose = max if higher else min
        best = choose(numbers.values(), key=lambda number: number.mean)
        return [
            place
            for place, number in numbers.items()
            if shown_mean(number) == shown_mean(best)
        ]


def mean_of(
    values: Sequence[float], digits: int = 3, *, deviation: bool = True
) -> Number:
    """The mean of one or more values over runs, as a cell.

    It has their sample deviation (if wanted) where there are two values or more.
    """
    mean = float(np.mean(values))
    if not deviation:
        return Number(mean, f"{mean:.{digits}f}")
    std = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Number(mean, mean_and_deviation(values, digits), std, len(values))


def mean_and_deviation(values: Sequence[float], digits: int = 3) -> str:
    """Mean and sample deviation over seeds, such as "0.901 ± 0.012".

    A single seed has no deviation.
    """
    mean = f"{np.mean(values):.{digits}f}"
    if len(values) < 2:
        return mean
    std = np.std(values, ddof=1)
    return f"{mean} ± {std:.{digits}f}"


def published(figure: str | float) -> Cell:
    """A figure of a source as a cell: "76.7 ± 4.0", 68.2, or any other text.

    Text that is no number stays as it is.
    """
    text = str(figure)
    number, plus_minus = r"(-?\d*\.?\d+)\s*%?", r"(?:±|\+-|\+/-)\s*(\d*\.?\d+)\s*%?"
    match = re.fullmatch(rf"\s*{number}\s*(?:{plus_minus})?\s*", text)
    if match is None:
        return text
    mean, std = match.groups()
    return Number(float(mean), text, None if std is None else float(std))


def _csv_columns(header: str, cells: Sequence[Cell]) -> dict[str, list[str]]:
    """A column as those of a CSV file: header -> texts."""
    numbers = [cell if isinstance(cell, Number) else None for cell in cells]
    known = [number for number in numbers if number is not None]
    if not known:
        return {header: [str(cell) for cell in cells]}

    def column(text_of: Callable[[Number], str], missing: str) -> list[str]:
        return [missing if number is None else text_of(number) for number in numbers]

    columns = {header: column(lambda number: _digits(number.mean), "")}
    if any(number.std is not None for number in known):
        columns[f"{header} std"] = column(lambda number: _digits(number.std), "")
    if any(number.runs is not None for number in known):
        columns[f"{header} runs"] = column(lambda number: str(number.runs or 0), "0")
    if any(number.diverged for number in known):
        columns[f"{header} diverged"] = column(lambda number: str(number.diverged), "0")
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
    texts = [_line(str(cell)).replace("|", r"\|") for cell in cells]
    return f"| {' | '.join(texts)} |"


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

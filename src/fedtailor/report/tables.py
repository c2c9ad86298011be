"""Tables of text: on the terminal, as Markdown, CSV or LaTeX."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedtailor.protocol import require


@dataclass(frozen=True)
class Table:
    """Rows of text under columns, with a title.

    Attributes:
        title: one line.
        columns: [c] headers, of several lines on a terminal.
        rows: [r][c] cells.
        text: how many columns, from the left, are text and no numbers.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    text: int = 1

    def __post_init__(self) -> None:
        wrong = [row for row in self.rows if len(row) != len(self.columns)]
        require(not wrong, f"a row has {len(wrong[0]) if wrong else 0} cells, the table {len(self.columns)} columns")

    def show(self) -> None:
        """Print on the terminal."""
        from rich import box
        from rich.console import Console
        from rich.measure import Measurement
        from rich.table import Table as Shown

        shown = Shown(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
        for number, column in enumerate(self.columns):
            shown.add_column(column, justify="left" if number < self.text else "right", overflow="fold")
        for row in self.rows:
            shown.add_row(*row)
        console = Console()
        if not console.is_terminal:  # a pipe has no width of its own: nothing is to be wrapped there
            needed = Measurement.get(console, console.options.update(width=10_000), shown).maximum
            console.width = max(len(self.title), needed)
        console.print(self.title, style="italic", markup=False, highlight=False)
        console.print(shown)

    def markdown(self) -> str:
        """As Markdown."""
        lines = [_piped(_flat(self.columns)), _piped(["---"] * self.text + ["---:"] * (len(self.columns) - self.text))]
        return "\n".join([f"**{self.title}**", "", *lines, *(_piped(row) for row in self.rows), ""])

    def csv(self) -> str:
        """As comma-separated values."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([_flat(self.columns), *self.rows])
        return text.getvalue()

    def latex(self) -> str:
        """As a LaTeX tabular (needs no package)."""
        rows = [" & ".join(_escaped(cell) for cell in row) + r" \\" for row in (_flat(self.columns), *self.rows)]
        frame = [
            rf"\begin{{tabular}}{{{'l' * self.text}{'r' * (len(self.columns) - self.text)}}}",
            r"\hline",
            rows[0],
            r"\hline",
        ]
        return "\n".join([f"% {self.title}", *frame, *rows[1:], r"\hline", r"\end{tabular}", ""])


def mean_and_deviation(values: Sequence[float], digits: int = 3) -> str:
    """ "0.901 ± 0.012": mean and sample deviation over seeds (no deviation for one seed)."""
    mean = f"{np.mean(values):.{digits}f}"
    return mean if len(values) < 2 else f"{mean} ± {np.std(values, ddof=1):.{digits}f}"


def _piped(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def _flat(headers: Sequence[str]) -> list[str]:
    """Headers on one line."""
    return [header.replace("\n", " ") for header in headers]


def _escaped(cell: str) -> str:
    return cell.translate(_LATEX)


_LATEX = str.maketrans(
    {
        **{plain: rf"\{plain}" for plain in "_%&#${}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
    }
)

"""HTML of results in notebooks: text and tables, with names from outside escaped."""

import html
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedtailor._base.printable import one_line

if TYPE_CHECKING:
    import polars as pl

MAX_ROWS = 20
"""Rows of a table that a notebook shows."""


def html_paragraphs(lines: Iterable[object]) -> str:
    """Lines of text as paragraphs."""
    return "".join(f"<p>{_text(line)}</p>" for line in lines)


def html_table(
    header: Sequence[object], rows: Iterable[Sequence[Any]], title: str = ""
) -> str:
    """A table that shows its first rows.

    Args:
        header: [c] names of the columns.
        rows: each with c cells; those that are not whole are rounded.
        title: a line above the table.
    """
    rows = list(rows)
    head = "".join(f"<th>{_text(name)}</th>" for name in header)
    body = "".join(
        f"<tr>{''.join(f'<td>{_text(_cell(cell))}</td>' for cell in row)}</tr>"
        for row in rows[:MAX_ROWS]
    )
    caption = f"<caption>{_text(title)}</caption>" if title else ""
    more = len(rows) - MAX_ROWS
    note = f"<p>and {more:,} more rows</p>" if more > 0 else ""
    return (
        f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        f"{note}"
    )


def table_of_frame(frame: "pl.DataFrame", title: str = "") -> str:
    """A polars frame as a table."""
    return html_table(frame.columns, frame.rows(), title)


def updatable_line(text: str) -> Callable[[str], None] | None:
    """Show a line in a notebook.

    Returns:
        A function that replaces the line by another one; None outside of notebooks.
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    # IPython on a terminal has no kernel.
    if getattr(shell, "kernel", None) is None:
        return None
    # IPython is there in notebooks only, and is not a dependency.
    display = import_module("IPython.display").display
    shown = display({"text/plain": one_line(text)}, raw=True, display_id=True)
    return lambda text: shown.update({"text/plain": one_line(text)}, raw=True)


def _cell(value: Any) -> object:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "-" if value is None else value


def _text(value: object) -> str:
    return html.escape(one_line(value))

"""Collects the problems of a table, which are then raised as one error."""

import difflib
from collections.abc import Mapping, Sequence

import polars as pl

from fedtailor._base.printable import join_names, one_line

MAX_LISTED = 12
"""The largest number of problems in a message, which then ends with "and N more"."""


LISTS = ("features", "drop", "categories")
"""The options that name several columns."""
_HINTS = {
    "client": "; name the client's column with client",
    "target": "; name the column to predict with target",
}


class Problems:
    """The problems of a table, in the order in which they were found.

    Attributes:
        where: name of the table in messages: its path, or "the frame".
        found: the problems, each described by a sentence.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self.found: list[str] = []

    def add(self, problem: str) -> None:
        """Add a problem, unless it has been added before."""
        if problem not in self.found:
            self.found.append(problem)

    def raise_if_any(self) -> None:
        """Raise an error if there are problems.

        Raises:
            ValueError: one line for a single problem, otherwise a numbered list.
        """
        if not self.found:
            return
        if len(self.found) == 1:
            raise ValueError(one_line(f"{self.where}: {self.found[0]}"))
        lines = [
            f"{number}. {one_line(problem)}"
            for number, problem in enumerate(self.found[:MAX_LISTED], 1)
        ]
        if len(self.found) > MAX_LISTED:
            lines.append(f"and {len(self.found) - MAX_LISTED} more")
        raise ValueError(
            f"{one_line(self.where)}: {len(self.found)} problems:\n  "
            + "\n  ".join(lines)
        )


def first_row(mask: pl.Series) -> int:
    """The number of the first row for which a mask is True, counted from 1."""
    return (mask.arg_max() or 0) + 1


def no_such_column(role: str, column: str, columns: Sequence[str]) -> str:
    """The message for a column that does not exist, with the most similar name."""
    return (
        f"there is no column {column!r} for {role}{_nearest(column, columns)} (columns:"
        f" {join_names(columns, 12)})"
    )


def missing_columns(
    columns: Sequence[str], roles: Mapping[str, str], lists: Mapping[str, Sequence[str]]
) -> list[str]:
    """The problems of options that name columns which the table does not have.

    Args:
        columns: the columns of the table.
        roles: "client", "target", ... -> column.
        lists: each of `LISTS` -> columns.
    """
    problems = []
    for role, column in roles.items():
        if column not in columns:
            problem = no_such_column(role, column, columns)
            hint = _HINTS.get(role, "")
            if role == "target" and "event" in roles:
                hint = "; name the column of the times to the event with target"
            problems.append(problem + hint)
    for role, named in lists.items():
        for column in named:
            # A column of arrays has been expanded to one column per entry.
            has_entries = any(name.startswith(f"{column}[") for name in columns)
            if column not in columns and not has_entries:
                problems.append(no_such_column(role, column, columns))
    return problems


def describe_rows(rows: Sequence[int]) -> str:
    """Row numbers, counted from 1 below the header, as text for a message."""
    if len(rows) == 1:
        return f"row {rows[0]}"
    return f"{len(rows):,} rows, first row {rows[0]}"


def _nearest(column: str, columns: Sequence[str]) -> str:
    lower = {name.lower(): name for name in columns}
    matches = difflib.get_close_matches(column.lower(), lower, n=1)
    return f"; did you mean {lower[matches[0]]!r}?" if matches else ""

"""All that is wrong with a table, collected, and raised as one error."""

import difflib
from collections.abc import Sequence

MAX_LISTED = 12
"""Problems that one message lists; of more, only their number is given."""


class Problems:
    """What is wrong with a table, in the order in which it was found.

    Attributes:
        where: what the messages call the table: its path, or "the frame".
        found: the problems, one sentence each.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self.found: list[str] = []

    def add(self, problem: str) -> None:
        """Note a problem; nothing is raised yet."""
        if problem not in self.found:
            self.found.append(problem)

    def raise_if_any(self) -> None:
        """Raise what was noted.

        Raises:
            ValueError: one line for one problem, a numbered list for several.
        """
        if not self.found:
            return
        if len(self.found) == 1:
            raise ValueError(f"{self.where}: {self.found[0]}")
        lines = [
            f"{number}. {problem}"
            for number, problem in enumerate(self.found[:MAX_LISTED], 1)
        ]
        if len(self.found) > MAX_LISTED:
            lines.append(f"and {len(self.found) - MAX_LISTED} more")
        raise ValueError(
            f"{self.where}: {len(self.found)} problems:\n  " + "\n  ".join(lines)
        )


def listed(names: Sequence[object], most: int = 6) -> str:
    """Names in a sentence: "a, b, c and 4 more"."""
    shown = ", ".join(str(name) for name in names[:most])
    if len(names) > most:
        shown += f" and {len(names) - most} more"
    return shown


def no_such_column(role: str, column: str, columns: Sequence[str]) -> str:
    """The sentence for a column that is not there, with the nearest name that is."""
    return (
        f"there is no column {column!r} for {role}{_nearest(column, columns)} (columns:"
        f" {listed(columns, 12)})"
    )


def strange_column(column: str, columns: Sequence[str]) -> str:
    """The sentence for a column of rows that training did not have.

    It names the nearest one that training had.
    """
    hint = _nearest(column, columns)
    return (
        f"column {column!r} was not in the table that the model learned from;"
        f" {hint[2:] or 'take it out'}"
    )


def rows_of(rows: Sequence[int]) -> str:
    """Row numbers, counted from 1 below the header, in a message."""
    if len(rows) == 1:
        return f"row {rows[0]}"
    return f"{len(rows):,} rows, first row {rows[0]}"


def _nearest(column: str, columns: Sequence[str]) -> str:
    lower = {name.lower(): name for name in columns}
    near = difflib.get_close_matches(column.lower(), lower, n=1)
    return f"; did you mean {lower[near[0]]!r}?" if near else ""

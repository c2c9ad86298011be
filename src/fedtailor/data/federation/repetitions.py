"""Rows that occur more than once in a client's data, beyond what chance explains."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int, Shaped, UInt64
from numpy.typing import NDArray

MIN_AGREEMENT = 0.9
"""The share of pairs that must agree in a cell if they agree in all others."""
_ODD = np.uint64(0x9E3779B97F4A7C15)


def repeated_rows(
    columns: Sequence[Shaped[NDArray, " rows"]], owners: Int[NDArray, " rows"]
) -> Int[NDArray, " rows"] | None:
    """Groups rows of one client that are equal in all columns.

    Rows of few columns with few values are equal by chance. Single cells tell
    copies from them: of two different rows that agree in all columns but one, many do
    not agree in that one as well, and copies always do. So repetitions count only if,
    whichever column is left out, nine in ten of the pairs that agree in the others agree
    in it, too.

    Args:
        columns: the inputs and the target, without missing cells.
        owners: the client of each row.

    Returns:
        The number of each row's group; rows that no other one equals have a group of
        their own. None if no row is repeated, or chance explains it.
    """
    hashes = [_cell_hashes(column, number) for number, column in enumerate(columns, 1)]
    total = _cell_hashes(owners, 0)
    for column_hashes in hashes:
        total = total + column_hashes
    pairs = _equal_pairs(total)
    if not pairs:
        return None
    for column_hashes in hashes:
        if pairs < MIN_AGREEMENT * _equal_pairs(total - column_hashes):
            return None
    _, groups = np.unique(total, return_inverse=True)
    return groups.astype(np.int64)


def _cell_hashes(
    column: Shaped[NDArray, " rows"], number: int
) -> UInt64[NDArray, " rows"]:
    """A hash of each cell, such that sums over columns are hashes of rows."""
    _, codes = np.unique(column, return_inverse=True)
    # splitmix64 of the cell's code and the column's number
    with np.errstate(over="ignore"):
        z = codes.astype(np.uint64) * _ODD + np.uint64(number) * np.uint64(
            0xD1342543DE82EF95
        )
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def _equal_pairs(hashes: UInt64[NDArray, " rows"]) -> int:
    """The number of pairs of rows with equal hashes."""
    counts = np.unique(hashes, return_counts=True)[1].astype(np.int64)
    return int((counts * (counts - 1) // 2).sum())

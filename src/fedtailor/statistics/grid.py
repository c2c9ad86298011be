"""Sums of boosting and of regressions over machines as whole numbers, so that they are exact
in whatever order, and behind masks.

Each row is rounded by itself. Sums that clients had rounded would show these: the last digits
of a sum would be those of the smallest client, as a large one has none there. And numbers
that are too large are cut in each row: a client that said so would say how large its own
sum is.
"""

from collections.abc import Iterable, Sequence
from functools import partial, reduce
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Int64, UInt32
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.aggregation.whole_numbers import add_words, from_words, to_words

BITS = 40
"""Rows are rounded to multiples of 2^-40."""
LARGEST = 2.0**42
"""The largest absolute value of a number of a row."""
MOST_ROWS = 2**20
"""Of a client."""
WORDS = 4
"""Of a number. Sums over 2^11 clients are below 2^113 steps."""


def check_rows(rows: int) -> None:
    """Check that sums can hold as many rows of a client.

    Raises:
        ValueError: they cannot.
    """
    require(
        rows <= MOST_ROWS,
        f"a client has {rows:,} rows, and sums over machines hold {MOST_ROWS:,} at most",
    )


def check_numbers(numbers: NDArray[Any], what: str, largest: float = LARGEST) -> None:
    """Check that a client's table has no number that is too large.

    Raises:
        ValueError: it has one.
    """
    found = float(np.abs(numbers).max(initial=0))
    require(
        found < largest,
        f"{what} is {found:g}, and sums over machines hold numbers below {largest:g}: use"
        " other units, or leave out rows that are far away",
    )


def sums_by_place(
    numbers: Float[NDArray, " n"], places: Int[NDArray, " n"], size: int
) -> UInt32[NDArray, "{size} words"]:
    """Sums of rows' numbers by their places, in the words that are added."""
    sums = np.zeros((2, size), np.int64)
    for total, part in zip(sums, _parts(numbers), strict=True):
        np.add.at(total, places, part)
    return _to_words(*sums)


def sums_of_rows(blocks: Iterable[Float[NDArray, "_ m"]]) -> UInt32[NDArray, "m words"]:
    """Sums of the rows of some blocks, in the words that are added."""
    sums = [np.stack([part.sum(axis=0) for part in _parts(it)]) for it in blocks]
    return _to_words(*np.sum(sums, axis=0))


def counts_in_words(counts: Int[NDArray, " n"]) -> UInt32[NDArray, "n words"]:
    """Numbers of rows, in the words that are added."""
    whole = np.asarray(counts, np.int64)
    return _to_words(whole, np.zeros_like(whole))


def from_grid(words: UInt32[NDArray, "... words"]) -> NDArray[np.float64]:
    """The numbers of words, or of sums of them, rounded once."""
    flat = words.reshape(-1, WORDS)
    halves = np.ascontiguousarray(flat, "<u4").view("<i8")
    # Nearly all numbers are the lower half.
    numbers = halves[:, 0] / 2**BITS
    is_large = halves[:, 1] != halves[:, 0] >> 63
    numbers[is_large] = [number / 2**BITS for number in from_words(flat[is_large])]
    return numbers.reshape(words.shape[:-1])


def total_of(answers: Sequence[UInt32[NDArray, "... words"]]) -> NDArray[np.float64]:
    """The sums of clients' answers, as behind masks."""
    return from_grid(reduce(partial(add_words, words=WORDS), answers))


def _parts(numbers: Float[NDArray, "..."]) -> tuple[NDArray[np.int64], ...]:
    """Whole numbers, and what is left in steps."""
    cut = np.clip(np.nan_to_num(numbers), -LARGEST, LARGEST)
    whole = np.floor(cut)
    rest = np.rint((cut - whole) * 2.0**BITS)
    return whole.astype(np.int64), rest.astype(np.int64)


def _to_words(
    whole: Int64[NDArray, " n"], rest: Int64[NDArray, " n"]
) -> UInt32[NDArray, "n words"]:
    whole = whole + (rest >> BITS)
    low = (whole << BITS).view(np.uint64) + (rest & (2**BITS - 1)).astype(np.uint64)
    return to_words(whole >> (64 - BITS), low)

"""Sums of a regression as whole numbers, so that they are exact in whatever order, and
behind masks.

Each row is rounded by itself. The last digits of sums that clients had rounded would be
those of the smallest client: of a large one they are 0.
"""

from collections.abc import Iterable

import numpy as np
from jaxtyping import Float, UInt32
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.aggregation.whole_numbers import from_words, to_words

BITS = 60
"""Rows are rounded to multiples of 2^-60."""
_HALF = BITS // 2
LARGEST = 2.0**55
"""Beyond the largest absolute value of a client's sum."""
WORDS = 4
"""Of a number. Sums of 2^11 clients are below 2^126 steps."""


def sums_on_grid(blocks: Iterable[Float[NDArray, "_ m"]]) -> UInt32[NDArray, "m words"]:
    """Sums of rows, each rounded by itself, in the words that are added.

    Args:
        blocks: the rows; one block or more.

    Raises:
        ValueError: the sum of absolute values is not below `LARGEST`.
    """
    whole, upper, lower, sizes = 0, 0, 0, 0.0
    for block in blocks:
        sizes = sizes + np.abs(block).sum(axis=0)
        largest = float(np.max(sizes, initial=0))
        require(
            largest < LARGEST,
            f"a sum of a regression is {largest:g}; sums hold numbers below {LARGEST:g}:"
            " use other units, or leave out rows that are far away",
        )
        wholes = np.floor(block)
        steps = np.rint((block - wholes) * 2.0**BITS).astype(np.int64)
        whole = whole + wholes.astype(np.int64).sum(axis=0)
        upper = upper + (steps >> _HALF).sum(axis=0)
        lower = lower + (steps & (2**_HALF - 1)).sum(axis=0)
    upper = upper + (lower >> _HALF)
    whole = np.asarray(whole + (upper >> _HALF), np.int64)
    steps = ((upper & (2**_HALF - 1)) << _HALF) + (lower & (2**_HALF - 1))
    # Of the whole number the lowest four bits stand before those of the steps.
    low = (whole << BITS).view(np.uint64) + np.asarray(steps).astype(np.uint64)
    return to_words(whole >> (64 - BITS), low)


def from_numbers(words: UInt32[NDArray, "n words"]) -> NDArray[np.float64]:
    """The numbers of sums of words, rounded once."""
    return np.array([number / 2**BITS for number in from_words(words)], np.float64)

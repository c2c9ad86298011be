"""Sums of boosting as whole numbers, so that they are exact in whatever order, and behind
masks, which hide whole numbers.

Each row is rounded by itself. Sums that clients had rounded would show these: of numbers
below half a step none is left of few rows, and one step of some more.
"""

from typing import Any

import numpy as np
from jaxtyping import Float, Int, Int64, UInt32
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.aggregation.whole_numbers import from_words, to_words

_BITS, _HALF = 40, 2.0**20
STEP = 2.0**-_BITS
"""The distance of two numbers that a row can have."""
LARGEST = 2.0**20
"""The largest absolute value of a client's sum: of a million rows."""
WORDS = 3
"""Of a number. Sums of 2^11 clients are below 2^71 steps."""


def sums_on_grid(
    values: Float[NDArray, " n"], places: Int[NDArray, " n"], size: int
) -> Int64[NDArray, " size"]:
    """Sums of numbers by their places, each rounded to whole multiples of `STEP`.

    Raises:
        ValueError: a number or a sum is too large, or not finite.
    """
    largest, total = np.abs(values).max(initial=0), np.abs(values).sum()
    # Sums of both halves below are then exact in double precision.
    fits = largest < LARGEST and total < 2.0**32
    require(bool(fits), _too_large(largest if largest >= LARGEST else total))
    upper = np.rint(values * _HALF)
    lower = np.rint((values - upper / _HALF) / STEP)
    tops, bottoms = (
        np.bincount(places, half, minlength=size).astype(np.int64)
        for half in (upper, lower)
    )
    sums = np.abs(tops).max(initial=0) / _HALF
    require(sums < LARGEST, _too_large(sums))
    return (tops << (_BITS // 2)) + bottoms


def _too_large(size: np.floating[Any] | float) -> str:
    return (
        f"a sum of boosting is {size:g}; sums hold numbers below {LARGEST:g}, of a"
        " million rows"
    )


def counts_on_grid(counts: Int[NDArray, "..."]) -> Int64[NDArray, "..."]:
    """Numbers of rows as whole multiples of `STEP`.

    Raises:
        ValueError: one is too large.
    """
    require(
        bool((counts < LARGEST).all()), _too_large(float(np.max(counts, initial=0)))
    )
    return np.asarray(counts, np.int64) << _BITS


def from_grid(steps: Int64[NDArray, "..."]) -> NDArray[np.float64]:
    """The numbers of whole multiples of `STEP`."""
    return steps.astype(np.float64) * STEP


def to_numbers(steps: Int64[NDArray, "..."]) -> UInt32[NDArray, "n words"]:
    """Whole multiples of `STEP` in the words that are added."""
    flat = steps.reshape(-1)
    return to_words(flat >> 63, flat.view(np.uint64))[:, :WORDS]


def from_numbers(words: UInt32[NDArray, "n words"]) -> NDArray[np.float64]:
    """The numbers of sums of words, rounded once."""
    return np.array(from_words(words), np.float64) * STEP

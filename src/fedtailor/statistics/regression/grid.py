"""Sums of a regression as whole numbers, so that they are exact in whatever order, and
behind masks.

A number is its whole part, and what is left of it in steps of 2^-60; each of both has the
parts of a sum of boosting.
"""

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.statistics.boosting.grid import LIMBS, from_limbs, to_limbs

BITS = 60
PARTS = 2 * LIMBS
"""Whole numbers of which a number consists."""
LARGEST = 2.0**BITS
"""Beyond the largest absolute value of a number."""


def to_parts(values: Float[NDArray, " n"]) -> Int[NDArray, " n parts"]:
    """The parts of numbers, which are at most 2^-61 away.

    Raises:
        ValueError: a number is not below `LARGEST`.
    """
    require(
        bool((np.abs(values) < LARGEST).all()),
        f"a sum of a regression is {np.abs(values).max(initial=0):g}; sums hold numbers"
        f" below {LARGEST:g}: use other units, or leave out rows that are far away",
    )
    whole = np.trunc(values)
    rest = np.rint((values - whole) * LARGEST)
    both = [to_limbs(it.astype(np.int64)) for it in (whole, rest)]
    return np.concatenate(both, axis=-1)


def from_parts(parts: Int[NDArray, "n parts"]) -> NDArray[np.float64]:
    """The numbers of sums of parts, rounded once."""
    whole, rest = from_limbs(parts[:, :LIMBS]), from_limbs(parts[:, LIMBS:])
    pairs = zip(whole.tolist(), rest.tolist(), strict=True)
    return np.array([(w * 2**BITS + r) / 2**BITS for w, r in pairs], np.float64)

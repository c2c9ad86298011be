"""Sums of boosting as whole numbers, so that they are exact in whatever order, and behind
masks, which hide whole numbers of 32 bits.
"""

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from fedtailor._base.choice import require

STEP = 2.0**-40
"""The distance of two numbers that a client's answer can have."""
LARGEST = 2.0**20
"""The largest absolute value of an answer: of a million rows."""
LIMBS = 3
"""Parts of a number, of `LIMB_BITS` each."""
LIMB_BITS = 20
MOST_CLIENTS = 2**10
"""The sum of the parts of so many clients is below 2^31."""


def to_grid(values: Float[NDArray, "..."]) -> Int[NDArray, "..."]:
    """Whole multiples of `STEP`, which are at most half a step away.

    Raises:
        ValueError: a number is too large, or not finite.
    """
    require(
        bool((np.abs(values) < LARGEST).all()),
        f"a sum of boosting is {np.abs(values).max(initial=0):g}; sums hold numbers below"
        f" {LARGEST:g}, of a million rows",
    )
    return np.rint(np.asarray(values, np.float64) / STEP).astype(np.int64)


def from_grid(steps: Int[NDArray, "..."]) -> NDArray[np.float64]:
    """The numbers of whole multiples of `STEP`."""
    return steps.astype(np.float64) * STEP


def to_limbs(steps: Int[NDArray, " n"]) -> Int[NDArray, " n limbs"]:
    """Parts with the sign of their number, the lowest first."""
    size, sign = np.abs(steps), np.sign(steps)
    mask = (1 << LIMB_BITS) - 1
    parts = [(size >> (LIMB_BITS * place)) & mask for place in range(LIMBS - 1)]
    parts.append(size >> (LIMB_BITS * (LIMBS - 1)))
    return np.stack(parts, axis=-1) * sign[..., None]


def from_limbs(parts: Int[NDArray, "n limbs"]) -> Int[NDArray, " n"]:
    """The numbers of parts, or their sums of the sums of parts."""
    weights = np.left_shift(1, LIMB_BITS * np.arange(LIMBS))
    return parts.astype(np.int64) @ weights

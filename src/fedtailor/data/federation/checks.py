"""Checks of user input, shared by the modules of `fedtailor.data.federation`.

Every error message is one line that says what to do.
"""

import math
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtailor._base.choice import require

SPLITS = ("train", "val", "test")
"""The splits of a client's examples, in the order that is used everywhere."""

MAX_CLASSES = 100_000
"""The largest number of classes.

A model has an output for every class. More classes would take gigabytes, and are
usually a column of numbers that was mistaken for labels.
"""

MAX_SEED = 2**32 - 1
"""The largest seed. JAX makes keys from 32 bits, so that larger or negative seeds would
have the same keys as others.
"""


def check_seed(seed: Any) -> int:
    """Check a random seed.

    Returns:
        The seed as an int.

    Raises:
        ValueError: the seed is not an integer in 0..2^32 - 1.
    """
    check_integer(seed, "seed", 0)
    require(
        seed <= MAX_SEED, f"seed is {seed}; it must be at most 2^32 - 1 = {MAX_SEED}"
    )
    return int(seed)


def check_integer(value: Any, name: str, minimum: int) -> None:
    """Require an integer of at least `minimum`.

    Raises:
        ValueError: the value is something else. The message calls it `name`.
    """
    is_integer = isinstance(value, Integral) and not isinstance(value, bool)
    require(is_integer, f"{name} is {short_repr(value)}; it must be a whole number")
    require(int(value) >= minimum, f"{name} is {value}; it must be {minimum} or more")


def check_finite(value: Any, name: str) -> None:
    """Require a finite number.

    Raises:
        ValueError: the value is something else. The message calls it `name`.
    """
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    require(
        is_number and math.isfinite(value),
        f"{name} is {short_repr(value)}; it must be a finite number",
    )


def short_repr(value: Any) -> str:
    """`repr` of a value in one line of at most 60 characters, for messages."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def plain_array(values: ArrayLike, name: str) -> NDArray[Any]:
    """Convert user input to a NumPy array without mask.

    Args:
        values: an array, or anything that NumPy converts to an array.
        name: its name, for messages.

    Returns:
        The array, without a copy if `values` is a NumPy array.

    Raises:
        ValueError: the values have rows of different lengths, are not an array, or have
            masked entries.
    """
    try:
        array = np.asanyarray(values)
    except ValueError:
        raise ValueError(
            f"{name} is not an array: its rows differ in length or kind; give every row the"
            " same shape"
        ) from None
    if isinstance(array, np.ma.MaskedArray):
        masked = np.ma.getmaskarray(array)
        if masked.any():
            row = int(np.argwhere(masked)[0][0]) if masked.ndim else 0
            raise ValueError(
                f"row {row} of {name} is masked; fill it in or drop the row (a mask"
                " would be ignored)"
            )
        array = array.data
    return np.asarray(array)


def plain_text(values: NDArray[Any], name: str) -> NDArray[np.str_]:
    """Convert a column of labels or names to text.

    Args:
        values: [N] text, bytes in UTF-8, numbers or objects.
        name: what an entry is, for messages, such as "label" or "client".

    Returns:
        An array of text, of the same shape as `values`.

    Raises:
        ValueError: an entry is missing, or bytes that are not UTF-8.
    """
    # Data frames give arrays of objects, with various objects for missing cells.
    if values.dtype.kind == "O":
        missing = [row for row, value in enumerate(values.flat) if _is_missing(value)]
        require(
            not missing,
            f"row {missing[0] if missing else 0} has no {name}; fill it in or drop"
            " the row",
        )
    try:
        if values.dtype.kind == "O":
            texts = [
                value.decode() if isinstance(value, bytes) else str(value)
                for value in values.flat
            ]
            text = np.array(texts, np.str_).reshape(values.shape)
        elif values.dtype.kind == "S":
            text = np.char.decode(values, "utf-8")
        else:
            text = values.astype(np.str_)
    except UnicodeDecodeError:
        raise ValueError(
            f"a {name} is bytes that are not UTF-8; decode the column first"
        ) from None
    empty = text == ""
    if empty.any():
        raise ValueError(
            f"row {int(np.argmax(empty))} has an empty {name}; fill it in or drop"
            " the row"
        )
    return text


def _is_missing(value: Any) -> bool:
    """Whether a value is None, NaN, or an object that data frames use for missing
    cells.
    """
    if isinstance(value, float | np.floating):
        return math.isnan(value)
    return value is None or type(value).__name__ in ("NAType", "NaTType")

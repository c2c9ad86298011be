"""Checks of what users give that several parts of this room share.

Every failure is one line with the remedy.
"""

import math
import os
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtailor.protocol import require

SPLITS = ("train", "val", "test")
"""The splits of a client's examples, in the order in which everything lists them."""

MAX_CLASSES = 100_000
"""A model has an output for every class.

More than these take gigabytes for what is usually a column of numbers.
"""

MAX_SEED = 2**32 - 1
"""JAX's keys are made of 32 bits.

Larger seeds, and negative ones, would share their keys with others.
"""


def check_seed(seed: Any) -> int:
    """Check a random seed.

    Returns:
        The seed as an int.

    Raises:
        ValueError: it is no whole number in 0..2^32 - 1.
    """
    check_integer(seed, "seed", 0)
    require(
        seed <= MAX_SEED, f"seed is {seed}; it must be at most 2^32 - 1 = {MAX_SEED}"
    )
    return int(seed)


def check_integer(value: Any, what: str, least: int) -> None:
    """Refuse what is no whole number, or below `least`.

    Raises:
        ValueError: with the name `what`.
    """
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    require(whole, f"{what} is {shown(value)}; it must be a whole number")
    require(int(value) >= least, f"{what} is {value}; it must be {least} or more")


def check_finite(value: Any, what: str) -> None:
    """Refuse what is no number, NaN or infinite.

    Raises:
        ValueError: with the name `what`.
    """
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    require(
        is_number and math.isfinite(value),
        f"{what} is {shown(value)}; it must be a finite number",
    )


def shown(value: Any) -> str:
    """A value for a message: in one line, and short."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def check_memory(numbers: float, itemsize: int, what: str) -> None:
    """Refuse at once what could never fit into this machine.

    A mistyped size would stop the machine instead.

    Args:
        numbers: how many numbers the arrays hold.
        itemsize: bytes of each.
        what: what asks for them, for the message.

    Raises:
        ValueError: they need more bytes than the machine has.
    """
    needed = numbers * itemsize
    installed = _memory()
    gib = needed / 2**30
    installed_gib = installed / 2**30
    require(
        needed <= installed,
        f"{what} needs {gib:,.0f} GiB of memory, and this machine has"
        f" {installed_gib:.0f}",
    )


def plain_array(values: ArrayLike, what: str) -> NDArray[Any]:
    """What a user gave, as an ordinary array.

    Args:
        values: an array, or anything that NumPy makes one of.
        what: its name, for messages.

    Returns:
        A NumPy array without mask; the user's own where it was one.

    Raises:
        ValueError: rows of different lengths, something that is no array, or masked
            entries.
    """
    try:
        array = np.asanyarray(values)
    except ValueError:
        raise ValueError(
            f"{what} is no array: its rows differ in length or kind; give every row the"
            " same shape"
        ) from None
    if isinstance(array, np.ma.MaskedArray):
        masked = np.ma.getmaskarray(array)
        if masked.any():
            row = int(np.argwhere(masked)[0][0]) if masked.ndim else 0
            raise ValueError(
                f"row {row} of {what} is masked; fill it in or drop the row (a mask"
                " would be ignored)"
            )
        array = array.data
    return np.asarray(array)


def plain_text(values: NDArray[Any], what: str) -> NDArray[np.str_]:
    """A column of labels or names as text.

    Args:
        values: [N] text, bytes in UTF-8, numbers or objects.
        what: what one of them is, for messages: "label", "client".

    Returns:
        An array of text, shaped as `values`.

    Raises:
        ValueError: a row has none, or bytes that are no UTF-8.
    """
    # Data frames give objects, among which any kind of missing cell may stand.
    if values.dtype.kind == "O":
        missing = [row for row, value in enumerate(values.flat) if _is_missing(value)]
        require(
            not missing,
            f"row {missing[0] if missing else 0} has no {what}; fill it in or drop"
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
            f"a {what} is bytes that are no UTF-8; decode the column first"
        ) from None
    empty = text == ""
    if empty.any():
        raise ValueError(
            f"row {int(np.argmax(empty))} has an empty {what}; fill it in or drop"
            " the row"
        )
    return text


def _is_missing(value: Any) -> bool:
    """None, NaN, and what data frames have for a missing cell."""
    if isinstance(value, float | np.floating):
        return math.isnan(value)
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def _memory() -> int:
    """Bytes of memory of this machine; without an answer, 2^40."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 2**40

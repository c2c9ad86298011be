"""Windows of a long table: examples of several rows in the order of time.

A long table has one row for each client and time, with a column for each channel. A
window is a number of such rows that follow each other: of one client, one class and one
split, without a gap in time. Windows to train on may share rows; those to validate and
test on do not, as rows that are counted twice would make intervals too narrow.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int
from numpy.typing import NDArray

from fedtailor.protocol import require

GAP = 1.5
"""Two rows whose times differ by more than this many usual steps have a gap between them."""


@dataclass(frozen=True)
class Windowing:
    """How rows become windows.

    Attributes:
        window: rows of a window.
        step: rows between the beginnings of two windows.
        time: name of the column of times.
        gap: the largest difference of two times without a gap.
    """

    window: int
    step: int
    time: str
    gap: float

    def __post_init__(self) -> None:
        require(
            self.window >= 1 and self.step >= 1,
            f"window is {self.window} and step {self.step}; both are numbers of rows, 1 or"
            " more",
        )


def in_order(
    owners: Int[NDArray, " rows"], times: Float64[NDArray, " rows"]
) -> Int[NDArray, " rows"]:
    """The rows by client, and by time within a client; equal times as they stand."""
    return np.lexsort((np.arange(len(times)), times, owners))


def usual_gap(owners: Int[NDArray, " rows"], times: Float64[NDArray, " rows"]) -> float:
    """The largest difference of two times that is no gap: `GAP` usual steps.

    The usual step is the median difference between the rows of a client.
    """
    order = in_order(owners, times)
    same = np.diff(owners[order]) == 0
    steps = np.diff(times[order])[same]
    steps = steps[steps > 0]
    return GAP * float(np.median(steps)) if steps.size else np.inf


def is_break(
    times: Float64[NDArray, " rows"],
    gap: float,
    parts: Sequence[NDArray],
) -> Bool[NDArray, " rows"]:
    """Whether no window goes on from the row before, for rows in order.

    Args:
        times: times of the rows.
        gap: see `Windowing`.
        parts: values that are equal within a window, such as the client.
    """
    breaks = np.ones(len(times), np.bool_)
    breaks[1:] = np.diff(times) > gap
    # Time that stands still or runs backwards is that of another recording.
    breaks[1:] |= np.diff(times) <= 0
    for values in parts:
        breaks[1:] |= values[1:] != values[:-1]
    return breaks


def windows_of(
    breaks: Bool[NDArray, " rows"],
    window: int,
    steps: Int[NDArray, " rows"],
) -> Int[NDArray, "windows window"]:
    """The rows of each window.

    Args:
        breaks: see `is_break`.
        window: rows of a window.
        steps: rows between the beginnings of two windows, for each row; equal within a
            stretch without a break.
    """
    starts = np.flatnonzero(breaks)
    ends = np.append(starts[1:], len(breaks))
    first = [
        np.arange(start, end - window + 1, steps[start])
        for start, end in zip(starts, ends, strict=True)
        if end - start >= window
    ]
    beginnings = np.concatenate(first) if first else np.zeros(0, np.int64)
    return beginnings[:, None] + np.arange(window)

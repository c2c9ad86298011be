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

from fedtailor._base.choice import require

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
    """The largest difference of two times that is not a gap: `GAP` usual steps.

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
    # Time that repeats or runs backwards is that of another recording.
    breaks[1:] |= np.diff(times) <= 0
    for values in parts:
        breaks[1:] |= values[1:] != values[:-1]
    return breaks


def windows_in_splits(
    owners: Int[NDArray, " rows"],
    times: Float64[NDArray, " rows"],
    split_of_row: Int[NDArray, " rows"],
    y: NDArray,
    windowing: Windowing,
) -> Int[NDArray, "windows window"]:
    """The rows of each window of labelled rows, in their order in time.

    No window crosses two clients, splits or classes, or a gap. Those of split 0, to train
    on, are a step apart; those of others share no rows.
    """
    order = in_order(owners, times)
    parts = [owners[order], split_of_row[order]]
    if y.dtype.kind in "iu":
        parts.append(y[order])
    breaks = is_break(times[order], windowing.gap, parts)
    steps = np.where(split_of_row[order] == 0, windowing.step, windowing.window)
    return order[windows_of(breaks, windowing.window, steps)]


def windows_to_predict(
    times: Float64[NDArray, " rows"],
    windowing: Windowing,
    owners: Int[NDArray, " rows"] | None = None,
) -> Int[NDArray, "windows window"]:
    """The rows of each window of rows without labels; windows share no rows.

    Raises:
        ValueError: too few rows follow each other.
    """
    if owners is None:
        owners = np.zeros(len(times), np.int64)
    order = in_order(owners, times)
    breaks = is_break(times[order], windowing.gap, [owners[order]])
    steps = np.full(len(order), windowing.window)
    index = order[windows_of(breaks, windowing.window, steps)]
    require(
        len(index) > 0,
        f"no {windowing.window} rows follow each other without a gap of more than"
        f" {windowing.gap:g} in {windowing.time!r}; give that many for a prediction",
    )
    return index


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
    if not first:
        # Not as wide as a window, which a job may say to be of any length.
        return np.zeros((0, min(window, len(breaks) + 1)), np.int64)
    return np.concatenate(first)[:, None] + np.arange(window)

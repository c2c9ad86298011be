"""Thresholds between bins: of values in one place, or agreed on by counts of clients."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8
from numpy.typing import NDArray

MOST_BINS = 255
"""Bins of an input; their numbers are bytes."""
ROWS_OF_BIN = 10
"""At least so many rows are in a bin on which clients agree, on average. Where values are
those of one client only, a bin of one row would be this client's, with its target.
"""
BISECTIONS = 30
"""How often the search for quantiles halves the interval that holds one, which is at first that
of all 2^32 places of numbers of single precision. So thresholds are good to a millionth,
whatever the unit, and whole numbers to four million are exact.
"""

_LARGEST = 0x7F7FFFFF
"""Place of the largest finite number of single precision."""

Thresholds = Sequence[Float[NDArray, " _"]]
"""For each input, the ascending upper ends of all bins but the last one."""


def bins_of_values(
    x: Float[NDArray, "n inputs"], most_bins: int = MOST_BINS
) -> list[NDArray[np.float64]]:
    """Thresholds of rows in one place, as scikit-learn's HistGradientBoosting has them:
    the middles between distinct values, or quantiles where there are more than
    `most_bins`.
    """
    found = []
    for column in np.asarray(x, np.float64).T:
        distinct = np.unique(column)
        if len(distinct) <= most_bins:
            found.append((distinct[:-1] + distinct[1:]) / 2)
            continue
        shares = np.linspace(0, 100, most_bins + 1)[1:-1]
        quantiles = np.percentile(column, shares, method="averaged_inverted_cdf")
        found.append(np.unique(quantiles))
    return found


def agree_on_bins(
    counts_below: Callable[[Float[NDArray, "inputs quantiles"]], NDArray],
    rows: int,
    inputs: int,
    most_bins: int = MOST_BINS,
    *,
    at_once: int = 1,
) -> list[NDArray[np.float64]]:
    """Thresholds from counts over all clients: federated quantiles by bisection.

    All quantiles of all inputs are searched at once, among the numbers of single precision
    in their order, so that nobody has to tell a smallest or largest value, or a unit.

    Args:
        counts_below: the number of all clients' rows whose input is at most each
            candidate.
        rows: the number of all clients' rows.
        inputs: the number of inputs.
        most_bins: bins of an input.
        at_once: halvings that one question decides, by 2^at_once - 1 candidates for each
            quantile; a divisor of `BISECTIONS`. The thresholds do not depend on it.
    """
    shares = np.linspace(0, 1, most_bins + 1)[1:-1]
    low = np.full((inputs, len(shares)), -(2**31))
    high = np.full((inputs, len(shares)), 2**31)
    wanted = np.ceil(shares * rows)
    parts = 2**at_once
    for _ in range(BISECTIONS // at_once):
        # The ends of equal parts.
        width = (high - low) // parts
        inner = [low + width * part for part in range(1, parts)]
        candidates = np.concatenate(inner, axis=1)
        counts = counts_below(_to_values(candidates))
        is_below = [it < wanted for it in np.split(counts, parts - 1, axis=1)]
        low = low + width * np.sum(is_below, axis=0)
        high = low + width
    # The smallest numbers found that enough rows are at most. Nobody's rows are beyond the
    # largest number.
    return [_to_values(np.unique(found[found < _LARGEST])) for found in high]


def bin_numbers(x: NDArray[Any], thresholds: Thresholds) -> UInt8[NDArray, "n inputs"]:
    """The bin of each value: the number of thresholds below it [n, inputs]."""
    x = np.asarray(x, np.float64)
    numbers = np.empty(x.shape, np.uint8)
    for place, ends in enumerate(thresholds):
        numbers[:, place] = np.searchsorted(ends, x[:, place], side="left")
    return numbers


def _to_values(places: NDArray[np.int64]) -> NDArray[np.float64]:
    """The numbers of single precision at places, of which 0 is that of 0.

    From there the bits of positive numbers count upwards as whole numbers; those of negative
    ones downwards.
    """
    bits = np.minimum(np.abs(places), _LARGEST).astype(np.int32)
    return np.sign(places) * bits.view(np.float32).astype(np.float64)

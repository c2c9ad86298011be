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
"""How often the search for quantiles halves the interval that holds one."""

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

    All quantiles of all inputs are searched at once, in the scale x / (1 + |x|), so that
    nobody has to tell a smallest or largest value.

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
    low = np.full((inputs, len(shares)), -1.0)
    high = np.full((inputs, len(shares)), 1.0)
    wanted = np.ceil(shares * rows)
    parts = 2**at_once
    for _ in range(BISECTIONS // at_once):
        # The ends of equal parts; powers of two make them exact.
        width = (high - low) / parts
        inner = [low + width * part for part in range(1, parts)]
        candidates = np.concatenate(inner, axis=1)
        counts = counts_below(_to_values(candidates))
        is_below = [it < wanted for it in np.split(counts, parts - 1, axis=1)]
        low = low + width * np.sum(is_below, axis=0)
        high = low + width
    # The smallest numbers found that enough rows are at most. Those of one value, within
    # the precision of the search, are one threshold.
    thresholds = []
    for found in high:
        # Nobody's rows are beyond a threshold at the end of the scale.
        distinct = np.unique(found[found < 1 - 2.0 ** (2 - BISECTIONS)])
        is_new = np.diff(distinct, prepend=-2.0) > 2.0 ** (2 - BISECTIONS)
        thresholds.append(_to_values(distinct[is_new]))
    return thresholds


def bin_numbers(x: NDArray[Any], thresholds: Thresholds) -> UInt8[NDArray, "n inputs"]:
    """The bin of each value: the number of thresholds below it [n, inputs]."""
    x = np.asarray(x, np.float64)
    numbers = np.empty(x.shape, np.uint8)
    for place, ends in enumerate(thresholds):
        numbers[:, place] = np.searchsorted(ends, x[:, place], side="left")
    return numbers


def _to_values(scaled: NDArray[np.float64]) -> NDArray[np.float64]:
    """x of x / (1 + |x|)."""
    return scaled / np.maximum(1 - np.abs(scaled), 1e-300)

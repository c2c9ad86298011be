"""The loss of survival: its intervals of time, from training rows."""

import numpy as np
from jaxtyping import Float32
from numpy.typing import NDArray

from fedtailor.data.tables.options import TableOptions
from fedtailor.models.tasks import CoxPartial, DiscreteTime, Survival
from fedtailor.models.tasks.survival import GRID, log_odds
from fedtailor.models.tasks.times import censoring_curve

INTERVALS = 10
"""Number of intervals of the discrete hazard, of about equally many events each."""


def survival_loss(
    y: Float32[NDArray, "rows 2"], options: TableOptions
) -> tuple[Survival, tuple[str, ...]]:
    """The loss for the training rows of seen clients.

    Args:
        y: times and events.
        options: says which.

    Returns:
        The loss, and notes on it, in sentences.
    """
    times, seen = y[:, 0].astype(np.float64), y[:, 1] > 0
    events = times[seen] if seen.any() else times
    grid = _quantiles(events, GRID)
    censoring = tuple(censoring_curve(times, seen).survival(grid).tolist())
    if options.hazard == "cox":
        note = (
            "Risks are those of Cox's model (Efron's ties), stratified by client: rows are"
            " compared with rows of their own client."
        )
        return CoxPartial(grid, censoring=censoring), (note,)
    ends = interval_ends(events)
    start = log_odds(times, seen, ends)
    note = (
        f"Hazards are logistic in {len(ends)} intervals of time, of about equally many"
        f" events, up to {ends[-1]:g}."
    )
    return DiscreteTime(grid, ends, start, censoring=censoring), (note,)


def interval_ends(events: NDArray[np.float64]) -> tuple[float, ...]:
    """Ends of intervals of about equally many events, by their times."""
    return tuple(end for end in _quantiles(events, INTERVALS) if end > 0) or (1.0,)


def _quantiles(values: NDArray[np.float64], parts: int) -> tuple[float, ...]:
    """Ascending ends of parts of about equally many values; the last is the largest.

    They are float32 numbers, as targets are.
    """
    levels = np.arange(1, parts + 1) / parts
    ends = np.quantile(values, levels, method="inverted_cdf").astype(np.float32)
    return tuple(np.unique(ends).astype(np.float64).tolist())

"""The C-index: how often whoever had the event first had the higher risk."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64
from numpy.typing import ArrayLike, NDArray

from fedtailor._base.choice import require
from fedtailor.models.tasks.times.curves import censoring_curve

_CHUNK = 512
"""Rows that are compared with all others at a time."""


@dataclass(frozen=True)
class Concordance:
    """A C-index, with what its interval follows from.

    Attributes:
        value: share of the comparable pairs that are ranked rightly, ties in risk half;
            NaN if there is no such pair.
        pairs: number of comparable pairs (of weight 1 each).
        ranked: [n] what the pairs of each row add to the numerator.
        compared: [n] what they add to the denominator.
    """

    value: float
    pairs: int
    ranked: Float64[NDArray, " n"]
    compared: Float64[NDArray, " n"]


def comparisons(
    time: ArrayLike,
    event: ArrayLike,
    risk: ArrayLike,
    weight: ArrayLike | None = None,
) -> Concordance:
    """Compare all pairs of rows of which one is known to have lived longer.

    A pair is comparable if the earlier time is that of an event; of equal times, if one is
    an event and the other is censored, which lived longer (Harrell et al. 1982, with the
    treatment of ties of scikit-survival).

    Args:
        time: [n].
        event: [n] whether the event was seen.
        risk: [n]; a higher one means an earlier event.
        weight: [n] weight of the pairs in which a row has the event; None = 1.
    """
    times, events = _checked(time, event)
    risks = np.asarray(risk, np.float64)
    require(risks.shape == times.shape, "there is one risk for each time")
    require(
        not np.isnan(risks).any(),
        f"{int(np.isnan(risks).sum())} risks are NaN; leave these rows out, or mend the"
        " model that predicts them",
    )
    weights = np.ones(len(times)) if weight is None else np.asarray(weight, np.float64)
    ranked, compared, pairs = np.zeros(len(times)), np.zeros(len(times)), 0
    first = np.flatnonzero(events)
    for start in range(0, len(first), _CHUNK):
        rows = first[start : start + _CHUNK]
        later = times[rows, None] < times
        later |= (times[rows, None] == times) & ~events
        right = (risks[rows, None] > risks) + 0.5 * (risks[rows, None] == risks)
        shares = weights[rows, None] * later
        right = right * shares
        pairs += int(later.sum())
        ranked[rows] += right.sum(1)
        compared[rows] += shares.sum(1)
        ranked += right.sum(0)
        compared += shares.sum(0)
    total = compared.sum()
    value = float(ranked.sum() / total) if total > 0 else float("nan")
    return Concordance(value, pairs, ranked, compared)


def harrell(time: ArrayLike, event: ArrayLike, risk: ArrayLike) -> float:
    """Harrell's C-index; NaN without a comparable pair."""
    return comparisons(time, event, risk).value


def uno(
    time: ArrayLike,
    event: ArrayLike,
    risk: ArrayLike,
    train_time: ArrayLike,
    train_event: ArrayLike,
    until: float | None = None,
) -> float:
    """Uno's C-index (Uno et al. 2011): pairs weigh 1 / G(t)^2, which makes it independent of
    who is censored.

    Args:
        time, event, risk: as for `comparisons`.
        train_time, train_event: rows from which G, the curve of censoring, is estimated.
        until: pairs whose event is at this time or later are left out; None = none are.

    Raises:
        ValueError: an event lies where everybody is censored in training.
    """
    times, events = _checked(time, event)
    events = events if until is None else events & (times < until)
    curve = censoring_curve(train_time, train_event)
    weight = np.zeros(len(times))
    left = curve.survival(times[events])
    require(
        bool((left > 0).all()),
        "an event lies where all training rows are censored before; give until, an"
        " earlier time",
    )
    weight[events] = 1 / left**2
    return comparisons(times, events, risk, weight).value


def _checked(
    time: ArrayLike, event: ArrayLike
) -> tuple[Float64[NDArray, " n"], Bool[NDArray, " n"]]:
    times, events = np.asarray(time, np.float64), np.asarray(event)
    require(
        times.ndim == 1 and events.shape == times.shape,
        f"times have shape {times.shape} and events {events.shape}; both are [n]",
    )
    missing = np.isnan(times) | np.isnan(events.astype(np.float64))
    require(
        not missing.any(),
        f"{int(missing.sum())} times or events are missing (NaN); leave these rows out",
    )
    return times, events.astype(bool)

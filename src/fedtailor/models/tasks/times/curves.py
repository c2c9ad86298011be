"""Curves over time, from counts that clients can add up: Kaplan and Meier's, the log-rank
test, and Brier's score.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64
from numpy.typing import ArrayLike, NDArray

from fedtailor._base.choice import require


@dataclass(frozen=True)
class LifeTable:
    """Counts at some times, which are the same at all clients.

    Attributes:
        times: [t] ascending.
        at_risk: [t] rows that are still under observation just before each time.
        events: [t] rows with the event at it (after the time before it).
    """

    times: Float64[NDArray, " t"]
    at_risk: Int64[NDArray, " t"]
    events: Int64[NDArray, " t"]

    def __add__(self, other: "LifeTable") -> "LifeTable":
        """The counts of the rows of both.

        Raises:
            ValueError: their times differ.
        """
        require(
            np.array_equal(self.times, other.times),
            "two life tables have other times; count both at the same",
        )
        return LifeTable(
            self.times, self.at_risk + other.at_risk, self.events + other.events
        )

    @property
    def curve(self) -> Float64[NDArray, " t"]:
        """Kaplan and Meier's estimate of the share without the event after each time."""
        at_risk = np.maximum(self.at_risk, 1)
        return np.cumprod(1 - self.events / at_risk)

    def survival(self, times: ArrayLike) -> Float64[NDArray, " m"]:
        """The curve at any times: 1 before the first."""
        place = np.searchsorted(self.times, np.asarray(times), side="right")
        return np.concatenate([[1.0], self.curve])[place]

    def interval(self, confidence: float = 0.95) -> Float64[NDArray, "2 t"]:
        """Pointwise ends of an interval of the curve, by Greenwood's variance of
        log(-log S).
        """
        from scipy import special

        z = float(special.ndtri((1 + confidence) / 2))
        alive = np.maximum(self.at_risk - self.events, 1e-12)
        greenwood = np.cumsum(self.events / (np.maximum(self.at_risk, 1) * alive))
        curve = self.curve
        inside = (curve > 0) & (curve < 1)
        ends = np.stack([curve, curve])
        log_log = np.log(-np.log(curve[inside]))
        half = z * np.sqrt(greenwood[inside]) / np.abs(np.log(curve[inside]))
        ends[:, inside] = np.exp(-np.exp([log_log + half, log_log - half]))
        return ends


def life_table(
    time: ArrayLike, event: ArrayLike, times: ArrayLike | None = None
) -> LifeTable:
    """Count rows.

    Args:
        time: [n].
        event: [n] whether the event was seen.
        times: when to count; None = at all times of these rows, where Kaplan and Meier's
            curve is exact.
    """
    rows, seen = np.asarray(time, np.float64), np.asarray(event).astype(bool)
    grid = np.unique(rows) if times is None else np.asarray(times, np.float64)
    require(bool((np.diff(grid) > 0).all()), "times must ascend")
    ordered, with_event = np.sort(rows), np.sort(rows[seen])
    before = np.concatenate([[-math.inf], grid[:-1]])
    # Whoever is censored between two times is at risk at the first of them only; on a
    # grid of all times nobody is.
    at_risk = len(rows) - np.searchsorted(ordered, grid, side="left")
    events = np.searchsorted(with_event, grid, side="right")
    events = events - np.searchsorted(with_event, before, side="right")
    # An event between two times is counted at the later one, at which it is at risk.
    between = np.searchsorted(with_event, grid, side="left") - np.searchsorted(
        with_event, before, side="right"
    )
    return LifeTable(grid, at_risk + between, events)


def censoring_curve(time: ArrayLike, event: ArrayLike) -> LifeTable:
    """The curve of being censored: who has the event at a time leaves after whom it is
    compared with, so that G is taken just before events.
    """
    rows, seen = np.asarray(time, np.float64), np.asarray(event).astype(bool)
    grid = np.unique(rows)
    events = np.searchsorted(np.sort(rows[seen]), grid, side="right")
    events = np.diff(np.concatenate([[0], events]))
    censored = np.searchsorted(np.sort(rows[~seen]), grid, side="right")
    censored = np.diff(np.concatenate([[0], censored]))
    at_risk = len(rows) - np.searchsorted(np.sort(rows), grid, side="left") - events
    return LifeTable(grid, at_risk, censored)


@dataclass(frozen=True)
class LogRank:
    """A log-rank test of several groups.

    Attributes:
        statistic: chi-squared with one degree of freedom less than groups of which rows
            are at risk at an event.
        p: its p-value.
        observed: [groups] events.
        expected: [groups] events if all groups had one curve.
    """

    statistic: float
    p: float
    observed: Float64[NDArray, " groups"]
    expected: Float64[NDArray, " groups"]


def log_rank(tables: Sequence[LifeTable]) -> LogRank:
    """The log-rank test (Mantel 1966) of groups, by their counts at the same times.

    Raises:
        ValueError: there are fewer than two groups, or their times differ.
    """
    from scipy import stats

    require(len(tables) >= 2, "a log-rank test compares two groups or more")
    total = tables[0]
    for table in tables[1:]:
        total = total + table
    at_risk = np.array([table.at_risk for table in tables], np.float64)
    observed = np.array([table.events.sum() for table in tables], np.float64)
    n, d = total.at_risk.astype(np.float64), total.events.astype(np.float64)
    share = at_risk / np.maximum(n, 1)
    expected = (share * d).sum(1)
    factor = d * (n - d) / np.maximum(n - 1, 1)
    covariance = -np.einsum("t,gt,ht->gh", factor, share, share)
    covariance += np.diag((factor * share).sum(1))
    difference = (observed - expected)[:-1]
    inner = covariance[:-1, :-1]
    statistic = float(difference @ np.linalg.pinv(inner) @ difference)
    # A group that is at risk at no event takes no part.
    freedom = max(int((expected > 0).sum()) - 1, 1)
    p = float(stats.chi2.sf(statistic, freedom))
    return LogRank(statistic, p, observed, expected)


def brier_scores(
    time: ArrayLike,
    event: ArrayLike,
    survival: ArrayLike,
    times: ArrayLike,
    train_time: ArrayLike,
    train_event: ArrayLike,
) -> Float64[NDArray, " t"]:
    """Brier's score at some times, with weights for who is censored (Graf et al. 1999).

    Args:
        time, event: [n] of the rows that are tested.
        survival: [n, t] predicted shares without the event at these times.
        times: [t].
        train_time, train_event: rows from which the curve of censoring is estimated.

    Raises:
        ValueError: a time lies where everybody is censored in training.
    """
    rows, seen = np.asarray(time, np.float64), np.asarray(event).astype(bool)
    predicted, grid = np.asarray(survival, np.float64), np.asarray(times, np.float64)
    require(
        predicted.shape == (len(rows), len(grid)),
        f"survival has shape {predicted.shape}; it must be rows x times,"
        f" {(len(rows), len(grid))}",
    )
    curve = censoring_curve(train_time, train_event)
    at_time, at_rows = curve.survival(grid), curve.survival(rows)
    require(
        bool((at_time > 0).all()),
        "all training rows are censored before the last time; ask for earlier times",
    )
    had = (rows[:, None] <= grid) & seen[:, None]
    has_not = rows[:, None] > grid
    weight_had = had / np.maximum(at_rows, 1e-12)[:, None]
    weight_has_not = has_not / at_time
    scores = predicted**2 * weight_had + (1 - predicted) ** 2 * weight_has_not
    return scores.mean(0)


def integrated_brier(times: ArrayLike, scores: ArrayLike) -> float:
    """The mean of Brier's score over time, by the trapezoidal rule."""
    grid = np.asarray(times, np.float64)
    require(len(grid) >= 2, "an integral needs two times or more")
    return float(np.trapezoid(np.asarray(scores), grid) / (grid[-1] - grid[0]))

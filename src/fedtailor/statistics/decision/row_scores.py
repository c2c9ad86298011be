"""Metrics that follow from single test rows: their values, and what each row adds."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from jaxtyping import Float
from numpy.typing import NDArray

from fedtailor.models.tasks.times import Concordance, comparisons
from fedtailor.statistics.decision.intervals import (
    Interval,
    student_interval,
    wilson_interval,
)

SHARE = "share"
"""The column of a row's weight over the mean of its client's, where rows have weights."""
_SMALLEST = float(np.finfo(np.float64).tiny)
"""Stands for a mean squared error of 0, which has no logarithm."""


def weighted_scores(rows: pl.DataFrame, weight: str) -> pl.DataFrame:
    """Scores of rows whose plain means are the weighted ones, client by client.

    A score s of weight w becomes m + w (s - m), where m is the weighted mean and weights
    have the mean 1. Its mean is m, and its distance from m is the row's influence on the
    weighted mean, so that intervals are right as well. Metrics that are no means of rows,
    such as an area, do not follow from these.

    Args:
        rows: outcomes of rows.
        weight: the column of their weights; rows without it stay as they are.
    """
    if weight not in rows.columns:
        return rows
    weights = pl.col(weight).cast(pl.Float64)
    share = weights / weights.mean().over("client")
    scores = []
    for name in ("loss", "correct", "squared_error"):
        if name in rows.columns:
            score = pl.col(name).cast(pl.Float64)
            mean = (share * score).mean().over("client")
            scores.append((mean + share * (score - mean)).alias(name))
    # The rows of a client that all count nothing tell nothing.
    counted = rows.filter(weights.sum().over("client") > 0)
    return counted.select("client", "row", share.alias(SHARE), *scores)


@dataclass(frozen=True)
class Score:
    """A metric that is the mean of a column of the table of rows.

    Differences of two methods are taken on a scale on which they are nearly normal, and
    on which higher is better: `worth`. `gain` leads back from it.

    Attributes:
        column: column of the table of rows: "loss", "correct" or "squared_error".
        higher_is_better: whether a larger mean is better.
        bounds: the range of a row's score, or None if it is unbounded.
        most_outputs: the most outputs of a model for which rows determine the metric;
            None if they do for any.

    Example:
        >>> from fedtailor.statistics.decision import Score
        >>> Score("correct", higher_is_better=True).column
        'correct'
    """

    column: str
    higher_is_better: bool
    bounds: tuple[float, float] | None = None
    most_outputs: int | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the table of rows that the metric needs."""
        return (self.column,)

    @property
    def is_mean_of_rows(self) -> bool:
        """Whether the metric is the mean of bounded scores of rows, and not of pairs."""
        return self.bounds is not None

    def prepare(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Adds the columns `score` and `truth` (null if no truth is needed). Where rows
        have a weight (`SHARE`), of which means are no functions of truths, that is it.
        """
        share = pl.col(SHARE) if SHARE in rows.columns else pl.lit(None, pl.Float64)
        return rows.with_columns(
            score=pl.col(self.column).cast(pl.Float64), truth=share
        )

    def value(
        self, scores: Float[np.ndarray, " n"], truth: Float[np.ndarray, " n"]
    ) -> float:
        """The metric."""
        return float(scores.mean())

    def worth(
        self, scores: Float[np.ndarray, " n"], truth: Float[np.ndarray, " n"]
    ) -> tuple[float, Float[np.ndarray, " n"]]:
        """The metric on the scale of differences, and what each row adds to it.

        Returns:
            The worth, and the influence of each row times n. The mean of its square,
            over n, is an unbiased estimate of the worth's variance over rows.
        """
        sign = 1.0 if self.higher_is_better else -1.0
        return sign * float(scores.mean()), sign * _deviations(scores)

    def degrees(self, truth: Float[np.ndarray, " n"]) -> int:
        """Degrees of freedom of the variance of `worth` over rows."""
        return len(truth) - 1

    def least_variance(self, truth: Float[np.ndarray, " n"]) -> float:
        """The least variance of a difference over rows, where all rows agree."""
        return 0.0

    def gain(self, difference: float, base_value: float) -> float:
        """The gain over a base in the metric that a difference of worths means."""
        return difference

    def gain_slope(self, difference: float, base_value: float) -> float:
        """The derivative of `gain` by the difference."""
        return 1.0

    def determined(self, columns: Collection[str], outputs: int) -> bool:
        """Whether a table of rows determines the metric of each client.

        Args:
            columns: the columns of the table.
            outputs: outputs of the model: classes or targets.
        """
        is_possible = self.most_outputs is None or outputs <= self.most_outputs
        return is_possible and {*self.columns} <= {*columns}

    def interval(
        self,
        scores: Float[np.ndarray, " n"],
        truth: Float[np.ndarray, " n"],
        confidence: float,
    ) -> Interval:
        """An interval of the metric over test rows, without a p-value (see
        `rows_interval`).
        """
        level, influence = self.level(scores, truth)
        found = self.rows_interval(level, influence / len(scores), truth, confidence)
        return self.metric_of(found)

    def level(
        self, scores: Float[np.ndarray, " n"], truth: Float[np.ndarray, " n"]
    ) -> tuple[float, Float[np.ndarray, " n"]]:
        """The metric on the scale of its interval, and each row's influence on it.

        Returns:
            The level, and the influence of each row times n, as `worth` has it.
        """
        return float(scores.mean()), _deviations(scores)

    def metric_of(self, level: Interval) -> Interval:
        """The interval of the metric from that of its level."""
        return level if self.bounds else replace(level, low=max(level.low, 0.0))

    def level_at(self, value: float) -> tuple[float, float]:
        """The level of a value of the metric, and how fast the metric grows with it."""
        return value, 1.0

    def rows_interval(
        self,
        level: float,
        influence: Float[np.ndarray, " n"],
        truth: Float[np.ndarray, " n"],
        confidence: float,
    ) -> Interval:
        """What the level may be with other test rows, without a p-value.

        A proportion has Wilson's interval (1927), which is valid for few rows and near
        0 and 1. A mean has Student's interval.

        Args:
            level: the level, or its mean over several trainings.
            influence: of each distinct row on it.
            truth: truths of these rows.
            confidence: confidence level of the interval.
        """
        if self.bounds == (0.0, 1.0):
            rows = float(len(influence))
            if not np.isnan(truth).all():
                # Kish's number of rows: as many as would tell as much without weights.
                rows = float(truth.sum() ** 2 / np.square(truth).sum())
            return wilson_interval(level, rows, confidence)
        return _student(level, influence, confidence)


@dataclass(frozen=True)
class ErrorScore(Score):
    """The root mean squared error; methods are compared by its logarithm.

    Its logarithm has about the same distribution whatever the size of errors. A
    difference d of logarithms is a gain of 1 - exp(-d) times the error of the base.
    """

    column: str = "squared_error"
    higher_is_better: bool = False

    def value(
        self, scores: Float[np.ndarray, " n"], truth: Float[np.ndarray, " n"]
    ) -> float:
        return float(np.sqrt(scores.mean()))

    def worth(
        self, scores: Float[np.ndarray, " n"], truth: Float[np.ndarray, " n"]
    ) -> tuple[float, Float[np.ndarray, " n"]]:
        mean = float(scores.mean())
        if mean == 0:
            return -0.5 * np.log(_SMALLEST), np.zeros(len(scores))
        return -0.5 * np.log(mean), -0.5 * _deviations(scores / mean)

    def gain(self, difference: float, base_value: float) -> float:
        return base_value * -np.expm1(-difference)

    def gain_slope(self, difference: float, base_value: float) -> float:
        return base_value * float(np.exp(-difference))

    def level(
        self, scores: Float[np.ndarray, " n"], truth: Float[np.ndarray, " n"]
    ) -> tuple[float, Float[np.ndarray, " n"]]:
        """The logarithm of the error."""
        worth, influence = ErrorScore.worth(self, scores, truth)
        return -worth, -influence

    def metric_of(self, level: Interval) -> Interval:
        return _transformed(level, np.exp)

    def level_at(self, value: float) -> tuple[float, float]:
        return float(np.log(max(value, np.sqrt(_SMALLEST)))), value


@dataclass(frozen=True)
class ExplainedScore(ErrorScore):
    """The share of the target's variance that is explained, R2.

    Two methods on the same rows differ by the logarithms of their errors only.
    """

    higher_is_better: bool = True
    # A row holds the squared error over all targets together.
    most_outputs: int | None = 1

    @property
    def columns(self) -> tuple[str, ...]:
        return self.column, "target"

    def prepare(self, rows: pl.DataFrame) -> pl.DataFrame:
        return rows.with_columns(
            score=pl.col(self.column).cast(pl.Float64),
            truth=pl.col("target").cast(pl.Float64),
        )

    def value(
        self, scores: Float[np.ndarray, " n"], truth: Float[np.ndarray, " n"]
    ) -> float:
        variance = float(truth.var())
        # As the metric: it is not defined for a constant target.
        if variance <= np.finfo(np.float32).eps ** 0.5 * float(np.square(truth).mean()):
            return np.nan
        return float(1 - scores.mean() / variance)

    def gain(self, difference: float, base_value: float) -> float:
        return (1 - base_value) * -np.expm1(-2 * difference)

    def gain_slope(self, difference: float, base_value: float) -> float:
        return 2 * (1 - base_value) * float(np.exp(-2 * difference))

    def level(
        self, scores: Float[np.ndarray, " n"], truth: Float[np.ndarray, " n"]
    ) -> tuple[float, Float[np.ndarray, " n"]]:
        """log(1 - R2), errors and the target's variance both being of the test rows."""
        squares = np.square(truth - truth.mean())
        rest = float(scores.mean() / squares.mean())
        if rest == 0:
            return float(np.log(_SMALLEST)), np.zeros(len(scores))
        influence = _deviations(scores / scores.mean() - squares / squares.mean())
        return float(np.log(rest)), influence

    def metric_of(self, level: Interval) -> Interval:
        return _transformed(level, lambda value: -np.expm1(value))

    def level_at(self, value: float) -> tuple[float, float]:
        return float(np.log(max(1 - value, _SMALLEST))), value - 1


@dataclass(frozen=True)
class PairsScore(Score):
    """A share of pairs of rows that are ranked rightly, which is not a mean of rows.

    Its level is the share itself.
    """

    higher_is_better: bool = True
    bounds: tuple[float, float] | None = (0.0, 1.0)

    @property
    def is_mean_of_rows(self) -> bool:
        return False

    def level(
        self, scores: Float[np.ndarray, " n"], truth: Float[np.ndarray, " n"]
    ) -> tuple[float, Float[np.ndarray, " n"]]:
        return self.worth(scores, truth)


@dataclass(frozen=True)
class AreaScore(PairsScore):
    """The area under the ROC curve of two classes (DeLong et al. 1988).

    What a row adds is the share of rows of the other class that it is ranked rightly
    with; ties count half.
    """

    column: str = "log_odds"
    # A row holds the probability of one class only.
    most_outputs: int | None = 2

    @property
    def columns(self) -> tuple[str, ...]:
        return "correct", "prediction", "log_odds"

    def prepare(self, rows: pl.DataFrame) -> pl.DataFrame:
        # The log-odds of the class predicted are 0 or more, so that with a sign they are
        # those of the second class.
        predicted = pl.col("prediction").cast(pl.Float64)
        wrong = 1.0 - pl.col("correct").cast(pl.Float64)
        return rows.with_columns(
            score=(2 * predicted - 1) * pl.col("log_odds").cast(pl.Float64),
            truth=(predicted - wrong).abs(),
        )

    def value(
        self, scores: Float[np.ndarray, " n"], truth: Float[np.ndarray, " n"]
    ) -> float:
        return self.worth(scores, truth)[0]

    def worth(
        self, scores: Float[np.ndarray, " n"], truth: Float[np.ndarray, " n"]
    ) -> tuple[float, Float[np.ndarray, " n"]]:
        positive = truth > 0.5
        count, others = int(positive.sum()), int((~positive).sum())
        if not count or not others:
            return np.nan, np.full(len(scores), np.nan)
        placed = np.empty(len(scores))
        placed[positive] = _share_below(scores[positive], scores[~positive])
        placed[~positive] = 1 - _share_below(scores[~positive], scores[positive])
        area = float(placed[positive].mean())
        # Each class has a mean of its own, known by as many rows.
        influence = placed - area
        influence[positive] *= len(scores) / np.sqrt(count * max(count - 1, 1))
        influence[~positive] *= len(scores) / np.sqrt(others * max(others - 1, 1))
        return area, influence

    def degrees(self, truth: Float[np.ndarray, " n"]) -> int:
        positive = int((truth > 0.5).sum())
        smaller = min(positive, len(truth) - positive)
        return max(2 * (smaller - 1), 0)

    def least_variance(self, truth: Float[np.ndarray, " n"]) -> float:
        # As for proportions, a row more of each class in favour of each method, which
        # is ranked otherwise than one row of the other class.
        positive = int((truth > 0.5).sum())
        counts = positive, len(truth) - positive
        return sum(
            2 / (max(others, 1) ** 2 * (count + 1) * (count + 2))
            for count, others in (counts, counts[::-1])
        )

    def rows_interval(
        self,
        level: float,
        influence: Float[np.ndarray, " n"],
        truth: Float[np.ndarray, " n"],
        confidence: float,
    ) -> Interval:
        """The areas from which this one is not far, by their own variance (method 5 of
        Newcombe 2006), which is valid for few rows and near 0 and 1.
        """
        positive = int((truth > 0.5).sum())
        low, high = _area_interval(level, positive, len(truth) - positive, confidence)
        return Interval(level, low, high, np.nan)


@dataclass(frozen=True)
class ConcordanceScore(PairsScore):
    """Harrell's C-index of survival (see `fedtailor.models.tasks.times.comparisons`).

    What a row adds is what its pairs add (Hoeffding's projection of a U-statistic). The
    truth of a row is its time, negative where it is censored.
    """

    column: str = "risk"

    @property
    def columns(self) -> tuple[str, ...]:
        return "risk", "time", "event"

    def prepare(self, rows: pl.DataFrame) -> pl.DataFrame:
        time = pl.col("time").cast(pl.Float64)
        # 0 has a sign, too: -0.0 is censored at once.
        signed = pl.when(pl.col("event") > 0.5).then(time).otherwise(-time)
        return rows.with_columns(score=pl.col("risk").cast(pl.Float64), truth=signed)

    def value(
        self, scores: Float[np.ndarray, " n"], truth: Float[np.ndarray, " n"]
    ) -> float:
        return _compared(scores, truth).value

    def worth(
        self, scores: Float[np.ndarray, " n"], truth: Float[np.ndarray, " n"]
    ) -> tuple[float, Float[np.ndarray, " n"]]:
        found = _compared(scores, truth)
        if not found.pairs:
            return np.nan, np.full(len(scores), np.nan)
        # The pairs of all rows count each pair twice.
        excess = found.ranked - found.value * found.compared
        influence = 2 * len(scores) * excess / found.compared.sum()
        events = _events(truth)
        return found.value, influence * np.sqrt(events / max(events - 1, 1))

    def degrees(self, truth: Float[np.ndarray, " n"]) -> int:
        return max(_events(truth) - 1, 0)

    def least_variance(self, truth: Float[np.ndarray, " n"]) -> float:
        # As for areas: an event more in favour of each method, which is ranked otherwise
        # with one of the rows that it is compared with.
        events = max(_events(truth), 1)
        others = _pairs_of(truth) / events
        return 2 / (max(others, 1) ** 2 * (events + 1) * (events + 2)) + 2 / (
            (others + 1) * (others + 2) * max(events, 1) ** 2
        )

    def rows_interval(
        self,
        level: float,
        influence: Float[np.ndarray, " n"],
        truth: Float[np.ndarray, " n"],
        confidence: float,
    ) -> Interval:
        """The interval of an area with as many positive rows as there are events, and as
        many others as an event is compared with, or that of the pairs' own variance if it
        is wider.
        """
        pairs, events = _pairs_of(truth), max(_events(truth), 1)
        if pairs < FEW_PAIRS:
            return Interval(level, 0.0, 1.0, np.nan)
        others = max(round(pairs / events), 1)
        low, high = _area_interval(level, events, others, confidence)
        own = _student(level, influence, confidence)
        low, high = min(low, max(own.low, 0.0)), max(high, min(own.high, 1.0))
        return Interval(level, low, high, np.nan)


FEW_PAIRS = 10
"""Fewer comparable pairs say nothing: their interval is everything."""


def _compared(
    scores: Float[np.ndarray, " n"], truth: Float[np.ndarray, " n"]
) -> Concordance:
    return comparisons(np.abs(truth), ~np.signbit(truth), scores)


def _events(truth: Float[np.ndarray, " n"]) -> int:
    """Rows with an event that a later row can be compared with."""
    times, seen = np.abs(truth), ~np.signbit(truth)
    if not seen.any():
        return 0
    last = times.max()
    return max(int((seen & (times < last)).sum()), 1)


def _pairs_of(truth: Float[np.ndarray, " n"]) -> int:
    return _compared(np.zeros(len(truth)), truth).pairs


def _area_interval(
    area: float, positive: int, negative: int, confidence: float
) -> tuple[float, float]:
    """The areas from which this one is not far (see `AreaScore.interval`)."""
    from scipy import optimize, special

    rows = (positive + negative) / 2 - 1
    z = float(special.ndtri((1 + confidence) / 2))

    def excess(other: float) -> float:
        factor = 1 + rows * ((1 - other) / (2 - other) + other / (1 + other))
        variance = other * (1 - other) * factor / (positive * negative)
        return (area - other) ** 2 - z**2 * variance

    # At the area itself the excess is below 0, and at the bounds not. An area of 0 or
    # 1 has the variance 0, and stands for one next to it.
    inside = float(np.clip(area, 1e-9, 1 - 1e-9))

    def root(low: float, high: float) -> float:
        return float(optimize.root_scalar(excess, bracket=(low, high)).root)

    low = root(0.0, inside) if area > 0 else 0.0
    high = root(inside, 1.0) if area < 1 else 1.0
    return low, high


def _student(
    center: float, influence: NDArray[np.float64], confidence: float
) -> Interval:
    """Student's interval of what varies as the sum of influences, without a p-value."""
    rows = len(influence)
    variance = float(np.square(influence).sum()) if rows > 1 else np.inf
    interval = student_interval(center, [(variance, rows - 1)], confidence)
    return replace(interval, p=np.nan)


def _transformed(interval: Interval, back: Callable[[float], float]) -> Interval:
    """An interval on another scale, whose order may be the opposite."""
    estimate, *ends = (
        float(back(value)) for value in (interval.estimate, interval.low, interval.high)
    )
    return Interval(estimate, min(ends), max(ends), interval.p)


def _deviations(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Deviations from the mean; the mean of their squares is the unbiased variance."""
    count = len(values)
    return (values - values.mean()) * np.sqrt(count / max(count - 1, 1))


def _share_below(
    scores: NDArray[np.float64], others: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Of each score the share of others below it, ties half."""
    ordered = np.sort(others)
    below = np.searchsorted(ordered, scores, "left")
    not_above = np.searchsorted(ordered, scores, "right")
    return (below + not_above) / (2 * len(others))


SCORES: dict[str, Score] = {
    "accuracy": Score("correct", higher_is_better=True, bounds=(0.0, 1.0)),
    "loss": Score("loss", higher_is_better=False),
    "rmse": ErrorScore(),
    "r2": ExplainedScore(),
    "roc_auc": AreaScore(),
    "c_index": ConcordanceScore(),
}
"""Metrics that follow from the table of test rows, by name."""


def metric_interval(
    rows: pl.DataFrame, score: Score, confidence: float = 0.95
) -> Interval:
    """One client's metric in one run, with an interval over test rows.

    The interval covers the sampling of the client's test rows, not the randomness of
    training (see `Score.interval`).

    Args:
        rows: the client's test rows, with the columns of the score.
        score: the metric.
        confidence: confidence level of the interval.

    Returns:
        The interval, without a p-value. All values are NaN if there are no rows, or if
        the metric is not defined for them.
    """
    prepared = score.prepare(rows).select("score", "truth").to_numpy()
    scores, truth = prepared.T
    if not len(scores) or np.isnan(score.value(scores, truth)):
        return Interval(np.nan, np.nan, np.nan, np.nan)
    return score.interval(scores, truth, confidence)

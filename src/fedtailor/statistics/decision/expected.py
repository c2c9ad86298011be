"""What a client may expect of a method: its metric over seeds, with an interval."""

from dataclasses import replace

import numpy as np
import polars as pl
from jaxtyping import Float

from fedtailor.statistics.decision.gains import dense_array, find_score, require_columns
from fedtailor.statistics.decision.intervals import Interval, student_interval
from fedtailor.statistics.decision.paired import (
    PairedRows,
    explained_between_seeds,
    overlap_of_seeds,
    seed_variance,
    variances_over_rows,
)
from fedtailor.statistics.decision.row_scores import Score

COLUMNS: dict[str, type[pl.DataType]] = {
    "client": pl.String,
    "method": pl.String,
    "value": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "test_rows": pl.Int64,
    "seeds": pl.Int64,
}
"""Columns of the table that `expected_metrics` returns."""


def expected_metrics(
    rows: pl.DataFrame, metric: str | Score = "accuracy", *, confidence: float = 0.95
) -> pl.DataFrame:
    """Each client's metric by each method, with an interval.

    The interval contains what other test rows of the client might give, and with three
    seeds or more what other seeds might give: the variance that seeds add is estimated
    from all clients of the method together (see `seed_variance`). With one seed it is
    that of `metric_interval`.

    Args:
        rows: one row for each method, seed, client and test row, see `client_gains`.
        metric: as for `client_gains`.
        confidence: confidence level of the intervals.

    Returns:
        A table with one row for each client and method for which the metric is defined.
        `value` is the mean over seeds.

    Raises:
        ValueError: a column is missing, the metric is unknown, or a test row occurs
            twice.

    Example:
        >>> from fedtailor.statistics.decision import expected_metrics
        >>> expected_metrics(rows).columns[:3]
        ['client', 'method', 'value']
    """
    score = find_score(metric)
    require_columns(rows, ("method", "seed", "client", "row", *score.columns))
    rows = score.prepare(rows)
    methods = rows["method"].unique(maintain_order=True).to_list()
    tested: dict[str, dict[str, _Tested]] = {method: {} for method in methods}
    for (name,), client_rows in rows.group_by(["client"], maintain_order=True):
        error_message = (
            f"client {name!r} has a test row twice for one method and seed; give each"
            " row its number"
        )
        scores, _ = dense_array(client_rows, methods, "row", "score", error_message)
        truths, _ = dense_array(client_rows, methods, "row", "truth", error_message)
        for index, method in enumerate(methods):
            found = _of_client(scores[index], truths[index], score)
            if found is not None:
                tested[method][str(name)] = found
    records = []
    for method, clients in tested.items():
        of_seeds = seed_variance([found.paired for found in clients.values()])
        for position, (client, found) in enumerate(clients.items()):
            paired = found.paired
            level = _with_seeds(
                found.by_rows(score, confidence),
                of_seeds.components(position),
                confidence,
            )
            interval = score.metric_of(level)
            low, high = interval.low, interval.high
            if score.bounds is not None:
                low, high = np.clip((low, high), *score.bounds)
            records.append(
                {
                    "client": client,
                    "method": method,
                    "value": float(paired.values.mean()),
                    "low": float(low),
                    "high": float(high),
                    "test_rows": paired.rows,
                    "seeds": len(paired.seeds),
                }
            )
    return pl.DataFrame(records, schema=COLUMNS)


class _Tested:
    """One client's test rows by one method.

    Attributes:
        paired: the levels of all seeds, as differences to nothing.
        influence: [rows] the influence of each distinct row on the mean level.
        truth: [rows] their truths.
    """

    def __init__(
        self,
        paired: PairedRows,
        influence: Float[np.ndarray, " rows"],
        truth: Float[np.ndarray, " rows"],
    ) -> None:
        self.paired, self.influence, self.truth = paired, influence, truth

    def by_rows(self, score: Score, confidence: float) -> Interval:
        """The interval of the mean level over test rows."""
        return score.rows_interval(
            self.paired.center, self.influence, self.truth, confidence
        )


def _of_client(
    scores: Float[np.ndarray, "s rows"],
    truth: Float[np.ndarray, "s rows"],
    score: Score,
) -> _Tested | None:
    """A client's rows; None if the metric is not defined in any seed.

    Args:
        scores: NaN where a row was not tested in a seed.
        truth: see `Score.prepare`.
        score: the metric.
    """
    levels, values, seeds = [], [], []
    influence = np.zeros(scores.shape)
    for seed, tested in enumerate(~np.isnan(scores)):
        if not tested.any():
            continue
        value = score.value(scores[seed, tested], truth[seed, tested])
        if np.isnan(value):
            continue
        level, of_rows = score.level(scores[seed, tested], truth[seed, tested])
        influence[seed, tested] = of_rows / tested.sum()
        levels.append(level)
        values.append(value)
        seeds.append(seed)
    if not seeds:
        return None
    is_tested = ~np.isnan(scores[seeds])
    distinct = is_tested.any(axis=0)
    influence, is_tested = influence[seeds][:, distinct], is_tested[:, distinct]
    truth = truth[seeds][:, distinct]
    in_seed, of_mean = variances_over_rows(influence)
    rows = int(distinct.sum())
    # The interval is that of the mean value, on which a seed whose errors are larger
    # has a larger influence.
    slopes = np.array([score.level_at(value)[1] for value in values])
    weights = np.full(len(seeds), 1 / len(seeds))
    if slopes.sum() != 0:
        weights = slopes / slopes.sum()
    paired = PairedRows(
        values=np.array(values),
        base_values=np.zeros(len(seeds)),
        differences=np.array(levels),
        center=score.level_at(float(np.mean(values)))[0],
        row_variance=of_mean,
        degrees=max(rows - 1, 1),
        # A single row does not tell how rows vary.
        in_seed=in_seed if is_tested.sum(axis=1).min() > 1 else np.inf,
        between_seeds=explained_between_seeds(in_seed, of_mean, len(seeds)),
        overlap=overlap_of_seeds(is_tested),
        rows=rows,
        seeds=np.array(seeds),
    )
    first_truth = np.take_along_axis(truth, is_tested.argmax(axis=0)[None], axis=0)[0]
    return _Tested(paired, weights @ influence, first_truth)


def _with_seeds(
    interval: Interval, components: list[tuple[float, int]], confidence: float
) -> Interval:
    """An interval over rows, widened by what seeds add.

    Both causes are independent, so that their half-widths add as squares, on each side.
    """
    added = student_interval(0.0, components, confidence).high
    if not components or not added:
        return interval
    below, above = (
        float(np.hypot(width, added))
        for width in (
            interval.estimate - interval.low,
            interval.high - interval.estimate,
        )
    )
    return replace(
        interval, low=interval.estimate - below, high=interval.estimate + above
    )

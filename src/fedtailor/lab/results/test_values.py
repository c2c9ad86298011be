"""Values on test data of methods and baselines, over seeds and clients."""

import math
from collections.abc import Mapping

import numpy as np
import polars as pl

from fedtailor.lab.results.experiment import TrainedBaseline
from fedtailor.lab.results.stored import RunsByMethod
from fedtailor.lab.results.units import Unit
from fedtailor.statistics.decision import (
    two_way_interval,
)
from fedtailor.statistics.decision.intervals import Interval, two_way_variance
from fedtailor.statistics.decision.winner import dense_values


def values_of(runs: RunsByMethod, split: str) -> pl.DataFrame:
    """The last values of the runs' metric of all seen clients on a split.

    Returns:
        A table with the columns method, seed, client and value.
    """
    frames = []
    for label, seeds in runs.items():
        for run in seeds:
            method, seed = pl.lit(label).alias("method"), pl.lit(run.seed).alias("seed")
            frames.append(run.last(split).select(method, seed, "client", "value"))
    return pl.concat(frames)


def rows_of(runs: RunsByMethod) -> pl.DataFrame | None:
    """The test rows of seen clients, with the columns method and seed; None if no run
    has kept them.
    """
    frames = []
    for label, seeds in runs.items():
        for run in seeds:
            if run.rows is None:
                continue
            rows = run.rows.join(run.seen_clients, on="client", how="semi")
            frames.append(
                rows.with_columns(method=pl.lit(label), seed=pl.lit(run.seed))
            )
    # Runs of other versions may have more columns.
    return pl.concat(frames, how="diagonal") if frames else None


def baseline_label(baseline: TrainedBaseline) -> str:
    """The label of a baseline among methods, which no method can have."""
    return f"baseline/{baseline.about.name}"


class Tests:
    """The test values of methods and baselines, over seeds and clients."""

    def __init__(
        self, runs: RunsByMethod, baselines: Mapping[str, TrainedBaseline]
    ) -> None:
        first = next(iter(runs.values()))[0]
        self.unit = first.unit
        sign = 1 if self.unit.higher_is_better else -1
        both = {**runs, **{label: it.runs for label, it in baselines.items()}}
        values = values_of(both, "test")
        values = values.filter(
            pl.col("value").is_not_nan() & pl.col("value").is_not_null()
        )
        labels, table = dense_values(values)
        # Higher is better.
        self.values = dict(zip(labels, sign * table, strict=True))
        self.methods = [label for label in runs if label in self.values]

    def mean(self, label: str) -> float:
        """A mean over clients of their means over seeds; higher is better."""
        values = self.values[label]
        clients = (~np.isnan(values)).any(axis=0)
        return float(np.nanmean(values[:, clients], axis=0).mean())

    def text(self, label: str) -> str:
        """The mean as it is shown."""
        sign = 1 if self.unit.higher_is_better else -1
        return f"{self.unit.scale * sign * self.mean(label):.{self.unit.digits}f}"

    @property
    def best(self) -> str:
        """The method with the best mean."""
        return max(self.methods, key=self.mean)

    def gain(self, label: str, other: str) -> Interval:
        """The mean gain of one over another, over clients and seeds."""
        return two_way_interval(self.values[label] - self.values[other])

    def error(self, label: str, other: str) -> float:
        """The standard error of that gain."""
        return float(np.sqrt(two_way_variance(self.values[label] - self.values[other])))

    def gain_text(self, gain: Interval) -> str:
        """A gain with its interval, such as "+3.9 points of ROC AUC (95 %: +1.1 to
        +6.7)" or "RMSE lower by 0.021 (95 %: 0.009 to 0.034)".
        """
        values = [self.unit.scale * it for it in (gain.estimate, gain.low, gain.high)]
        if self.unit.higher_is_better:
            center, low, high = map(self.unit.signed, values)
            text = f"{center} {measure_name(self.unit)}"
        else:
            # A sign would be read the wrong way.
            direction = "lower" if values[0] >= 0 else "higher"
            if values[0] < 0:
                values = [-values[0], -values[2], -values[1]]
            center, low, high = (f"{it + 0.0:.{self.unit.digits}f}" for it in values)
            text = f"{measure_name(self.unit)} {direction} by {center}"
        if not math.isfinite(gain.low):
            return f"{text} (too few clients to tell)"
        return f"{text} (95 %: {low} to {high})"


def measure_name(unit: Unit) -> str:
    """A unit in a sentence: "points of ROC AUC", "RMSE"."""
    name, _, percent = unit.label.partition(", %")
    return f"points of {name}" if unit.label.endswith("%") or percent else name

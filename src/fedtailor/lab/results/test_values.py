"""Values on test data of methods and baselines, over seeds and clients."""

import math
from collections.abc import Mapping

import numpy as np
import polars as pl

from fedtailor.data.tables import TableOptions
from fedtailor.lab.results.experiment import StoredExperiment, TrainedBaseline
from fedtailor.lab.results.stored import RunsByMethod
from fedtailor.lab.results.units import Unit
from fedtailor.models.metrics.rows import WEIGHT
from fedtailor.statistics.decision import (
    Interval,
    Splits,
    resampled_interval,
    two_way_interval,
)
from fedtailor.statistics.decision.intervals import (
    MIN_SEEDS,
    resampled_variance,
    two_way_variance,
)
from fedtailor.statistics.decision.row_scores import weighted_scores
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
    has kept them. Of rows with weights there are only scores whose means are weighted.
    """
    frames = []
    for label, seeds in runs.items():
        for run in seeds:
            if run.rows is None:
                continue
            rows = run.rows.join(run.seen_clients, on="client", how="semi")
            rows = weighted_scores(rows, WEIGHT)
            frames.append(
                rows.with_columns(method=pl.lit(label), seed=pl.lit(run.seed))
            )
    # Runs of other versions may have more columns.
    return pl.concat(frames, how="diagonal") if frames else None


def baseline_label(baseline: TrainedBaseline) -> str:
    """The label of a baseline among methods, which no method can have."""
    return f"baseline/{baseline.about.name}"


def splits_of(
    experiment: StoredExperiment, scenario: str, split: str = "test"
) -> Splits | None:
    """How each seed splits the rows of a table; None where they do not, or where that
    is not known.

    Args:
        experiment: the index.
        scenario: label of the scenario.
        split: "test", or "val" for the rows that a choice is made on.
    """
    index = experiment.index
    arguments = index.scenarios[scenario].arguments
    if index.scenarios[scenario].use != "table" or len(index.seeds) < MIN_SEEDS:
        return None
    if any(arguments.get(name) for name in ("split", "time")):
        return None
    if split == "val":
        return Splits(float(arguments.get("val", TableOptions().val)))
    folds = arguments.get("folds")
    if folds:
        return Splits(1 / int(folds), int(folds))
    return Splits(float(arguments.get("test", TableOptions().test)))


class Tests:
    """The test values of methods and baselines, over seeds and clients.

    Attributes:
        splits: how each seed splits the rows, see `splits_of`.
        values: label -> values [seeds, clients]; higher is better.
        methods: the labels of methods.
    """

    def __init__(
        self,
        runs: RunsByMethod,
        baselines: Mapping[str, TrainedBaseline],
        splits: Splits | None = None,
    ) -> None:
        self.splits = splits
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

    def value(self, label: str) -> float:
        """The mean with its own direction."""
        return self.mean(label) if self.unit.higher_is_better else -self.mean(label)

    def text(self, label: str) -> str:
        """The mean as it is shown."""
        return f"{self.unit.scale * self.value(label):.{self.unit.digits}f}"

    @property
    def best(self) -> str:
        """The method with the best mean."""
        return max(self.methods, key=self.mean)

    def gain(self, label: str, other: str) -> Interval:
        """The mean gain of one over another: for these clients if each seed splits their
        rows differently, or else for clients like these.
        """
        differences = self.values[label] - self.values[other]
        if self.splits is None:
            return two_way_interval(differences)
        return resampled_interval(differences, self.splits)

    def gain_elsewhere(self, label: str, other: str) -> Interval:
        """The mean gain of one over another for clients like these."""
        return two_way_interval(self.values[label] - self.values[other])

    def error(self, label: str, other: str) -> float:
        """The standard error of `gain`."""
        differences = self.values[label] - self.values[other]
        if self.splits is None:
            return float(np.sqrt(two_way_variance(differences)))
        return float(np.sqrt(resampled_variance(differences, self.splits)))

    def gain_text(self, gain: Interval) -> str:
        """A gain with its interval, such as "+3.9 points (95 %: +1.1 to +6.7)" or "RMSE
        lower by 0.021 (95 %: 0.009 to 0.034)".
        """
        return f"{self.difference_text(gain)} ({self.range_text(gain)})"

    def difference_text(self, gain: Interval) -> str:
        """A gain without its interval."""
        value = self.unit.scale * gain.estimate
        if self.unit.higher_is_better:
            return f"{self.unit.signed(value)} {measure_name(self.unit)}"
        # A sign would be read the wrong way.
        direction = "lower" if value >= 0 else "higher"
        center = f"{abs(value):.{self.unit.digits}f}"
        return f"{measure_name(self.unit)} {direction} by {center}"

    def range_text(self, gain: Interval) -> str:
        """The ends of a gain's interval, such as "95 %: +1.1 to +6.7"."""
        if not math.isfinite(gain.low):
            return "too few clients to tell"
        ends = [self.unit.scale * gain.low, self.unit.scale * gain.high]
        if self.unit.higher_is_better:
            low, high = map(self.unit.signed, ends)
        else:
            if gain.estimate < 0:
                ends = [-ends[1], -ends[0]]
            low, high = (f"{it + 0.0:.{self.unit.digits}f}" for it in ends)
        return f"95 %: {low} to {high}"


def measure_name(unit: Unit) -> str:
    """What is counted, in a sentence: "points" of a percentage, or "RMSE"."""
    name, _, percent = unit.label.partition(", %")
    return "points" if unit.label.endswith("%") or percent else name

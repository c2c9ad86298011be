"""Reads a run directory."""

import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor._base.parquet import read_parquet
from fedtailor.aggregation.accounting import Ledger, Wireless
from fedtailor.data.tables import Preprocessing
from fedtailor.engine.runs.summary import spread
from fedtailor.engine.storage.diagnostics import ARRAYS, DIAGNOSTICS, read_diagnostics
from fedtailor.engine.storage.export import PREPROCESSING
from fedtailor.engine.storage.run_files import (
    BASELINE,
    CLIENTS,
    LEDGER,
    MANIFEST,
    METRICS,
    ROWS,
    SUMMARY,
    VALIDATION,
    ended_early,
    read_summary,
    read_text,
    require_unchanged,
)
from fedtailor.lab.results.units import Unit, unit_of
from fedtailor.protocol import client_ids
from fedtailor.protocol.diagnostics import Diagnostic


@dataclass(frozen=True)
class StoredRun:
    """The results of one finished run. Files are read when they are first used.

    Attributes:
        path: directory of the run.

    Raises:
        ValueError: the directory holds no finished run. Reading a property raises it if
            a file is missing or damaged.
    """

    path: Path

    def __post_init__(self) -> None:
        require(
            (self.path / SUMMARY).is_file(),
            f"{self.path} holds no finished run: {SUMMARY} is missing",
        )

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The summary of the run, or the reason why it diverged."""
        return read_summary(self.path / SUMMARY)

    @property
    def diverged(self) -> bool:
        """Whether a model became NaN or infinite."""
        return "diverged" in self.summary

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """Settings, data and versions."""
        require_unchanged(self.path / MANIFEST, self.summary)
        return read_text(self.path / MANIFEST, tomllib.loads, "repeat the run")

    @property
    def seed(self) -> int:
        """The random seed of the run."""
        return self.manifest["run"]["seed"]

    @property
    def method(self) -> str:
        """The name of the method, such as "fedavg"; the label of its row may differ."""
        return self.manifest["algorithm"]["name"]

    @cached_property
    def clients(self) -> pl.DataFrame:
        """All clients, one row for each.

        The columns are client, group (null if there are no groups), unseen, and the
        numbers of train, val and test samples.
        """
        return self._table(CLIENTS)

    @cached_property
    def seen_clients(self) -> pl.DataFrame:
        """The rows of `clients` that are not unseen."""
        return self.clients.filter(~pl.col("unseen"))

    @cached_property
    def metrics(self) -> pl.DataFrame:
        """All evaluations: columns round, client, unseen, split, metric and value."""
        return self._table(METRICS)

    @cached_property
    def ledger(self) -> Ledger:
        """The traffic, including the delivery of the final models."""
        return Ledger.from_frame(self._table(LEDGER))

    @cached_property
    def diagnostics(self) -> dict[str, Diagnostic]:
        """The diagnostics of the method at the end of the run, by name."""
        for name in (DIAGNOSTICS, ARRAYS):
            require_unchanged(self.path / name, self.summary)
        try:
            diagnostics = read_diagnostics(self.path)
        except OSError as error:
            raise _read_error(self.path, error) from None
        return {diagnostic.name: diagnostic for diagnostic in diagnostics}

    @cached_property
    def rows(self) -> pl.DataFrame | None:
        """Client, row, loss and prediction of every test row at the end of the run.

        None if the run has not stored them.
        """
        return self._table(ROWS) if (self.path / ROWS).exists() else None

    @cached_property
    def validation(self) -> pl.DataFrame | None:
        """The same of every validation row; for classes with the client's temperature.

        None if the run has not stored them.
        """
        return self._table(VALIDATION) if (self.path / VALIDATION).exists() else None

    @cached_property
    def preprocessing(self) -> Preprocessing | None:
        """The preprocessing of the table; None if the run is not of one, or keeps no
        models.
        """
        path = self.path / PREPROCESSING
        require_unchanged(path, self.summary)
        return Preprocessing.load(path) if path.exists() else None

    @cached_property
    def baseline(self) -> "StoredBaseline | None":
        """The results of a model that ignores the inputs, in the run's metric.

        None if the run has not stored them.
        """
        if not (self.path / BASELINE).exists():
            return None
        baseline = StoredBaseline(self.path)
        return baseline if baseline.is_known else None

    @property
    def warnings(self) -> list[str]:
        """Warnings about the test rows, if the run has stored any."""
        return [str(warning) for warning in self.summary.get("warnings", ())]

    @property
    def metric(self) -> str:
        """The metric of the run, such as "accuracy"."""
        metric = self.summary.get("metric")
        if not isinstance(metric, str):
            raise ValueError(f"{self.path / SUMMARY} names no metric; repeat the run")
        return metric

    @property
    def seconds_per_round(self) -> float:
        """Median wall time of a round."""
        seconds = self.summary.get("seconds_per_round")
        if not isinstance(seconds, int | float):
            raise ValueError(
                f"{self.path / SUMMARY} has no seconds_per_round; repeat the run"
            )
        return float(seconds)

    @property
    def unit(self) -> Unit:
        """The unit of `metric`."""
        return unit_of(self.metric)

    @cached_property
    def is_tested(self) -> bool:
        """Whether any seen client has a value of the metric on test data."""
        return not self._scores("test", unseen=False).is_empty()

    @property
    def other_metrics(self) -> list[str]:
        """The metrics that the run was asked for in addition to the one that it is judged by,
        and the accuracy, if it has one.
        """
        asked = self.manifest["run"].get("metrics", [])
        if self.metrics.filter(pl.col("metric") == "accuracy").height:
            asked = [*asked, "accuracy"]
        return [name for name in dict.fromkeys(asked) if name != self.metric]

    def mean_of(self, metric: str) -> float | None:
        """The mean over seen clients of a metric's last values on test.

        None if no client has one; clients for which it is not defined (an AUC of one
        class) are left out.
        """
        values = self.test_values(metric)["value"].to_numpy()
        return float(values.mean()) if len(values) else None

    @cached_property
    def r2_of_all_rows(self) -> float | None:
        """R2 of all test rows of seen clients together.

        None for classes, several targets, and runs that have not stored their rows and
        targets.
        """
        if self.rows is None or "target" not in self.rows.columns:
            return None
        rows = self.rows.join(self.seen_clients, on="client", how="semi")
        if not rows.schema["target"].is_numeric() or rows.height < 2:
            return None
        targets = rows["target"].cast(pl.Float64).to_numpy()
        residual = rows["squared_error"].cast(pl.Float64).to_numpy().sum()
        total = np.square(targets - targets.mean()).sum()
        return float(1 - residual / total) if total > 0 else None

    def curve(self, split: str = "test", metric: str | None = None) -> dict[int, float]:
        """Mean of a metric over the seen clients after each evaluated round.

        Args:
            split: train, val or test.
            metric: name of the metric. Defaults to the run's metric.

        Returns:
            Number of rounds -> mean, in ascending order; empty if no client has the
            metric.
        """
        scores = self._scores(split, unseen=False, metric=metric).drop_nulls("value")
        if scores.is_empty():
            return {}
        scores = scores.select("round", "value").sort("round", maintain_order=True)
        rounds, starts, counts = np.unique(
            scores["round"].to_numpy(), return_index=True, return_counts=True
        )
        # Polars' group_by adds in a random order, so that results would differ in their
        # last bits from call to call.
        sums = np.add.reduceat(scores["value"].to_numpy(), starts)
        return dict(zip(rounds.tolist(), (sums / counts).tolist(), strict=True))

    def scores(self, *, unseen: bool = False) -> pl.DataFrame:
        """The last values of the metric on test, one row for each client.

        Returns:
            A table with the column value and the columns of `clients`.
        """
        last = self.last("test", unseen=unseen).select("client", "value")
        return last.join(self.clients, on="client", how="left", maintain_order="left")

    def last(
        self, split: str, *, unseen: bool = False, until: int | None = None
    ) -> pl.DataFrame:
        """The last values of the metric on a split.

        Args:
            split: train, val or test.
            unseen: of clients that never train, instead of those that do.
            until: after this round at the latest; None = after the last one.

        Returns:
            Rows of `metrics`.
        """
        values = self._scores(split, unseen=unseen)
        if until is not None:
            values = values.filter(pl.col("round") <= until)
        return values.filter(pl.col("round") == pl.col("round").max())

    def after(self, split: str, rounds: Collection[int]) -> pl.DataFrame:
        """The metric of seen clients on a split after the given rounds.

        Returns:
            Rows of `metrics`.
        """
        values = self._scores(split, unseen=False)
        found = values.filter(pl.col("round").is_in(list(rounds)))
        if not ended_early(self.summary) or values.is_empty():
            return found
        # The run had converged: later rounds would not have changed it.
        last = self.last(split)
        later = [number for number in rounds if number > last["round"][0]]
        repeated = [
            last.with_columns(round=pl.lit(number, pl.Int32)) for number in later
        ]
        return pl.concat([found, *repeated])

    def test_values(self, metric: str | None = None) -> pl.DataFrame:
        """The last values on test of the seen clients that have one.

        Args:
            metric: name of the metric. Defaults to the run's metric.

        Returns:
            A table with the columns client and value.
        """
        values = self._scores("test", unseen=False, metric=metric)
        values = values.filter(pl.col("round") == pl.col("round").max())
        found = values.select("client", pl.col("value").cast(pl.Float64))
        return found.filter(pl.col("value").is_not_nan())

    def spread(self) -> dict[str, float]:
        """Mean, worst, worst10 and std of `scores` over the seen clients, or NaN."""
        return spread(self.scores()["value"].to_numpy(), self.unit.higher_is_better)

    @property
    def mean_samples(self) -> float:
        """Mean number of training samples of a seen client."""
        return float(self.seen_clients["train"].to_numpy().mean())

    def by_time(self, system: Wireless) -> dict[float, float]:
        """`curve` as a function of time over a wireless network."""
        curve = self.curve()
        times = system.times(
            self.ledger.frame(), list(curve), samples=self.mean_samples
        )
        return dict(zip(times, curve.values(), strict=True))

    def by_bytes(self) -> dict[float, float]:
        """`curve` as a function of the bytes sent down (multicast) and up until then.

        The bytes of a probe before the first round are included.
        """
        curve = self.curve()
        bytes_sent = np.zeros(max(curve, default=0) + 1)  # [rounds done]
        # The delivery comes after the last round, so its slice is empty.
        for entry in self.ledger.entries:
            bytes_sent[entry.round + 1 :] += entry.bytes_multicast
        return {float(bytes_sent[done]): value for done, value in curve.items()}

    @cached_property
    def is_silent(self) -> bool:
        """Whether nothing was sent in training."""
        rounds = (entry for entry in self.ledger.entries if entry.phase == "round")
        return not any(entry.bytes_multicast for entry in rounds)

    def groups(self) -> NDArray[np.int64]:
        """The true groups [m] of the seen clients in the order of ids; 0 if unknown."""
        # `clients` has the order of the federation.
        order = np.argsort(client_ids(tuple(self.seen_clients["client"])))
        return self.seen_clients["group"].fill_null(0).to_numpy()[order]

    def _scores(
        self, split: str, *, unseen: bool, metric: str | None = None
    ) -> pl.DataFrame:
        is_selected = (
            (pl.col("metric") == (metric or self.metric))
            & (pl.col("split") == split)
            & (pl.col("unseen") == unseen)
        )
        return self.metrics.filter(is_selected)

    def _table(self, name: str) -> pl.DataFrame:
        require_unchanged(self.path / name, self.summary)
        try:
            return read_parquet(self.path / name)
        except (OSError, pl.exceptions.PolarsError) as error:
            raise _read_error(self.path / name, error) from None


def _read_error(path: Path, error: BaseException) -> ValueError:
    """The error for a file of a run that is missing, unreadable or damaged."""
    if isinstance(error, FileNotFoundError) and error.errno is not None:
        return ValueError(f"{path} is missing; repeat the run")
    if isinstance(error, OSError) and error.errno is not None:
        return ValueError(f"cannot read {path}: {error.strerror}")
    first_line = (str(error).splitlines() or [type(error).__name__])[0]
    return ValueError(f"{path} is damaged ({first_line}); repeat the run")


class StoredBaseline(StoredRun):
    """The results of a model that ignores the inputs, on the data of a run."""

    @cached_property
    def metrics(self) -> pl.DataFrame:
        """The evaluations of the baseline, after round 0."""
        return self._table(BASELINE)

    @cached_property
    def rows(self) -> pl.DataFrame | None:
        """None: the test rows in the directory are predicted by the run's models."""
        return None

    @property
    def is_known(self) -> bool:
        """Whether the baseline has the run's metric on test data."""
        metrics = self.metrics
        on_test = (pl.col("metric") == self.metric) & (pl.col("split") == "test")
        return not metrics.filter(on_test).is_empty()


def mean_sizes(runs: Sequence[StoredRun], split: str) -> dict[str, int]:
    """Client -> its number of rows in a split, the rounded mean over the runs' seeds."""
    sizes = pl.concat([run.clients.select("client", split) for run in runs])
    means = sizes.group_by("client", maintain_order=True).agg(pl.col(split).mean())
    return {client: round(size) for client, size in means.iter_rows()}


Seeds = Sequence[StoredRun]
"""The runs of one method in one scenario, one for each seed."""

RunsByMethod = Mapping[str, Seeds]

RunsByScenario = Mapping[str, RunsByMethod]
"""Scenario -> algorithm -> its runs that did not diverge, one for each seed."""

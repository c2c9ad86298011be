"""A run directory, read back."""

import json
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedtailor._parquet import read_parquet
from fedtailor.accounting import Ledger, Wireless
from fedtailor.protocol import client_ids, require
from fedtailor.protocol.diagnostics import Diagnostic
from fedtailor.report.units import Unit, unit_of
from fedtailor.runs.summary import spread
from fedtailor.storage.diagnostics import ARRAYS, DIAGNOSTICS, read_diagnostics
from fedtailor.storage.digests import is_sealed
from fedtailor.storage.run_files import (
    BASELINE,
    CLIENTS,
    LEDGER,
    MANIFEST,
    METRICS,
    ROWS,
    SUMMARY,
    read_text,
    require_unchanged,
)

_SETTINGS = {
    "run": ("seed", "evaluate_every", "participation"),
    "algorithm": ("name",),
    "model": ("architecture", "loss", "input_shape", "outputs", "dtype"),
    "data": ("name", "clients"),
}
"""What every manifest says."""


@dataclass(frozen=True)
class StoredRun:
    """The measurements of one run that has ended.

    Attributes:
        path: its directory.

    Raises:
        ValueError: the directory holds no run that has ended; later, one of its files
            is missing or damaged.
    """

    path: Path

    def __post_init__(self) -> None:
        require(
            (self.path / SUMMARY).is_file(),
            f"{self.path} holds no finished run: {SUMMARY} is missing",
        )

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The run in numbers, or why it diverged."""
        summary: Any = read_text(self.path / SUMMARY, json.loads, "repeat the run")
        require(
            not isinstance(summary, dict) or is_sealed(summary),
            f"{self.path / SUMMARY} is damaged; repeat the run",
        )
        ended = isinstance(summary, dict) and (
            "diverged" in summary or isinstance(summary.get("metric"), str)
        )
        require(
            ended, f"{self.path / SUMMARY} is not the summary of a run; repeat the run"
        )
        return summary

    @property
    def diverged(self) -> bool:
        """Whether it ended in a model that became NaN or infinite."""
        return "diverged" in self.summary

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """Settings, data and versions."""
        require_unchanged(self.path / MANIFEST, self.summary)
        manifest: Any = read_text(self.path / MANIFEST, tomllib.loads, "repeat the run")
        # Manifests of version 0.1 have no digest that would show damage.
        for name, settings in _SETTINGS.items():
            table = manifest.get(name)
            stored = table if isinstance(table, dict) else {}
            missing = [key for key in settings if key not in stored]
            require(
                not missing,
                f"{self.path / MANIFEST} has no {' and '.join(missing)} in [{name}];"
                " repeat the run",
            )
        return manifest

    @property
    def seed(self) -> int:
        """The seed of everything random."""
        return self.manifest["run"]["seed"]

    @property
    def method(self) -> str:
        """The name of the method ("fedavg"), whatever its row is called."""
        return self.manifest["algorithm"]["name"]

    @cached_property
    def clients(self) -> pl.DataFrame:
        """One row a client.

        The columns are client, group (null where there are none), unseen, and the
        numbers of train, val and test samples.
        """
        return self._table(CLIENTS)

    @cached_property
    def metrics(self) -> pl.DataFrame:
        """round, client, unseen, split, metric, value."""
        return self._table(METRICS)

    @cached_property
    def ledger(self) -> Ledger:
        """What travelled, the delivery of the final models included."""
        return Ledger.from_frame(self._table(LEDGER))

    @cached_property
    def diagnostics(self) -> dict[str, Diagnostic]:
        """What the method told about itself in the end, by name."""
        for name in (DIAGNOSTICS, ARRAYS):
            require_unchanged(self.path / name, self.summary)
        try:
            diagnostics = read_diagnostics(self.path)
        except OSError as error:
            raise _unreadable(self.path, error) from None
        return {diagnostic.name: diagnostic for diagnostic in diagnostics}

    @cached_property
    def rows(self) -> pl.DataFrame | None:
        """client, row, loss and prediction of every test row in the end.

        None where the run did not keep them.
        """
        return self._table(ROWS) if (self.path / ROWS).exists() else None

    @cached_property
    def baseline(self) -> "StoredBaseline | None":
        """What a model that learns nothing reaches by the run's metric.

        None where the run does not say it.
        """
        if not (self.path / BASELINE).exists():
            return None
        baseline = StoredBaseline(self.path)
        return baseline if baseline.is_known else None

    @property
    def warnings(self) -> list[str]:
        """What must be known of the test rows, where the run kept them."""
        return [str(warning) for warning in self.summary.get("warnings", ())]

    @property
    def metric(self) -> str:
        """What the run is judged by, such as "accuracy"."""
        return self.summary["metric"]

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
        """How `metric` is shown."""
        return unit_of(self.metric)

    @cached_property
    def is_tested(self) -> bool:
        """Whether a seen client has the metric on test.

        Without test rows, for example, none has.
        """
        return not self._scores("test", unseen=False).is_empty()

    def curve(self, split: str = "test", metric: str | None = None) -> dict[int, float]:
        """Mean of a metric over the seen clients, by number of rounds done.

        Args:
            split: train, val or test.
            metric: its name; the run's own by default.

        Returns:
            In ascending order of rounds; empty where no client has the metric.
        """
        scores = self._scores(split, unseen=False, metric=metric).drop_nulls("value")
        if scores.is_empty():
            return {}
        scores = scores.select("round", "value").sort("round", maintain_order=True)
        rounds, starts, counts = np.unique(
            scores["round"].to_numpy(), return_index=True, return_counts=True
        )
        # Not by polars' groups: their threads add in any order, and a run would not
        # always reach its own best again.
        sums = np.add.reduceat(scores["value"].to_numpy(), starts)
        return dict(zip(rounds.tolist(), (sums / counts).tolist(), strict=True))

    def scores(self, *, unseen: bool = False) -> pl.DataFrame:
        """The metric on test after the last evaluation, one row a client.

        Returns:
            value, and the columns of `clients`.
        """
        last = self.last("test", unseen=unseen).select("client", "value")
        return last.join(self.clients, on="client", how="left", maintain_order="left")

    def last(self, split: str, *, unseen: bool = False) -> pl.DataFrame:
        """The metric of clients on a split after the last evaluation.

        Returns:
            Rows of `metrics`.
        """
        return self._scores(split, unseen=unseen).filter(
            pl.col("round") == pl.col("round").max()
        )

    def after(self, split: str, rounds: Collection[int]) -> pl.DataFrame:
        """The metric of seen clients on a split after some rounds.

        Returns:
            Rows of `metrics`.
        """
        return self._scores(split, unseen=False).filter(
            pl.col("round").is_in(list(rounds))
        )

    def spread(self) -> dict[str, float]:
        """Mean, worst, worst10 and std of `scores` over the seen clients.

        NaN where there are none.
        """
        return spread(self.scores()["value"].to_numpy(), self.unit.higher_is_better)

    @property
    def mean_samples(self) -> float:
        """Training samples of a seen client, the mean over clients."""
        return float(self.clients.filter(~pl.col("unseen"))["train"].to_numpy().mean())

    def by_time(self, system: Wireless) -> dict[float, float]:
        """`curve` by time over a wireless network."""
        curve = self.curve()
        times = system.times(
            self.ledger.frame(), list(curve), samples=self.mean_samples
        )
        return dict(zip(times, curve.values(), strict=True))

    def by_bytes(self) -> dict[float, float]:
        """`curve` by bytes sent down (multicast) and up until then.

        Those of a probe before the first round are included.
        """
        curve = self.curve()
        spent = np.zeros(max(curve, default=0) + 1)  # [rounds done]
        # The delivery comes after the last round: it is past the end of `spent`.
        for entry in self.ledger.entries:
            spent[entry.round + 1 :] += entry.bytes_multicast
        return {float(spent[done]): value for done, value in curve.items()}

    @cached_property
    def silent(self) -> bool:
        """Whether nothing travelled in training."""
        rounds = (entry for entry in self.ledger.entries if entry.phase == "round")
        return not any(entry.bytes_multicast for entry in rounds)

    def groups(self) -> NDArray[np.int64]:
        """The true group [m] of every seen client, zeros where there are none.

        The clients are in the order of their ids, as in the server's tables.
        """
        seen = self.clients.filter(~pl.col("unseen"))
        # The frame lists clients as the federation does.
        order = np.argsort(client_ids(tuple(seen["client"])))
        return seen["group"].fill_null(0).to_numpy()[order]

    def _scores(
        self, split: str, *, unseen: bool, metric: str | None = None
    ) -> pl.DataFrame:
        wanted = (
            (pl.col("metric") == (metric or self.metric))
            & (pl.col("split") == split)
            & (pl.col("unseen") == unseen)
        )
        return self.metrics.filter(wanted)

    def _table(self, name: str) -> pl.DataFrame:
        require_unchanged(self.path / name, self.summary)
        try:
            return read_parquet(self.path / name)
        except (OSError, pl.exceptions.PolarsError) as error:
            raise _unreadable(self.path / name, error) from None


def _unreadable(path: Path, error: BaseException) -> ValueError:
    """What to say of a file of a run that was not read.

    Only a file that is there and can be opened may be damaged.
    """
    if isinstance(error, FileNotFoundError) and error.errno is not None:
        return ValueError(f"{path} is missing; repeat the run")
    if isinstance(error, OSError) and error.errno is not None:
        return ValueError(f"cannot read {path}: {error.strerror}")
    first_line = (str(error).splitlines() or [type(error).__name__])[0]
    return ValueError(f"{path} is damaged ({first_line}); repeat the run")


class StoredBaseline(StoredRun):
    """What a model that learns nothing reaches on a run's data.

    It is measured as the run is.
    """

    @cached_property
    def metrics(self) -> pl.DataFrame:
        """As a run's, of round 0."""
        return self._table(BASELINE)

    @property
    def is_known(self) -> bool:
        """Whether the run's metric follows from labels alone."""
        metrics = self.metrics
        on_test = (pl.col("metric") == self.metric) & (pl.col("split") == "test")
        return not metrics.filter(on_test).is_empty()


Runs = Mapping[str, Mapping[str, Sequence[StoredRun]]]
"""Scenario -> algorithm -> its runs, one a seed (none that diverged)."""

"""Makes federations of clients' rows: one client on its machine, all in a simulation.

A client's rows are split by the same rule in both, independently of other clients.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from jaxtyping import Int
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.data.federation import SPLITS, Federation, Ragged
from fedtailor.data.federation.splits import draw_splits
from fedtailor.data.tables.problems import Problems
from fedtailor.data.tables.splitting import Rows, split_rows
from fedtailor.data.tables.windows import windows_in_splits
from fedtailor.models.tasks import CoxPartial, DiscreteTime, LossFunction
from fedtailor.models.tasks.survival import (
    log_odds_of_counts,
    outcome_names,
    survival_grid,
)
from fedtailor.remote.job.job import Job, Schema
from fedtailor.remote.job.statistics import (
    ClientTable,
    Statistics,
    add_statistics,
    read_table,
)
from fedtailor.remote.job.table import (
    ClientExamples,
    no_targets,
    read_rows,
    split_options,
)


@dataclass(frozen=True)
class ExampleRows:
    """Which rows of a client's table are its examples, and which train.

    Attributes:
        rows: [examples] the row of each example; of windows the rows [examples, window].
        split: the examples of each split, ascending, by name of the split.
    """

    rows: Int[NDArray, "examples ..."]
    split: Mapping[str, Int[NDArray, " n"]]

    @property
    def training_rows(self) -> Int[NDArray, " n"]:
        """The rows of training examples, each once, ascending."""
        return np.unique(self.rows[self.split["train"]])


def federation_from_rows(
    job: Job, rows: Mapping[str, ClientExamples], statistics: Statistics | None = None
) -> Federation:
    """Make the federation of some clients.

    Args:
        job: the job.
        rows: the clients' rows by name.
        statistics: statistics of columns, pooled or of the job; None without
            preprocessing.
    """
    splits: dict[str, list[NDArray[np.int64]]] = {split: [] for split in SPLITS}
    first, x, y = 0, [], []  # index of the client's first example among all
    for name, client_rows in rows.items():
        examples = example_rows_of(client_rows, job.schema, job.spec.seed, name)
        x.append(client_rows.x[examples.rows])
        y.append(client_rows.y[_last_rows(examples.rows)])
        for split in SPLITS:
            splits[split].append(first + examples.split[split])
        first += len(examples.rows)
    return Federation(
        x=np.concatenate(x),
        y=np.concatenate(y),
        train=Ragged.of(splits["train"]),
        val=Ragged.of(splits["val"]),
        test=Ragged.of(splits["test"]),
        names=tuple(rows),
        classes=None if job.schema.classes is None else len(job.schema.classes),
        loss=job_loss(job.schema, statistics),
        name=job.title,
    )


def _last_rows(rows: Int[NDArray, "examples ..."]) -> Int[NDArray, " examples"]:
    """The row of each example; of a window its last one, which has its target."""
    return rows if rows.ndim == 1 else rows[:, -1]


def job_loss(schema: Schema, statistics: Statistics | None) -> LossFunction | None:
    """The loss of a job; None for the usual one of classes or numbers.

    Hazards start from what happened to all clients' training rows or, if nobody counts
    that, as if as many had the event in each interval as after the last.
    """
    if schema.task != "survival":
        return None
    ends = schema.intervals
    grid = survival_grid(ends)
    if schema.hazard == "cox":
        return CoxPartial(grid)
    counts = np.array([1] * (len(ends) + 1) + [0] * (len(ends) + 1))
    if statistics is not None and statistics.target is not None:
        of_outcome = statistics.target.categories
        counts = [of_outcome.get(name, 0) for name in outcome_names(ends)]
    return DiscreteTime(grid, ends, log_odds_of_counts(counts))


def read_all(
    job: Job, files: Mapping[str, Path]
) -> tuple[Federation, Statistics | None]:
    """Read all clients' files, to simulate the job on one machine.

    Args:
        job: the job.
        files: the file of each client, by name.

    Returns:
        The federation of all clients, and the statistics of columns, pooled or of the
        job (None without preprocessing).

    Raises:
        ValueError: a file does not fit the job.
    """
    schema = job.schema
    if schema.preprocessing == "none":
        rows = {name: read_rows(path, schema) for name, path in files.items()}
        return federation_from_rows(job, rows), None
    tables = {name: read_table(path, schema) for name, path in files.items()}
    if schema.preprocessing == "job":
        statistics = Statistics.of_job(schema)
    else:
        # In the coordinator's order, as floating-point sums depend on it.
        train = {
            name: example_rows_of(
                tables[name], schema, job.spec.seed, name
            ).training_rows
            for name in sorted(tables)
        }
        statistics = add_statistics(
            tables[name].statistics(rows) for name, rows in train.items()
        )
    rows = {name: table.rows(statistics) for name, table in tables.items()}
    return federation_from_rows(job, rows, statistics), statistics


def template_of(job: Job, statistics: Statistics | None = None) -> Federation:
    """Make a federation of one client with one row of zeros.

    It stands for the clients' examples where only their shapes matter.
    """
    width = job.schema.width
    if statistics is not None:
        width = len(statistics.preprocessing(job.schema).inputs)
    windowing, classes = job.schema.windowing, job.schema.classes
    shape = (width,) if windowing is None else (windowing.window, width)
    y = no_targets(1, job.schema)
    one, none = Ragged.of([np.arange(1)]), Ragged.empty(1)
    return Federation(
        x=np.zeros((1, *shape), np.float32),
        y=y if classes is not None else y.astype(np.float32),
        train=one,
        val=none,
        test=none,
        names=("template",),
        classes=None if classes is None else len(classes),
        loss=job_loss(job.schema, statistics),
        name=job.title,
    )


def example_rows_of(
    table: ClientExamples | ClientTable, schema: Schema, seed: int, name: str
) -> ExampleRows:
    """Divide a client's rows into examples of each split.

    Args:
        table: the client's rows, before or after preprocessing.
        schema: columns of the job.
        seed: seed of the job.
        name: name of the client.

    Raises:
        ValueError: no window of rows trains.
    """
    y, times = table.y, table.times
    split = split_client_rows(y, schema, seed, name, times)
    windowing = schema.windowing
    if windowing is None:
        return ExampleRows(np.arange(len(y)), split)
    assert times is not None
    split_of_row = np.zeros(len(y), np.int64)
    for number, part in enumerate(SPLITS):
        split_of_row[split[part]] = number
    owners = np.zeros(len(y), np.int64)
    rows = windows_in_splits(owners, times, split_of_row, y, windowing)
    split_of_window = split_of_row[rows[:, -1]]
    windows = {
        part: np.flatnonzero(split_of_window == number)
        for number, part in enumerate(SPLITS)
    }
    require(
        len(windows["train"]) > 0,
        f"no {windowing.window} training rows follow each other without a gap of more than"
        f" {windowing.gap:g} in {windowing.time!r}, or another class; bring more rows, or"
        " agree on smaller windows",
    )
    return ExampleRows(rows, windows)


def split_client_rows(
    y: NDArray[np.generic],
    schema: Schema,
    seed: int,
    name: str,
    times: NDArray[np.float64] | None = None,
) -> dict[str, NDArray[np.int64]]:
    """Split a client's rows into training, validation and test rows: at random, within
    each class unless the schema says otherwise, or in time if they become windows.

    A table of all clients on one machine is split by the same rule. It depends on the
    seed and the client's name, classes, events and times only, so every machine can
    follow it.

    Args:
        y: the client's targets.
        schema: columns of the job.
        seed: seed of the job.
        name: name of the client.
        times: what orders the rows of windows; None without windows.

    Returns:
        Row indices in ascending order, by name of the split.
    """
    rows = Ragged.of([np.arange(len(y))])
    # A split has events and censored rows in the same shares, as it has classes.
    strata = y[:, 1].astype(np.int64) if schema.task == "survival" else y
    if not schema.stratified:
        strata = np.zeros(len(y), np.int64)
    if times is None:
        splits = draw_splits(
            rows, strata, (name,), test=schema.test, val=schema.val, seed=seed
        )
    else:
        options = split_options(schema)
        assert options.time is not None
        one = Rows(rows, np.zeros(len(y), np.int64), (name,), strata)
        frame = pl.DataFrame({options.time: times})
        splits = split_rows(frame, one, options, Problems(name), seed)
    return {
        split: np.sort(part[0]).astype(np.int64)
        for split, part in zip(SPLITS, splits, strict=True)
    }

"""The same preprocessing for the tables of all clients.

It follows from statistics of the columns. Either the job says them, or, in a job without
masks, each client sends counts, means and sums of squares over its training rows before the
first round, and all machines use the pooled ones. Rows never leave a client, and neither do
counts of fewer than five rows.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import polars as pl
from jaxtyping import Int
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedtailor._base.choice import require
from fedtailor._base.digests import DIGEST_KEY, has_valid_digest, with_digest
from fedtailor._base.files import atomic_write
from fedtailor._base.printable import shortened
from fedtailor.data.tables import Preprocessing
from fedtailor.data.tables.problems import first_row
from fedtailor.data.tables.sums import ColumnSums
from fedtailor.data.tables.target import TargetEncoding
from fedtailor.models.tasks.survival import outcome_cells
from fedtailor.remote.job.job import Schema
from fedtailor.remote.job.table import (
    ClientExamples,
    no_targets,
    read_typed,
    targets,
    times,
)
from fedtailor.remote.wire.request_size import check_text

FILE = "statistics.json"
"""File in which each machine stores the pooled statistics."""

MAX_INPUT = 1e6
"""The largest input or target, in standard deviations; farther ones count as so far.

In n pooled rows a deviation from the mean is at most sqrt(n) standard deviations. So with
less than 10^12 rows only cells lie farther that are hidden in the pooled sums
(`hiding.shown`), or not in them. Whether there is one must not show in an answer.
"""

MAX_UNSCALED = float(np.finfo(np.float32).max)
"""The same of numbers that stay as they are."""

UNSCALED = 0.0, 1.0
"""Mean and deviation of numbers that stay as they are."""

OWN_FILE = "own-statistics.json"
"""File in which a client stores the statistics of its own rows that it has sent."""


class Statistics(BaseModel):
    """Sums over the training rows of one client, or of all clients (pooled).

    Attributes:
        columns: sums over each input column of the job.
        target: sums over the targets of a regression; of survival how many rows had which
            outcome (`Schema.outcomes`); None for classes.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    format: Literal[1] = 1
    columns: Annotated[dict[str, ColumnSums], Field(max_length=10_000)]
    target: ColumnSums | None = None

    def __add__(self, other: "Statistics") -> "Statistics":
        columns = {
            name: sums + other.columns[name] for name, sums in self.columns.items()
        }
        target = None
        if self.target is not None and other.target is not None:
            target = self.target + other.target
        return Statistics(columns=columns, target=target)

    @staticmethod
    def of_job(schema: Schema) -> "Statistics":
        """Statistics that the job says, and no row: numbers are scaled by its means and
        deviations, and others stay as they are. A missing cell is the mean, 0, false or the
        first category, with an input that says so.
        """

        def one_row(name: str, listed: Sequence[str] | None) -> ColumnSums:
            mean, deviation = schema.scales.get(name, UNSCALED)
            return ColumnSums(
                count=1,
                missing=1,
                mean=mean,
                squares=deviation**2,
                categories=dict.fromkeys(listed or (), 1),
            )

        columns = {
            name: one_row(name, listed) for name, listed in schema.columns.items()
        }
        target = None
        if schema.classes is None:
            target = one_row(schema.target, schema.outcomes)
        return Statistics(columns=columns, target=target)

    @property
    def fingerprint(self) -> str:
        """A hash, so that machines can compare their preprocessing."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:32]

    def to_json(self) -> str:
        """Encode the statistics; `from_json` restores exactly the same numbers."""
        return self.model_dump_json()

    @staticmethod
    def from_json(text: str | bytes, schema: Schema) -> "Statistics":
        """Decode the text of `to_json`.

        Raises:
            ValueError: the text is not valid, or its columns are not those of the job.
        """
        try:
            statistics = Statistics.model_validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = shortened(".".join(map(str, first["loc"])))
            raise ValueError(
                f"these are not statistics of columns ({where}: {first['msg'].lower()})"
            ) from None
        same_columns = list(statistics.columns) == list(schema.columns)
        same_target = (statistics.target is None) == (schema.classes is not None)
        require(
            same_columns and same_target,
            "these statistics are of other columns than the job's",
        )
        return statistics

    def check_rows(self, rows: int, schema: Schema) -> None:
        """Check that these are statistics of a client's number of training rows.

        Args:
            rows: the number of training examples that the client has told before.
            schema: columns of the job.

        Raises:
            ValueError: they are of another number.
        """
        counts = {
            repr(name): sums.count + sums.missing for name, sums in self.columns.items()
        }
        if self.target is not None:
            counts["the target"] = self.target.count + self.target.missing
        least = most = rows
        if schema.windowing is not None and rows > 0:
            # Windows may share rows, and how many follows from the client's gaps.
            window, step = schema.windowing.window, schema.windowing.step
            least, most = window + (rows - 1) * min(step, window), rows * window
        for name, count in counts.items():
            fits = least <= count <= most and count == next(iter(counts.values()))
            require(
                fits,
                f"its sums of {name} are of {count} training rows, and it has"
                f" {rows if least == most else f'{least} to {most}'}",
            )

    def save(self, directory: Path, name: str = FILE) -> None:
        """Write the statistics to a file in a directory, atomically."""
        text = json.dumps(with_digest(json.loads(self.to_json()))) + "\n"
        with atomic_write(directory / name) as temporary:
            temporary.write_text(text, encoding="utf-8")

    @staticmethod
    def load(directory: Path, schema: Schema, name: str = FILE) -> "Statistics | None":
        """Read the statistics from a file in a directory; None if there are none.

        Raises:
            ValueError: the file is damaged.
        """
        path = directory / name
        try:
            if not path.is_file():
                return None
            content = json.loads(path.read_bytes())
            require(has_valid_digest(content), "it is not what was written")
            del content[DIGEST_KEY]
            return Statistics.from_json(json.dumps(content), schema)
        except (OSError, ValueError, RecursionError) as error:
            raise ValueError(f"cannot read {path}: {error}") from None

    def preprocessing(self, schema: Schema) -> Preprocessing:
        """The preprocessing, which converts rows to inputs of the model.

        Raises:
            ValueError: a column or the target has no values.
        """
        columns = tuple(
            sums.encoding(name, schema.kinds[name], schema.columns[name])
            for name, sums in self.columns.items()
        )
        if self.target is None:
            target = TargetEncoding(
                schema.target, "classification", schema.classes or ()
            )
        elif schema.event is not None:
            target = TargetEncoding(
                schema.target,
                "survival",
                positive=schema.positive,
                event=schema.event,
            )
        else:
            require(
                self.target.count > 0,
                f"no client says anything of the target {schema.target!r}: it has values in"
                " too few training rows, or mostly rare ones; collect more rows",
            )
            target = TargetEncoding(
                schema.target, "regression", (), self.target.mean, self.target.deviation
            )
        return Preprocessing(columns, target, "client", {})


@dataclass(frozen=True)
class ClientTable:
    """A client's table before preprocessing; every cell has the kind of the schema.

    Attributes:
        schema: columns of the job.
        path: path of the file.
        frame: the input columns, as `typed_cells` converts them.
        y: class indices, targets in their own unit, or times and events [rows, 2]; zeros
            if the target was not read.
        times: what orders the rows of windows; None without windows.
    """

    schema: Schema
    path: Path
    frame: pl.DataFrame
    y: NDArray[np.generic]
    times: NDArray[np.float64] | None = None

    def statistics(self, train: Int[NDArray, " n"]) -> Statistics:
        """Compute the sums over the columns of the training rows.

        Args:
            train: indices of the training rows.
        """
        columns = {}
        for name, categories in self.schema.columns.items():
            values, kind = self.frame[name][train], self.schema.kinds[name]
            columns[name] = ColumnSums.of(values, kind, categories)
        target = None
        if self.schema.task == "regression":
            target = ColumnSums.of(pl.Series(self.y)[train], "number")
        if self.schema.task == "survival":
            outcomes = self.outcomes()[train]
            target = ColumnSums.of(outcomes, "category", self.schema.outcomes)
        return Statistics(columns=columns, target=target)

    def outcomes(self) -> pl.Series:
        """The class of each row, or what happened to it by `Schema.outcomes`, as text."""
        names = self.schema.outcomes
        assert names is not None
        codes = self.y
        if self.schema.task == "survival":
            codes = outcome_cells(codes[:, 0], codes[:, 1], self.schema.intervals)
        return pl.Series([names[code] for code in codes.tolist()], dtype=pl.String)

    def rows(self, statistics: Statistics) -> ClientExamples:
        """Convert the table to the examples that models take, within `MAX_INPUT`, or
        `MAX_UNSCALED` where numbers stay as they are.

        No cell is too far for that, whatever the statistics are: the refusal would say
        that there is one.
        """

        def most(name: str) -> float:
            return MAX_INPUT if self.schema.is_scaled(name) else MAX_UNSCALED

        preprocessing = statistics.preprocessing(self.schema)
        x = np.empty((self.frame.height, len(preprocessing.inputs)), np.float32)
        start = 0
        for column in preprocessing.columns:
            end = start + len(column.inputs)
            cells = self.frame[column.name]
            column.encode(cells, x[:, start:end], most(column.name))
            start = end
        if self.schema.task != "regression":
            return ClientExamples(x, self.y, self.times)
        with np.errstate(over="ignore"):
            centered = self.y.astype(np.float64) - preprocessing.target_shift
            y = centered / preprocessing.target_scale
        largest = most(self.schema.target)
        y = np.clip(y, -largest, largest)
        return ClientExamples(x, y.astype(np.float32), self.times)


def read_table(path: Path, schema: Schema, *, target: bool = True) -> ClientTable:
    """Read a client's table before preprocessing.

    Args:
        path: path of the file.
        schema: columns of the job.
        target: whether to read the target column.

    Raises:
        ValueError: the file cannot be read or lacks a column, or a cell does not fit
            the schema; with the row.
    """
    frame = read_typed(path, schema, target=target)
    y = targets(frame, schema, path) if target else no_targets(frame.height, schema)
    inputs, order = frame.select(list(schema.columns)), times(frame, schema, path)
    table = ClientTable(schema, path, inputs, y, order)
    for name, categories in schema.columns.items():
        values = table.frame[name]
        if categories is None:
            continue
        known = values.is_in(list(categories)).fill_null(True)
        unknown = values.is_not_null() & ~known
        if unknown.any():
            row = first_row(unknown)
            raise ValueError(
                f"{path.name}, row {row}: {name!r} is {values[row - 1]!r}; the job"
                f" knows {', '.join(categories)}"
            )
    return table


def add_statistics(parts: Iterable[Statistics]) -> Statistics:
    """Pool the statistics of all clients, in the given order."""
    return reduce(add, parts)


def correlation_note(schema: Schema) -> str | None:
    """Say in one line that the inputs of a regression or of survival stay correlated.

    `fedtailor compare` decorrelates them, so a user may expect it here as well.

    Returns:
        The line; None for classes, and for windows.
    """
    if schema.classes is not None or schema.windowing is not None:
        return None
    return (
        "The inputs stay correlated: linear models need more rounds, at smaller rates,"
        " than with `compare`, which decorrelates them."
    )


def as_array(statistics: Statistics) -> NDArray[np.uint8]:
    """Encode statistics as an array of a message."""
    return np.frombuffer(statistics.to_json().encode(), np.uint8)


def statistics_from_arrays(
    arrays: Mapping[str, NDArray[np.generic]], schema: Schema
) -> Statistics:
    """Decode the statistics in the arrays of a message.

    Raises:
        ValueError: there are none, or they are not of this job.
    """
    text = arrays.get("statistics")
    require(
        text is not None and text.dtype == np.uint8 and text.ndim == 1,
        "the message holds no statistics",
    )
    assert text is not None
    check_text(text.nbytes)
    return Statistics.from_json(text.tobytes(), schema)

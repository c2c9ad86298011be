"""Federated preprocessing: one preprocessing for the tables of all clients.

Before the first round each client sends counts, means and sums of squares of its
training rows, and everybody derives the same preprocessing from their sum. Rows, and
categories of fewer than five rows, never leave a client.

Where the job has the inputs of a regression decorrelated, each client then sends sums
of products of its inputs, too.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
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

from fedtailor._files import replacing
from fedtailor.protocol import require
from fedtailor.remote.job import Schema
from fedtailor.remote.table import Rows, codes, numbers
from fedtailor.storage.digests import SEAL, is_sealed, sealed
from fedtailor.tables import Preprocessing
from fedtailor.tables.decorrelation import MOST_INPUTS, can_decorrelate
from fedtailor.tables.kinds import parse_as
from fedtailor.tables.options import TableOptions
from fedtailor.tables.reading import read
from fedtailor.tables.sums import ColumnSums, InputSums
from fedtailor.tables.target import TargetEncoding

FILE = "statistics.json"
"""Where each machine stores what was agreed."""


class Statistics(BaseModel):
    """Sums over the training rows of one client, or of all clients together.

    Attributes:
        columns: of each input column of the job.
        target: of the numbers to predict; None where the job predicts classes.
        inputs: of the model's inputs, where the job has them decorrelated; they follow
            from the columns' statistics of all clients, so they are asked for later.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    format: Literal[1] = 1
    columns: Annotated[dict[str, ColumnSums], Field(max_length=10_000)]
    target: ColumnSums | None = None
    inputs: InputSums | None = None

    def __add__(self, other: "Statistics") -> "Statistics":
        columns = {
            name: sums + other.columns[name] for name, sums in self.columns.items()
        }
        target = None
        if self.target is not None and other.target is not None:
            target = self.target + other.target
        return Statistics(columns=columns, target=target)

    @property
    def fingerprint(self) -> str:
        """A hash: equal on all machines that agreed on the same."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:32]

    def to_json(self) -> str:
        """These as text, from which `from_json` reads the same numbers to the bit."""
        return self.model_dump_json(exclude={"inputs"} if self.inputs is None else None)

    @staticmethod
    def from_json(text: str | bytes, schema: Schema) -> "Statistics":
        """Read what `to_json` wrote.

        Raises:
            ValueError: it is something else, or of other columns.
        """
        try:
            statistics = Statistics.model_validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise ValueError(
                f"these are no statistics of columns ({where}: {first['msg'].lower()})"
            ) from None
        same_columns = list(statistics.columns) == list(schema.columns)
        same_target = (statistics.target is None) == (schema.classes is not None)
        require(
            same_columns and same_target,
            "these statistics are of other columns than the job's",
        )
        if statistics.inputs is not None:
            width = len(statistics.columns_only.preprocessing(schema).inputs)
            require(
                schema.decorrelate and statistics.inputs.fits(width),
                "these sums of products are not of the job's inputs",
            )
        return statistics

    @property
    def columns_only(self) -> "Statistics":
        """These without the sums of the inputs: the inputs stay correlated."""
        return self.model_copy(update={"inputs": None})

    def save(self, directory: Path) -> None:
        """Write them to a directory, whole or not at all."""
        text = json.dumps(sealed(json.loads(self.to_json()))) + "\n"
        with replacing(directory / FILE) as temporary:
            temporary.write_text(text, encoding="utf-8")

    @staticmethod
    def load(directory: Path, schema: Schema) -> "Statistics | None":
        """Read what `save` wrote; None if it wrote nothing.

        Raises:
            ValueError: it is damaged.
        """
        path = directory / FILE
        try:
            if not path.is_file():
                return None
            content = json.loads(path.read_bytes())
            require(
                isinstance(content, dict) and SEAL in content and is_sealed(content),
                "it is not what was written",
            )
            del content[SEAL]
            return Statistics.from_json(json.dumps(content), schema)
        except (OSError, ValueError, RecursionError) as error:
            raise ValueError(f"cannot read {path}: {error}") from None

    def preprocessing(self, schema: Schema) -> Preprocessing:
        """How rows become inputs of the model.

        Raises:
            ValueError: a column holds nothing to learn from.
        """
        columns = tuple(
            sums.encoding(name, schema.kinds[name], schema.columns[name])
            for name, sums in self.columns.items()
        )
        if self.target is None:
            target = TargetEncoding(
                schema.target, "classification", schema.classes or ()
            )
        else:
            require(
                self.target.count > 0,
                f"the target {schema.target!r} is missing in all rows",
            )
            target = TargetEncoding(
                schema.target, "regression", (), self.target.mean, self.target.deviation
            )
        decorrelation = None if self.inputs is None else self.inputs.decorrelation()
        return Preprocessing(columns, target, "client", {}, decorrelation=decorrelation)

    def lacks_inputs(self, schema: Schema) -> bool:
        """Whether the job asks for sums of the inputs, and they are not here yet."""
        return (
            schema.decorrelate
            and self.inputs is None
            and can_decorrelate(len(self.preprocessing(schema).inputs))
        )

    def with_inputs(self, parts: Iterable["Statistics"]) -> "Statistics":
        """These, with the sums of the inputs of all clients.

        Args:
            parts: from each client (`OwnTable.with_inputs`).
        """
        sums = [part.inputs for part in parts if part.inputs is not None]
        return self.model_copy(update={"inputs": reduce(add, sums)})


@dataclass(frozen=True)
class OwnTable:
    """A client's table as it came, with every cell of a kind that the job expects.

    Attributes:
        schema: of the job.
        path: of the file.
        frame: the columns of the inputs, as they were read.
        y: numbers of the classes, or targets in their own unit; zeros if they were not
            read.
    """

    schema: Schema
    path: Path
    frame: pl.DataFrame
    y: NDArray[np.generic]

    def statistics(self, train: Int[NDArray, " n"]) -> Statistics:
        """Sums over the columns of the rows that train."""
        columns = {}
        for name, categories in self.schema.columns.items():
            values, kind = self._parsed(name)[train], self.schema.kinds[name]
            columns[name] = ColumnSums.of(values, kind, categories)
        target = None
        if self.schema.classes is None:
            target = ColumnSums.of(pl.Series(self.y)[train], "number")
        return Statistics(columns=columns, target=target)

    def with_inputs(self, train: Int[NDArray, " n"], agreed: Statistics) -> Statistics:
        """Sums over the inputs of the rows that train, beside the agreed ones.

        Args:
            train: which rows train.
            agreed: the columns' statistics of all clients, which make the inputs.

        Raises:
            ValueError: the rows are too few.
        """
        x = self.rows(agreed.columns_only).x
        return agreed.model_copy(update={"inputs": InputSums.of(x[train])})

    def rows(self, agreed: Statistics) -> Rows:
        """The examples as the federation's models take them."""
        preprocessing = agreed.preprocessing(self.schema)
        x = preprocessing.transform(self.frame, missing="impute", unknown="other")
        if self.schema.classes is not None:
            return Rows(x, self.y)
        centered = self.y.astype(np.float64) - preprocessing.target_shift
        return Rows(x, (centered / preprocessing.target_scale).astype(np.float32))

    def _parsed(self, name: str) -> pl.Series:
        """A column as values of the kind that the job expects.

        Raises:
            ValueError: a cell is of another kind.
        """
        column, kind = self.frame[name], self.schema.kinds[name]
        values, bad = parse_as(column, kind, None)
        if bad.any():
            row = int(bad.arg_max() or 0)
            raise ValueError(
                f"{self.path.name}, row {row + 1}: {name!r} is {column[row]!r}, which"
                f" is no {kind}; mend it, or leave the cell empty"
            )
        return values


def read_table(path: Path, schema: Schema, *, target: bool = True) -> OwnTable:
    """Read a client's table for federated preprocessing.

    Args:
        path: of the file.
        schema: of the job.
        target: whether to read that column, too.

    Raises:
        ValueError: it cannot be read, lacks a column, or holds a cell that does not
            fit; with the row.
    """
    frame = read(path, TableOptions()).frame
    for name in (*schema.columns, *([schema.target] if target else [])):
        require(
            name in frame.columns,
            f"{path.name} has no column {name!r}; its columns are"
            f" {', '.join(frame.columns)}",
        )
    y: NDArray[np.generic]
    if not target:
        dtype = np.float64 if schema.classes is None else np.int32
        y = np.zeros(frame.height, dtype)
    elif schema.classes is None:
        y = numbers(frame[schema.target], path).astype(np.float64)
    else:
        y = codes(frame[schema.target], schema.classes, path)
    table = OwnTable(schema, path, frame.select(list(schema.columns)), y)
    for name, categories in schema.columns.items():
        values = table._parsed(name)
        if categories is None:
            continue
        known = values.is_in(list(categories)).fill_null(True)
        unknown = values.is_not_null() & ~known
        if unknown.any():
            row = int(unknown.arg_max() or 0)
            raise ValueError(
                f"{path.name}, row {row + 1}: {name!r} is {values[row]!r}; the job"
                f" knows {', '.join(categories)}"
            )
    return table


def together(parts: Iterable[Statistics]) -> Statistics:
    """The statistics of all clients' rows together, added in the given order."""
    return reduce(add, parts)


def about_inputs(schema: Schema, agreed: Statistics | None) -> str | None:
    """A line on whether the inputs of a regression are decorrelated; None for classes.

    `fedtailor compare` decorrelates them, so a person who comes from there should know.
    """
    if schema.classes is not None:
        return None
    if agreed is not None and agreed.inputs is not None:
        sums = 1 + len(agreed.inputs.mean) + len(agreed.inputs.products)
        return (
            f"The inputs are decorrelated; for this each client told {sums:,} sums and"
            " products of its inputs."
        )
    if schema.decorrelate:
        return f"The inputs stay correlated: there is one, or more than {MOST_INPUTS}."
    return (
        "The inputs stay correlated: linear models need more rounds, at smaller rates,"
        " than with `compare`, which decorrelates them; decorrelate = true in [data]"
        " does so here, by sums of products that each client tells."
    )


def as_array(statistics: Statistics) -> NDArray[np.uint8]:
    """Statistics as an array of a message."""
    return np.frombuffer(statistics.to_json().encode(), np.uint8)


def from_arrays(
    arrays: Mapping[str, NDArray[np.generic]], schema: Schema
) -> Statistics:
    """The statistics in the arrays of a message.

    Raises:
        ValueError: there are none, or they are not of this job.
    """
    text = arrays.get("statistics")
    require(
        text is not None and text.dtype == np.uint8 and text.ndim == 1,
        "the message holds no statistics",
    )
    assert text is not None
    return Statistics.from_json(text.tobytes(), schema)

"""Federated preprocessing: clients' tables as they come, made alike by counts and sums
over all of them.

Before the first round each client tells counts, means and sums of squares of its
training rows; everybody derives the same preprocessing from their sum. The rows
themselves, and categories of fewer than five rows, are never told.

Where the job has the inputs of a regression decorrelated, each client then tells sums
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
"""Where each machine keeps what was agreed."""


class Statistics(BaseModel):
    """What the training rows of one client, or of all together, say about the columns
    of a job.

    Attributes:
        columns: of the inputs.
        target: of the numbers to predict; None where the job predicts classes.
        inputs: of what the columns become, where the job has inputs decorrelated; asked
            for once the columns are known.
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
        target = (
            None
            if self.target is None or other.target is None
            else self.target + other.target
        )
        return Statistics(columns=columns, target=target)

    @property
    def fingerprint(self) -> str:
        """The same on all machines that agreed on the same."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:32]

    def to_json(self) -> str:
        """As text; `from_json` gives the same numbers, to the bit."""
        return self.model_dump_json(exclude={"inputs"} if self.inputs is None else None)

    @staticmethod
    def from_json(text: str | bytes, schema: Schema) -> "Statistics":
        """Read what `to_json` wrote.

        Raises:
            ValueError: it is something else, or of other columns.
        """
        try:
            found = Statistics.model_validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise ValueError(
                f"these are no statistics of columns ({where}: {first['msg'].lower()})"
            ) from None
        same = list(found.columns) == list(schema.columns) and (
            found.target is None
        ) == (schema.classes is not None)
        require(same, "these statistics are of other columns than the job's")
        if found.inputs is not None:
            asked = schema.decorrelate and found.inputs.fits(
                len(found.columns_only.preprocessing(schema).inputs)
            )
            require(asked, "these sums of products are not of the job's inputs")
        return found

    @property
    def columns_only(self) -> "Statistics":
        """These without the sums of the inputs: the inputs stay correlated."""
        return self.model_copy(update={"inputs": None})

    def save(self, directory: Path) -> None:
        """Keep them in a directory, whole or not at all."""
        with replacing(directory / FILE) as temporary:
            temporary.write_text(
                json.dumps(sealed(json.loads(self.to_json()))) + "\n", encoding="utf-8"
            )

    @staticmethod
    def load(directory: Path, schema: Schema) -> "Statistics | None":
        """What was saved in a directory, if anything was.

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
        """Whether the sums of the inputs, which the job asks for, are still to be
        told.
        """
        return (
            schema.decorrelate
            and self.inputs is None
            and can_decorrelate(len(self.preprocessing(schema).inputs))
        )

    def with_inputs(self, parts: Iterable["Statistics"]) -> "Statistics":
        """These, and the sums of the inputs of all clients, which each tells with what
        was agreed of the columns.
        """
        sums = [part.inputs for part in parts if part.inputs is not None]
        return self.model_copy(update={"inputs": reduce(add, sums)})


@dataclass(frozen=True)
class OwnTable:
    """A client's table as it came, with every cell of a kind that the job expects.

    Attributes:
        schema: of the job.
        path: of the file.
        frame: the cleaned columns of the inputs.
        y: numbers of classes, or targets in their own unit; zeros where they were not
            read.
    """

    schema: Schema
    path: Path
    frame: pl.DataFrame
    y: NDArray[np.generic]

    def statistics(self, train: Int[NDArray, " n"]) -> Statistics:
        """What the rows that train say about the columns."""
        columns = {
            name: ColumnSums.of(
                self._parsed(name)[train], self.schema.kinds[name], agreed
            )
            for name, agreed in self.schema.columns.items()
        }
        target = (
            None
            if self.schema.classes is not None
            else ColumnSums.of(pl.Series(self.y)[train], "number")
        )
        return Statistics(columns=columns, target=target)

    def with_inputs(self, train: Int[NDArray, " n"], agreed: Statistics) -> Statistics:
        """What is agreed of the columns, and what the rows that train say about the
        inputs that they become.

        Raises:
            ValueError: they are too few for that.
        """
        x = self.rows(agreed.columns_only).x
        return agreed.model_copy(update={"inputs": InputSums.of(x[train])})

    def rows(self, agreed: Statistics) -> Rows:
        """The examples as the federation's models take them."""
        preprocessing = agreed.preprocessing(self.schema)
        x = preprocessing.transform(self.frame, missing="impute", unknown="other")
        if self.schema.classes is not None:
            return Rows(x, self.y)
        y = (
            self.y.astype(np.float64) - preprocessing.target_shift
        ) / preprocessing.target_scale
        return Rows(x, y.astype(np.float32))

    def _parsed(self, name: str) -> pl.Series:
        values, bad = parse_as(self.frame[name], self.schema.kinds[name], None)
        if bad.any():
            row = int(bad.arg_max() or 0)
            said = (
                f"{name!r} is {self.frame[name][row]!r}, which is no"
                f" {self.schema.kinds[name]}"
            )
            raise ValueError(
                f"{self.path.name}, row {row + 1}: {said}; mend it, or leave the cell"
                " empty"
            )
        return values


def read_table(path: Path, schema: Schema, *, target: bool = True) -> OwnTable:
    """Read a client's table for federated preprocessing; without `target`, that column
    is not read.

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
    y: NDArray[np.generic] = np.zeros(
        frame.height, np.float64 if schema.classes is None else np.int32
    )
    if target:
        column = frame[schema.target]
        y = (
            numbers(column, path).astype(np.float64)
            if schema.classes is None
            else codes(column, schema.classes, path)
        )
    table = OwnTable(schema, path, frame.select(list(schema.columns)), y)
    for name, agreed in schema.columns.items():
        values = table._parsed(name)
        if agreed is not None:
            strange = values.is_not_null() & ~values.is_in(list(agreed)).fill_null(True)
            if strange.any():
                row = int(strange.arg_max() or 0)
                said = (
                    f"{path.name}, row {row + 1}: {name!r} is {values[row]!r}; the job"
                    f" knows {', '.join(agreed)}"
                )
                raise ValueError(said)
    return table


def together(parts: Iterable[Statistics]) -> Statistics:
    """The statistics of all clients' rows together."""
    return reduce(add, parts)


def about_inputs(schema: Schema, agreed: Statistics | None) -> str | None:
    """A line on whether the inputs of a regression are decorrelated, as `fedtailor
    compare` does; None for classes.
    """
    if schema.classes is not None:
        return None
    if agreed is not None and agreed.inputs is not None:
        told = 1 + len(agreed.inputs.mean) + len(agreed.inputs.products)
        return (
            f"The inputs are decorrelated; for this each client told {told:,} sums and"
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
    """Statistics as an array that can travel."""
    return np.frombuffer(statistics.to_json().encode(), np.uint8)


def from_arrays(
    arrays: Mapping[str, NDArray[np.generic]], schema: Schema
) -> Statistics:
    """Statistics that have travelled.

    Raises:
        ValueError: the arrays hold none.
    """
    text = arrays.get("statistics")
    require(
        text is not None and text.dtype == np.uint8 and text.ndim == 1,
        "the message holds no statistics",
    )
    assert text is not None
    return Statistics.from_json(text.tobytes(), schema)

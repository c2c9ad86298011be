"""The inputs of a regression over machines, by the columns of a job."""

import hashlib
from dataclasses import dataclass

import numpy as np
import polars as pl

from fedtailor.remote.job.job import Schema
from fedtailor.remote.job.statistics import ClientTable
from fedtailor.statistics.grid import check_numbers, check_rows
from fedtailor.statistics.regression import ClientRows, Model, check_targets


@dataclass(frozen=True)
class ClientDesign:
    """A client's rows without missing cells.

    Attributes:
        rows: inputs by `input_names`, in the units of the columns, and targets.
        missing: how many rows are left out, as a cell is missing.
    """

    rows: ClientRows
    missing: int

    @property
    def digest(self) -> str:
        """SHA-256 of the rows, in more digits than examples have."""
        rows, sha256 = self.rows, hashlib.sha256(str(self.missing).encode())
        for array in (rows.x, rows.y, rows.seen):
            sha256.update(b"" if array is None else np.ascontiguousarray(array).data)
        return sha256.hexdigest()


@dataclass(frozen=True)
class DesignNames:
    """The inputs of a regression.

    Attributes:
        names: of the inputs; "column=level" for a category.
        levels: for each category, the numbers of its levels' inputs, by name.
    """

    names: tuple[str, ...]
    levels: tuple[tuple[int, ...], ...]


def design_names(schema: Schema) -> DesignNames:
    """The inputs of a job, in the order of its columns."""
    names, levels = list[str](), []
    for column, categories in schema.columns.items():
        if categories is None:
            names.append(column)
            continue
        first = len(names)
        names += [f"{column}={level}" for level in sorted(categories)]
        levels.append(tuple(range(first, len(names))))
    return DesignNames(tuple(names), tuple(levels))


def client_design(table: ClientTable, model: Model) -> ClientDesign:
    """Make a client's rows from its table, of which all rows are used.

    Args:
        table: the table.
        model: which regression.

    Raises:
        ValueError: the targets are not those of the model, or sums cannot hold the rows.
    """
    schema = table.schema
    columns = [table.frame[name] for name in schema.columns]
    complete = np.ones(table.frame.height, bool)
    for column in columns:
        complete &= column.is_not_null().to_numpy()
    inputs = []
    for column, categories in zip(columns, schema.columns.values(), strict=True):
        cells = column.filter(pl.Series(complete))
        if categories is None:
            inputs.append(cells.cast(pl.Float64).to_numpy())
        else:
            inputs += [(cells == level).to_numpy() for level in sorted(categories)]
    x = np.stack(inputs, axis=1).astype(np.float64)
    y, seen = np.asarray(table.y[complete], np.float64), None
    if schema.event is not None:
        y, seen = y[:, 0], y[:, 1]
    check_targets(y, model)
    check_rows(len(y))
    for numbers in (x, y):
        check_numbers(numbers, "a number of the table")
    return ClientDesign(ClientRows(x, y, seen), int((~complete).sum()))

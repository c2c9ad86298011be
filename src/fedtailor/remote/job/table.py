"""Reads a client's file as arrays, by the schema of the job.

Nothing is guessed from the data: values that the schema does not allow are refused.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from jaxtyping import Float, Shaped

from fedtailor.data.tables.cells import (
    ordered_cells,
    read_cells,
    seen_cells,
    typed_cells,
)
from fedtailor.data.tables.options import TableOptions
from fedtailor.data.tables.problems import Problems
from fedtailor.data.tables.roles import with_times
from fedtailor.data.tables.target import TargetEncoding
from fedtailor.remote.job.job import Schema


@dataclass(frozen=True)
class ClientExamples:
    """The examples of one client.

    Attributes:
        x: inputs in the schema's order: numbers as they are in the file, categories
            one-hot.
        y: class indices, targets of a regression, or times and events [rows, 2].
        times: what orders the rows of windows; None without windows.
    """

    x: Float[np.ndarray, "rows width"]
    y: Shaped[np.ndarray, "rows ..."]
    times: Float[np.ndarray, " rows"] | None = None


def read_rows(path: Path, schema: Schema, *, target: bool = True) -> ClientExamples:
    """Read a client's file.

    Args:
        path: path of the file.
        schema: columns of the job.
        target: whether to read the target column; without it all targets are 0.

    Raises:
        ValueError: the file cannot be read, lacks a column, or has an empty cell or a
            value that the schema does not allow; with the row (from 1, without the
            header).
    """
    frame = read_typed(path, schema, target=target)
    parts = []
    for name, categories in schema.columns.items():
        if categories is None:
            parts.append(numbers(frame[name], path)[:, None])
        else:
            one_hot = np.eye(len(categories), dtype=np.float32)
            parts.append(one_hot[codes(frame[name], categories, path)])
    x = np.concatenate(parts, axis=1, dtype=np.float32)
    y = targets(frame, schema, path) if target else no_targets(len(x), schema)
    if schema.task == "regression":
        y = y.astype(np.float32)
    return ClientExamples(x, y, times(frame, schema, path))


def read_typed(path: Path, schema: Schema, *, target: bool) -> pl.DataFrame:
    """Read the columns that a job uses, each cell by itself as the schema says.

    Args:
        path: path of the file.
        schema: columns of the job.
        target: whether to read the target column.

    Raises:
        ValueError: the file cannot be read or lacks a column, or a cell is of another
            kind; with the row.
    """
    listed = {name: schema.columns.get(name) or () for name in needed(schema, target)}
    if target and schema.classes is not None:
        listed[schema.target] = schema.classes
    if target and schema.event is not None:
        listed[schema.event] = schema.positive
    frame, where = read_cells(path, listed), path.name
    columns = list[pl.Series]()
    for name, kind in schema.kinds.items():
        columns.append(typed_cells(frame[name], kind, where, listed[name]))
    if schema.windowing is not None:
        columns.append(ordered_cells(frame[schema.windowing.time], where))
    if target:
        kind = "number" if schema.classes is None else "category"
        column = frame[schema.target]
        columns.append(typed_cells(column, kind, where, listed[schema.target]))
        if schema.event is not None:
            event = frame[schema.event]
            columns.append(seen_cells(event, schema.positive, where))
    return pl.DataFrame(columns)


def needed(schema: Schema, target: bool) -> tuple[str, ...]:
    """The columns that a file must have; without `target`, not those of the target."""
    of_target = (schema.target, schema.event)
    return tuple(name for name in schema.used if target or name not in of_target)


def targets(
    frame: pl.DataFrame, schema: Schema, path: Path
) -> Shaped[np.ndarray, "rows ..."]:
    """The targets: class indices, numbers (float64), or times and events (float32).

    Raises:
        ValueError: a cell is missing or does not fit the schema; with the row.
    """
    column = frame[schema.target]
    if schema.event is not None:
        # Events say by themselves that they were seen.
        encoding = TargetEncoding(schema.target, "survival")
        try:
            return encoding.encode_survival(column, frame[schema.event])
        except ValueError as error:
            raise ValueError(f"{path.name}: {error}") from None
    if schema.classes is not None:
        return codes(column, schema.classes, path)
    return numbers(column, path).astype(np.float64)


def no_targets(count: int, schema: Schema) -> Shaped[np.ndarray, "rows ..."]:
    """Zeros, where no target was read."""
    if schema.task == "survival":
        return np.zeros((count, 2), np.float32)
    return np.zeros(count, np.float64 if schema.classes is None else np.int32)


def times(
    frame: pl.DataFrame, schema: Schema, path: Path
) -> Float[np.ndarray, " rows"] | None:
    """What orders the rows of windows; None without windows.

    Raises:
        ValueError: a cell is neither a number nor a date, or missing.
    """
    if schema.windowing is None:
        return None
    problems = Problems(path.name)
    timed = with_times(frame, split_options(schema), problems)
    problems.raise_if_any()
    return timed[schema.windowing.time].to_numpy()


def split_options(schema: Schema) -> TableOptions:
    """The options of a table that is split as a client's is."""
    windowing = schema.windowing
    return TableOptions(
        client="",  # a client's file needs no such column
        target=schema.target,
        test=schema.test,
        val=schema.val,
        time=None if windowing is None else windowing.time,
        window=None if windowing is None else windowing.window,
    )


def numbers(column: pl.Series, path: Path) -> Float[np.ndarray, " rows"]:
    """Convert a column of numbers to an array.

    Raises:
        ValueError: it holds other values, an empty cell, NaN or infinity.
    """
    values = column.cast(pl.Float64).to_numpy()
    wrong = np.flatnonzero(~np.isfinite(values))
    if wrong.size:
        raise ValueError(
            f"{path.name}, row {wrong[0] + 1}: {column.name!r} is empty or not finite"
        )
    return values


def codes(
    column: pl.Series, categories: tuple[str, ...], path: Path
) -> Shaped[np.ndarray, " rows"]:
    """Convert a column of categories to indices into `categories`.

    Raises:
        ValueError: it holds an empty cell or another category.
    """
    texts = column.to_list()
    code_of = {name: code for code, name in enumerate(categories)}
    for row, text in enumerate(texts, 1):
        if text not in code_of:
            value = "empty" if text is None else repr(text)
            raise ValueError(
                f"{path.name}, row {row}: {column.name!r} is {value}; the job knows"
                f" {', '.join(categories)}"
            )
    return np.array([code_of[text] for text in texts], np.int32)

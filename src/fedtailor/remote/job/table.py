"""Reads a client's file as arrays, by the schema of the job.

Nothing is guessed from the data: values that the schema does not allow are refused.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from jaxtyping import Float, Shaped

from fedtailor._base.choice import require
from fedtailor._base.parquet import read_foreign_parquet
from fedtailor.data.tables.kinds import category_text
from fedtailor.data.tables.options import TableOptions
from fedtailor.data.tables.problems import Problems
from fedtailor.data.tables.roles import with_times
from fedtailor.data.tables.target import TargetEncoding
from fedtailor.remote.job.job import Schema

READERS = {
    ".csv": lambda path: pl.read_csv(path, glob=False),
    ".tsv": lambda path: pl.read_csv(path, separator="\t", glob=False),
    ".parquet": read_foreign_parquet,
}
"""The function that reads a file, by the file's suffix."""

_DUPLICATE_SUFFIX = "_duplicated_0"
"""The suffix that polars appends to the second of two columns of the same name."""


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
    require(path.is_file(), f"there is no file {path}")
    suffix = path.suffix.lower()
    require(
        suffix in READERS,
        f"{path.name} is of no known kind; it must end in {', '.join(READERS)}",
    )
    try:
        frame = READERS[suffix](path)
    except (pl.exceptions.PolarsError, OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"cannot read {path}: {' '.join(str(error).split())[:200]}"
        ) from None
    for name in needed(schema, target):
        require(
            f"{name}{_DUPLICATE_SUFFIX}" not in frame.columns,
            f"{path.name} has the column {name!r} more than once; rename all but one",
        )
        require(
            name in frame.columns,
            f"{path.name} has no column {name!r}; its columns are"
            f" {', '.join(frame.columns)}",
        )
    require(frame.height > 0, f"{path.name} has no rows")
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
        encoding = TargetEncoding(schema.target, "survival", positive=schema.positive)
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
    require(
        column.dtype.is_numeric(),
        f"the column {column.name!r} of {path.name} holds {column.dtype}, not numbers",
    )
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
    texts = category_text(column).to_list()
    code_of = {name: code for code, name in enumerate(categories)}
    for row, text in enumerate(texts, 1):
        if text not in code_of:
            value = "empty" if text is None else repr(text)
            raise ValueError(
                f"{path.name}, row {row}: {column.name!r} is {value}; the job knows"
                f" {', '.join(categories)}"
            )
    return np.array([code_of[text] for text in texts], np.int32)

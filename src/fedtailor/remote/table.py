"""Reads a client's file as arrays, by the schema of the job.

Nothing is guessed from the data: values that the schema does not allow are refused.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from jaxtyping import Float, Shaped

from fedtailor._parquet import read_foreign_parquet
from fedtailor.protocol import require
from fedtailor.remote.job import Schema
from fedtailor.tables.kinds import category_text

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
        y: class indices, or targets of a regression.
    """

    x: Float[np.ndarray, "rows width"]
    y: Shaped[np.ndarray, " rows"]


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
    for name in (*schema.columns, *([schema.target] if target else [])):
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
    if not target:
        dtype = np.float32 if schema.classes is None else np.int32
        return ClientExamples(x, np.zeros(len(x), dtype))
    column = frame[schema.target]
    if schema.classes is None:
        return ClientExamples(x, numbers(column, path).astype(np.float32))
    return ClientExamples(x, codes(column, schema.classes, path))


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

"""Screening of columns that should not be inputs.

These are constants, duplicates, row ids, and columns that identify the client.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl
from jaxtyping import Bool, Int
from numpy.typing import NDArray

from fedtailor.data.tables.kinds import MAX_CATEGORIES, ParsedColumn

_NEARLY_ALL = 0.9
"""A text column identifies rows if more than this share of them have distinct values; it
holds quantities if more than this share do.
"""
_MIN_ROWS = 20
"""In tables with fewer rows, ids are not detected: all values may differ by chance."""
_LONG_NUMBER = 1e9
"""Whole numbers of ten digits and more, all different, are numbers of insured persons and
the like.
"""
_QUANTITY = r"^[+\-]?\p{Sc}?\s?\d[\d.,' ]*\s?(%|\p{L}{1,4}|\p{Sc})?$"
"""A number with separators, a unit, a currency or %, as a polars regular expression."""
_ID_NAME = re.compile(
    r"(?i)(^|[_ .-])(id|uuid|index|key|nr|no|number|row|record)$|^unnamed|^$"
)


@dataclass(frozen=True)
class Screening:
    """The result of `screen`.

    Attributes:
        kept: names of the remaining columns, in the order of the table.
        dropped: the reason for each column that is left out.
        warnings: sentences on columns that were kept because the user requested them.
    """

    kept: tuple[str, ...]
    dropped: Mapping[str, str]
    warnings: tuple[str, ...]


def screen(
    columns: Mapping[str, ParsedColumn],
    train: Bool[NDArray, " rows"],
    owners: Int[NDArray, " rows"],
    requested: frozenset[str],
) -> Screening:
    """Screen columns by their training rows.

    Args:
        columns: the candidates for inputs.
        train: mask of the training rows of seen clients. Other rows are not used.
        owners: the client number of each row.
        requested: columns that the user requested. They are kept even if they identify
            rows or clients.
    """
    mask = pl.Series(train)
    clients = pl.Series("owner", owners).filter(mask)
    kept: list[str] = []
    dropped: dict[str, str] = {}
    warnings: list[str] = []
    seen: dict[str, str] = {}
    for name, column in columns.items():
        # Cheap checks first.
        values = column.values.filter(mask)
        reason = _empty_or_constant(values)
        digest = _digest(values)
        if reason is None and digest in seen:
            reason = f"the same as {seen[digest]!r}"
        if reason is None:
            reason = _identifies_rows(name, column, values, clients)
            if reason is not None and name in requested:
                warnings.append(
                    f"Column {name!r} is kept because it was asked for, although it is"
                    f" {reason}."
                )
                reason = None
        if reason is None:
            kept.append(name)
            seen[digest] = name
        else:
            dropped[name] = reason
    return Screening(tuple(kept), dropped, tuple(warnings))


def _empty_or_constant(values: pl.Series) -> str | None:
    if values.null_count() == len(values):
        return "missing in all training rows"
    if values.null_count() == 0 and values.n_unique() == 1:
        return "the same in all training rows"
    return None


def _digest(values: pl.Series) -> str:
    """A digest of a column's values and missing cells, to find duplicates."""
    numbers = values.hash(seed=0) if values.dtype == pl.String else values
    content = np.ascontiguousarray(numbers.to_numpy()).tobytes()
    content += str(values.dtype).encode()
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _identifies_rows(
    name: str, column: ParsedColumn, values: pl.Series, clients: pl.Series
) -> str | None:
    """A description of a column that identifies rows or clients; None otherwise."""
    present = values.is_not_null()
    values, clients = values.filter(present), clients.filter(present)
    distinct, rows = values.n_unique(), len(values)
    if rows >= _MIN_ROWS and column.kind == "category":
        if distinct > MAX_CATEGORIES and distinct > _NEARLY_ALL * rows:
            quantities = float(values.str.contains(_QUANTITY).sum())
            if quantities > _NEARLY_ALL * rows:
                return f"text such as {values[0]!r} (quantities must be plain numbers)"
            return "different text in nearly all rows (a name, an id or free text)"
    elif rows >= _MIN_ROWS and column.is_integer and distinct == rows:
        value_range = float(values.max()) - float(values.min()) + 1  # type: ignore[arg-type]
        is_long = float(values.abs().min()) >= _LONG_NUMBER  # type: ignore[arg-type]
        if value_range <= 2 * rows or _ID_NAME.search(name) or is_long:
            return "a different whole number in every row (an id or a running number)"
    return _identifies_client(column, values, clients, distinct)


def _identifies_client(
    column: ParsedColumn, values: pl.Series, clients: pl.Series, distinct: int
) -> str | None:
    """A description of a column that identifies the client; None otherwise.

    From such a column a model learns nothing about other clients.
    """
    count = clients.n_unique()
    if distinct < 2 or count < 2:
        return None
    if column.kind != "category" and not column.is_integer:
        return None
    pairs = pl.DataFrame([values.alias("value"), clients]).n_unique()
    # With fewer values than pairs, some value occurs in several clients.
    if pairs != distinct:
        return None
    if column.kind == "category" or pairs == count:
        return (
            "given to one client only, value by value, so that it gives the client away"
        )
    return None

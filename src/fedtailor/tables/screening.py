"""Columns that no model should see.

They are constants, duplicates, running numbers, and what names the client.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl
from jaxtyping import Bool, Int
from numpy.typing import NDArray

from fedtailor.tables.kinds import MAX_CATEGORIES, Parsed

_MOSTLY = 0.9
"""A share of a text column's rows.

A column with more different texts than that tells rows apart, not kinds of rows.
"""
_FEW_ROWS = 20
"""In tables with fewer rows, different values in all rows say nothing."""
_WITH_UNIT = r"^[+\-]?\p{Sc}?\s?\d[\d.,' ]*\s?(%|\p{L}{1,4}|\p{Sc})?$"
"""A number with thousands' separators, a unit, a currency or a per cent sign.

In the syntax of polars' searches.
"""
_NAME_OF_AN_ID = re.compile(
    r"(?i)(^|[_ .-])(id|uuid|index|key|nr|no|number|row|record)$|^unnamed|^$"
)


@dataclass(frozen=True)
class Screening:
    """Which columns are left.

    Attributes:
        kept: their names, in the order of the table.
        dropped: column -> why, in words that follow "is left out: ".
        warnings: sentences about columns that were kept because the user named them.
    """

    kept: tuple[str, ...]
    dropped: Mapping[str, str]
    warnings: tuple[str, ...]


def screen(
    columns: Mapping[str, Parsed],
    train: Bool[NDArray, " rows"],
    owners: Int[NDArray, " rows"],
    named: frozenset[str],
) -> Screening:
    """Look at the training rows of each column.

    Args:
        columns: the candidates for inputs.
        train: the training rows of the clients that train; nothing else is looked at.
        owners: the client of each row.
        named: columns that the user asked for, which are kept even if they tell rows or
            clients apart.
    """
    mask = pl.Series(train)
    clients = pl.Series("owner", owners).filter(mask)
    kept: list[str] = []
    dropped: dict[str, str] = {}
    warnings: list[str] = []
    seen: dict[str, str] = {}
    for name, column in columns.items():
        # Cheap reasons first. What would be left out for giving rows or clients away is
        # kept where the user names it.
        values = column.values.filter(mask)
        reason = _empty_or_constant(values)
        digest = _digest(values)
        if reason is None and digest in seen:
            reason = f"the same as {seen[digest]!r}"
        if reason is None:
            suspicion = _identifies(name, column, values, clients)
            if suspicion is not None and name in named:
                warnings.append(
                    f"Column {name!r} is kept because it was asked for, although it is"
                    f" {suspicion}."
                )
            else:
                reason = suspicion
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
    """Equal for columns with equal values and equal gaps."""
    numbers = values.hash(seed=0) if values.dtype == pl.String else values
    content = np.ascontiguousarray(numbers.to_numpy()).tobytes()
    content += str(values.dtype).encode()
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _identifies(
    name: str, column: Parsed, values: pl.Series, clients: pl.Series
) -> str | None:
    """Why a column tells rows or clients apart, or None."""
    present = values.is_not_null()
    values, clients = values.filter(present), clients.filter(present)
    distinct, rows = values.n_unique(), len(values)
    if rows >= _FEW_ROWS and column.kind == "category":
        if distinct > MAX_CATEGORIES and distinct > _MOSTLY * rows:
            with_unit = float(values.str.contains(_WITH_UNIT).sum())
            if with_unit > _MOSTLY * rows:
                return (
                    f"text such as {values[0]!r} (quantities are to be plain numbers)"
                )
            return "different text in nearly all rows (a name, an id or free text)"
    elif rows >= _FEW_ROWS and column.whole and distinct == rows:
        span = float(values.max()) - float(values.min()) + 1  # type: ignore[arg-type]
        if span <= 2 * rows or _NAME_OF_AN_ID.search(name):
            return "a different whole number in every row (an id or a running number)"
    return _gives_client_away(column, values, clients, distinct)


def _gives_client_away(
    column: Parsed, values: pl.Series, clients: pl.Series, distinct: int
) -> str | None:
    """Why a column is a second name of the client, or None.

    From such a column a model learns nothing about other clients.
    """
    count = clients.n_unique()
    if distinct < 2 or count < 2:
        return None
    if column.kind != "category" and not column.whole:
        return None
    pairs = pl.DataFrame([values.alias("value"), clients]).n_unique()
    # Fewer values than pairs: some value occurs in several clients.
    if pairs != distinct:
        return None
    if column.kind == "category" or pairs == count:
        return (
            "given to one client only, value by value, so that it gives the client away"
        )
    return None

"""Checks of a table's columns and clients."""

import numpy as np
import polars as pl

from fedtailor._base.printable import join_names
from fedtailor.data.federation import Ragged
from fedtailor.data.tables.options import TableOptions
from fedtailor.data.tables.problems import (
    LISTS,
    Problems,
    first_row,
    missing_columns,
)
from fedtailor.data.tables.splitting import Rows


def check_columns(
    frame: pl.DataFrame, options: TableOptions, problems: Problems
) -> None:
    """Check that the table has every column that an option names."""
    lists = {name: getattr(options, name) or () for name in LISTS}
    for problem in missing_columns(frame.columns, options.roles, lists):
        problems.add(problem)


def check_clients(
    frame: pl.DataFrame, options: TableOptions, problems: Problems
) -> Rows | None:
    """Read the client column; None if there are problems.

    The targets of the result are 0, and are set later.
    """
    series = frame[options.client]
    if not frame.height:
        problems.add("no row has a client and a target")
        return None
    is_missing = series.is_null()
    if is_missing.any():
        problems.add(
            f"client column {series.name!r} is missing in {int(is_missing.sum()):,} of"
            f" {len(series):,} rows, first in row {first_row(is_missing)}; fill it in, or"
            " leave these rows out with skip-unlabelled"
        )
        return None
    if series.dtype.is_float():
        if not (series == series.round()).all():
            # As text, a number of single precision has no digits that it does not know.
            decimals = series.filter(series != series.round())
            example = decimals.cast(pl.String)[0]
            problems.add(
                f"client column {series.name!r} holds decimal numbers such as"
                f" {example}; name the column that says who holds the row"
            )
            return None
        series = series.cast(pl.Int64)
    values = series.unique()
    if len(values) < 2:
        problems.add(
            f"client column {series.name!r} holds one client only, {values[0]!r}; a"
            " federation needs two or more"
        )
        return None
    if len(values) == len(series):
        problems.add(
            f"client column {series.name!r} names another client in each of the"
            f" {len(series):,} rows; a client needs two rows or more to learn and be"
            " tested on"
        )
        return None
    values = _sorted(values)
    codes = pl.Series(range(len(values)), dtype=pl.Int64)
    owners = series.replace_strict(values, codes, return_dtype=pl.Int64).to_numpy()
    names = tuple(str(name) for name in values.to_list())
    if max(map(len, names)) > 200:
        problems.add(
            f"client column {series.name!r} holds long text such as"
            f" {join_names([names[0][:40]])}; name another"
        )
        return None
    rows = Ragged.from_owners(owners, len(names))
    return Rows(rows, owners, names, np.zeros(len(owners)))


def _sorted(values: pl.Series) -> pl.Series:
    """Sort client names. Integers that are stored as text are sorted as numbers."""
    if values.dtype == pl.String:
        numbers = values.cast(pl.Int64, strict=False)
        # "007" is not the text of a number, but a name.
        are_numbers = numbers.null_count() == 0
        if are_numbers and (numbers.cast(pl.String) == values).all():
            return values[numbers.arg_sort()]
    return values.sort()

"""Reads tables cell by cell: what one cell says does not depend on the others.

A table on its own machine is read as it seems to be meant: `1,234` is 1234 beside `1.5`, and
1.234 beside `2,5`. Over machines one cell would so change how all others count, and what a
client sends of them would show that cell. A cell that cannot be read by itself is named, and
nothing is sent.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl

from fedtailor._base.choice import require
from fedtailor.data.tables.delimited import (
    MISSING_WORDS,
    header_of,
    is_utf8,
    read_delimited,
)
from fedtailor.data.tables.kinds import Kind, category_cells, parse_as
from fedtailor.data.tables.options import TableOptions
from fedtailor.data.tables.problems import first_row
from fedtailor.data.tables.reading import clean, read_parquet
from fedtailor.data.tables.target import is_comparison, positive_rows

ENDINGS = (".csv", ".tsv", ".parquet")
"""Suffixes of files that are read."""

_SEPARATORS = {".csv": ",;\t|", ".tsv": "\t"}

_DATES = (
    *("%Y-%m-%d", "%Y/%m/%d", "%d.%m.%Y"),
    *("%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%dT%H:%M:%S%.f"),
    *("%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M", "%d.%m.%Y %H:%M", "%d.%m.%Y %H:%M:%S"),
)
"""Formats of dates of which no cell fits two."""

_DATES_WITH_OFFSET = (
    "%Y-%m-%d %H:%M:%S%.f%#z",
    "%Y-%m-%dT%H:%M:%S%.f%#z",
    "%Y-%m-%dT%H:%M%#z",
)

_WRITTEN = {
    "number": "a number such as 1234.5",
    "date": "a date such as 2024-12-31",
    "boolean": "yes or no",
}


def read_cells(path: Path, listed: Mapping[str, Sequence[str]]) -> pl.DataFrame:
    """Read the cells of some columns of a file, of which those of text stay text.

    Args:
        path: the file, `.csv` and `.tsv` in UTF-8, or `.parquet`.
        listed: the columns, which it must have, each with words that do not stand for a
            missing cell though they usually do. With the names the header of the file, and
            no row, says what separates the cells.

    Raises:
        ValueError: the file cannot be read, or lacks a column.
    """
    require(path.is_file(), f"there is no file {path}")
    suffix = path.suffix.lower()
    require(
        suffix in ENDINGS,
        f"{path.name} is of no known kind; it must end in {', '.join(ENDINGS)}",
    )
    if suffix == ".parquet":
        frame = read_parquet(path)
    else:
        require(is_utf8(path), f"{path.name} is not text in UTF-8: save it as such")
        found = [len(listed.keys() & header_of(path, it)) for it in _SEPARATORS[suffix]]
        options = TableOptions(
            client="",
            separator=_SEPARATORS[suffix][found.index(max(found))],
            decimal=".",
            encoding="utf-8",
        )
        frame = read_delimited(path, options, missing_words=("",)).frame
    frame = clean(frame, missing_words=("",))
    require(frame.height > 0, f"{path.name} has no rows")
    for name in listed:
        require(
            name in frame.columns,
            f"{path.name} has no column {name!r}; its columns are"
            f" {', '.join(frame.columns)}",
        )
    columns = []
    for name, words in listed.items():
        column = frame[name]
        if column.dtype == pl.String:
            missing = [word for word in MISSING_WORDS if word not in words]
            column = column.set(column.is_in(missing), None)
        columns.append(column)
    return pl.DataFrame(columns)


def typed_cells(
    column: pl.Series, kind: Kind, where: str, listed: Sequence[str] = ()
) -> pl.Series:
    """Convert the cells of a column, each by itself: to numbers (days of dates, 0 and 1 of
    booleans), or text of categories.

    Args:
        column: the cells; null where they are missing.
        kind: the kind of all of them.
        where: name of the file, for errors.
        listed: categories that are written like this (see `category_cells`).

    Raises:
        ValueError: a cell is not of this kind; with its row.
    """
    require(
        not column.dtype.is_nested() and column.dtype not in (pl.Binary, pl.Object),
        f"column {column.name!r} of {where} holds {column.dtype}, and not cells of a table",
    )
    if kind == "category":
        return category_cells(column, listed)
    cells = column
    if column.dtype == pl.String and kind == "date":
        cells = _dates(column)
    if column.dtype == pl.String and kind == "boolean":
        cells = category_cells(column, ("0", "1"))
    values, _ = parse_as(cells, kind, None)
    bad = values.is_null() & column.is_not_null()
    if bad.any():
        row = first_row(bad)
        raise ValueError(
            f"{where}, row {row}: {column.name!r} is {column[row - 1]!r}, which is not"
            f" {_WRITTEN[kind]}; mend it, or leave the cell empty"
        )
    return values.alias(column.name)


def ordered_cells(column: pl.Series, where: str) -> pl.Series:
    """Convert the cells of a column that orders rows: all numbers, or all dates.

    Raises:
        ValueError: a cell is neither, or some are numbers and some dates.
    """
    if column.dtype != pl.String:
        return column
    numbers = column.cast(pl.Float64, strict=False)
    if numbers.null_count() == column.null_count():
        return numbers
    return typed_cells(column, "date", where)


def seen_cells(column: pl.Series, positive: Sequence[str], where: str) -> pl.Series:
    """Convert the cells of a column of events, each by itself, to true and false; without
    labels to text.

    Args:
        column: the cells; null where they are missing.
        positive: the labels of the event, or a comparison such as ">0"; () = 1, yes or true.
        where: name of the file, for errors.

    Raises:
        ValueError: a cell is no number that can be compared; with its row.
    """
    if is_comparison(positive):
        numbers = typed_cells(column, "number", where)
        seen = pl.Series(column.name, positive_rows(numbers, positive))
        return seen.set(numbers.is_null(), None)
    texts = typed_cells(column, "category", where, positive)
    return texts.is_in(list(positive)) if positive else texts


def _dates(column: pl.Series) -> pl.Series:
    dates = all_missing = pl.Series(
        column.name, [None] * len(column), pl.Datetime("us")
    )
    for date_format in _DATES:
        dtype = pl.Datetime("us") if "%H" in date_format else pl.Date()
        found = column.str.strptime(dtype, date_format, strict=False)
        dates = dates.zip_with(dates.is_not_null(), found.cast(pl.Datetime("us")))
    for date_format in _DATES_WITH_OFFSET:
        found = column.str.strptime(pl.Datetime("us", "UTC"), date_format, strict=False)
        dates = dates.zip_with(dates.is_not_null(), found.dt.replace_time_zone(None))
    # 31.12.24 is no date of the first century.
    return dates.zip_with((dates.dt.year() >= 1000).fill_null(False), all_missing)

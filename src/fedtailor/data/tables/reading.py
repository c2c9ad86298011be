"""Read a user's file or data frame as a polars frame of clean columns."""

import os
import stat
import unicodedata
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import polars as pl

from fedtailor._base.choice import check_choice
from fedtailor._base.parquet import read_foreign_parquet
from fedtailor._base.printable import join_names
from fedtailor.data.tables.delimited import ENDINGS as TEXT_ENDINGS
from fedtailor.data.tables.delimited import MISSING_WORDS, FileContent, read_delimited
from fedtailor.data.tables.numerals import typed_columns
from fedtailor.data.tables.options import TableOptions

EXCEL_ENDINGS = (".xlsx", ".xls", ".xlsb", ".ods")
ENDINGS = (*TEXT_ENDINGS, ".parquet", *EXCEL_ENDINGS)
"""Suffixes of files that can be read."""

TITLE_ROWS = 20
"""Rows of an Excel sheet in which the names of the columns are looked for."""

_NUMPY_DTYPES = frozenset(
    ("float64", "float32", "int64", "int32", "int16", "int8", "uint8", "bool")
)
"""Columns of these dtypes have no missing values in pandas' own types, such as NA."""


@dataclass(frozen=True)
class RawTable:
    """The content of a file or data frame.

    Attributes:
        frame: columns of numbers, booleans, dates or text; missing cells are null.
        where: name of the source in messages.
        name: name of the data in tables of results.
        decimal: the decimal sign of numbers in text.
        notes: notes on what was detected, in sentences.
    """

    frame: pl.DataFrame
    where: str
    name: str
    decimal: str = "."
    notes: tuple[str, ...] = ()


def read(source: Any, options: TableOptions, columns: Collection[str] = ()) -> RawTable:
    """Read a table from a path, or from a polars or pandas frame.

    Args:
        source: the path or the frame.
        options: how to read it.
        columns: names of columns that identify the sheet of an Excel file, in addition
            to those in `options`.

    Raises:
        ValueError: the file does not exist, or cannot be read as a table.
    """
    if isinstance(source, str | os.PathLike):
        path = Path(source).expanduser()
        _check_file(path)
        content = _read_file(path, options, columns)
        where, name = str(path), path.name.split(".")[0]
    else:
        path, content = None, FileContent(as_frame(source))
        where, name = "the frame", "own data"
    frame = content.frame
    if not frame.height:
        raise ValueError(
            f"{where} has columns ({join_names(frame.columns)}) and no rows; add one for"
            " each example"
        )
    frame, notes = typed_columns(
        clean(frame, options.missing, fold_case=options.fold_case),
        decimal := options.decimal or content.decimal,
        options.thousands,
        {options.client, options.group},
        only_marked=path is None or not path.name.lower().endswith(TEXT_ENDINGS),
    )
    # Words for missing cells that are numbers, such as -999 for -999.0.
    frame = clean(frame, options.missing) if options.missing else frame
    words = _words_of_all(options.missing, frame.columns)
    return RawTable(frame, where, name, decimal, (*content.notes, *notes, *words))


def as_frame(rows: Any) -> pl.DataFrame:
    """Convert a polars or pandas frame to a polars frame.

    Raises:
        ValueError: `rows` is something else, or column names of a pandas frame repeat.
    """
    if isinstance(rows, pl.DataFrame):
        return rows
    if isinstance(rows, pl.LazyFrame):
        return rows.collect()
    if type(rows).__module__.split(".")[0] == "pandas" and hasattr(rows, "columns"):
        names = [str(name) for name in rows.columns]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(
                f"the frame has several columns {repeated[0]!r}; rename all but one"
            )
        columns = [_from_pandas(name, rows.iloc[:, i]) for i, name in enumerate(names)]
        return pl.DataFrame(columns)
    raise ValueError(
        f"a table is a path, a polars or a pandas frame, not {type(rows).__name__}"
    )


def clean(
    frame: pl.DataFrame,
    missing: tuple[str, ...] = (),
    *,
    fold_case: bool = False,
    missing_words: Sequence[str] = MISSING_WORDS,
) -> pl.DataFrame:
    """Replace missing cells by null, strip text, and expand columns of arrays.

    A column of arrays becomes one column per entry.

    Args:
        frame: the frame.
        missing: the user's words for missing cells. Those that are numbers also mark
            missing cells in numeric columns. "COLUMN=WORD" is a word of one column.
        fold_case: whether text becomes lower case with single spaces.
        missing_words: words for missing cells of text, in addition to the user's.
    """
    of_all, of_column = words_by_column(missing, frame.columns)
    # A dict, as an entry may have the name of another column.
    columns: dict[str, pl.Series] = {}
    frame = _with_composed_names(frame)
    for series in frame:
        is_array = isinstance(series.dtype, pl.List | pl.Array)
        for column in _entries(series) if is_array else [series]:
            words = (*of_all, *of_column.get(series.name, ()))
            columns[column.name] = _clean_column(column, words, missing_words)
    cleaned = pl.DataFrame(columns)
    if not fold_case:
        return cleaned
    texts = pl.col(pl.String).str.to_lowercase().str.replace_all(r"\s+", " ")
    return cleaned.with_columns(texts)


def _with_composed_names(frame: pl.DataFrame) -> pl.DataFrame:
    """Names of columns in which a letter with an accent is one character."""
    names = [unicodedata.normalize("NFC", name) for name in frame.columns]
    if names == frame.columns:
        return frame
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(
            f"two columns look alike, {repeated[0]!r}: their letters are written with"
            " other characters; rename one"
        )
    return frame.rename(dict(zip(frame.columns, names, strict=True)))


def words_by_column(
    missing: Sequence[str], columns: Sequence[str]
) -> tuple[tuple[str, ...], dict[str, tuple[str, ...]]]:
    """Divide the words for missing cells into those of all columns, and those of one.

    Returns:
        The words of all columns, and column -> its words. What stands before "=" is a
        column only if there is one of that name.
    """
    of_all: list[str] = []
    of_column: dict[str, tuple[str, ...]] = {}
    for word in missing:
        name, equals, cell = word.rpartition("=")
        if equals and name in columns:
            of_column[name] = (*of_column.get(name, ()), cell)
        else:
            of_all.append(word)
    return tuple(of_all), of_column


def _words_of_all(missing: Sequence[str], columns: Sequence[str]) -> list[str]:
    """A note on each word "NAME=WORD" whose name is that of no column: it may be mistyped."""
    notes = []
    for word in words_by_column(missing, columns)[0]:
        name, equals, _ = word.rpartition("=")
        if equals:
            notes.append(
                f"No column is called {name!r}: {word!r} stands for a missing cell in all"
                " columns."
            )
    return notes


def _check_file(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise ValueError(
            f"there is no file {path} ({error.strerror}); check the path"
        ) from None
    if stat.S_ISDIR(mode):
        raise ValueError(f"{path} is a directory; give the file in it")
    if not stat.S_ISREG(mode):
        raise ValueError(
            f"{path} is not a regular file (it may be a pipe); save the table to a file"
            " first"
        )
    if not path.name.lower().endswith(ENDINGS):
        raise ValueError(
            f"{path} is of no known kind; give a file that ends in"
            f" {join_names(ENDINGS, 12)}"
        )
    if not mode & 0o444 or not os.access(path, os.R_OK):
        raise ValueError(f"{path} may not be read; change its permissions")


def _read_file(
    path: Path, options: TableOptions, columns: Collection[str]
) -> FileContent:
    name = path.name.lower()
    if name.endswith(TEXT_ENDINGS):
        return read_delimited(path, options)
    if name.endswith(EXCEL_ENDINGS):
        return _read_excel(path, options, {*options.roles.values(), *columns})
    return FileContent(read_parquet(path))


def read_parquet(path: Path) -> pl.DataFrame:
    """Read a Parquet file of somebody else.

    Raises:
        ValueError: it cannot be read.
    """
    try:
        return read_foreign_parquet(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise ValueError(
            f"{path} cannot be read as Parquet: {str(error).splitlines()[0]}"
        ) from None


def _read_excel(path: Path, options: TableOptions, wanted: set[str]) -> FileContent:
    """Read a sheet of an Excel file, from the row of the columns' names.

    The wanted names are looked for in the first rows of all sheets, as there are covers
    and titles.
    """
    if find_spec("fastexcel") is None:
        raise ValueError(
            f"{path}: Excel files need `pip install 'fedtailor[excel]'`; or save the"
            " sheet as CSV"
        )
    import fastexcel

    try:
        book = fastexcel.read_excel(path)
        sheets = book.sheet_names
        if options.sheet is None:
            searched = sheets
        else:
            check_choice(options.sheet, sheets, f"sheet of {path} called")
            searched = [options.sheet]
        # The first sheet and row with most of the names; else the widest sheet.
        found = [_header_of(book, sheet, wanted) for sheet in searched]
        place = max(range(len(found)), key=lambda number: found[number][0])
        row = found[place][1]
        # Infer the types from all rows: a column with a single '?' must become text.
        frame = pl.read_excel(
            path,
            sheet_name=searched[place],
            engine="calamine",
            infer_schema_length=None,
            read_options={"header_row": row} if row else None,
        )
    except ValueError:
        raise
    # The reader raises errors of various types.
    except Exception as error:
        raise ValueError(
            f"{path} cannot be read as Excel: {str(error).splitlines()[0][:200]}"
        ) from None
    notes = []
    if len(searched) > 1:
        notes.append(
            f"Sheet {searched[place]!r} is read, one of {len(sheets)}"
            f" ({join_names(sheets)}); name another with --sheet."
        )
    if row:
        notes.append(f"The names of the columns are in row {row + 1} of the sheet.")
    return FileContent(frame, notes=tuple(notes))


def _header_of(book: Any, sheet: str, wanted: set[str]) -> tuple[tuple[int, int], int]:
    """Where the names of a sheet's columns stand.

    Returns:
        How many of the wanted names it has, or 0 and how many filled cells; and their row:
        without a wanted name the first that is at least half as wide as the widest, as
        titles are narrow.
    """
    head = book.load_sheet(
        sheet, header_row=None, skip_rows=0, n_rows=TITLE_ROWS, dtypes="string"
    ).to_polars()
    matches, widths = [0], [0]
    for cells in head.iter_rows():
        names = {unicodedata.normalize("NFC", str(cell)).strip() for cell in cells}
        matches.append(len(wanted & names))
        widths.append(sum(cell not in (None, "") for cell in cells))
    if max(matches):
        return (max(matches), 0), matches.index(max(matches)) - 1
    width = max(widths)
    wide = [2 * filled >= width > 0 for filled in widths]
    return (0, width), max(0, wide.index(True) - 1) if any(wide) else 0


def _from_pandas(name: str, column: Any) -> pl.Series:
    """Convert a pandas column; missing values (NaN, NA, NaT, None) become null."""
    dtype = str(column.dtype)
    if dtype in _NUMPY_DTYPES:
        return pl.Series(name, column.to_numpy())
    has_time_zone = getattr(column.dtype, "tz", None) is not None
    if dtype.startswith("datetime64[") and not has_time_zone:
        return pl.Series(name, column.to_numpy().astype("datetime64[us]"))
    values = column.astype(object)
    values = values.where(values.notna(), None)
    return mixed_series(name, values.tolist())


def mixed_series(name: str, values: list[Any]) -> pl.Series:
    """A column of Python values. A mixture of numbers and text becomes text."""
    try:
        return pl.Series(name, values, strict=True)
    except (TypeError, pl.exceptions.PolarsError, OverflowError):
        are_numbers = all(
            value is None or isinstance(value, int | float) for value in values
        )
        kind = float if are_numbers else str
        return pl.Series(
            name, [None if value is None else kind(value) for value in values]
        )


def _entries(series: pl.Series) -> list[pl.Series]:
    """Expand a column of vectors of equal length to one column per entry.

    Other columns of arrays are returned unchanged, and are refused later.
    """
    if isinstance(series.dtype, pl.List):
        lengths = series.list.len().unique()
        if series.null_count() or len(lengths) != 1 or not lengths[0]:
            return [series]
        series = series.list.to_array(int(lengths[0]))
    dtype = series.dtype
    assert isinstance(dtype, pl.Array)
    is_vector = len(dtype.shape) == 1 and dtype.inner.is_numeric()
    if series.null_count() or not is_vector:
        return [series]
    values = series.to_numpy()
    return [
        pl.Series(f"{series.name}[{index}]", values[:, index])
        for index in range(values.shape[1])
    ]


def _clean_column(
    series: pl.Series, missing: tuple[str, ...], missing_words: Sequence[str]
) -> pl.Series:
    dtype = series.dtype
    if isinstance(dtype, pl.Categorical | pl.Enum):
        series, dtype = series.cast(pl.String), pl.String()
    if isinstance(dtype, pl.Decimal) or dtype == pl.Int128:
        series, dtype = series.cast(pl.Float64), pl.Float64()
    if dtype == pl.String:
        # Letters with accents are one or two characters, which look alike.
        text = series.str.strip_chars().str.normalize("NFC")
        return text.set(text.is_in([*missing_words, *missing]), None)
    if dtype.is_float():
        series = series.fill_nan(None)
    if dtype.is_numeric():
        numbers = [number for number in map(_number, missing) if number is not None]
        if numbers:
            return series.set(series.cast(pl.Float64).is_in(numbers), None)
    return series


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None

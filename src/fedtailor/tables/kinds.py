"""What a column holds, and its cells as numbers or text.

A column holds numbers, categories, booleans or dates.
"""

import re
from dataclasses import dataclass
from typing import Literal

import polars as pl

from fedtailor.protocol import require

Kind = Literal["number", "category", "boolean", "date"]

MAX_CATEGORIES = 20
"""Categories of a text column with an input of their own.

The rarer ones share the input "other".
"""

LARGEST = 1e150
"""Numbers beyond this are mistakes.

The sums of their squares, which standardise a column, would be infinite.
"""

_TRUE, _FALSE = ("true", "yes", "t", "y"), ("false", "no", "f", "n")
_DAY_MICROSECONDS = 86_400_000_000
_LOOKS_LIKE_A_DATE = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}")
_DATE_FORMATS = (
    "%Y-%m-%d",
    "%Y-%m-%d %H:%M:%S%.f",
    "%Y-%m-%dT%H:%M:%S%.f",
    "%Y-%m-%dT%H:%M:%S%.fZ",
    "%Y-%m-%d %H:%M",
    "%Y/%m/%d",
    "%Y/%m/%d %H:%M:%S",
    "%d.%m.%Y",
    "%d.%m.%Y %H:%M",
    "%d.%m.%Y %H:%M:%S",
    "%d-%m-%Y",
    "%d/%m/%Y",
    "%m/%d/%Y",
    "%d/%m/%Y %H:%M",
    "%m/%d/%Y %H:%M",
    "%d/%m/%Y %H:%M:%S",
    "%m/%d/%Y %H:%M:%S",
)


@dataclass(frozen=True)
class Parsed:
    """A column whose kind is known.

    Attributes:
        kind: what it holds.
        values: Float64 (days since 1970 for dates, 0 and 1 for booleans), or String for
            categories; null where missing.
        date_format: how the dates are written, if they came as text.
        whole: whether a column of numbers came as integers.
    """

    kind: Kind
    values: pl.Series
    date_format: str | None = None
    whole: bool = False


def recognise(series: pl.Series, *, category: bool = False) -> Parsed:
    """The kind of a cleaned column (see `reading.clean`), and its values.

    Args:
        series: the column.
        category: whether the user calls it a column of codes, so that numbers are
            categories too.

    Raises:
        ValueError: it holds something else, or numbers mixed with text; the sentence
            names the column.
    """
    dtype = series.dtype
    if category:
        return Parsed("category", category_text(series))
    if dtype == pl.Boolean:
        return Parsed("boolean", series.cast(pl.Float64))
    if dtype.is_numeric():
        return Parsed(
            "number", _finite(series.cast(pl.Float64)), whole=dtype.is_integer()
        )
    if dtype.is_temporal():
        return Parsed("date", _days(series))
    if dtype == pl.Null:
        return Parsed("number", series.cast(pl.Float64))
    if dtype == pl.String:
        return _recognise_text(series)
    raise ValueError(
        f"column {series.name!r} holds {dtype}, not numbers, text, booleans or dates;"
        " drop or encode it"
    )


def parse_as(
    series: pl.Series, kind: Kind, date_format: str | None
) -> tuple[pl.Series, pl.Series]:
    """A cleaned column read as a known kind.

    Returns:
        Its values, and a mask of the cells that are not of that kind.
    """
    nothing = pl.Series(series.name, [None] * len(series), pl.Float64)
    if kind == "category":
        values = category_text(series)
    elif kind == "number":
        values = series.cast(pl.Float64, strict=False)
        values = values.set((values.abs() > LARGEST).fill_null(False), None)
    elif kind == "boolean":
        is_text = series.dtype == pl.String
        values = _booleans(series) if is_text else series.cast(pl.Float64, strict=False)
        values = values.set(~values.is_in([0.0, 1.0]).fill_null(True), None)
    elif series.dtype == pl.String:
        formats = (date_format,) if date_format is not None else _DATE_FORMATS
        readings = (_dates(series, form) for form in formats)
        values = next((days for days in readings if days is not None), nothing)
    elif series.dtype.is_temporal():
        values = _days(series)
    else:
        values = nothing
    return values, series.is_not_null() & values.is_null()


def category_text(series: pl.Series) -> pl.Series:
    """Categories as text.

    Whole numbers have no decimal point, so that 1.0 and 1 are the same code.
    """
    if series.dtype.is_float():
        whole = series.drop_nulls()
        if (whole == whole.round()).all() and (whole.abs() < 2**53).all():
            return series.cast(pl.Int64, strict=False).cast(pl.String)
    return series.cast(pl.String)


def as_numbers(series: pl.Series) -> pl.Series | None:
    """Text as Float64 if every cell that is not missing is a number."""
    numbers = series.cast(pl.Float64, strict=False)
    return numbers if numbers.null_count() == series.null_count() else None


def _recognise_text(series: pl.Series) -> Parsed:
    """Text as numbers, booleans or dates, if all cells are; else as categories."""
    present = series.drop_nulls()
    numbers = as_numbers(series)
    if numbers is not None:
        whole = not present.str.contains(r"[.eE]").any()
        return Parsed("number", _finite(numbers.fill_nan(None)), whole=whole)
    # The first cell decides what is tried: each try looks at the whole column.
    first = str(present[0])
    if first.lower() in (*_TRUE, *_FALSE):
        booleans = _booleans(series)
        if booleans.null_count() == series.null_count():
            return Parsed("boolean", booleans)
    if _LOOKS_LIKE_A_DATE.match(first):
        by_format = {form: _dates(series, form) for form in _DATE_FORMATS}
        readings = [
            Parsed("date", days, date_format=form)
            for form, days in by_format.items()
            if days is not None
        ]
        if len(readings) > 1:
            first_days, other_days = readings[0].values, readings[1].values
            require(
                first_days.equals(other_days, null_equal=True),
                f"column {series.name!r} holds dates such as {first!r} that can be read"
                " with the day or the month first; write them as 2024-12-31, or drop"
                " the column",
            )
        if readings:
            return readings[0]
    _refuse_mixture(present)
    return Parsed("category", series)


def _refuse_mixture(present: pl.Series) -> None:
    """Refuse a column of numbers in which some cells are text.

    Codes such as 1, 2, 3A are categories, and not refused.
    """
    is_number = present.cast(pl.Float64, strict=False).is_not_null()
    distinct = present.n_unique()
    if is_number.sum() < 0.5 * len(present):
        return
    if distinct <= MAX_CATEGORIES and distinct <= len(present) / 2:
        return
    words = present.filter(~is_number)
    hint = ""
    if words.str.contains(r"^[+-]?\d+,\d+$").all():
        hint = "; if that is a decimal comma, say decimal ','"
    raise ValueError(
        f"column {present.name!r} mixes numbers with {len(words):,} cells of text such"
        f" as {words[0]!r}{hint}; mend them, name the words that mean a missing cell"
        " with `missing`, the column in `categories`, or drop it"
    )


def _finite(values: pl.Series) -> pl.Series:
    infinite = values.is_infinite()
    if infinite.any():
        row = (infinite.arg_max() or 0) + 1
        raise ValueError(
            f"column {values.name!r} holds {int(infinite.sum()):,} infinite numbers,"
            f" first in row {row}; replace them or leave the cells empty"
        )
    too_large = beyond(values)
    require(
        too_large is None,
        f"column {values.name!r} holds numbers beyond {LARGEST:g}, first in row"
        f" {too_large}, which cannot be standardised; mend them or leave the cells"
        " empty",
    )
    return values


def beyond(values: pl.Series) -> int | None:
    """The first row, from 1, with a number that is too large to be standardised.

    None if there is none.
    """
    found = values.abs() > LARGEST
    return (found.arg_max() or 0) + 1 if found.any() else None


def _booleans(series: pl.Series) -> pl.Series:
    """Words as 1 and 0; null for any other text."""
    words = {"1": 1.0, "0": 0.0}
    words |= dict.fromkeys(_TRUE, 1.0) | dict.fromkeys(_FALSE, 0.0)
    lower = series.str.to_lowercase()
    return lower.replace_strict(words, default=None, return_dtype=pl.Float64)


def _dates(series: pl.Series, form: str) -> pl.Series | None:
    """Text as days, if every cell that is not missing is a date written like this."""
    kind = pl.Datetime("us") if "%H" in form else pl.Date()
    dates = series.str.strptime(kind, form, strict=False)
    return _days(dates) if dates.null_count() == series.null_count() else None


def _days(series: pl.Series) -> pl.Series:
    """Dates and times in days since 1970-01-01 (times of day and durations in days)."""
    dtype = series.dtype
    if isinstance(dtype, pl.Datetime) and dtype.time_zone is not None:
        series = series.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
    if dtype == pl.Time:
        return series.cast(pl.Int64).cast(pl.Float64) / (1000 * _DAY_MICROSECONDS)
    kind = pl.Duration("us") if isinstance(dtype, pl.Duration) else pl.Datetime("us")
    return series.cast(kind).cast(pl.Int64).cast(pl.Float64) / _DAY_MICROSECONDS

"""Parse columns as numbers, categories, booleans or dates."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import polars as pl

from fedtailor._base.choice import require
from fedtailor._base.documentation import see
from fedtailor.data.tables.numerals import check_one_way, has_leading_zeros
from fedtailor.data.tables.problems import first_row

Kind = Literal["number", "category", "boolean", "date"]

MAX_CATEGORIES = 20
"""The largest number of categories of a column that have their own inputs.

Less frequent categories share the input "other".
"""

MAX_MAGNITUDE = 1e150
"""The largest magnitude of numbers. The squares of larger ones could overflow."""

TRUE_WORDS = ("true", "yes", "t", "y")
FALSE_WORDS = ("false", "no", "f", "n")
_MICROSECONDS_PER_DAY = 86_400_000_000
_DATE_PATTERN = re.compile(
    r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}|\d{4}-\d{2}$|\d{1,2}-?[A-Za-z]{3}-?\d{2,4}"
)
_TWO_DIGIT_YEAR = (
    r"^\d{1,2}[-/.]\d{1,2}[-/.]\d{2}($|[ T])|^\d{1,2}-?[A-Za-z]{3}-?\d{2}($|[ :])"
)
_SAMPLED_FOR_DATES = 1000
"""Cells that say whether a column is one of dates, and how they are written."""
_FEW_DATES = 10
"""A column of so few different dates, and of other text, is one of categories."""
_YEAR_1000 = -354_285.0
"""Days since 1970. Text that would be of an earlier year is no date."""
_OFFSET = "%#z"
"""The offset of a time zone: Z, +01, +0100 or +01:00."""
_DATE_FORMATS = (
    "%Y-%m-%d",
    "%Y-%m-%d %H:%M:%S%.f",
    "%Y-%m-%dT%H:%M:%S%.f",
    f"%Y-%m-%d %H:%M:%S%.f{_OFFSET}",
    f"%Y-%m-%dT%H:%M:%S%.f{_OFFSET}",
    f"%Y-%m-%d %H:%M:%S%.f {_OFFSET}",
    "%Y-%m-%d %H:%M",
    "%Y-%m-%dT%H:%M",
    f"%Y-%m-%dT%H:%M{_OFFSET}",
    "%Y-%m",
    "%Y/%m/%d",
    "%Y/%m/%d %H:%M:%S",
    "%d.%m.%Y",
    "%d.%m.%Y %H:%M",
    "%d.%m.%Y %H:%M:%S",
    "%d-%m-%Y",
    "%d%b%Y",
    "%d%b%Y:%H:%M:%S%.f",
    "%d-%b-%Y",
    "%d-%b-%Y %H:%M:%S%.f",
    "%d/%m/%Y",
    "%m/%d/%Y",
    "%d/%m/%Y %H:%M",
    "%m/%d/%Y %H:%M",
    "%d/%m/%Y %H:%M:%S",
    "%m/%d/%Y %H:%M:%S",
)
"""Those of ISO 8601, FHIR and Postgres; of Germany; of SAS; of other countries."""


@dataclass(frozen=True)
class ParsedColumn:
    """A column of a known kind.

    Attributes:
        kind: kind of the column.
        values: Float64 (days since 1970 for dates, 0 and 1 for booleans), or String for
            categories. Missing cells are null.
        date_format: format of dates that were text; otherwise None.
        is_integer: whether the numbers came as integers: with an integer dtype, or as text
            without a point or an exponent.
        unit: what stands after every number, such as "%" or "kg".
    """

    kind: Kind
    values: pl.Series
    date_format: str | None = None
    is_integer: bool = False
    unit: str = ""


def parse_column(series: pl.Series, *, category: bool = False) -> ParsedColumn:
    """Infer the kind of a column, and parse its cells.

    Args:
        series: the column, cleaned by `reading.clean`.
        category: treat the values as categories, even if they are numbers.

    Raises:
        ValueError: the column has another dtype, or numbers mixed with text.
    """
    dtype = series.dtype
    if category:
        return ParsedColumn("category", category_text(series))
    if dtype == pl.Boolean:
        return ParsedColumn("boolean", series.cast(pl.Float64))
    if dtype.is_numeric():
        return ParsedColumn(
            "number",
            _require_finite(series.cast(pl.Float64)),
            is_integer=dtype.is_integer(),
        )
    if dtype.is_temporal():
        return ParsedColumn("date", _days(series))
    if dtype == pl.Null:
        return ParsedColumn("number", series.cast(pl.Float64))
    if dtype == pl.String:
        return _parse_text(series)
    raise ValueError(
        f"column {series.name!r} holds {dtype}, not numbers, text, booleans or dates;"
        " drop or encode it"
    )


def parse_as(
    series: pl.Series, kind: Kind, date_format: str | None, unit: str = ""
) -> tuple[pl.Series, pl.Series]:
    """Parse a cleaned column as a known kind.

    Returns:
        The values, and a mask of the cells that are not of this kind.
    """
    all_null = pl.Series(series.name, [None] * len(series), pl.Float64)
    if kind == "category":
        values = category_text(series)
    elif kind == "number":
        is_text = series.dtype == pl.String
        plain = _without_unit(series, unit) if is_text and unit else series
        values = plain.cast(pl.Float64, strict=False)
        values = values.set((values.abs() > MAX_MAGNITUDE).fill_null(False), None)
    elif kind == "boolean":
        is_text = series.dtype == pl.String
        values = (
            _parse_booleans(series)
            if is_text
            else series.cast(pl.Float64, strict=False)
        )
        values = values.set(~values.is_in([0.0, 1.0]).fill_null(True), None)
    elif series.dtype == pl.String:
        formats = (date_format,) if date_format is not None else _DATE_FORMATS
        candidates = (_parse_dates(series, date_format) for date_format in formats)
        values = next((days for days in candidates if days is not None), all_null)
    elif series.dtype.is_temporal():
        values = _days(series)
    else:
        values = all_null
    return values, series.is_not_null() & values.is_null()


def parse_times(series: pl.Series) -> ParsedColumn:
    """Parse a column that orders rows.

    Raises:
        ValueError: it holds neither numbers nor dates.
    """
    if series.dtype == pl.String and has_leading_zeros(series):
        series = series.cast(pl.Int64)  # 0830
    parsed = parse_column(series)
    require(
        parsed.kind in ("number", "date"),
        f"time column {series.name!r} holds {parsed.kind} values such as"
        f" {series.drop_nulls().first()!r}, neither numbers nor dates; write them as"
        " 2024-12-31, 2024-12-31T14:30:00+01:00 or numbers",
    )
    return parsed


def category_text(series: pl.Series) -> pl.Series:
    """Convert categories to text.

    Integers have no decimal point, so that 1.0 and 1 are the same category.
    """
    if series.dtype.is_float():
        present = series.drop_nulls()
        if (present == present.round()).all() and (present.abs() < 2**53).all():
            return series.cast(pl.Int64, strict=False).cast(pl.String)
    return _text(series)


def _text(column: pl.Series) -> pl.Series:
    """The cells as text; of a duration, for which Polars has none, its microseconds."""
    if isinstance(column.dtype, pl.Duration):
        column = column.dt.total_microseconds()
    return column.cast(pl.String)


def category_cells(column: pl.Series, listed: Sequence[str] = ()) -> pl.Series:
    """Convert categories to text, each cell by itself, as it stands, but `1.0` to `1`: one
    missing cell makes a program write all whole numbers of a column like this, and the names
    of its categories would tell of it. (250.0 and 250.00 are different codes.)

    A category that is listed is taken as it is listed, and also as other programs write it:
    `1.0` and `+1` for `1`, `True` for `true`.
    """
    if column.dtype.is_float():
        numbers = column.cast(pl.Float64)
        is_whole = ((numbers == numbers.round()) & (numbers.abs() < 2**53)).fill_null(
            False
        )
        whole = numbers.set(~is_whole, None).cast(pl.Int64).cast(pl.String)
        texts = whole.zip_with(whole.is_not_null(), numbers.cast(pl.String))
    else:
        texts = _text(column)
    if not listed:
        return texts.str.replace(r"^(-?\d+)\.0$", "${1}")
    known = dict(zip(_plain(pl.Series(listed, dtype=pl.String)), listed, strict=True))
    plain = _plain(texts)
    is_other = ~texts.is_in(list(listed)) & plain.is_in(list(known))
    return plain.replace(known).zip_with(is_other.fill_null(False), texts)


def _plain(texts: pl.Series) -> pl.Series:
    """Text without a sign or a point that other programs write, and their booleans."""
    numbers = texts.str.replace(r"^\+?(-?\d+)(?:\.0)?$", "${1}")
    lower = numbers.str.to_lowercase()
    return lower.zip_with(lower.is_in(["true", "false"]).fill_null(False), numbers)


def as_numbers(series: pl.Series) -> pl.Series | None:
    """Convert text to Float64; None if a cell is neither missing nor a number.

    Codes with leading zeros (00501) are not numbers.
    """
    if has_leading_zeros(series):
        return None
    numbers = series.cast(pl.Float64, strict=False)
    return numbers if numbers.null_count() == series.null_count() else None


def _parse_text(series: pl.Series) -> ParsedColumn:
    """Parse text as numbers, booleans or dates if all cells are; else as categories."""
    present = series.drop_nulls()
    numbers = as_numbers(series)
    if numbers is not None:
        is_integer = not present.str.contains(r"[.eE]").any()
        values = _require_finite(numbers.fill_nan(None))
        return ParsedColumn("number", values, is_integer=is_integer)
    unit = _unit(present)
    if unit:
        plain = as_numbers(_without_unit(series, unit))
        if plain is not None:
            return ParsedColumn("number", _require_finite(plain), unit=unit)
    # The first cell determines which kinds are tried, as parsing a column takes time.
    first = str(present[0])
    if first.lower() in (*TRUE_WORDS, *FALSE_WORDS):
        booleans = _parse_booleans(series)
        if booleans.null_count() == series.null_count():
            return ParsedColumn("boolean", booleans)
    if _DATE_PATTERN.match(first):
        require(
            not present.str.contains(_TWO_DIGIT_YEAR).all(),
            f"column {series.name!r} holds dates such as {first!r}, whose year has two"
            " digits; write the century, as in 2024-12-31, or drop the column",
        )
        candidates = [
            ParsedColumn("date", days, date_format=date_format)
            for date_format in _DATE_FORMATS
            if (days := _parse_dates(series, date_format)) is not None
        ]
        if len(candidates) > 1:
            require(
                candidates[0].values.equals(candidates[1].values, null_equal=True),
                f"column {series.name!r} holds dates such as {first!r} that can be read"
                " with the day or the month first; write them as 2024-12-31, or drop"
                " the column",
            )
        if candidates:
            return candidates[0]
    _require_no_other_text(present)
    check_one_way(present)
    if not has_leading_zeros(series):
        _require_no_mixture(present)
    return ParsedColumn("category", series)


def _unit(present: pl.Series) -> str:
    """The unit that stands after all numbers of a column; "" if there is none.

    A single letter right behind a number (3A) is a code.
    """
    parts = present.str.extract_groups(
        r"^[+-]?[\d.]+(?:(?P<unit>%|\p{L}{2,10})|\s+(?P<apart>%|[\p{L}/µ°]{1,10}))$"
    )
    units = parts.struct.field("unit").fill_null(parts.struct.field("apart")).unique()
    return units[0] or "" if len(units) == 1 else ""


def _without_unit(series: pl.Series, unit: str) -> pl.Series:
    return series.str.strip_suffix(unit).str.strip_chars_end()


def _require_no_mixture(present: pl.Series) -> None:
    """Require that a column of numbers has no cells of text.

    Columns of codes, such as 1, 2, 3A, are categories and are accepted.
    """
    is_number = present.cast(pl.Float64, strict=False).is_not_null()
    distinct = present.n_unique()
    if is_number.sum() < 0.5 * len(present):
        return
    if distinct <= MAX_CATEGORIES and distinct <= len(present) / 2:
        return
    words = present.filter(~is_number)
    raise ValueError(
        f"column {present.name!r} mixes numbers with {len(words):,} cells of text such"
        f" as {words[0]!r}; mend them, name the words that mean a missing cell"
        " with `missing`, the column in `categories`, or drop it"
        f"{see('errors#a-column-of-numbers-and-words')}"
    )


def _require_no_other_text(present: pl.Series) -> None:
    """Require that a column of dates has no cells of other text.

    Columns of few different dates, such as those of visits, are categories and are
    accepted.
    """
    sample = present.gather_every(max(len(present) // _SAMPLED_FOR_DATES, 1))
    dates = sample.filter(sample.str.contains(f"^(?:{_DATE_PATTERN.pattern})"))
    if len(dates) < 0.5 * len(sample):
        return
    # The way of writing that most of them have; of codes such as 1.2.3 none.
    counts = {
        date_format: _as_days(dates, date_format).ge(_YEAR_1000).sum()
        for date_format in _DATE_FORMATS
        if "%d" in date_format
    }
    date_format = max(counts, key=counts.__getitem__)
    if counts[date_format] < 0.5 * len(sample):
        return
    fits = _as_days(present, date_format).ge(_YEAR_1000).fill_null(False)
    if present.filter(fits).n_unique() <= _FEW_DATES:
        return
    others = present.filter(~fits)
    raise ValueError(
        f"column {present.name!r} mixes dates such as {present.filter(fits)[0]!r} with"
        f" {len(others):,} other cells such as {others[0]!r}; mend them, name the words"
        " that mean a missing cell with `missing`, the column in `categories`, or drop it"
        f"{see('errors#a-column-of-numbers-and-words')}"
    )


def _require_finite(values: pl.Series) -> pl.Series:
    is_infinite = values.is_infinite()
    if is_infinite.any():
        raise ValueError(
            f"column {values.name!r} holds {int(is_infinite.sum()):,} infinite numbers,"
            f" first in row {first_row(is_infinite)}; replace them or leave the cells empty"
        )
    too_large = values.abs() > MAX_MAGNITUDE
    require(
        not too_large.any(),
        f"column {values.name!r} holds numbers beyond {MAX_MAGNITUDE:g}, first in row"
        f" {first_row(too_large)}, which cannot be standardised; mend them or leave the cells"
        " empty",
    )
    return values


def _parse_booleans(series: pl.Series) -> pl.Series:
    """Convert words to 1 and 0, and any other text to null."""
    words = {"1": 1.0, "0": 0.0}
    words |= dict.fromkeys(TRUE_WORDS, 1.0) | dict.fromkeys(FALSE_WORDS, 0.0)
    lower = series.str.to_lowercase()
    return lower.replace_strict(words, default=None, return_dtype=pl.Float64)


def _parse_dates(series: pl.Series, date_format: str) -> pl.Series | None:
    """Convert text to days; None if a cell does not have the date format."""
    # Most formats fit no cell, and parsing takes time.
    if _as_days(series.drop_nulls().head(1), date_format).null_count():
        return None
    days = _as_days(series, date_format)
    return days if days.null_count() == series.null_count() else None


def _as_days(series: pl.Series, date_format: str) -> pl.Series:
    """Convert text to days; cells that do not have the date format become null."""
    dtype = pl.Datetime("us") if "%H" in date_format else pl.Date()
    if _OFFSET in date_format:
        dtype = pl.Datetime("us", "UTC")
    return _days(series.str.strptime(dtype, date_format, strict=False))


def _days(series: pl.Series) -> pl.Series:
    """Convert dates (since 1970-01-01), times of day and durations to days."""
    dtype = series.dtype
    if isinstance(dtype, pl.Datetime) and dtype.time_zone is not None:
        series = series.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
    if dtype == pl.Time:
        return series.cast(pl.Int64).cast(pl.Float64) / (1000 * _MICROSECONDS_PER_DAY)
    unit = pl.Duration("us") if isinstance(dtype, pl.Duration) else pl.Datetime("us")
    return series.cast(unit).cast(pl.Int64).cast(pl.Float64) / _MICROSECONDS_PER_DAY

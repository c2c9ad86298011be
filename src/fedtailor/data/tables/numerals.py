"""How numbers are written in text: decimal signs, thousands marks, codes with zeros."""

import re
from collections.abc import Collection, Iterable

import polars as pl

_WHOLE = r"^[+-]?\d+$"
_LEADING_ZERO = r"^0\d+$"


def typed_columns(
    frame: pl.DataFrame,
    decimal: str,
    thousands: str | None,
    unchanged: Collection[str | None],
    *,
    only_marked: bool,
) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Convert columns of text to whole numbers, numbers, or true and false.

    A column that is neither stays text; so do codes with leading zeros.

    Args:
        frame: the columns; text is cleaned.
        decimal: the decimal sign, for cells that can be read in two ways.
        thousands: the thousands mark, if the user has named it.
        unchanged: columns that stay text, such as the names of clients.
        only_marked: convert only what Python would not read as a number.

    Returns:
        The frame, and notes.
    """
    # A dict, as a list of series loses an empty name.
    columns: dict[str, pl.Series] = {}
    commas, marks, points = [], [], []
    for series in frame:
        columns[series.name] = series
        if series.dtype != pl.String:
            continue
        if series.name in unchanged:
            # Numbers of clients, where some program has made them decimal ones: 10.0.
            if series.drop_nulls().str.contains(r"^\d+\.0$").all():
                columns[series.name] = series.str.strip_suffix(".0")
            continue
        if has_leading_zeros(series):
            continue
        plain = _plain(series)
        if plain is not None and (decimal == "." or plain.dtype != pl.Float64):
            columns[series.name] = series if only_marked else plain
            if thousands is None and (cell := _perhaps_marked(series)) is not None:
                points.append(f"{series.name} ({cell})")
            continue
        sign = written_with(series, decimal, thousands)
        if sign is None:
            continue
        numbers = without_marks(series, sign, thousands).cast(pl.Float64)
        columns[series.name] = numbers
        if sign == "," and decimal == ".":
            commas.append(series.name)
        mark = thousands or {",": ".", ".": ","}[sign]
        if (cell := _first_with(series, rf"{re.escape(mark)}\d{{3}}")) is not None:
            marks.append(f"{series.name} ({cell})")
    notes = []
    if commas:
        notes.append(f"Numbers have a decimal comma: {', '.join(commas)}.")
    if marks:
        notes.append(f"Numbers have thousands marks: {', '.join(marks)}.")
    if points:
        notes.append(
            f"A dot is read as the decimal sign: {', '.join(points)}. If it is a thousands"
            " mark, say --thousands ."
        )
    return pl.DataFrame(columns), tuple(notes)


def has_leading_zeros(series: pl.Series) -> bool:
    """Whether text is all whole numbers, and one of them begins with a zero (00501)."""
    present = series.drop_nulls()
    return bool(
        present.str.contains(_LEADING_ZERO).any() and present.str.contains(_WHOLE).all()
    )


def written_with(
    series: pl.Series, decimal: str, thousands: str | None = None
) -> str | None:
    """The decimal sign of a column of text; None if a cell is not a number.

    A dot or comma between groups of three digits is a thousands mark if the other one is
    the decimal sign. Of cells that can be read in both ways, `decimal` says how.
    """
    present = series.drop_nulls()
    for sign in (",", ".") if decimal == "," else (".", ","):
        if present.str.contains(_pattern(sign, thousands)).all():
            return sign if len(present) else None
    return None


def without_marks(
    series: pl.Series, decimal: str, thousands: str | None = None
) -> pl.Series:
    """Text in which numbers have no thousands marks, and a decimal point.

    Cells that are no such numbers are unchanged.
    """
    is_number = series.str.contains(_pattern(decimal, thousands)).fill_null(False)
    marks = _marks(decimal, thousands)
    plain = series.str.replace_all(marks, "").str.replace(decimal, ".", literal=True)
    return plain.zip_with(is_number, series)


def check_one_way(present: pl.Series) -> None:
    """Require that numbers in text have one decimal sign.

    Raises:
        ValueError: all cells are numbers, some with a point and others with a comma.
    """
    point, comma = (present.str.contains(_pattern(sign, None)) for sign in ".,")
    if (point | comma).all() and not point.all() and not comma.all():
        raise ValueError(
            f"column {present.name!r} holds numbers with a decimal point such as"
            f" {present.filter(~comma)[0]!r} and with a decimal comma such as"
            f" {present.filter(~point)[0]!r}; write all of them in one way"
        )


def code_note(names: Iterable[str]) -> str:
    """A sentence on columns of codes with leading zeros."""
    return (
        f"Codes with leading zeros are categories: {', '.join(names)} (write quantities"
        " without such zeros)."
    )


def _marks(decimal: str, thousands: str | None) -> str:
    """The thousands marks that go with a decimal sign, as a regular expression."""
    if thousands is None or thousands == decimal:
        return r"\." if decimal == "," else ","
    return r"[ \x{A0}\x{202F}]" if thousands.isspace() else re.escape(thousands)


def _pattern(decimal: str, thousands: str | None) -> str:
    """The regular expression of a number."""
    sign, mark = re.escape(decimal), _marks(decimal, thousands)
    digits = rf"(\d{{1,3}}({mark}\d{{3}})+|\d+)({sign}\d*)?|{sign}\d+"
    return rf"^[+-]?({digits})([eE][+-]?\d+)?$"


def _plain(series: pl.Series) -> pl.Series | None:
    """Text as numbers or booleans that need no reading; None if it is something else."""
    gaps = series.null_count()
    if gaps == len(series):
        return None
    for dtype in (pl.Int64, pl.Float64):
        numbers = series.cast(dtype, strict=False)
        if numbers.null_count() == gaps:
            return numbers
    words = {"true": True, "false": False}
    lower = series.str.to_lowercase()
    booleans = lower.replace_strict(words, default=None, return_dtype=pl.Boolean)
    return booleans if booleans.null_count() == gaps else None


def _perhaps_marked(series: pl.Series) -> str | None:
    """A cell such as 10.267 in a column that otherwise has whole numbers, too."""
    present = series.drop_nulls()
    grouped = present.str.contains(r"^[+-]?\d{1,3}\.\d{3}$")
    if not grouped.any() or grouped.all():
        return None
    if not present.filter(~grouped).str.contains(_WHOLE).all():
        return None
    return present.filter(grouped)[0]


def _first_with(series: pl.Series, pattern: str) -> str | None:
    """The first cell that contains a pattern."""
    found = series.drop_nulls()
    found = found.filter(found.str.contains(pattern))
    return found[0] if len(found) else None

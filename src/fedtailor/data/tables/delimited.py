"""Read delimited text, and detect encoding, separator and decimal sign."""

import codecs
import csv
import gzip
import io
import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

import polars as pl

from fedtailor._base.choice import require
from fedtailor._base.documentation import see
from fedtailor._base.printable import join_names

if TYPE_CHECKING:
    # Options import JAX, and a header is read before that.
    from fedtailor.data.tables.options import TableOptions

csv.field_size_limit(2**31 - 1)
"""Clinical notes and the like are longer than the 131,072 characters that Python allows
by default. Such columns are left out of the inputs later, with a word.
"""

ENDINGS = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".txt")
MISSING_WORDS = (
    *("", "?", "-", "--", "."),
    *("NA", "N/A", "n/a", "na", "#N/A", "#NA", "<NA>"),
    *("NaN", "nan", "-nan", "NaT"),
    *("NULL", "Null", "null"),
)
"""Words for missing cells: those of pandas, except for `None`, which may be a category;
and a dash, a dot, and ? (UCI).
"""

_SAMPLE_BYTES = 1 << 18
_SEPARATORS = ",;\t|"
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),  # polars skips this one itself
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark begins like it
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_COMMA_NUMBER = re.compile(r"\s*[+-]?(\d+|\d{1,3}(\.\d{3})+),\d+\s*")
_POINT_NUMBER = re.compile(r"\s*[+-]?(\d+|\d{1,3}(,\d{3})+)\.\d+\s*")
_GROUP_OF_THREE = re.compile(r"\s*[+-]?\d{1,3}[.,]\d{3}\s*")
_NUMBER = re.compile(r"\s*[+-]?(\d+([.,]\d*)?|[.,]\d+)([eE][+-]?\d+)?\s*")


@dataclass(frozen=True)
class FileContent:
    """What a file of a table holds.

    Attributes:
        frame: the cells.
        decimal: the decimal sign of numbers in text.
        notes: what was detected, in sentences.
    """

    frame: pl.DataFrame
    decimal: str = "."
    notes: tuple[str, ...] = ()


def header_of(path: Path, separator: str) -> set[str]:
    """The names of the columns of a file, if this separates them."""
    text = (
        _read_sample(path)[0].decode("utf-8", errors="replace").removeprefix("\ufeff")
    )
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    first = next(filter(None, lines), [])
    return {unicodedata.normalize("NFC", name).strip() for name in first}


def read_delimited(
    path: Path,
    options: "TableOptions",
    missing_words: Sequence[str] = MISSING_WORDS,
) -> FileContent:
    """Read a file of delimited text.

    All cells are text (`numerals` converts them). Missing cells are null. Empty lines are
    skipped.

    Args:
        path: the file.
        options: how to read it.
        missing_words: words for missing cells, in addition to those of `options`.

    Raises:
        ValueError: the file is empty or no text, or its lines do not fit its header.
    """
    header, lines, separator, encoding = _read_head(
        path, options.separator, options.encoding
    )
    decimal = options.decimal or _detect_decimal(lines, separator)
    notes = []
    if separator not in ",\t" and options.separator is None:
        notes.append(f"Cells are separated by {separator!r}.")
    if decimal == "," and options.decimal is None:
        notes.append("Numbers are written with a decimal comma.")

    def parse(source: Path | io.BytesIO) -> pl.DataFrame:
        # Every cell is text, so that none loses a leading zero or a thousands mark.
        return pl.read_csv(
            source,
            separator=separator,
            null_values=[*missing_words, *options.missing],
            infer_schema=False,
            glob=False,  # brackets in a path are not a pattern
        )

    try:
        try:
            frame = parse(path if encoding == "utf-8" else _as_utf8(path, encoding))
        except pl.exceptions.PolarsError:
            is_guess = encoding == "utf-8" and options.encoding is None
            if not is_guess or is_utf8(path):
                raise
            # Nearly every file can be read in this encoding. A note tells the user.
            encoding = "cp1252"
            frame = parse(_as_utf8(path, encoding))
    except (pl.exceptions.PolarsError, OSError, EOFError, zlib.error) as error:
        _check_quotes(path, encoding, separator)
        _check_lines(path, encoding, separator, len(header))
        reason = str(error).splitlines()[0][:200]
        raise ValueError(
            f"{path} cannot be read as text separated by {separator!r}: {reason}"
        ) from None
    if encoding == "cp1252" and options.encoding is None:
        notes.append(
            "The text is not UTF-8 and was read as Windows-1252; say `encoding` if"
            " letters look wrong."
        )
    # Polars fills lines that are too short with nulls.
    if frame.height and frame[:, -1].null_count():
        _check_lines(path, encoding, separator, len(header))
    if any(series.null_count() for series in frame):
        frame = frame.filter(~pl.all_horizontal(pl.all().is_null()))
    names = [name.strip() for name in header]
    require(
        len(names) == frame.width,
        f"{path}: lines end with a carriage return; save the table with the line ends of Unix"
        " or Windows",
    )
    frame = frame.rename(dict(zip(frame.columns, names, strict=True)))
    return FileContent(frame, decimal, tuple(notes))


def _read_head(
    path: Path, separator: str | None, encoding: str | None
) -> tuple[list[str], list[list[str]], str, str]:
    """Read the first lines of a file.

    Returns:
        The header, the cells of the lines after it, the separator and the encoding.
    """
    sample, is_complete = _read_sample(path)
    encoding = encoding or _detect_encoding(sample, path)
    text = _decode(sample, encoding, path, is_complete)
    if separator is None:
        separator = "\t" if ".tsv" in path.suffixes else _detect_separator(text)
    lines = list(
        filter(None, csv.reader(io.StringIO(text, newline=""), delimiter=separator))
    )
    if not is_complete:
        lines = lines[:-1]  # the sample ends in the middle of this line
    if not lines or any("\n" in name for name in lines[0]):
        _check_quotes(path, encoding, separator)
    header, *lines = lines or [[]]
    header = [unicodedata.normalize("NFC", name) for name in header]
    _check_header(header, lines, path, separator)
    return header, lines, separator, encoding


def _read_sample(path: Path) -> tuple[bytes, bool]:
    """Read the first bytes of a file; also returns whether they are the whole file."""
    try:
        with _open(path) as file:
            sample = file.read(_SAMPLE_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    if not sample.strip():
        raise ValueError(
            f"{path} is empty; it needs a line of column names and one line for each"
            " example"
        )
    return sample[:_SAMPLE_BYTES], len(sample) <= _SAMPLE_BYTES


def _open(path: Path) -> IO[bytes]:
    if path.suffix == ".gz":
        return cast(IO[bytes], gzip.open(path))
    return path.open("rb")


def _detect_encoding(sample: bytes, path: Path) -> str:
    for mark, encoding in _BYTE_ORDER_MARKS:
        if sample.startswith(mark):
            return encoding
    if b"\0" in sample:
        # In Western text in UTF-16, nearly all even or nearly all odd bytes are zero.
        even, odd = sample[::2].count(0), sample[1::2].count(0)
        half = len(sample) / 2
        if max(even, odd) > 0.3 * half and min(even, odd) < 0.05 * half:
            return "utf-16-be" if even > odd else "utf-16-le"
        raise ValueError(
            f"{path} is not a text file; save the table as CSV, or give .parquet or .xlsx"
            " its own ending"
        )
    if sample.startswith((b"PK\3\4", b"PAR1")):
        kind = ".xlsx" if sample.startswith(b"PK") else ".parquet"
        raise ValueError(
            f"{path} is not a text file, it looks like {kind}; give it that ending"
        )
    return "utf-8"


def _decode(sample: bytes, encoding: str, path: Path, is_complete: bool) -> str:
    # A sample may end inside a character, which an incremental decoder leaves out.
    decoder = codecs.getincrementaldecoder(encoding)()
    try:
        return decoder.decode(sample, final=is_complete).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        if encoding == "utf-8":
            return sample.decode("cp1252", errors="replace")
        raise ValueError(
            f"{path} is not {encoding}: byte {error.start} is {sample[error.start]}"
        ) from None


def is_utf8(path: Path) -> bool:
    """Whether a file is text in UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    with _open(path) as file:
        try:
            while content := file.read(_SAMPLE_BYTES):
                decoder.decode(content)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return False
    return True


def _as_utf8(path: Path, encoding: str) -> io.BytesIO:
    """The content of a file, converted to UTF-8."""
    with _open(path) as file:
        text = file.read().decode(encoding, errors="replace")
    return io.BytesIO(text.removeprefix("\ufeff").encode())


def _detect_separator(text: str) -> str:
    """The separator for which most of the first lines have the same number of cells.

    If there are several, it is the one with the most cells.
    """
    lines = [line for line in text.splitlines()[:50] if line.strip()]
    best, best_width = ",", 1
    for candidate in _SEPARATORS:
        counts = Counter(len(row) for row in csv.reader(lines, delimiter=candidate))
        width, frequency = counts.most_common(1)[0]
        if width > best_width and frequency >= 0.8 * counts.total():
            best, best_width = candidate, width
    return best


def _detect_decimal(lines: Sequence[Sequence[str]], separator: str) -> str:
    """The decimal sign: a comma if there are numbers like 1,5 and none like 1.5.

    The dot of 10.267 may be a thousands mark.
    """
    if separator == ",":
        return "."
    cells = {cell for line in lines[:1000] for cell in line}
    sure = {cell for cell in cells if not _GROUP_OF_THREE.fullmatch(cell)}
    has_comma = any(_COMMA_NUMBER.fullmatch(cell) for cell in cells)
    has_point = any(_POINT_NUMBER.fullmatch(cell) for cell in sure)
    return "," if has_comma and not has_point else "."


def _check_header(
    header: list[str], lines: list[list[str]], path: Path, separator: str
) -> None:
    names = [name.strip() for name in header]
    if len(names) == 1:
        raise ValueError(
            f"{path} has one column only, {names[0]!r}, when separated by"
            f" {separator!r}; a table needs a client, a target and inputs: say what"
            f" separates the cells with `separator`{see('errors#lines-and-cells-of-a-text-file')}"
        )
    repeated = [name for name, count in Counter(names).items() if count > 1 and name]
    if repeated:
        numbers = [str(i) for i, name in enumerate(names, 1) if name == repeated[0]]
        raise ValueError(
            f"{path}: column name {repeated[0]!r} stands {len(numbers)} times, in columns"
            f" {' and '.join(numbers)}; rename all but one"
        )
    unnamed = [i for i, name in enumerate(names, 1) if not name]
    if len(unnamed) > 1:
        raise ValueError(
            f"{path}: columns {join_names(unnamed)} have no name; give each one in the"
            " first line"
        )
    numeric = [name for name in names if _NUMBER.fullmatch(name)]
    if lines and len(numeric) > len(names) / 2:
        raise ValueError(
            f"{path}: the first line holds numbers ({join_names(names)}), not column names;"
            " add a line of names above it"
        )


def _check_lines(path: Path, encoding: str, separator: str, width: int) -> None:
    """Check that all lines have as many cells as the header.

    Raises:
        ValueError: some lines do not. The message names the first of them.
    """
    wrong, total, first, end = 0, 0, "", 0
    try:
        for line, cells in _numbered_lines(path, encoding, separator):
            start, end = end + 1, line
            if cells and len(cells) != width:
                wrong += 1
                # A quote takes in the lines below it until the next one.
                place = f"line {line} has"
                if start < end:
                    place = f"lines {start} to {end}, by a quote one row, have"
                first = first or f"{place} {len(cells)}"
            total += 1
    except (csv.Error, OSError, EOFError, zlib.error):
        return  # the reader's own error says more
    if wrong:
        _check_quotes(path, encoding, separator)
        raise ValueError(
            f"{path}: {wrong:,} of {total:,} lines have other than the {width} cells of"
            f" the header ({first}); mend them, or put quotes around cells that hold"
            f" {separator!r}{see('errors#lines-and-cells-of-a-text-file')}"
        )


def _check_quotes(path: Path, encoding: str, separator: str) -> None:
    """Check that every quote is closed.

    Raises:
        ValueError: one is not. The message names the line in which it may be.
    """
    end = 0
    try:
        for line, _ in _numbered_lines(path, encoding, separator, strict=True):
            end = line
    except csv.Error as error:
        if "unexpected end" in str(error):
            raise ValueError(
                f"{path}: a quote in line {end + 1} is never closed; close it, or write"
                " two of them for a quote in a cell"
                f"{see('errors#lines-and-cells-of-a-text-file')}"
            ) from None
    except (OSError, EOFError, zlib.error):
        return  # the reader's own error says more


def _numbered_lines(
    path: Path, encoding: str, separator: str, *, strict: bool = False
) -> Iterator[tuple[int, list[str]]]:
    with (
        _open(path) as binary,
        io.TextIOWrapper(binary, encoding, errors="replace", newline="") as text,
    ):
        reader = csv.reader(text, delimiter=separator, strict=strict)
        for cells in reader:
            yield reader.line_num, cells

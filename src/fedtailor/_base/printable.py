"""Makes text from outside harmless where people read it: terminals, logs, files.

Names of clients and columns, contents of files and messages of other machines may hold
anything: escape sequences that rewrite a terminal, line breaks that forge a line of a
log, marks that turn the direction of reading, formulas that a spreadsheet would run.
Inside the program they stay as they are; these functions are called where a text is
printed or written for people.
"""

import csv
import io
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    import polars as pl

# None of these takes more than linear time: each begins where a run does, and goes over it
# once. Cells of others may have millions of characters.
_SPACES = re.compile(r"\s+")
_LINE_BREAK = re.compile(r"[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_BEFORE_FORMULA = re.compile(r"(?<![;\s])[;\s]*+(?=[=+\-@＝＋－＠])")  # noqa: RUF001
# An underscore inside a word is one in Markdown, too.
_MARKDOWN = re.compile(r"[\\`*\[\]<>|#&~]|(?<!\w)_|_(?!\w)")
_OBJECT = re.compile(
    r"<(?:class '(?P<kind>[^']+)'|(?:function )?(?P<name>\S+)(?: object)? at 0x[0-9a-f]+)>"
)
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|nan)|[+-]")


def one_line(text: object) -> str:
    """Make text that prints as one line, and does nothing else.

    Line breaks become spaces. Every other character that Python's `repr` would escape
    (control characters, marks of the direction of reading, lone surrogates) is shown as
    its escape, so that different names stay different.

    >>> one_line("north\\x1b[2J\\nsouth: 60 rows")
    'north\\\\x1b[2J south: 60 rows'
    """
    text = str(text)
    if text.isprintable():
        return text
    text = _SPACES.sub(lambda it: " " if _LINE_BREAK.search(it[0]) else it[0], text)
    return "".join(map(_shown, text))


def without_addresses(value: object) -> str:
    """The `repr` of a value with functions, classes and objects by their names: where an
    object lies in memory tells nobody anything, and differs from process to process.

    >>> without_addresses((one_line, str))
    '(one_line, str)'
    """
    text = _OBJECT.sub(lambda it: it["kind"] or it["name"], repr(value))
    return _ADDRESS.sub("", text)


def name_of(value: object) -> str:
    """The name of a function or class; of anything else its `without_addresses`."""
    return getattr(value, "__qualname__", None) or without_addresses(value)


def join_names(names: Sequence[object], limit: int = 6) -> str:
    """Join names for a sentence, as in "a, b, c and 4 more"."""
    text = ", ".join(str(name) for name in names[:limit])
    if len(names) > limit:
        text += f" and {len(names) - limit} more"
    return text


def say(*lines: object, file: TextIO | None = None) -> None:
    """Print lines, each cleaned by `one_line`, at once.

    Args:
        lines: what to print; each becomes exactly one line.
        file: the standard output by default.
    """
    for line in lines:
        print(one_line(line), file=file, flush=True)


def say_block(text: str, file: TextIO | None = None) -> None:
    """Print a text of several lines, each cleaned by `one_line`.

    Whoever composes the text cleans the names in it, so that they forge no line.
    """
    say(*text.split("\n"), file=file)


def say_status(*lines: object) -> None:
    """Print lines as `say` does, on the standard error."""
    say(*lines, file=sys.stderr)


def output_width() -> int:
    """Columns to which text for the standard output is wrapped.

    A pipe or a file has no width: every sentence stays on its line, where `grep` and
    other programs find it.
    """
    if not sys.stdout.isatty():
        return sys.maxsize
    return shutil.get_terminal_size().columns


def csv_text(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Comma-separated values for people, whose spreadsheets run no formula of others.

    Every row is one line. Programs that need labels to the character read a model's
    predictions in Python.

    Args:
        header: names of the columns.
        rows: the cells; they go through `one_line` and `spreadsheet_text`.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in (header, *rows):
        writer.writerow(map(_cell, row))
    return text.getvalue()


def csv_of_frame(frame: "pl.DataFrame") -> str:
    """A frame as `csv_text`; its numbers as polars writes them."""
    import polars as pl

    named = pl.col(pl.Categorical, pl.Enum).cast(pl.String)
    texts = pl.col(pl.String).map_elements(_cell, return_dtype=pl.String)
    cells = (
        frame.with_columns(named).with_columns(texts).write_csv(include_header=False)
    )
    return csv_text(frame.columns, []) + cells


def spreadsheet_text(text: str) -> str:
    """Put `'` before what a spreadsheet would take for a formula; numbers stay.

    Spreadsheets run a cell that begins with `=`, `+`, `-` or `@`. Where they separate
    columns by semicolons or tabs, a cell begins after these, too.

    >>> spreadsheet_text("=1+1"), spreadsheet_text("-1.5")
    ("'=1+1", '-1.5')
    """
    if _NUMBER.fullmatch(text):
        return text
    return _BEFORE_FORMULA.sub(_with_mark, text)


def markdown_text(text: object) -> str:
    """One line of text in Markdown: no HTML, link, picture or format comes of it.

    >>> markdown_text("<b>north_east</b> [x](y)")
    '\\\\<b\\\\>north_east\\\\</b\\\\> \\\\[x\\\\](y)'
    """
    return _MARKDOWN.sub(r"\\\g<0>", " ".join(one_line(text).split()))


def _with_mark(before: re.Match[str]) -> str:
    """What stands before a sign of a formula, with `'` where the formula's cell begins: at
    the beginning of the text, and after what separates columns.
    """
    text, first = before[0], "'" if before.start() == 0 else ""
    begins = max(map(text.rfind, ";\t\n\r")) + 1
    if begins == 0:
        return first + text
    return f"{first}{text[:begins]}'{text[begins:]}"


def _cell(text: str) -> str:
    return spreadsheet_text(one_line(text))


def _shown(character: str) -> str:
    if character.isprintable():
        return character
    if character.isspace():
        return " "
    return character.encode("unicode_escape").decode("ascii")


MAX_LINE = 1000
"""Characters of the longest line about a message, whose sender may name things in it."""


def shortened(line: str) -> str:
    """A line, or the beginning of a long one."""
    return line if len(line) <= MAX_LINE else f"{line[:MAX_LINE]}..."

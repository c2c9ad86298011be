"""Writes the output of a command."""

from contextlib import suppress
from pathlib import Path

from fedtailor._base.choice import require
from fedtailor._base.files import atomic_write, reason
from fedtailor._base.printable import say_block


def check_not_input(out: Path | None, source: Path) -> None:
    """Refuse to write over the file that is read.

    Args:
        out: the file that will be written; None = the standard output.
        source: the file that is read.

    Raises:
        ValueError: both are one file, by links too.
    """
    is_input = False
    # What cannot be looked at is named when it is read or written.
    with suppress(OSError):
        is_input = out is not None and out.samefile(source)
    require(not is_input, f"--out is {out}, the file that is read; name another file")


def write_text(text: str, out: Path | None) -> None:
    """Writes a text atomically to a file, or prints it if `out` is None.

    Whoever composes the text cleans the names in it, as files need that, too.

    Raises:
        ValueError: the file cannot be written.
    """
    if out is None:
        say_block(text.removesuffix("\n"))
        return
    try:
        with atomic_write(out) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ValueError(
            f"cannot write {out}: {reason(error)}; name another file"
        ) from None

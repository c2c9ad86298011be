"""Writes the output of a command."""

from pathlib import Path

from fedtailor._files import atomic_write, reason


def write_text(text: str, out: Path | None) -> None:
    """Writes a text atomically to a file, or prints it if `out` is None.

    Raises:
        ValueError: the file cannot be written.
    """
    if out is None:
        print(text, end="")
        return
    try:
        with atomic_write(out) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ValueError(
            f"cannot write {out}: {reason(error)}; name another file"
        ) from None

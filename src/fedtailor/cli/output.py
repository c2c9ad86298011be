"""Where a command puts what it makes."""

from pathlib import Path

from fedtailor._files import reason, replacing


def put(text: str, out: Path | None) -> None:
    """Write a text to a file, whole or not at all.

    Where none is named, it goes to the standard output.

    Raises:
        ValueError: the file cannot be written.
    """
    if out is None:
        print(text, end="")
        return
    try:
        with replacing(out) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ValueError(
            f"cannot write {out}: {reason(error)}; name another file"
        ) from None

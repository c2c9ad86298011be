"""How everything that can go wrong is said: in one line, with an exit code."""

import errno
import re
import traceback
from collections.abc import Iterator
from pathlib import Path

DONE, FAILED, WRONG, INTERRUPTED = 0, 1, 2, 130
"""Exit codes: all is well; the machine or fedtailor failed; the input is wrong; Ctrl-C.
After SIGTERM it is 143.
"""


def explain(error: BaseException) -> tuple[int, str]:
    """The exit code for an error and what to say about it in one line ("" for
    nothing).
    """
    interrupt = next(
        (link for link in _chain(error) if isinstance(link, KeyboardInterrupt)), None
    )
    if (
        interrupt is not None
    ):  # libraries that are interrupted may raise errors of their own from it
        return (
            getattr(interrupt, "code", INTERRUPTED),
            one_line(str(interrupt)) or "interrupted",
        )
    if isinstance(
        error, BrokenPipeError
    ):  # the reader of a pipe has seen enough (fedtailor algorithms | head)
        return DONE, ""
    code, said = _kind(error)
    return code, one_line(said)


def one_line(text: str) -> str:
    """Text without line ends and without characters that would steer a terminal."""
    return " ".join(re.sub(r"[\x00-\x1f\x7f-\x9f]+", " ", text).split())


def _kind(error: BaseException) -> tuple[int, str]:
    text, name = str(error), type(error).__name__
    if isinstance(error, RecursionError):
        return WRONG, f"something is nested too deeply to be read{_place(error)}"
    if isinstance(error, UnicodeError):
        return WRONG, f"a text is not in UTF-8: {text}"
    if isinstance(
        error, ValueError | ArithmeticError
    ):  # raised where it was noticed, with what to do
        return WRONG, text or f"{name}{_place(error)}"
    if isinstance(error, OSError):
        what = error.strerror or text or name
        files = [
            str(file)
            for file in (error.filename, error.filename2)
            if isinstance(file, str | bytes | Path)
        ]
        if not files and error.errno in (
            errno.ENOSPC,
            errno.EDQUOT,
            errno.EIO,
            errno.EBADF,
        ):
            files = [
                "the standard output"
            ]  # errors of files carry names, those of streams do not
        return WRONG, f"{' -> '.join(files)}: {what}" if files else what
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in text:
        return (
            FAILED,
            (
                "out of memory; use fewer clients, smaller batches or a smaller model"
                f" ({text or name})"
            ),
        )
    if type(error).__module__.partition(".")[0] == "polars" or name == "PanicException":
        return (
            FAILED,
            (
                "a table cannot be read or written:"
                f" {text.partition('Resolved plan')[0] or name}"
            ),
        )
    return (
        FAILED,
        (
            f"unexpected {name}{_place(error)}: {text}; this is a fault of fedtailor:"
            " please report what the same command prints with --traceback"
        ),
    )


def _place(error: BaseException) -> str:
    """Where an error was raised: " (file.py, line 3)"."""
    frames = traceback.extract_tb(error.__traceback__)
    return (
        f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"
        if frames
        else ""
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error, what it was raised from or while handling, and so on."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__

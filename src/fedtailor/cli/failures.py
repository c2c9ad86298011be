"""How everything that can go wrong is said: in one line, with an exit code."""

import errno
import re
import traceback
from collections.abc import Iterator
from pathlib import Path

DONE, FAILED, WRONG, INTERRUPTED = 0, 1, 2, 130
"""Exit codes: all is well, the machine or fedtailor failed, wrong input, Ctrl-C.

After SIGTERM it is 143.
"""


def explain(error: BaseException) -> tuple[int, str]:
    """The exit code for an error, and what to say about it in one line.

    Nothing is said ("") where the reader of a pipe has seen enough.
    """
    # Libraries that are interrupted may raise errors of their own from it.
    for link in _chain(error):
        if isinstance(link, KeyboardInterrupt):
            code = getattr(link, "code", INTERRUPTED)
            return code, one_line(str(link)) or "interrupted"
    # As in `fedtailor algorithms | head`.
    if isinstance(error, BrokenPipeError):
        return DONE, ""
    code, message = _kind(error)
    return code, one_line(message)


def one_line(text: str) -> str:
    """Text without line ends and without characters that would steer a terminal."""
    return " ".join(re.sub(r"[\x00-\x1f\x7f-\x9f]+", " ", text).split())


def _kind(error: BaseException) -> tuple[int, str]:
    """The exit code and what to say, by the kind of error."""
    text, name = str(error), type(error).__name__
    if isinstance(error, RecursionError):
        return WRONG, f"something is nested too deeply to be read{_place(error)}"
    if isinstance(error, UnicodeError):
        return WRONG, f"a text is not in UTF-8: {text}"
    # Raised where it was noticed, with what to do.
    if isinstance(error, ValueError | ArithmeticError):
        return WRONG, text or f"{name}{_place(error)}"
    if isinstance(error, OSError):
        return WRONG, _about_file(error)
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in text:
        advice = "use fewer clients, smaller batches or a smaller model"
        return FAILED, f"out of memory; {advice} ({text or name})"
    if type(error).__module__.partition(".")[0] == "polars" or name == "PanicException":
        # The plan of a query, which follows, says nothing to a user.
        reason = text.partition("Resolved plan")[0] or name
        return FAILED, f"a table cannot be read or written: {reason}"
    message = (
        f"unexpected {name}{_place(error)}: {text}; this is a fault of fedtailor:"
        " please report what the same command prints with --traceback"
    )
    return FAILED, message


def _about_file(error: OSError) -> str:
    """The files that an error is about, and what it says."""
    what = error.strerror or str(error) or type(error).__name__
    names = (error.filename, error.filename2)
    files = [str(name) for name in names if isinstance(name, str | bytes | Path)]
    # Errors of files carry names, those of streams do not.
    of_streams = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF)
    if not files and error.errno in of_streams:
        files = ["the standard output"]
    return f"{' -> '.join(files)}: {what}" if files else what


def _place(error: BaseException) -> str:
    """Where an error was raised: " (file.py, line 3)"."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return ""
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error, what it was raised from or while handling, and so on."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__

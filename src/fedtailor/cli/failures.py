"""Converts every error to an exit code and a message of one line."""

import errno
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

from fedtailor._base.choice import MachineFailed
from fedtailor._base.documentation import see
from fedtailor._base.own_code import is_fedtailors, is_installed
from fedtailor._base.printable import join_names, one_line

DONE, FAILED, WRONG, INTERRUPTED = 0, 1, 2, 130
"""Exit codes: success, failure of the machine or fedtailor, wrong input, Ctrl-C.

The exit code after SIGTERM is 143.
"""


def explain(error: BaseException) -> tuple[int, str]:
    """The exit code and the message of an error.

    The message is one line. It is empty if the reader of a pipe closed it.
    """
    # An interrupted library may raise another error from the interrupt.
    for link in _error_chain(error):
        if isinstance(link, KeyboardInterrupt):
            code = getattr(link, "code", INTERRUPTED)
            return code, one_line(link).strip() or "interrupted"
    # As in `fedtailor algorithms | head`.
    if isinstance(error, BrokenPipeError):
        return DONE, ""
    code, message = _classify(error)
    return code, one_line(message).strip()


def _classify(error: BaseException) -> tuple[int, str]:
    """The exit code and the message for a type of error."""
    text, name = str(error), type(error).__name__
    if isinstance(error, RecursionError):
        return WRONG, f"something is nested too deeply to be read{_location(error)}"
    if isinstance(error, MachineFailed):
        return FAILED, text
    if isinstance(error, UnicodeError):
        return WRONG, f"a text is not UTF-8: {text}"
    # The message of such an error already says what to do, but for Python's own.
    is_worded = not text.startswith(("not enough values to", "too many values to"))
    if isinstance(error, ValueError | ArithmeticError) and is_worded:
        return WRONG, text or f"{name}{_location(error)}"
    if isinstance(error, OSError):
        return WRONG, _file_message(error)
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in text:
        hint = "use fewer clients, smaller batches or a smaller model"
        return FAILED, f"out of memory; {hint} ({text or name})"
    if type(error).__module__.partition(".")[0] == "polars" or name == "PanicException":
        # Omit the query plan, which users cannot interpret.
        reason = text.partition("Resolved plan")[0] or name
        return FAILED, f"a table cannot be read or written: {reason}"
    own = _own_location(error)
    if own:
        return WRONG, f"your code fails in {own}: {name}: {text.partition(chr(10))[0]}"
    unexpected = f"unexpected {name}{_location(error)}: {text}"
    report = "please report what the same command prints with --traceback"
    methods = _own_methods()
    if methods:
        return FAILED, (
            f"{unexpected}; does {methods} return what the table of functions asks for"
            f"{see('write-an-algorithm#1-the-file')}? If it does, {report}"
        )
    return FAILED, f"{unexpected}; this is a fault of fedtailor: {report}"


def _own_location(error: BaseException) -> str:
    """The last line of a user's own code that an error came through: "file.py, line 3";
    "" if it came through none.
    """
    package = Path(__file__).parents[1]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        is_file = path.suffix == ".py" and path.is_absolute()
        if is_file and not (is_installed(path) or path.is_relative_to(package)):
            return f"{path.name}, line {frame.lineno}"
    return ""


def _own_methods() -> str:
    """The names of methods that were loaded and are not fedtailor's."""
    protocol = sys.modules.get("fedtailor.protocol")
    if protocol is None:
        return ""
    return join_names(
        [
            name
            for name, kind in protocol.Algorithm.registry.items()
            if not is_fedtailors(kind.__module__)
        ]
    )


def _file_message(error: OSError) -> str:
    """The message of an error about files, with their names."""
    message = error.strerror or str(error) or type(error).__name__
    names = (error.filename, error.filename2)
    files = [str(name) for name in names if isinstance(name, str | bytes | Path)]
    # Errors of files have names, errors of streams have none.
    stream_errors = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF)
    if not files and error.errno in stream_errors:
        files = ["the standard output"]
    return f"{' -> '.join(files)}: {message}" if files else message


def _location(error: BaseException) -> str:
    """The location where an error was raised: " (file.py, line 3)"."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return ""
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"


def _error_chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an error and, recursively, its cause or context."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__

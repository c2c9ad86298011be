"""Every step that Python takes on files below a folder: counted, and made to fail from
the n-th on.

Python announces them as audit events. A hook cannot be removed again, so there is one,
and it is switched.
"""

import os
import sys
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

CHANGES = {
    "os.rename",
    "os.remove",
    "os.mkdir",
    "os.rmdir",
    "os.chmod",
    "os.truncate",
    "shutil.rmtree",
}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT

_watching: list[tuple[str, Callable[[], None]]] = []


def _hook(event: str, arguments: tuple) -> None:
    if not _watching or not (event == "open" or event in CHANGES):
        return
    folder, step = _watching[-1]
    if event == "open" and not (
        isinstance(arguments[2], int) and arguments[2] & _WRITES
    ):
        return
    if isinstance(arguments[0], str | bytes | Path) and os.fsdecode(
        arguments[0]
    ).startswith(folder):
        step()


sys.addaudithook(_hook)


@contextmanager
def watching(folder: Path, step: Callable[[], None]):
    """Call `step` before every change below a folder; what it raises happens instead of
    the change.
    """
    _watching.append((str(folder), step))
    try:
        yield
    finally:
        _watching.pop()


class Steps:
    """Counts changes, and raises `error` at some of them."""

    def __init__(
        self,
        error: Callable[[], BaseException] | None = None,
        first: int = 0,
        last: int = sys.maxsize,
    ):
        self.count, self._error, self._first, self._last = 0, error, first, last

    def __call__(self) -> None:
        self.count += 1
        if self._error is not None and self._first <= self.count <= self._last:
            raise self._error()

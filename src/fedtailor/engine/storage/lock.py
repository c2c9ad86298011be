"""Locks: of a file that stands for something, of a directory, and of a file's own lines.

All end with the process that holds them.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import jax
import numpy as np
from filelock import FileLock, Timeout
from jax.experimental import multihost_utils

from fedtailor._base.choice import require
from fedtailor._base.documentation import see
from fedtailor.engine.storage.errors import InUse

LOCK = ".lock"
_UNKNOWN = -1


class ProcessLock:
    """A lock that at most one process holds, from `try_acquire` to `release`.

    Args:
        path: its file, which holds the id of the process.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # Not thread-local, so that any thread can release the lock.
        self._lock = FileLock(path, thread_local=False)

    def try_acquire(self) -> int:
        """Try to acquire the lock.

        Returns:
            0 on success; otherwise the id of the process that holds the lock, or -1 if
            the id is unknown.

        Raises:
            OSError: the file cannot be written.
        """
        try:
            self._lock.acquire(blocking=False)
        except Timeout:
            with suppress(OSError, ValueError):
                holder = int(self._path.read_text("utf-8"))
                require(0 < holder < 2**31, "no process has such an id")
                return holder
            return _UNKNOWN
        self._path.write_text(str(os.getpid()), "utf-8")
        return 0

    def release(self) -> None:
        """Release the lock if it is held."""
        if self._lock.is_locked:
            # Delete the file before the release: afterwards it may belong to another
            # process that has acquired the lock.
            with suppress(OSError):
                self._path.unlink()
            self._lock.release()


class DirectoryLock:
    """An exclusive lock on a directory, from `acquire` to `release`.

    The lock is also released when the process ends. In a distributed run the process
    with index 0 holds the lock for all processes.

    Example:
        >>> from pathlib import Path
        >>> from fedtailor.engine.storage import DirectoryLock
        >>> Path("results").mkdir(exist_ok=True)
        >>> with DirectoryLock(Path("results")):
        ...     print("nobody else writes here")
        nobody else writes here
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = ProcessLock(directory / LOCK)

    def acquire(self) -> None:
        """Acquire the lock.

        Raises:
            InUse: another process, or another run of this process, holds the lock.
            OSError: the directory cannot be written.
        """
        # If the lock is taken, all processes of the run must fail; otherwise some would
        # wait for ever.
        holder = self._lock.try_acquire() if jax.process_index() == 0 else 0
        if jax.process_count() > 1:
            holder = int(multihost_utils.broadcast_one_to_all(np.int32(holder)))
        if holder:
            who = "another process" if holder == _UNKNOWN else f"process {holder}"
            raise InUse(
                f"{self._directory} is in use by {who}; wait until it ends, or name"
                f" another directory{see('errors#a-directory-in-use')}"
            )

    def release(self) -> None:
        """Release the lock if it is held."""
        self._lock.release()

    def __enter__(self) -> "DirectoryLock":
        self.acquire()
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


def is_held(path: Path) -> bool:
    """Whether a process holds the lock of this file, which need not be writable here."""
    import fcntl  # not on Windows, where federations do not run

    try:
        file = path.open("rb")
    except FileNotFoundError:
        return False
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


@contextmanager
def locked_lines(path: Path) -> Iterator[IO[bytes]]:
    """Open a file of lines for reading and appending, which its owner alone may do; no
    other process does at this time.

    Raises:
        OSError: it cannot be opened.
    """
    import fcntl  # not on Windows, where federations do not run

    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
    while True:
        with open(os.open(path, flags, 0o600), "r+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if _is_at(path, file):
                yield file
                return


def _is_at(path: Path, file: IO[bytes]) -> bool:
    """Whether an open file has this path; another process may have renamed it."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    return False

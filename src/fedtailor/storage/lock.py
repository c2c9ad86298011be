"""A lock on a directory, to which only one process at a time may write."""

import os
from contextlib import suppress
from pathlib import Path

import jax
import numpy as np
from filelock import FileLock, Timeout
from jax.experimental import multihost_utils

from fedtailor._documentation import see
from fedtailor.protocol import require
from fedtailor.storage.errors import Unusable

LOCK = ".lock"
_UNKNOWN = -1


class DirectoryLock:
    """An exclusive lock on a directory, from `acquire` to `release`.

    The lock is also released when the process ends. In a distributed run the process
    with index 0 holds the lock for all processes.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / LOCK
        # Not thread-local, so that any thread can release the lock.
        self._lock = FileLock(self._path, thread_local=False)

    def acquire(self) -> None:
        """Acquire the lock.

        Raises:
            Unusable: another process, or another run of this process, holds the lock.
            OSError: the directory cannot be written.
        """
        # If the lock is taken, all processes of the run must fail; otherwise some would
        # wait for ever.
        holder = self._try_lock() if jax.process_index() == 0 else 0
        if jax.process_count() > 1:
            holder = int(multihost_utils.broadcast_one_to_all(np.int32(holder)))
        if holder:
            who = "another process" if holder == _UNKNOWN else f"process {holder}"
            raise Unusable(
                f"{self._directory} is in use by {who}; wait until it ends, or name"
                f" another directory{see('errors#a-directory-in-use')}"
            )

    def release(self) -> None:
        """Release the lock if it is held."""
        if self._lock.is_locked:
            # Delete the file before the release: afterwards it may belong to another
            # process that has acquired the lock.
            with suppress(OSError):
                self._path.unlink()
            self._lock.release()

    def __enter__(self) -> "DirectoryLock":
        self.acquire()
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def _try_lock(self) -> int:
        """Try to acquire the lock.

        Returns:
            0 on success; otherwise the id of the process that holds the lock, or -1 if
            the id is unknown.
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

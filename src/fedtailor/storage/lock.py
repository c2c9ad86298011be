"""A lock on a directory: one process at a time writes to it."""

import os
from contextlib import suppress
from pathlib import Path

import jax
import numpy as np
from filelock import FileLock, Timeout
from jax.experimental import multihost_utils

from fedtailor.protocol import require
from fedtailor.storage.errors import Unusable

LOCK = ".lock"
_UNKNOWN = -1


class DirectoryLock:
    """The right to write to a directory, from `acquire` to `release`; the end of the
    process releases it, too.

    Of several processes of one run the first holds it, for all of them.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / LOCK
        # Not thread-local, so that any thread can release it.
        self._lock = FileLock(self._path, thread_local=False)

    def acquire(self) -> None:
        """Take the directory.

        Raises:
            Unusable: another process has it, or another run of this one.
            OSError: the directory cannot be written.
        """
        # All processes of a run must learn of a refusal, or some would wait for ever.
        holder = self._try_lock() if jax.process_index() == 0 else 0
        if jax.process_count() > 1:
            holder = int(multihost_utils.broadcast_one_to_all(np.int32(holder)))
        if holder:
            who = "another process" if holder == _UNKNOWN else f"process {holder}"
            raise Unusable(
                f"{self._directory} is in use by {who}; wait until it ends, or name"
                " another directory"
            )

    def release(self) -> None:
        """Give the directory back; nothing happens where it was not taken."""
        if self._lock.is_locked:
            # Before the release: afterwards another process may have taken the lock, and
            # its file must stay.
            with suppress(OSError):
                self._path.unlink()
            self._lock.release()

    def __enter__(self) -> "DirectoryLock":
        self.acquire()
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def _try_lock(self) -> int:
        """Take the lock if it is free.

        Returns:
            0, or the id of the process that holds the lock (-1 = unknown).
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

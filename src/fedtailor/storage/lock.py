"""One writer: a directory belongs to the process that writes to it until it is done."""

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
        self._directory, self._path = directory, directory / LOCK
        self._lock = FileLock(self._path, thread_local=False)

    def acquire(self) -> None:
        """Take the directory.

        Raises:
            Unusable: another process has it, or another run of this one.
            OSError: the directory cannot be written.
        """
        holder = self._take() if jax.process_index() == 0 else 0
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
            with suppress(OSError):
                # before the release: another process may take the lock at once, and its
                # file must stay
                self._path.unlink()
            self._lock.release()

    def __enter__(self) -> "DirectoryLock":
        self.acquire()
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def _take(self) -> int:
        """0, or the id of the process that has the directory."""
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

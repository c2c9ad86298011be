"""Client states of a population larger than memory: one file, from which only the rows
of a cohort are read.
"""

import os
import tempfile
import weakref
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from fedtailor.protocol import ClientState, require

AT_ONCE = 2**28
"""The most bytes of states that are in memory at a time when all clients are evaluated.
"""

SLOTS = 3
"""Slots of a client in the file: two that checkpoints may hold, and one to write to."""

FIRST = -1
"""Stands for a slot while a client still has the initial state, which is not in the
file.
"""


def states_path(directory: Path, phase: int) -> Path:
    """Where a run directory keeps the states of a phase of the schedule."""
    return directory / f"states-{phase}.bin"


def remove_others(directory: Path, phases: set[int]) -> None:
    """Remove the states of all phases but these."""
    needed = {states_path(directory, phase) for phase in phases}
    for path in directory.glob("states-*.bin"):
        if path not in needed:
            path.unlink()


class FileStates:
    """`States` in a file.

    The file has three slots for every client. A slot that one of the last two
    checkpoints refers to is never overwritten: the first write after a checkpoint goes
    to the client's free slot, and later writes replace that one. So a checkpoint stores
    only the number of each client's current slot and its checksum, and whenever the
    process dies the last two checkpoints can be resumed.

    Plain reads and writes at offsets, no memory map: with one a full disk kills the
    process.
    """

    def __init__(
        self,
        state: ClientState,
        clients: int,
        path: Path | None,
        directory: Path | str | None = None,
    ) -> None:
        """All clients start from one state.

        Args:
            state: one client's pytree of arrays.
            clients: how many, m.
            path: the file, which the first write creates; None = a file without a name,
                which ends with the process.
            directory: where a file without a name is; None = where temporary files go.
        """
        leaves, self._tree = jax.tree.flatten(state)
        self._path = path
        self._directory = directory
        self._file: int | None = None
        self._begin([np.asarray(leaf) for leaf in leaves], clients)

    def _begin(self, first: list[NDArray], clients: int) -> None:
        """No client has a slot yet: all have the state whose leaves are `first`."""
        # one record holds all leaves of a client's state
        self._type = np.dtype(
            [(str(number), leaf.dtype, leaf.shape) for number, leaf in enumerate(first)]
        )
        self._first = np.zeros((), self._type)
        for name, leaf in zip(self._type.names or (), first, strict=True):
            self._first[name] = leaf
        self._slot = np.full(clients, FIRST, np.int8)
        self._saved = self._saved_before = self._slot.copy()
        self._checksum = np.zeros(clients, np.uint32)

    @property
    def at_once(self) -> int:
        """Clients whose states fill `AT_ONCE` bytes."""
        return max(AT_ONCE // self._type.itemsize, 1)

    @property
    def rows(self) -> ClientState:
        return self.read(np.arange(len(self._slot)), len(self._slot))

    @rows.setter
    def rows(self, rows: ClientState) -> None:
        self.write(np.arange(len(self._slot)), rows)

    def read(self, index: NDArray[np.int64], padded: int) -> ClientState:
        """Rows `index` [c], and copies of the first state up to `padded` rows.

        Raises:
            ValueError: the file cannot be read, or it does not hold what was written.
        """
        # Clients without a slot have the first state, which is not in the file.
        records = np.full(padded, self._first)
        rows = _bytes(records)
        with self._as_value_error():
            for row in np.flatnonzero(self._slot[index] != FIRST):
                client = int(index[row])
                offset = self._offset(client, int(self._slot[client]))
                count = os.preadv(self._descriptor(), [rows[row]], offset)
                # Fewer bytes, or others: a disk or another process damaged the file.
                require(
                    count == self._type.itemsize
                    and zlib.crc32(rows[row]) == self._checksum[client],
                    f"the states of clients in {self._where()} are damaged; start the"
                    " run again",
                )
        leaves = [records[name] for name in self._type.names or ()]
        return jax.tree.unflatten(self._tree, leaves)

    def write(self, index: NDArray[np.int64], rows: ClientState) -> None:
        """Store the first len(index) of `rows` at `index`.

        Raises:
            ValueError: the file cannot be made or the disk is full; resume from the
                last checkpoint.
        """
        records = np.empty(len(index), self._type)
        for name, leaf in zip(
            self._type.names or (), jax.tree.leaves(rows), strict=True
        ):
            records[name] = np.asarray(leaf)[: len(index)]
        with self._as_value_error():
            for client, record in zip(index.tolist(), _bytes(records), strict=True):
                # Of three slots at least one is in neither of the last two checkpoints.
                in_checkpoints = self._saved[client], self._saved_before[client]
                free = next(slot for slot in range(SLOTS) if slot not in in_checkpoints)
                _write(self._descriptor(), record.data, self._offset(client, free))
                self._slot[client] = free
                self._checksum[client] = zlib.crc32(record)

    def snapshot(self) -> Any:
        """The current slots, after all states have been flushed to the disk; for a file
        without a name, all states.
        """
        if self._path is None:
            return jax.tree.leaves(self.rows)
        with self._as_value_error():
            os.fsync(self._descriptor())
        first = [np.asarray(self._first[name]) for name in self._type.names or ()]
        # "place" is the name in checkpoints of fedtailor 0.1
        return {
            "first": first,
            "place": self._slot.copy(),
            "checksum": self._checksum.copy(),
        }

    def snapshot_saved(self) -> None:
        """Called when the last snapshot is in a checkpoint on the disk. Its slots are
        not overwritten until there are two newer checkpoints.
        """
        self._saved_before = self._saved
        self._saved = self._slot.copy()

    def restore(self, saved: Any) -> None:
        if isinstance(saved, list):
            self.rows = jax.tree.unflatten(self._tree, saved)
            return
        self._begin(saved["first"], len(saved["place"]))
        self._slot = saved["place"].copy()
        self._checksum = saved["checksum"].copy()
        self._saved = self._saved_before = self._slot.copy()
        # Without O_CREAT: where the file is missing, there is nothing to continue from.
        with self._as_value_error():
            self._keep(os.open(self._path or "", os.O_RDWR))

    def _offset(self, client: int, slot: int) -> int:
        """Bytes before a record: the file holds the first slots of all clients, then
        the second ones, and the third.
        """
        return (slot * len(self._slot) + client) * self._type.itemsize

    def _descriptor(self) -> int:
        """The file's descriptor; the first call makes the file, or empties an old one
        of its name.
        """
        if self._file is not None:
            return self._file
        if self._path is None:
            with tempfile.TemporaryFile(dir=self._directory) as file:
                return self._keep(os.dup(file.fileno()))
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC
        return self._keep(os.open(self._path, flags, 0o666))

    def _keep(self, descriptor: int) -> int:
        """Close a descriptor when this object goes."""
        self._file = descriptor
        weakref.finalize(self, os.close, descriptor)
        return descriptor

    def _where(self) -> str:
        """The file or its directory, for messages."""
        return str(self._path or self._directory or tempfile.gettempdir())

    @contextmanager
    def _as_value_error(self) -> Iterator[None]:
        """Failures of the disk, as a `ValueError`."""
        try:
            yield
        except OSError as error:
            raise ValueError(
                f"cannot keep the states of {len(self._slot)} clients in"
                f" {self._where()}: {error.strerror}; make room, or name another"
                " directory (Settings.state_dir)"
            ) from None


def _bytes(records: NDArray) -> NDArray[np.uint8]:
    return records.view(np.uint8).reshape(len(records), records.itemsize)


def _write(file: int, data: memoryview, offset: int) -> None:
    """All of `data`: one call may write less (a disk that fills up)."""
    done = 0
    while done < len(data):
        done += os.pwrite(file, data[done:], offset + done)

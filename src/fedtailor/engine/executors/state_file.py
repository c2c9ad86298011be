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
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.engine.executors.states import clients_of_part
from fedtailor.protocol import ClientState

MAX_BYTES = 2**28
"""The most bytes of states that are in memory at the same time when all clients are
evaluated.
"""

SLOTS = 4
"""Slots of a client in the file: two that checkpoints may refer to, its present one, and one
to write to.
"""

INITIAL = -1
"""The slot of a client that still has the initial state, which is not in the file."""


def states_path(directory: Path, phase: int) -> Path:
    """Where a run directory keeps the states of a phase of the schedule."""
    return directory / f"states-{phase}.bin"


def remove_unused_states(directory: Path, phases: set[int]) -> None:
    """Remove the states of all phases that are not in `phases`."""
    needed = {states_path(directory, phase) for phase in phases}
    for path in directory.glob("states-*.bin"):
        if path not in needed:
            path.unlink()


class _Staged(NamedTuple):
    """States that are in the file, and not yet those of their clients.

    Attributes:
        slot: [c] the slot of each.
        checksum: [c] of each.
    """

    slot: NDArray[np.int8]
    checksum: NDArray[np.uint32]


class FileStates:
    """`States` in a file.

    The file has four slots for every client. A slot that one of the last two
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
            clients: the number of clients, m.
            path: the file, which the first write creates; None = a file without a name,
                which ends with the process.
            directory: the directory of a file without a name; None = the directory of
                temporary files.
        """
        leaves, self._tree = jax.tree.flatten(state)
        self._path = path
        self._directory = directory
        self._file: int | None = None
        self._begin([np.asarray(leaf) for leaf in leaves], clients)

    def _begin(self, initial_leaves: list[NDArray], clients: int) -> None:
        """Give all clients the initial state, and no client a slot."""
        # One record holds all leaves of a client's state.
        self._type = np.dtype(
            [
                (str(number), leaf.dtype, leaf.shape)
                for number, leaf in enumerate(initial_leaves)
            ]
        )
        self._initial = np.zeros((), self._type)
        for name, leaf in zip(self._type.names or (), initial_leaves, strict=True):
            self._initial[name] = leaf
        self._slot = np.full(clients, INITIAL, np.int8)
        self._saved = self._saved_before = self._slot.copy()
        self._checksum = np.zeros(clients, np.uint32)

    @property
    def max_clients(self) -> int:
        """The number of clients whose states fill `MAX_BYTES` bytes."""
        return max(MAX_BYTES // self._type.itemsize, 1)

    @property
    def part_clients(self) -> int:
        return clients_of_part(self._type.itemsize)

    @property
    def rows(self) -> ClientState:
        return self.read(np.arange(len(self._slot)), len(self._slot))

    def read(self, index: NDArray[np.int64], row_count: int) -> ClientState:
        """The states of the clients `index` [c], and copies of the initial state up to
        `row_count` rows.

        Raises:
            ValueError: the file cannot be read, or it does not hold what was written.
        """
        # Clients without a slot have the initial state, which is not in the file.
        records = np.full(row_count, self._initial)
        rows = _bytes(records)
        with self._as_value_error():
            for row in np.flatnonzero(self._slot[index] != INITIAL):
                client = int(index[row])
                offset = self._offset(client, int(self._slot[client]))
                count = os.preadv(self._descriptor(), [rows[row]], offset)
                # Missing or different bytes: a disk or another process damaged the file.
                require(
                    count == self._type.itemsize
                    and zlib.crc32(rows[row]) == self._checksum[client],
                    f"the states of clients in {self._location()} are damaged; start the"
                    " run again",
                )
        leaves = [records[name] for name in self._type.names or ()]
        return jax.tree.unflatten(self._tree, leaves)

    def stage(self, index: NDArray[np.int64], rows: ClientState) -> Any:
        """Write the first len(index) of `rows` to free slots of the clients `index`."""
        return self._put(index, rows, replaces=False)

    def _put(
        self, index: NDArray[np.int64], rows: ClientState, replaces: bool
    ) -> _Staged:
        """Write states to slots that no checkpoint refers to.

        Args:
            index: [c] the clients.
            rows: their states.
            replaces: whether they may take the place of the present ones.

        Raises:
            ValueError: the file cannot be made or the disk is full; resume from the
                last checkpoint.
        """
        records = np.empty(len(index), self._type)
        for name, leaf in zip(
            self._type.names or (), jax.tree.leaves(rows), strict=True
        ):
            records[name] = np.asarray(leaf)[: len(index)]
        staged = _Staged(np.empty(len(index), np.int8), np.empty(len(index), np.uint32))
        with self._as_value_error():
            for row, (client, record) in enumerate(
                zip(index.tolist(), _bytes(records), strict=True)
            ):
                # Of four slots at least one is neither the present one nor in one of the
                # last two checkpoints.
                taken = [self._saved[client], self._saved_before[client]]
                if not replaces:
                    taken.append(self._slot[client])
                free = next(slot for slot in range(SLOTS) if slot not in taken)
                _write(self._descriptor(), record.data, self._offset(client, free))
                staged.slot[row] = free
                staged.checksum[row] = zlib.crc32(record)
        return staged

    def write(self, index: NDArray[np.int64], rows: Any) -> None:
        """Store the first len(index) of `rows` at `index`, or what was staged for them.

        Raises:
            ValueError: as `_put`.
        """
        is_staged = isinstance(rows, _Staged)
        staged = rows if is_staged else self._put(index, rows, replaces=True)
        self._slot[index] = staged.slot
        self._checksum[index] = staged.checksum

    def snapshot(self) -> Any:
        """Flush all states to the disk.

        Returns:
            The current slots; or all states, if the file has no name.
        """
        if self._path is None:
            return jax.tree.leaves(self.rows)
        with self._as_value_error():
            os.fsync(self._descriptor())
        initial = [np.asarray(self._initial[name]) for name in self._type.names or ()]
        return {
            "first": initial,
            "place": self._slot.copy(),
            "checksum": self._checksum.copy(),
        }

    def snapshot_saved(self) -> None:
        """Keep the slots of the last snapshot until there are two newer checkpoints.
        Called when the snapshot is in a checkpoint on the disk.
        """
        self._saved_before = self._saved
        self._saved = self._slot.copy()

    def restore(self, saved: Any) -> None:
        if isinstance(saved, list):
            self.write(np.arange(len(self._slot)), saved)
            return
        self._begin(saved["first"], len(saved["place"]))
        self._slot = saved["place"].copy()
        self._checksum = saved["checksum"].copy()
        self._saved = self._saved_before = self._slot.copy()
        # Without O_CREAT: if the file is missing, there is nothing to continue from.
        with self._as_value_error():
            self._use(os.open(self._path or "", os.O_RDWR))

    def _offset(self, client: int, slot: int) -> int:
        """The position of a record in bytes: the file holds the first slots of all
        clients, then the second slots, then the third ones.
        """
        return (slot * len(self._slot) + client) * self._type.itemsize

    def _descriptor(self) -> int:
        """The file's descriptor. The first call creates the file, or empties an old one
        of the same name.
        """
        if self._file is not None:
            return self._file
        if self._path is None:
            with tempfile.TemporaryFile(dir=self._directory) as file:
                return self._use(os.dup(file.fileno()))
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC
        return self._use(os.open(self._path, flags, 0o666))

    def _use(self, descriptor: int) -> int:
        """Use a descriptor for the file, and close it when this object is deleted."""
        self._file = descriptor
        weakref.finalize(self, os.close, descriptor)
        return descriptor

    def _location(self) -> str:
        """The file or its directory, for error messages."""
        return str(self._path or self._directory or tempfile.gettempdir())

    @contextmanager
    def _as_value_error(self) -> Iterator[None]:
        """Turn failures of the disk into a `ValueError`."""
        try:
            yield
        except OSError as error:
            raise ValueError(
                f"cannot keep the states of {len(self._slot)} clients in"
                f" {self._location()}: {error.strerror}; make room, or name another"
                " directory (Settings.state_dir)"
            ) from None


def _bytes(records: NDArray) -> NDArray[np.uint8]:
    return records.view(np.uint8).reshape(len(records), records.itemsize)


def _write(file: int, data: memoryview, offset: int) -> None:
    """Write all of `data`: one call of `pwrite` may write less if the disk fills up."""
    done = 0
    while done < len(data):
        done += os.pwrite(file, data[done:], offset + done)

"""Client states: what never leaves the clients, kept for the whole population."""

import sys
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedtailor.protocol import ClientState

PART_BYTES = 2**25
"""The most bytes of states in memory that are copied for clients of a round at the same
time.
"""


def clients_of_part(size: int) -> int:
    """How many clients with states of `size` bytes start at the same time. It is the same
    wherever states are kept, so that results are.
    """
    return max(PART_BYTES // max(size, 1), 1)


class States(Protocol):
    """The states of m clients. An exchange never touches the rows of clients that take
    no part in it.

    Attributes:
        rows: all states, stacked: every leaf is [m, ...]. Use them before the next
            `write`, which deletes the arrays of `DeviceStates`.
    """

    rows: ClientState

    @property
    def max_clients(self) -> int:
        """The most clients whose states may be in memory at the same time."""
        ...

    @property
    def part_clients(self) -> int:
        """How many clients of a round should start at the same time, so that copies of
        states take little memory compared with the states.
        """
        ...

    def read(self, index: NDArray[np.int64], row_count: int) -> ClientState:
        """The states of some clients.

        Args:
            index: [c] the clients.
            row_count: the number of rows to return, c or more; the content of rows past
                c does not matter.

        Returns:
            A tree whose leaves are [row_count, ...].
        """
        ...

    def stage(self, index: NDArray[np.int64], rows: ClientState) -> Any:
        """Put the first len(index) of `rows` where `write` finds them if they become the
        states at `index`.

        Returns:
            What `write` is to be given instead of `rows`.
        """
        ...

    def write(self, index: NDArray[np.int64], rows: Any) -> None:
        """Store the first len(index) of `rows` at `index`, or what `stage` returned for
        them.
        """
        ...

    def snapshot(self) -> Any:
        """What `restore` takes back, for a checkpoint."""
        ...

    def snapshot_saved(self) -> None:
        """Called when the last snapshot is in a checkpoint on the disk."""
        ...

    def restore(self, saved: Any) -> None:
        """Go back to the states of a snapshot."""
        ...


class _InMemory:
    """Base of states in memory: any number can be read, and snapshots are copies."""

    max_clients = sys.maxsize
    part_clients = sys.maxsize

    def stage(self, index: NDArray[np.int64], rows: ClientState) -> Any:
        """Nothing to do: the rows are in memory."""
        return rows

    def snapshot_saved(self) -> None:
        """Do nothing: the snapshot was a copy."""


class HostStates(_InMemory):
    """`States` in the host's memory: on CPUs the only copy, whatever the number of
    devices.

    What a program has computed for all clients is kept as it is, in the order of its rows:
    the next program with these rows takes it without a copy.
    """

    def __init__(self, state: ClientState, clients: int) -> None:
        """Initialize all clients with `state`, one client's pytree of arrays."""
        leaves, self._tree = jax.tree.flatten(state)
        self._clients = clients
        size = sum(np.asarray(leaf).nbytes for leaf in leaves)
        self.part_clients = clients_of_part(size)
        self._leaves = [
            np.repeat(np.asarray(leaf)[None], clients, axis=0) for leaf in leaves
        ]
        # The clients of a program's rows, and the rows. If there are any, `_leaves` is
        # empty.
        self._computed: tuple[NDArray[np.int64], list[Any]] | None = None

    @property
    def rows(self) -> ClientState:
        return jax.tree.unflatten(self._tree, self.snapshot())

    def _in_order(self) -> list[NDArray[Any]]:
        """The leaves in the order of the clients."""
        if self._computed is not None:
            index, computed = self._computed
            self._computed = None
            # One leaf after another, so that only one of them is there twice.
            while computed:
                new = np.asarray(computed.pop(0))
                leaf = np.empty((self._clients, *new.shape[1:]), new.dtype)
                leaf[index] = new[: len(index)]
                self._leaves.append(leaf)
        return self._leaves

    def read(self, index: NDArray[np.int64], row_count: int) -> ClientState:
        if self._computed is not None:
            clients, computed = self._computed
            is_same = np.array_equal(index, clients)
            if is_same and all(len(leaf) == row_count for leaf in computed):
                return jax.tree.unflatten(self._tree, computed)
        index = _pad(index, row_count)
        leaves = [leaf[index] for leaf in self._in_order()]
        return jax.tree.unflatten(self._tree, leaves)

    def write(self, index: NDArray[np.int64], rows: ClientState) -> None:
        new_leaves = jax.tree.leaves(rows)
        is_computed = all(isinstance(leaf, jax.Array) for leaf in new_leaves)
        if is_computed and len(index) == self._clients:
            self._leaves, self._computed = [], (index, new_leaves)
            return
        for leaf, new in zip(self._in_order(), new_leaves, strict=True):
            for first, block in _blocks(new):
                rows = index[first : first + len(block)]
                leaf[rows] = block[: len(rows)]

    def snapshot(self) -> Any:
        # A list of leaves, as checkpoints hold them.
        return [leaf.copy() for leaf in self._in_order()]

    def restore(self, saved: Any) -> None:
        self._computed = None
        self._leaves = [np.array(leaf) for leaf in saved]


class DeviceStates(_InMemory):
    """`States` on accelerators, so that they are not moved between host and device."""

    def __init__(self, state: ClientState, clients: int) -> None:
        """Initialize all clients with `state`, one client's pytree of arrays."""
        self.rows = jax.tree.map(
            lambda leaf: jnp.repeat(leaf[None], clients, axis=0), state
        )

    def read(self, index: NDArray[np.int64], row_count: int) -> ClientState:
        # Most methods keep no state. For these nothing is compiled.
        if not jax.tree.leaves(self.rows):
            return self.rows
        return _take(self.rows, _pad(index, row_count))

    def write(self, index: NDArray[np.int64], rows: ClientState) -> None:
        # `_put` donates the old rows: they are updated in place, not copied.
        new = jax.tree.map(lambda leaf: leaf[: len(index)], rows)
        self.rows = _put(self.rows, index, new)

    def snapshot(self) -> Any:
        return [np.asarray(leaf) for leaf in jax.tree.leaves(self.rows)]

    def restore(self, saved: Any) -> None:
        self.rows = jax.tree.unflatten(
            jax.tree.structure(self.rows), [jnp.asarray(leaf) for leaf in saved]
        )


def _blocks(leaf: Any) -> list[tuple[int, NDArray[Any]]]:
    """The rows of an array that each device has, and the first of them. On CPUs they are not
    copied, as they would be to make one array.
    """
    if not isinstance(leaf, jax.Array):
        return [(0, np.asarray(leaf))]
    return [
        (shard.index[0].start or 0, np.asarray(shard.data))
        for shard in leaf.addressable_shards
    ]


def _pad(index: NDArray[np.int64], row_count: int) -> NDArray[np.int64]:
    """Append the index of client 0 until there are `row_count` indices."""
    return np.concatenate([index, np.zeros(row_count - len(index), np.int64)])


@jax.jit
def _take(rows: ClientState, index: NDArray[np.int64]) -> ClientState:
    return jax.tree.map(lambda leaf: leaf[index], rows)


@partial(jax.jit, donate_argnums=0)
def _put(rows: ClientState, index: NDArray[np.int64], new: ClientState) -> ClientState:
    return jax.tree.map(
        lambda leaf, row: leaf.at[index].set(row, unique_indices=True), rows, new
    )

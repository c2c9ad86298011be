"""Client states: what never leaves the clients, kept for the whole population."""

import sys
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedtailor.protocol import ClientState


class States(Protocol):
    """The states of m clients. Rows of clients that take no part in an exchange are
    never touched.

    Attributes:
        rows: all states, stacked: every leaf is [m, ...]. A copy (`HostStates`), or
            deleted by the next `write` (`DeviceStates`).
    """

    rows: ClientState

    @property
    def at_once(self) -> int:
        """How many clients' states may be in memory at a time."""
        ...

    def read(self, index: NDArray[np.int64], padded: int) -> ClientState:
        """The states of some clients.

        Args:
            index: [c] the clients.
            padded: how many rows to return, c or more; what is in those past c does not
                matter.

        Returns:
            A tree whose leaves are [padded, ...].
        """
        ...

    def write(self, index: NDArray[np.int64], rows: ClientState) -> None:
        """Store the first len(index) of `rows` at `index`."""
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
    """Base of states in memory: all can be read at once, and snapshots are copies."""

    at_once = sys.maxsize

    def snapshot_saved(self) -> None:
        """Do nothing: the snapshot was a copy."""


class HostStates(_InMemory):
    """`States` in the host's memory: on CPUs the only copy, whatever the number of
    devices.
    """

    def __init__(self, state: ClientState, clients: int) -> None:
        """All m clients start from `state` (one client's pytree of arrays)."""
        leaves, self._tree = jax.tree.flatten(state)
        self._leaves = [
            np.repeat(np.asarray(leaf)[None], clients, axis=0) for leaf in leaves
        ]

    @property
    def rows(self) -> ClientState:
        return jax.tree.unflatten(self._tree, self.snapshot())

    @rows.setter
    def rows(self, rows: ClientState) -> None:
        self.restore(jax.tree.leaves(rows))

    def read(self, index: NDArray[np.int64], padded: int) -> ClientState:
        index = _padded(index, padded)
        return jax.tree.unflatten(self._tree, [leaf[index] for leaf in self._leaves])

    def write(self, index: NDArray[np.int64], rows: ClientState) -> None:
        for leaf, new in zip(self._leaves, jax.tree.leaves(rows), strict=True):
            leaf[index] = np.asarray(new)[: len(index)]

    def snapshot(self) -> Any:
        # A list of leaves, as checkpoints hold them.
        return [leaf.copy() for leaf in self._leaves]

    def restore(self, saved: Any) -> None:
        self._leaves = [np.array(leaf) for leaf in saved]


class DeviceStates(_InMemory):
    """`States` on accelerators, so that they are not moved between host and device."""

    def __init__(self, state: ClientState, clients: int) -> None:
        """All m clients start from `state` (one client's pytree of arrays)."""
        self.rows = jax.tree.map(
            lambda leaf: jnp.repeat(leaf[None], clients, axis=0), state
        )

    def read(self, index: NDArray[np.int64], padded: int) -> ClientState:
        # Most methods keep no state: nothing to compile then.
        if not jax.tree.leaves(self.rows):
            return self.rows
        return _take(self.rows, _padded(index, padded))

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


def _padded(index: NDArray[np.int64], padded: int) -> NDArray[np.int64]:
    """Indices [padded], with those of the first client behind the given ones."""
    return np.concatenate([index, np.zeros(padded - len(index), np.int64)])


@jax.jit
def _take(rows: ClientState, index: NDArray[np.int64]) -> ClientState:
    return jax.tree.map(lambda leaf: leaf[index], rows)


@partial(jax.jit, donate_argnums=0)
def _put(rows: ClientState, index: NDArray[np.int64], new: ClientState) -> ClientState:
    return jax.tree.map(
        lambda leaf, row: leaf.at[index].set(row, unique_indices=True), rows, new
    )

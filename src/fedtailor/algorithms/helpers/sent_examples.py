"""Examples that the server sends to clients, to each a number of its own, and the
batches that clients make of them.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from numpy.typing import NDArray

from fedtailor.protocol import (
    Batch,
    Inbox,
    IntScalar,
    LocalTrainer,
    Streams,
    next_power_of_two,
)


def example_streams(
    samples: Sequence[tuple[NDArray[Any], NDArray[Any]]], counts: NDArray[np.int64]
) -> dict[str, Streams]:
    """What carries samples to their clients: the messages "inputs" and "labels".

    Args:
        samples: the examples x [n_i, ...], y [n_i, ...] of each of c clients.
        counts: n_i [c].

    Returns:
        kind -> streams, one for each example, of which every client receives its own.
    """
    x, y = (_padded(np.concatenate(parts)) for parts in zip(*samples, strict=True))
    # the samples of all clients lie one below the other; each client receives its own
    # stretch of them
    first = np.cumsum(counts) - counts
    offset = np.arange(next_power_of_two(counts.max()))
    inside = offset < counts[:, None]
    own = np.where(inside, first[:, None] + offset, -1).astype(np.int32)
    return {
        "inputs": Streams(jnp.asarray(x), own),
        "labels": Streams(jnp.asarray(y), own),
    }


def batch_positions(
    count: IntScalar, step: Int[Array, ""], size: int, dtype: Any
) -> tuple[Int[Array, " size"], Float[Array, " size"]]:
    """Which of so many examples a step's batch holds: batch after batch, over and over.

    Returns:
        Positions, which may reach past the end in the last batch, and weights: 1 for an
        example, 0 past the end.
    """
    batches = jnp.maximum((count + size - 1) // size, 1)
    positions = step % batches * size + jnp.arange(size, dtype=jnp.int32)
    return positions, (positions < count).astype(dtype)


def received_batch(
    inbox: Inbox, local: LocalTrainer, step: Int[Array, ""], size: int, dtype: Any
) -> Batch:
    """The batch of a step, of the examples that a client was sent."""
    positions, weight = batch_positions(
        inbox.received["labels"].sum(), step, size, dtype
    )
    rows = jnp.minimum(positions, len(inbox["labels"]) - 1)
    return Batch(local.inputs(inbox["inputs"][rows]), inbox["labels"][rows], weight)


def _padded(rows: NDArray[Any]) -> NDArray[Any]:
    """Rows up to a power of two, so that not every number of examples compiles anew."""
    missing = next_power_of_two(len(rows)) - len(rows)
    return np.concatenate([rows, np.zeros((missing, *rows.shape[1:]), rows.dtype)])

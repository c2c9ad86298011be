"""Examples that the server sends to clients, and the batches made of them."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from numpy.typing import NDArray

from fedtailor.protocol import (
    NOT_SENT,
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
    """The messages "inputs" and "labels", which carry examples to their clients.

    Args:
        samples: the examples x [n_i, ...], y [n_i, ...] of each of c clients.
        counts: n_i [c].

    Returns:
        kind -> one stream for each example; each client receives its own examples.
    """
    x = _padded(np.concatenate([inputs for inputs, _ in samples]))
    y = _padded(np.concatenate([labels for _, labels in samples]))
    # The examples of all clients are stacked. Client i receives rows first_i to
    # first_i + n_i - 1, and nothing in the remaining positions.
    first = np.cumsum(counts) - counts
    offset = np.arange(next_power_of_two(counts.max()))
    is_own = offset < counts[:, None]
    rows = np.where(is_own, first[:, None] + offset, NOT_SENT).astype(np.int32)
    return {
        "inputs": Streams(jnp.asarray(x), rows),
        "labels": Streams(jnp.asarray(y), rows),
    }


def batch_positions(
    count: IntScalar, step: Int[Array, ""], size: int, dtype: Any
) -> tuple[Int[Array, " size"], Float[Array, " size"]]:
    """The positions of the examples in the batch of a step, for consecutive batches.

    Args:
        count: the number of examples.
        step: the number of the step; after the last batch the first one follows.
        size: the number of examples in a batch.
        dtype: of the weights.

    Returns:
        Positions, some of which may be past the end in the last batch, and weights: 1
        for an example, 0 past the end.
    """
    batches = jnp.maximum((count + size - 1) // size, 1)
    first = step % batches * size
    positions = first + jnp.arange(size, dtype=jnp.int32)
    return positions, (positions < count).astype(dtype)


def received_batch(
    inbox: Inbox, local: LocalTrainer, step: Int[Array, ""], size: int, dtype: Any
) -> Batch:
    """The batch of a step, made of the examples that a client received."""
    count = inbox.received["labels"].sum()
    positions, weight = batch_positions(count, step, size, dtype)
    rows = jnp.minimum(positions, len(inbox["labels"]) - 1)
    return Batch(local.inputs(inbox["inputs"][rows]), inbox["labels"][rows], weight)


def _padded(rows: NDArray[Any]) -> NDArray[Any]:
    """The rows, padded with zeros to a power of two: few shapes, few compilations."""
    missing = next_power_of_two(len(rows)) - len(rows)
    zeros = np.zeros((missing, *rows.shape[1:]), rows.dtype)
    return np.concatenate([rows, zeros])

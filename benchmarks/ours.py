"""What several benchmarks time of fedtailor: rounds that wait for their result, and
clients with images as bytes.
"""

from collections.abc import Callable

import jax
import numpy as np
from cells import CLASSES, DIGIT

from fedtailor.data.federation import Federation, Ragged
from fedtailor.engine.training import Training


def rounds_of(training: Training) -> Callable[[], object]:
    """A call that trains one more round and waits for the server's new state."""

    def call() -> object:
        training.advance()
        return jax.block_until_ready(training.server)

    return call


def bytes_of(clients: int, samples: int) -> Federation:
    """Random images and labels, so many for each client."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (clients * samples, *DIGIT), np.uint8)
    train = Ragged.cut(np.arange(len(x)), np.full(clients, samples))
    names = tuple(f"client {index}" for index in range(clients))
    empty = Ragged.empty(clients)
    return Federation(
        x,
        rng.integers(0, CLASSES, len(x)),
        train,
        empty,
        empty,
        names,
        classes=CLASSES,
        scale=1 / 255,
    )

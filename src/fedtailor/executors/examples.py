"""The seen clients' data on the server of a simulation."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtailor.federation import Federation
from fedtailor.protocol import Examples


def examples_of(federation: Federation, seen: NDArray[np.integer[Any]]) -> Examples:
    """Draws from the training data of the clients at places `seen` (in the order of the population)."""
    train = federation.train

    def draw(
        rng: np.random.Generator, count: int, clients: NDArray[np.integer[Any]] | None = None
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        places = seen if clients is None else seen[clients]
        ends = np.cumsum(train.sizes[places])
        number = rng.integers(ends[-1], size=count)  # of an example of the union, one client after another
        owner = np.searchsorted(ends, number, side="right")
        rows = train.rows[train.offsets[places[owner] + 1] - (ends[owner] - number)]
        return federation.x[rows], federation.y[rows]

    return draw

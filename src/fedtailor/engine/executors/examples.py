"""The seen clients' data on the server of a simulation."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.federation import Federation
from fedtailor.protocol import Examples


def examples_of(federation: Federation, seen: NDArray[np.integer[Any]]) -> Examples:
    """Draws from the seen clients' training data.

    Args:
        federation: who holds which examples.
        seen: the seen clients' positions in it, in the order of the population.

    Returns:
        A function that draws from the union of the clients' training data.
    """
    train = federation.train

    def draw(
        rng: np.random.Generator,
        count: int,
        clients: NDArray[np.integer[Any]] | None = None,
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        sources = seen if clients is None else seen[clients]
        # The examples of the union are numbered one client after another: the numbers of
        # the i-th client's examples are below ends[i].
        ends = np.cumsum(train.sizes[sources])
        number = rng.integers(ends[-1], size=count)
        owner = np.searchsorted(ends, number, side="right")
        # An example has the same distance from its client's end in `train.rows`.
        before_end = ends[owner] - number
        rows = train.rows[train.offsets[sources[owner] + 1] - before_end]
        return federation.x[rows], federation.y[rows]

    return draw

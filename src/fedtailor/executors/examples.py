"""The seen clients' data on the server of a simulation."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtailor.federation import Federation
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
        chosen = seen if clients is None else seen[clients]
        # The examples of the union are numbered one client after another: those of the
        # i-th chosen client end before number ends[i].
        ends = np.cumsum(train.sizes[chosen])
        number = rng.integers(ends[-1], size=count)
        owner = np.searchsorted(ends, number, side="right")
        # Counted from a client's last example backwards, in both numberings.
        before_end = ends[owner] - number
        rows = train.rows[train.offsets[chosen[owner] + 1] - before_end]
        return federation.x[rows], federation.y[rows]

    return draw

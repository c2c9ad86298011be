"""The server's step of FedAvg: from models towards the averages of what clients made of
them.
"""

from typing import TypeVar

import numpy as np
from jaxtyping import Array, Float

from fedtailor.aggregation import ServerOptimizer, mix
from fedtailor.aggregation.server_optimizer import State
from fedtailor.protocol import ClientRows, ServerState, server_state


@server_state
class AveragedModels(ServerState):
    """Models that a server optimiser moves towards averages of clients' models."""

    model: Float[Array, "s d"]
    """The models, one for each stream."""
    optimizer: State
    """The optimiser's memory, one row for each stream."""


Averaged = TypeVar("Averaged", bound=AveragedModels)


def average_step(
    server: Averaged,
    optimizer: ServerOptimizer,
    models: ClientRows,
    weights: Float[np.ndarray, "s c"],
) -> Averaged:
    """One step of every model towards a weighted average of clients' models.

        theta_s <- theta_s - opt( theta_s - sum_i W_si x_i )

    Args:
        models: x, what the clients sent [c, d].
        weights: W, whose rows sum to 1. Streams with a row of zeros keep model and
            optimiser, bit for bit.

    Returns:
        The state with another `model` and `optimizer`.
    """
    # The optimiser is given theta - average for a gradient; only rows that anybody's
    # models entered take a step, so that momentum does not move a cluster that is
    # empty.
    average = mix(server.model, models, weights)
    moved = np.any(weights, axis=1)
    memory, model = optimizer.apply(server.optimizer, server.model, average, moved)
    return server.replace(model=model, optimizer=memory)

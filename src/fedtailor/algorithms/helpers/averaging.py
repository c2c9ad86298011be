"""FedAvg's server step, for one model or for several."""

from typing import TypeVar

import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from fedtailor.aggregation import ServerOptimizer, mix
from fedtailor.aggregation.server_optimizer import State
from fedtailor.protocol import ClientRows, ServerState, server_state


@server_state
class AveragedModels(ServerState):
    """Models that a server optimiser moves towards averages of clients' models."""

    model: Float[Array, "s d"]
    """The models, one for each stream."""
    optimizer: State
    """The optimiser's state, one row for each stream."""


Averaged = TypeVar("Averaged", bound=AveragedModels)


def average_step(
    server: Averaged,
    optimizer: ServerOptimizer,
    models: ClientRows,
    weights: Float[np.ndarray, "s c"],
    is_statistic: NDArray[np.bool_] | None,
) -> Averaged:
    """One step of every stream's model towards a weighted average of clients' models.

        theta_s <- theta_s - opt( theta_s - sum_i W_si x_i )

    Args:
        server: the models theta [s, d] and the optimiser's state.
        optimizer: opt.
        models: x, the models that the clients sent [c, d].
        weights: W, whose rows sum to 1 or are zero. A stream with a row of zeros keeps
            its model and its optimiser state.
        is_statistic: `Cohort.is_statistic`, for the entries of these models.

    Returns:
        The server with a new `model` and `optimizer`.
    """
    average = mix(server.model, models, weights)
    # A stream without reporters takes no step, not even by its momentum.
    is_updated = np.any(weights, axis=1)
    state, model = optimizer.apply(
        server.optimizer, server.model, average, is_updated, is_statistic
    )
    return server.replace(model=model, optimizer=state)

"""What clients predict with after training, and serving a client that arrives later."""

import jax
import numpy as np
from numpy.typing import NDArray

from fedtailor.engine.training.training import Training
from fedtailor.protocol import Clients, Exchanges, Predictor, on_host


def personal_models(
    training: Training, table: Clients, clients: NDArray[np.int64]
) -> Exchanges[dict[str, Predictor]]:
    """Compute what clients predict with in the present state of a training.

    Args:
        training: the training; it does not change.
        table: the seen or the unseen clients of its executor, or newcomers that another
            executor answers for.
        clients: rows in that table, ascending.

    Returns:
        Client name -> what the client predicts with, on the host.
    """
    groups = yield from training.serve_clients(table, clients)
    predictors = {}
    for served in groups:
        answers = yield from training.run_personal("personal", served)
        stacked = on_host(answers.output)
        cohort = served.cohort
        for position, row in enumerate(cohort.rows):
            predictors[cohort.clients.names[row]] = jax.tree.map(
                lambda leaf, position=position: leaf[position], stacked
            )
    return predictors

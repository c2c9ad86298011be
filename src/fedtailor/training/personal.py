"""What clients predict with after training, and serving a client that arrives later."""

from collections.abc import Sequence

import jax
import numpy as np
from numpy.typing import NDArray

from fedtailor.protocol import Clients, Exchanges, Predictor, on_host
from fedtailor.training.training import Service, Training


def personal_models(
    training: Training, clients: NDArray[np.int64], *, unseen: bool
) -> Exchanges[dict[str, Predictor]]:
    """What clients predict with, by name, in the present state of a training.

    Args:
        clients: rows, ascending, in the executor's table of seen clients, or of
            `unseen` ones.

    Returns:
        The clients' names, and what each predicts with, on the host.
    """
    table = training.executor.unseen if unseen else training.executor.seen
    services = yield from training.services(table, clients)
    return (yield from _predictors(training, services))


def guest_model(training: Training, guests: Clients) -> Exchanges[dict[str, Predictor]]:
    """What clients predict with that no executor of the training knows; whoever answers
    for them drives this.
    """
    service = yield from training.service(guests, np.arange(len(guests)), seen=False)
    return (yield from _predictors(training, [service]))


def _predictors(
    training: Training, services: Sequence[Service]
) -> Exchanges[dict[str, Predictor]]:
    """What the clients of services predict with, by name."""
    predictors = {}
    for service in services:
        answers = yield from training.run_personal("personal", service)
        stacked = on_host(answers.output)
        cohort = service.cohort
        for number, row in enumerate(cohort.rows):
            predictors[cohort.clients.names[row]] = jax.tree.map(
                lambda leaf, number=number: leaf[number], stacked
            )
    return predictors

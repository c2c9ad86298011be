"""fedtailor itself, asked by the same script."""

from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from properties import ALL, Buffers, Task, Trained, clients

import fedtailor as ft
from fedtailor import models
from fedtailor.data.federation import Federation, Ragged
from fedtailor.models.layered import Layered
from fedtailor.models.layers import Dense, Stack
from fedtailor.models.normalization import BatchNorm
from fedtailor.testing.problems import personal, train

ALGORITHMS: dict[str, Callable[[ft.SGD, Task], object]] = {
    "FedAvg": lambda sgd, task: ft.FedAvg(sgd=sgd),
    "FedProx": lambda sgd, task: ft.FedProx(sgd=sgd, mu=task.coupling),
    "SCAFFOLD": lambda sgd, task: ft.SCAFFOLD(sgd=sgd),
    "FedDyn": lambda sgd, task: ft.FedDyn(sgd=sgd, alpha=task.coupling),
    "Ditto": lambda sgd, task: ft.Ditto(sgd=sgd, lam=task.coupling),
    "APFL": lambda sgd, task: ft.APFL(sgd=sgd, alpha=task.coupling, alpha_lr=0),
    "pFedMe": lambda sgd, task: ft.PFedMe(sgd=sgd, lam=task.coupling, outer_lr=0.1),
    "Per-FedAvg": lambda sgd, task: ft.PerFedAvg(sgd=sgd, alpha=task.lr, variant="fo"),
    "FedAMP": lambda sgd, task: ft.FedAMP(sgd=sgd, lam=task.coupling),
}


class Normal(Layered):
    """Batch normalisation between two dense layers."""

    def network(self, input_shape, outputs, stream):
        return Stack(
            [Dense(input_shape[0], 2, stream), BatchNorm(2), Dense(2, outputs, stream)]
        )


class Library:
    name = "fedtailor"
    precise = True
    methods = tuple(ALGORITHMS)

    def __init__(self, source: Path | None, commit: str) -> None:
        jax.config.update("jax_enable_x64", True)
        self.version = commit

    def train(self, method: str, task: Task) -> Trained:
        sgd = ft.SGD(lr=task.lr, steps=task.steps, batch_size=ALL)
        start = task.start

        def initial(key):
            return jnp.asarray(start)

        def predict(w, x):
            return (x @ w)[:, None]

        def loss(outputs, y):
            return 0.5 * jnp.square(outputs[:, 0] - y)

        model = models.from_function(initial, predict).bind(
            (len(start),), 1, loss=loss, dtype="float64"
        )
        training = train(
            ALGORITHMS[method](sgd, task), _federation(task.clients), model, task.rounds
        )
        server = training.server
        # FedAMP's server has a model for each client.
        shared = server.models.mean(0) if method == "FedAMP" else server.model
        return Trained(np.asarray(shared).ravel(), list(personal(training)))

    def buffers(self) -> Buffers:
        found, _ = clients()

        def loss(outputs, y):
            return 0.5 * jnp.square(outputs[:, 0] - y)

        model = Normal().bind((3,), 1, loss=loss, dtype="float64")
        sgd = ft.SGD(lr=0.1, steps=4, batch_size=ALL)

        def statistics(theta):
            return np.asarray(model.statistics.take(np.asarray(theta)))

        training = train(ft.FedAvg(sgd=sgd), _federation(found), model, 1)
        # A client alone ends its round with what it would have sent.
        alone = [
            train(ft.FedAvg(sgd=sgd), _federation([one]), model, 1) for one in found
        ]
        return Buffers(
            [statistics(theta) for theta in personal(training)],
            statistics(training.server.model),
            [statistics(one.server.model) for one in alone],
            [len(y) for _, y in found],
        )


def _federation(found) -> Federation:
    ends = np.cumsum([len(y) for _, y in found])
    rows = np.split(np.arange(ends[-1]), ends[:-1])
    count = len(found)
    return Federation(
        np.concatenate([x for x, _ in found]),
        np.concatenate([y for _, y in found]),
        Ragged.of(rows),
        Ragged.empty(count),
        Ragged.empty(count),
        tuple(f"client {number}" for number in range(count)),
    )

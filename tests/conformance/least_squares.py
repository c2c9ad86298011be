"""Ragged least-squares clients and a NumPy trainer for them: what methods with parts
are compared with.
"""

import numpy as np

from conformance.problems import by_place, float64, personal, train
from fedtailor import models
from fedtailor.data.federation import Federation, Ragged
from fedtailor.models import squared_error
from fedtailor.protocol import SGD

SIZES = np.array([3, 8, 13, 18])
FULL = SGD(lr=0.05, steps=2, batch_size=64)
"""Two steps on all samples of every client."""


def least_squares(sizes=SIZES, seed=0):
    """Clients with inputs [3] and targets of a linear law of their own."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(sum(sizes), 3))
    rows = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    y = np.concatenate([x[r] @ rng.normal(size=3) + 3 * rng.normal() for r in rows])
    clients = len(sizes)
    return Federation(
        x,
        y,
        Ragged.of(rows),
        Ragged.empty(clients),
        Ragged.empty(clients),
        tuple(f"client {i}" for i in range(clients)),
    )


def linear_model():
    """theta = (weight [3], bias), in the order in which the model holds them;
    `part("bias")` tells which.
    """
    return models.logistic().bind((3,), 1, loss=squared_error, dtype="float64")


class Numpy:
    """Plain gradient descent of one client at a time; `mask` says which entries
    move.
    """

    def __init__(self, federation, model, theta):
        self.federation, self.start = federation, np.array(theta, float)
        self.bias = model.part("bias").mask
        self.weights = SIZES / SIZES.sum()

    def gradient(self, client, theta):
        x, y = self.federation.client(client).train
        residual = x @ theta[~self.bias] + theta[self.bias] - y
        gradient = np.empty(4)
        gradient[~self.bias], gradient[self.bias] = (
            2 * residual @ x / len(y),
            2 * residual.mean(),
        )
        return gradient

    def descend(self, client, theta, mask=True, steps=2, lr=0.05):
        theta = theta.copy()
        for _ in range(steps):
            theta -= lr * np.where(mask, self.gradient(client, theta), 0)
        return theta


def trained(algorithm, rounds=3, **options):
    """A training on these clients, and the NumPy trainer at its start."""
    federation, model = least_squares(), linear_model()
    training = train(algorithm, federation, model, rounds, **options)
    return training, Numpy(federation, model, training.initial(0))


__all__ = [
    "FULL",
    "SIZES",
    "Numpy",
    "by_place",
    "float64",
    "least_squares",
    "linear_model",
    "personal",
    "trained",
]

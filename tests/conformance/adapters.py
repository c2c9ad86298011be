"""Softmax regression with an adapter in NumPy, and its network in the package."""

import jax.numpy as jnp
import numpy as np

from conformance.two_layers import by_scores
from fedtailor.models import logistic, lora, merged
from fedtailor.models.low_rank import adapters_of


def adapted(rank, local_rank=0):
    """logistic() with adapters, multiplied by 1.5."""
    network = lora(logistic(), rank=rank, alpha=1.5 * rank, local_rank=local_rank)
    return network.bind((4,), 3, dtype="float64")


def weight_of(model, theta):
    """The network's weight [outputs, inputs] with its adapters in it."""
    return np.asarray(merged(model, jnp.asarray(theta))[1])[:12].reshape(4, 3).T


class Adapted:
    """Scores x (W + 1.5 B A + rest)' + c, of which A and B are trained."""

    scale = 1.5

    def __init__(self, model):
        (self.entries,) = adapters_of(model)
        empty = np.asarray(merged(model, jnp.zeros(model.size))[1])
        self.weight, self.bias = empty[:12].reshape(4, 3).T, empty[12:]

    def factors(self, theta):
        theta = np.asarray(theta)
        return theta[self.entries.a], theta[self.entries.b]

    def slopes(self, a, b, rest, x, y):
        """The derivatives of the mean cross-entropy by A and by B."""
        scores = x @ (self.weight + self.scale * b @ a + rest).T + self.bias
        by_weight = self.scale * by_scores(scores, y).T @ x
        return b.T @ by_weight, by_weight @ a.T

    def descend(self, a, b, rest, x, y, rate, steps, penalty=None):
        """A and B after steps; `penalty` gives further derivatives."""
        for _ in range(steps):
            by_a, by_b = self.slopes(a, b, rest, x, y)
            if penalty is not None:
                more_a, more_b = penalty(a, b)
                by_a, by_b = by_a + more_a, by_b + more_b
            a, b = a - rate * by_a, b - rate * by_b
        return a, b

"""A network of two layers in NumPy, with derivatives by hand: what methods that train
features are compared with.
"""

import numpy as np
from scipy.special import softmax

from conformance.problems import classification
from fedtailor import models
from fedtailor.protocol import SGD

FULL = SGD(lr=0.1, steps=2, batch_size=64)
"""Two steps on all samples of every client."""
RATE, STEPS = 0.1, 2


def network():
    return models.mlp(5).bind((4,), 3, dtype="float64")


def data_of(federation):
    """Inputs and classes of each client, and the clients' shares of all samples."""
    data = [federation.client(i).train for i in range(len(federation))]
    sizes = np.array([len(rows.y) for rows in data])
    return [(np.asarray(rows.x), np.asarray(rows.y)) for rows in data], (
        sizes / sizes.sum()
    )


def clients():
    """Clients of which one has no example of the last class."""
    federation = classification()
    rows = federation.train[0]
    federation.y[rows] = np.where(federation.y[rows] == 2, 0, federation.y[rows])
    return federation


class TwoLayers:
    """theta = (U, a, V, c) of the scores relu(x U + a) V + c."""

    shapes = ((4, 5), (5,), (5, 3), (3,))
    head = np.arange(43) >= 25
    """Which entries of theta are V and c."""

    def split(self, theta):
        ends = np.cumsum([np.prod(shape) for shape in self.shapes])[:-1]
        pieces = np.split(np.asarray(theta, float), ends)
        return [p.reshape(s) for p, s in zip(pieces, self.shapes, strict=True)]

    def features(self, theta, x):
        u, a, _, _ = self.split(theta)
        return np.maximum(x @ u + a, 0)

    def scores(self, theta, x):
        _, _, v, c = self.split(theta)
        return self.features(theta, x) @ v + c

    def gradient(self, theta, x, by_scores, by_features=0.0):
        """From the derivatives of a loss by scores [n, 3] and by features [n, 5]."""
        u, a, v, _ = self.split(theta)
        z = self.features(theta, x)
        by_inner = (by_scores @ v.T + by_features) * (x @ u + a > 0)
        parts = (
            x.T @ by_inner,
            by_inner.sum(axis=0),
            z.T @ by_scores,
            by_scores.sum(axis=0),
        )
        return np.concatenate([part.reshape(-1) for part in parts])

    def fit_gradient(self, theta, x, y, margins=0.0):
        """Of the mean cross-entropy of the scores and `margins` added to them."""
        return self.gradient(theta, x, by_scores(self.scores(theta, x) + margins, y))

    def class_means(self, theta, x, y):
        """[3, 5], zero for a class without examples."""
        z = self.features(theta, x)
        return np.array(
            [z[y == k].mean(axis=0) if (y == k).any() else 0 * z[0] for k in range(3)]
        )


def by_scores(scores, y):
    """The derivative of the mean cross-entropy by scores [n, 3]."""
    return (softmax(scores, axis=1) - np.eye(3)[y]) / len(y)

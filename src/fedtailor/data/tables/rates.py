"""The learning rate of linear models on tables."""

import numpy as np
from jaxtyping import Float32
from numpy.typing import NDArray

from fedtailor.data.federation import Federation
from fedtailor.models.tasks import Survival

_POWER_STEPS = 30


def stable_rate(federation: Federation) -> float:
    """The inverse of the largest curvature of a client's loss, at which no step of
    gradient descent overshoots.

    The model is linear with a bias. With L_i, the largest eigenvalue of the mean of [x
    1]'[x 1] over client i's training rows, the curvature of the mean of (x'w + b - y)^2
    is 2 L_i, that of the cross-entropy of classes at most L_i / 2, and that of survival
    at the start the share of events times L_i, of which twice is taken. Gradient descent
    diverges above twice the inverse. All clients have the same rate, so the client with
    the largest L_i determines it. Only training inputs of seen clients are used.

    Args:
        federation: a federation; its inputs are flattened.

    Example:
        >>> from fedtailor.data.tables import stable_rate
        >>> table = ft.tables.from_table(frame, client="hospital", target="age")
        >>> stable_rate(table) > 0
        True
    """
    bound = 2.0 if federation.classes is None else 0.5
    if isinstance(federation.task, Survival):
        rows = np.concatenate([federation.train[client] for client in federation.seen])
        # Twice what it is at the start, as rows of high risks weigh more later.
        bound = 2 * max(float(federation.y[rows, 1].mean()), 1 / len(rows))
    max_curvature = max(
        _curvature(_flat(federation.x[federation.train[client]]))
        for client in federation.seen
    )
    return 1 / (bound * max_curvature)


def _flat(x: Float32[NDArray, "rows ..."]) -> Float32[NDArray, "rows inputs"]:
    return x.reshape(len(x), -1)


def _curvature(x: Float32[NDArray, "rows inputs"]) -> float:
    """The largest eigenvalue of the mean of [x 1]'[x 1], by power iteration."""
    rows = np.column_stack([x, np.ones(len(x))]).astype(np.float64)
    direction, value = rows.mean(axis=0), 0.0
    for _ in range(_POWER_STEPS):
        direction = rows.T @ (rows @ direction) / len(rows)
        value = float(np.linalg.norm(direction))
        direction /= value
    return value

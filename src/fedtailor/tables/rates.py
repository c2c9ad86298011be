"""An initial learning rate for regressions on tables."""

import numpy as np
from jaxtyping import Float32
from numpy.typing import NDArray

from fedtailor.federation import Federation

_POWER_STEPS = 30


def stable_rate(federation: Federation) -> float:
    """Half the inverse of the largest curvature of a client's squared loss.

    The model is linear with a bias. Gradient descent on client i's mean of (x'w + b -
    y)^2 / 2 diverges for rates above 2 / L_i, where L_i is the largest eigenvalue of
    the mean of [x 1]'[x 1] over the client's training rows. A quarter of this limit
    leaves room for the noise of mini-batches. All clients have the same rate, so the
    client with the largest L_i determines it. Only training inputs of seen clients are
    used.

    Args:
        federation: a federation with inputs [N, d].
    """
    max_curvature = max(
        _curvature(federation.x[federation.train[client]]) for client in federation.seen
    )
    return 0.5 / max_curvature


def _curvature(x: Float32[NDArray, "rows inputs"]) -> float:
    """The largest eigenvalue of the mean of [x 1]'[x 1], by power iteration."""
    rows = np.column_stack([x, np.ones(len(x))]).astype(np.float64)
    direction, value = rows.mean(axis=0), 0.0
    for _ in range(_POWER_STEPS):
        direction = rows.T @ (rows @ direction) / len(rows)
        value = float(np.linalg.norm(direction))
        direction /= value
    return value

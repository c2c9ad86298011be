"""Temperature scaling (Guo et al. 2017): one number that a client's logits are
divided, so that its probabilities are as often right as they say.
"""

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

_BOUNDS = (1 / 20, 20.0)
"""Temperatures between which one is searched: classes that are all right have none."""
_STEPS = 60
LEAST_ROWS = 20
"""Validation rows from which a client has a temperature of its own."""
TEMPERATURE = "temperature"
"""The column of validation rows that has the client's temperature."""


def fit_temperature(
    logits: Float[NDArray, "n classes"], labels: Int[NDArray, " n"]
) -> float:
    """The temperature T that minimises the mean logarithmic loss of logits / T.

    The loss is convex in 1 / T, so that its derivative

        mean( sum_c p_c z_c - z_label ),    p = softmax(z / T)

    has one sign change, which is found by bisection. 1 without rows.
    """
    if not len(labels):
        return 1.0
    z = np.asarray(logits, np.float64)
    z = z - z.max(axis=1, keepdims=True)
    of_label = z[np.arange(len(z)), labels]

    def slope(inverse: float) -> float:
        # No z is above 0, and one of each row is 0.
        p = np.exp(inverse * z)
        p /= p.sum(axis=1, keepdims=True)
        return float(((p * z).sum(axis=1) - of_label).mean())

    low, high = 1 / _BOUNDS[1], 1 / _BOUNDS[0]
    if slope(low) >= 0:
        return _BOUNDS[1]
    if slope(high) <= 0:
        return _BOUNDS[0]
    for _ in range(_STEPS):
        middle = np.sqrt(low * high)
        if slope(middle) > 0:
            high = middle
        else:
            low = middle
    return float(1 / np.sqrt(low * high))

"""Weights of sources that have few samples, or another distribution, where both cost
something.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from fedtailor.protocol import require


@dataclass(frozen=True)
class BestRows:
    """Weights that minimise c sqrt(sum_j w_j^2 / n_j) + sum_j w_j b_ij for each client.

    Attributes:
        weights: [m, m] rows that sum to 1.
        bound: [m] the minimum.
    """

    weights: Float[np.ndarray, "rows m"]
    bound: Float[np.ndarray, " rows"]


def best_rows(
    biases: Float[np.ndarray, "rows m"],
    sizes: Int[np.ndarray, " m"] | Float[np.ndarray, " m"],
    complexity: float,
) -> BestRows:
    """The exact minimum over the simplex of c sqrt(sum_j w_j^2 / n_j) + sum_j w_j b_ij,
    for each row.

    Stationarity gives w_j in proportion to n_j max(nu - b_j, 0) with sum_j n_j max(nu -
    b_j, 0)^2 = c^2, and nu is the minimum: a quadratic equation once it is known which
    clients take part, and these are the ones of least bias.

    Args:
        biases: b_ij, the cost of client j's data to client i, as 2 d(P_i, P_j).
        sizes: training samples n_j, or what counts as such: numbers above 0.
        complexity: c of `estimation_term` (that term for S = 1), above 0.

    Returns:
        The weights of every row, and the minima.

    Raises:
        ValueError: the complexity is not above 0.
    """
    require(complexity > 0, f"complexity is {complexity}; it must be above 0")
    sizes = np.asarray(sizes, np.float64)
    rows = [
        _best_row(bias, sizes, complexity) for bias in np.asarray(biases, np.float64)
    ]
    weights = np.array([weights for weights, _ in rows]).reshape(np.shape(biases))
    return BestRows(weights, np.array([bound for _, bound in rows], np.float64))


def _best_row(
    bias: Float[np.ndarray, " m"], n: Float[np.ndarray, " m"], complexity: float
) -> tuple[Float[np.ndarray, " m"], float]:
    """One row of `best_rows`.

    Args:
        bias: b_j [m].
        n: samples [m].
        complexity: c.

    Returns:
        The weights [m], which sum to 1, and the minimum.
    """
    # A constant added to all costs changes the minimum by that constant, and no weight:
    # small numbers lose no digits.
    least = bias.min()
    above_least = bias - least
    order = np.argsort(bias, kind="stable")
    b = above_least[order]
    samples = n[order]
    s0 = np.cumsum(samples)
    s1 = np.cumsum(samples * b)
    s2 = np.cumsum(samples * b**2)
    # For the k nearest the equation is s0 nu^2 - 2 s1 nu + s2 = c^2, with s_p the sum
    # of their n_j b_j^p, of which nu is the larger root. They are all that take part if
    # nu does not reach the next one's cost.
    mean = s1 / s0
    nus = mean + np.sqrt(np.maximum(mean**2 - (s2 - complexity**2) / s0, 0.0))
    next_bias = np.append(b[1:], np.inf)
    nu = nus[int(np.argmax(nus <= next_bias))]
    mass = n * np.maximum(nu - above_least, 0.0)
    return mass / mass.sum(), float(nu + least)

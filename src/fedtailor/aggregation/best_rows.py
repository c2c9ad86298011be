"""Weights of data sources that minimise a bound on error, from samples and biases."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from fedtailor._base.choice import require


@dataclass(frozen=True)
class BestRows:
    """Weights that minimise c sqrt(sum_j w_j^2 / n_j) + sum_j w_j b_ij for each client.

    Attributes:
        weights: [m, m] rows that sum to 1.
        bound: [m] the minimum.

    Example:
        >>> from fedtailor.aggregation import best_rows
        >>> best_rows(
        ...     np.array([[0.0, 0.0]]), np.array([50, 50]), complexity=1.0
        ... ).weights.round(2)
        array([[0.5, 0.5]])
    """

    weights: Float[np.ndarray, "rows m"]
    bound: Float[np.ndarray, " rows"]


def best_rows(
    biases: Float[np.ndarray, "rows m"],
    sizes: Int[np.ndarray, " m"] | Float[np.ndarray, " m"],
    complexity: float,
) -> BestRows:
    """Minimise c sqrt(sum_j w_j^2 / n_j) + sum_j w_j b_ij over the simplex, row by row.

    The minimum is exact. Stationarity gives w_j proportional to n_j max(nu - b_j, 0),
    where nu, which is the minimum itself, solves

        sum_j n_j max(nu - b_j, 0)^2 = c^2

    The clients with weight are those with the least biases. For a given number of them
    this is a quadratic equation.

    Args:
        biases: b_ij, the cost of client j's data for client i, such as 2 d(P_i, P_j).
        sizes: training samples n_j, or other numbers above 0 in their place.
        complexity: c, above 0; the value of `estimation_term` for S = 1.

    Returns:
        The weights of every row, and the minima.

    Raises:
        ValueError: the complexity is not above 0.

    Example:
        >>> from fedtailor.aggregation import best_rows
        >>> best_rows(
        ...     np.array([[0.0, 9.0], [9.0, 0.0]]), np.array([50, 50]), complexity=1.0
        ... ).weights.round(2)
        array([[1., 0.],
               [0., 1.]])
    """
    require(complexity > 0, f"complexity is {complexity}; it must be above 0")
    sizes = np.asarray(sizes, np.float64)
    biases = np.asarray(biases, np.float64)
    weights = np.zeros(biases.shape)
    bound = np.zeros(len(biases))
    for i, bias in enumerate(biases):
        weights[i], bound[i] = _best_row(bias, sizes, complexity)
    return BestRows(weights, bound)


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
    # Subtracting the least bias from all biases lowers the minimum by that amount and
    # does not change the weights. It avoids cancellation between large biases.
    min_bias = bias.min()
    shifted = bias - min_bias
    ascending = np.argsort(bias, kind="stable")
    b = shifted[ascending]
    samples = n[ascending]
    # If the k clients of least bias have weight, the equation for nu is s0 nu^2 - 2 s1
    # nu + s2 = c^2, where s_p is the sum of their n_j b_j^p, and nu is the larger root.
    # It is solved for all k = 1..m at once.
    s0 = np.cumsum(samples)
    s1 = np.cumsum(samples * b)
    s2 = np.cumsum(samples * b**2)
    mean_bias = s1 / s0
    discriminant = mean_bias**2 - (s2 - complexity**2) / s0
    larger_root = mean_bias + np.sqrt(np.maximum(discriminant, 0.0))
    # The right k is the first whose root does not exceed the bias of the next client.
    next_bias = np.append(b[1:], np.inf)
    k = int(np.argmax(larger_root <= next_bias))
    nu = larger_root[k]
    weights = n * np.maximum(nu - shifted, 0.0)
    return weights / weights.sum(), float(nu + min_bias)

"""Euclidean projection onto the probability simplex."""

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from fedtailor.protocol import require


def project_onto_simplex(v: ArrayLike) -> Float[np.ndarray, " m"]:
    """The nearest point of the probability simplex, {x : x >= 0, sum x = 1}, in time
    O(m log m) by sorting.

    It is the dual step of agnostic federated learning (Mohri et al. 2019).

    Args:
        v: any point [m].

    Returns:
        x = max(v - tau, 0), where tau makes x sum to 1.

    Raises:
        ValueError: v is not a vector of finite numbers.
    """
    x = np.asarray(v, np.float64)
    finite = x.ndim == 1 and x.size > 0 and bool(np.isfinite(x).all())
    require(
        finite,
        f"only a vector of finite numbers can be projected onto the simplex, not {x}",
    )
    x = x - x.max()  # changes nothing on paper, and keeps tau small
    descending = np.sort(x)[::-1]
    # taus[k - 1] makes max(v - tau, 0) sum to 1 if just the k largest entries stay
    # above tau. They do for the true number k of positive entries, and for every
    # smaller one, but for no larger one.
    taus = (np.cumsum(descending) - 1) / np.arange(1, x.size + 1)
    support = np.count_nonzero(descending > taus)
    return np.maximum(x - taus[support - 1], 0.0)

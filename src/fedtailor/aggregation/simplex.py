"""Euclidean projection onto the probability simplex."""

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from fedtailor._base.choice import require


def project_onto_simplex(v: ArrayLike) -> Float[np.ndarray, " m"]:
    """The nearest point of the probability simplex {x : x >= 0, sum x = 1}.

    Computed by sorting, in time O(m log m). AFL uses it in its dual step (Mohri et al.
    2019).

    Args:
        v: any point [m].

    Returns:
        x = max(v - tau, 0), where tau makes x sum to 1.

    Raises:
        ValueError: v is not a vector of finite numbers.
    """
    x = np.asarray(v, np.float64)
    is_vector = x.ndim == 1 and x.size > 0
    require(
        is_vector and bool(np.isfinite(x).all()),
        f"only a vector of finite numbers can be projected onto the simplex, not {x}",
    )
    # Adding a constant to all entries does not change the projection. This one keeps
    # tau small.
    x = x - x.max()
    descending = np.sort(x)[::-1]
    # taus[k - 1] is the tau for which the sum of x - tau over the k largest entries is
    # 1. The k-th largest entry exceeds taus[k - 1] for every k up to the number of
    # positive entries of the result, and for no larger k.
    counts = np.arange(1, x.size + 1)
    taus = (np.cumsum(descending) - 1) / counts
    support = np.count_nonzero(descending > taus)
    return np.maximum(x - taus[support - 1], 0.0)

"""One test of whether clients' gradients differ at all."""

import numpy as np
from jaxtyping import Float


def overall_p(
    squared: Float[np.ndarray, "m m"],
    variances: Float[np.ndarray, " m"],
    degrees: Float[np.ndarray, " m"] | None = None,
    rank: float = 1.0,
) -> float:
    """The p-value of the hypothesis that all expected gradients are equal.

    Under it the sum of all |g_i - g_j|^2 over its expectation, the sum of all v_i + v_j,
    is about a weighted mean of variables chi^2_(m-1) / (m-1), one for each direction in
    which gradients vary. It counts as a single one with `rank` times as many degrees of
    freedom, which has its variance (Satterthwaite). This one test of all pairs together
    has far more power than a test of each pair.

    Args:
        squared: |g_i - g_j|^2.
        variances: v_i = tr S_i / n_i.
        degrees: degrees of freedom of each v_i, for gradients that vary
            in one direction. None takes them as known and as equal.
        rank: effective rank of the gradients' covariance (`effective_rank`). 1, a single
            direction, has the heaviest tail, and is cautious whatever the covariance.

    Returns:
        The p-value; 1 for fewer than two clients, or if no variance is known.
    """
    from scipy.special import chdtrc, fdtrc

    clients = len(variances)
    # Both sums are over ordered pairs i != j.
    expected = 2 * (clients - 1) * float(np.sum(variances))
    total = float(np.sum(squared))
    if clients < 2 or not np.isfinite(expected) or total == 0:
        return 1.0
    if expected == 0:
        return 0.0
    if degrees is None:
        known = rank * (clients - 1)
        return float(chdtrc(known, known * total / expected))
    # The sum is a quadratic form whose eigenvalues differ as the variances do: it counts
    # as chi^2 with as many degrees of freedom as have its variance (Satterthwaite), and
    # so does its expectation.
    weights = np.asarray(variances, np.float64)
    weights = weights / weights.sum()
    squares = np.square(weights)
    of_sum = (1 - 1 / clients) ** 2 / (
        (1 - 2 / clients) * squares.sum() + 1 / clients**2
    )
    of_expectation = 1 / float((squares / np.asarray(degrees, np.float64)).sum())
    return float(fdtrc(rank * of_sum, rank * of_expectation, total / expected))


def effective_rank(
    variances: Float[np.ndarray, " m"], concentrations: Float[np.ndarray, " m"]
) -> float:
    """In how many directions clients' gradients vary: sum v_i^2 / sum c_i v_i^2.

    c_i = tr A_i^2 / (tr A_i)^2, where A_i is the scatter matrix of the gradients of a
    client's batches. In expectation c_i is above tr S_i^2 / (tr S_i)^2 by up to one over
    the number of batches, so that the rank is rather too small, and below that number.

    Args:
        variances: v_i = tr S_i / n_i.
        concentrations: c_i, between 0 and 1.

    Returns:
        The rank, 1 or more; 1 if nothing varies.
    """
    squares = np.square(np.asarray(variances, np.float64))
    concentrated = float((concentrations * squares).sum())
    if not np.isfinite(concentrated) or concentrated == 0:
        return 1.0
    return max(float(squares.sum()) / concentrated, 1.0)

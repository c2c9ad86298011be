"""One test of whether clients' gradients differ at all."""

import numpy as np
from jaxtyping import Float


def overall_p(
    squared: Float[np.ndarray, "m m"],
    variances: Float[np.ndarray, " m"],
    degrees: Float[np.ndarray, " m"] | None = None,
) -> float:
    """The p-value of the hypothesis that all expected gradients are equal.

    Under it the sum of all |g_i - g_j|^2 over its expectation, the sum of all v_i + v_j,
    is about a weighted mean of variables chi^2_(m-1) / (m-1). A single one has the
    heaviest tail, so that a small value holds whatever the covariance of the gradients;
    the more directions they vary in, the more cautious it is. This one test of all pairs
    together has far more power than a test of each pair.

    Args:
        squared: |g_i - g_j|^2.
        variances: v_i = tr S_i / n_i.
        degrees: degrees of freedom of each v_i, for gradients that vary
            in one direction. None takes them as known and as equal.

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
        return float(chdtrc(clients - 1, (clients - 1) * total / expected))
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
    return float(fdtrc(of_sum, of_expectation, total / expected))

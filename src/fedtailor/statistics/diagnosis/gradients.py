"""Tests whether clients' gradients at a common model differ significantly."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray
from scipy import special
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

from fedtailor._base.choice import require
from fedtailor.aggregation.differences import effective_rank, overall_p
from fedtailor.aggregation.distances import RowMatrix, squared_distances
from fedtailor.statistics.decision import holm

_CONSERVATIVE_FROM = 1.5365
"""From this threshold on, the chi^2_1 distribution has the heaviest tail.

No weighted sum of independent squared standard normals with mean 1 exceeds a larger
threshold with a higher probability (Szekely and Bakirov 2003).
"""


@dataclass(frozen=True)
class Homogeneity:
    """Comparison of all pairs of clients by their gradients at one model.

    Attributes:
        squared: [m, m] squared distances Delta_ij of the gradients.
        expected: [m, m] expectation of Delta_ij if both clients have the same
            distribution, tr S_i / n_i + tr S_j / n_j; 0 on the diagonal.
        ratio: [m, m] test statistic T_ij = Delta_ij / expected, with mean 1 if the
            distributions are equal; 1 on the diagonal.
        distance: [m, m] Delta_ij - expected, an unbiased estimate of |E g_i - E g_j|^2,
            which can be negative.
        p: [m, m] p-values of the hypothesis that both expected gradients are equal; 1
            on the diagonal.
        p_holm: [m, m] p-values adjusted for the number of pairs (Holm).
        overall_p: p-value of the hypothesis that all expected gradients are equal, from
            one test of all pairs together.
    """

    squared: Float[np.ndarray, "m m"]
    expected: Float[np.ndarray, "m m"]
    ratio: Float[np.ndarray, "m m"]
    distance: Float[np.ndarray, "m m"]
    p: Float[np.ndarray, "m m"]
    p_holm: Float[np.ndarray, "m m"]
    overall_p: float

    def groups(self, alpha: float = 0.05) -> Int[np.ndarray, " m"]:
        """Clusters clients so that no pair in a group differs significantly.

        The groups come from complete linkage on T. A pair without a significant
        difference need not be equal: with few samples all clients are in one group.

        Args:
            alpha: significance level over all pairs.

        Returns:
            The group of each client, numbered from 0 in the order of first appearance.
        """
        clients = len(self.p)
        if clients == 1:
            return np.zeros(1, np.int64)
        # Significant pairs get a larger distance than all others, so that cutting the
        # tree at one height separates them.
        is_significant = self.p_holm < alpha
        largest_finite = self.ratio[np.isfinite(self.ratio)].max()
        ratio = np.where(np.isfinite(self.ratio), self.ratio, largest_finite)
        offset = 1.0 + ratio.max()
        ratio[is_significant] += offset
        np.fill_diagonal(ratio, 0.0)
        tree = hierarchy.linkage(squareform(ratio, checks=False), method="complete")
        labels = hierarchy.fcluster(tree, offset, criterion="distance")
        _, first, labels = np.unique(labels, return_index=True, return_inverse=True)
        return np.argsort(np.argsort(first))[labels]


def gradient_traces(
    sigma2: Float[np.ndarray, " m"],
    batch_sizes: Int[np.ndarray, " m"],
    sizes: Int[np.ndarray, " m"],
) -> Float[np.ndarray, " m"]:
    """The trace tr S_i of the covariance of a single sample's gradient.

    The estimate uses the variance of batch gradients: disjoint batches with n_k of a
    client's n_i samples have the mean squared distance sigma_i^2 = tr S_i (1/n_k -
    1/n_i) to the full gradient.

    Args:
        sigma2: mean squared distance of batch gradients to the full gradient
            (Mestoukirdi et al., eq. 10).
        batch_sizes: samples n_k of a batch.
        sizes: training samples n_i.

    Returns:
        The traces, NaN for a client whose batch holds all of its samples.
    """
    inverse_batch_sizes = 1.0 / np.asarray(batch_sizes, np.float64)
    inverse_sizes = 1.0 / np.asarray(sizes, np.float64)
    variance_factor = inverse_batch_sizes - inverse_sizes
    undefined = np.full(len(variance_factor), np.nan)
    return np.divide(sigma2, variance_factor, out=undefined, where=variance_factor > 0)


def batch_sizes(sizes: Int[np.ndarray, " m"], share: float) -> Int[np.ndarray, " m"]:
    """The batch size of each client for the variance of gradients, as UCFL takes it.

    It is at most half of the client's samples, and at least one.

    Args:
        sizes: training samples of each client.
        share: size of a batch, as a share of the client's samples.
    """
    batches = (share * np.asarray(sizes) + 1e-3).astype(np.int64)
    return np.maximum(np.minimum(batches, np.asarray(sizes) // 2), 1)


def homogeneity(
    gradients: Float[RowMatrix, "m d"],
    traces: Float[np.ndarray, " m"],
    sizes: Int[np.ndarray, " m"],
    degrees: Float[np.ndarray, " m"] | None = None,
    concentrations: Float[np.ndarray, " m"] | None = None,
) -> Homogeneity:
    """Compares all pairs of clients by their gradients at one model.

    If two expected gradients are equal, their difference is approximately normal, and
    the statistic T is a weighted sum of squared standard normals whose weights sum to
    1, over an estimate of its expectation. The p-value is the tail of an F distribution
    with 1 degree of freedom, and those of the traces. It is conservative for any
    covariance: above T = 1.54 no weights have a heavier tail, and below p is set to 1.
    The test of all clients together, whose level is not divided by the number of pairs,
    takes account of the directions in which gradients vary (`effective_rank`).

    Args:
        gradients: gradient of each client's mean training loss, at one model.
        traces: tr S_i; NaN is replaced with the median of the other clients.
        sizes: training samples n_i.
        degrees: degrees of freedom of the traces in one direction: the batches that
            they were estimated from, less one. None takes them as known.
        concentrations: of the batches' gradients, see `effective_rank`. None takes all
            gradients to vary in one direction.

    Raises:
        ValueError: no trace is known, or one is negative.
    """
    traces = np.asarray(traces, np.float64)
    require(
        not np.isnan(traces).all(),
        "no client has two batches, so nothing tells how much its gradient varies; give"
        " clients more rows",
    )
    require(
        bool(np.nanmin(traces) >= 0),
        f"a variance of gradients is {np.nanmin(traces)}; it must be 0 or more",
    )
    unknown = np.isnan(traces)
    traces = np.where(unknown, np.nanmedian(traces), traces)
    mean_variances = traces / np.asarray(sizes, np.float64)
    squared = squared_distances(gradients)
    expected = mean_variances[:, None] + mean_variances[None]
    np.fill_diagonal(expected, 0.0)
    # If no difference is expected, any difference is infinitely large.
    undefined_ratio = np.where(squared > 0, np.inf, 1.0)
    ratio = np.divide(squared, expected, out=undefined_ratio, where=expected > 0)
    np.fill_diagonal(ratio, 1.0)
    clients = len(ratio)
    upper = np.triu_indices(clients, 1)
    statistics = ratio[upper]
    if degrees is None:
        p = special.chdtrc(1, statistics)
    else:
        # What is taken from the other clients is hardly known of this one.
        degrees = np.where(unknown, 1.0, np.maximum(degrees, 1.0))
        pair_degrees = _welch_degrees(mean_variances, degrees)[upper]
        p = special.fdtrc(1, pair_degrees, statistics)
    p = np.where(statistics < _CONSERVATIVE_FROM, 1.0, p)
    rank = 1.0
    if concentrations is not None:
        rank = effective_rank(mean_variances, concentrations)
    return Homogeneity(
        squared,
        expected,
        ratio,
        distance=squared - expected,
        p=_symmetric(p, clients),
        p_holm=_symmetric(holm(p), clients),
        overall_p=overall_p(squared, mean_variances, degrees, rank),
    )


def _welch_degrees(
    variances: NDArray[np.float64], degrees: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Degrees of freedom [m, m] of the sum of two clients' variances (Welch 1947)."""
    terms = np.square(variances) / degrees
    total = np.square(variances[:, None] + variances[None])
    squares = terms[:, None] + terms[None]
    return np.divide(total, squares, out=np.ones_like(total), where=squares > 0)


def _symmetric(
    upper_triangle: NDArray[np.float64], clients: int
) -> NDArray[np.float64]:
    """The symmetric matrix [m, m] with these values off its diagonal and ones on it."""
    matrix = np.ones((clients, clients))
    matrix[np.triu_indices(clients, 1)] = upper_triangle
    matrix.T[np.triu_indices(clients, 1)] = upper_triangle
    return matrix

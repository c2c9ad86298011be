"""Whether clients' gradients at a common model differ by more than sampling explains."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray
from scipy import special
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

from fedtailor.aggregation.distances import Rows, squared_distances
from fedtailor.decision import holm
from fedtailor.protocol import require

_LEAST_CONSERVATIVE = 1.5365
"""From here on a single squared normal exceeds a threshold most often.

No sum of independent squared normals with mean 1 exceeds it more often (Szekely and
Bakirov 2003).
"""


@dataclass(frozen=True)
class Homogeneity:
    """Pairs of clients, compared by their gradients at one model.

    Attributes:
        squared: [m, m] squared distances Delta_ij of the gradients.
        expected: [m, m] what Delta_ij is on average where both clients' data come from
            one distribution, tr S_i / n_i + tr S_j / n_j; 0 on the diagonal.
        ratio: [m, m] T_ij = Delta_ij / expected, of mean 1 where the distributions are
            equal; 1 on the diagonal.
        distance: [m, m] Delta_ij - expected, without bias for |E g_i - E g_j|^2 (and so
            negative at times).
        p: [m, m] of the hypothesis that both expected gradients are equal; 1 on the
            diagonal.
        p_holm: [m, m] the same, adjusted for the number of pairs.
    """

    squared: Float[np.ndarray, "m m"]
    expected: Float[np.ndarray, "m m"]
    ratio: Float[np.ndarray, "m m"]
    distance: Float[np.ndarray, "m m"]
    p: Float[np.ndarray, "m m"]
    p_holm: Float[np.ndarray, "m m"]

    def groups(self, alpha: float = 0.05) -> Int[np.ndarray, " m"]:
        """Labels of groups within which no pair is told apart at level alpha.

        By complete linkage on T. That a pair is not told apart does not show that it is
        alike: with few samples everybody is in one group.
        """
        clients = len(self.p)
        if clients == 1:
            return np.zeros(1, np.int64)
        # Pairs that are told apart are put beyond all others, so that one cut separates
        # them.
        told_apart = self.p_holm < alpha
        finite = self.ratio[np.isfinite(self.ratio)].max()
        ratio = np.where(np.isfinite(self.ratio), self.ratio, finite)
        beyond = 1.0 + ratio.max()
        ratio[told_apart] += beyond
        np.fill_diagonal(ratio, 0.0)
        tree = hierarchy.linkage(squareform(ratio, checks=False), method="complete")
        labels = hierarchy.fcluster(tree, beyond, criterion="distance")
        _, first, labels = np.unique(labels, return_index=True, return_inverse=True)
        return np.argsort(np.argsort(first))[labels]


def gradient_traces(
    sigma2: Float[np.ndarray, " m"],
    batch_sizes: Int[np.ndarray, " m"],
    sizes: Int[np.ndarray, " m"],
) -> Float[np.ndarray, " m"]:
    """The trace of the covariance of a single sample's gradient, tr S_i.

    It follows from the variance of batches' gradients. Disjoint batches of n_k of a
    client's n_i samples have the mean squared distance sigma_i^2 = tr S_i (1/n_k -
    1/n_i) from the full gradient. NaN where a batch is the whole of a client's samples.

    Args:
        sigma2: mean squared distance of batch gradients to the full one (Mestoukirdi et
            al., eq. 10).
        batch_sizes: samples n_k of a batch.
        sizes: training samples n_i.
    """
    of_batch = 1.0 / np.asarray(batch_sizes, np.float64)
    of_client = 1.0 / np.asarray(sizes, np.float64)
    spread = of_batch - of_client
    unknown = np.full(len(spread), np.nan)
    return np.divide(sigma2, spread, out=unknown, where=spread > 0)


def homogeneity(
    gradients: Float[Rows, "m d"],
    traces: Float[np.ndarray, " m"],
    sizes: Int[np.ndarray, " m"],
    rank: float = 1.0,
) -> Homogeneity:
    """Compares all pairs of clients by their gradients at one model.

    The test: where two expected gradients are equal, their difference is close to
    normal, and T a weighted sum of squares of normal numbers with weights that sum to
    1. The p-value is that of chi^2_rank / rank. With rank 1 no weights exceed it (above
    T = 1.54; below, p is 1), so it holds whatever the covariance; with the effective
    rank (tr S)^2 / tr S^2 of the gradients' covariance it is sharper, and right to
    second order. Traces count as known.

    Args:
        gradients: of the mean loss over a client's training samples, at one model.
        traces: tr S_i; where it is not known (NaN) the median of the others stands in.
        sizes: training samples n_i.
        rank: effective rank of the covariance.

    Raises:
        ValueError: no trace is known, or one is negative, or the rank is below 1.
    """
    traces = np.asarray(traces, np.float64)
    require(rank >= 1, f"rank is {rank}; it must be 1 or more")
    require(
        not np.isnan(traces).all(),
        "no client has two batches, so nothing tells how much its gradient varies",
    )
    require(
        bool(np.nanmin(traces) >= 0),
        f"a variance of gradients is {np.nanmin(traces)}; it must be 0 or more",
    )
    traces = np.where(np.isnan(traces), np.nanmedian(traces), traces)
    noise = traces / np.asarray(sizes, np.float64)
    squared = squared_distances(gradients)
    expected = noise[:, None] + noise[None]
    np.fill_diagonal(expected, 0.0)
    # Where no difference is expected, any is infinitely large.
    without_noise = np.where(squared > 0, np.inf, 1.0)
    ratio = np.divide(squared, expected, out=without_noise, where=expected > 0)
    np.fill_diagonal(ratio, 1.0)
    clients = len(ratio)
    statistics = ratio[np.triu_indices(clients, 1)]
    if rank == 1:
        tail = special.erfc(np.sqrt(statistics / 2))
        p = np.where(statistics < _LEAST_CONSERVATIVE, 1.0, tail)
    else:
        p = special.chdtrc(rank, statistics * rank)
    return Homogeneity(
        squared,
        expected,
        ratio,
        distance=squared - expected,
        p=_symmetric(p, clients),
        p_holm=_symmetric(holm(p), clients),
    )


def expected_exponent(
    sizes: Int[np.ndarray, " m"], batch_sizes: Int[np.ndarray, " m"]
) -> Float[np.ndarray, "m m"]:
    """Mean exponent of UCFL's kernel between clients of one distribution.

    The exponent is Delta_ij / (2 sigma_i^2), its mean (1/n_i + 1/n_j) / (2 (1/n_k -
    1/n_i)): where it is large, the kernel tells such clients apart by noise alone.
    Infinite where a batch is the whole of client i's samples.
    """
    of_client = 1.0 / np.asarray(sizes, np.float64)
    of_batch = 1.0 / np.asarray(batch_sizes, np.float64)
    distances = of_client[:, None] + of_client[None]
    variances = 2 * (of_batch - of_client)[:, None]
    infinite = np.full(distances.shape, np.inf)
    exponents = np.divide(distances, variances, out=infinite, where=variances > 0)
    np.fill_diagonal(exponents, 0.0)
    return exponents


def _symmetric(above: NDArray[np.float64], clients: int) -> NDArray[np.float64]:
    """The symmetric matrix [m, m] with values above its diagonal, and ones on it."""
    matrix = np.ones((clients, clients))
    matrix[np.triu_indices(clients, 1)] = above
    matrix.T[np.triu_indices(clients, 1)] = above
    return matrix

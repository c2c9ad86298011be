"""Agglomerative clusters of clients, from distances or similarities between all pairs.

The functions draw no random numbers, and number clusters by their first member.
"""

from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from fedtailor._base.choice import require, require_one_of
from fedtailor.aggregation.clusters import number_by_first_member
from fedtailor.aggregation.global_k_means import Labels

_HEIGHT_TOLERANCE = 1e-9
"""Heights of merges count as equal if they differ by at most this fraction of the
largest height.
"""


def bipartition(
    similarity: Float[np.ndarray, "m m"],
    linkage: Literal["complete", "single"] = "complete",
) -> Labels:
    """Split clients in two by agglomerative clustering (Sattler et al. 2020).

    Args:
        similarity: of all pairs.
        linkage: "complete" is the choice of the released code, "single" that of the
            paper: it minimises the largest similarity between the two parts.

    Returns:
        Labels 0 and 1 [m]; row 0 has label 0.

    Raises:
        ValueError: fewer than two rows, or an unknown linkage.
    """
    from scipy.cluster.hierarchy import cut_tree
    from scipy.cluster.hierarchy import linkage as merge
    from scipy.spatial.distance import squareform

    require(len(similarity) >= 2, "a split needs at least two clients")
    require(
        linkage in ("complete", "single"),
        f"linkage is {linkage!r}; it must be 'complete' or 'single'",
    )
    dissimilarity = 1.0 - _symmetric(similarity)
    tree = merge(squareform(dissimilarity, checks=False), linkage)
    return number_by_first_member(cut_tree(tree, n_clusters=2).ravel())


def agglomerative(
    distances: Float[np.ndarray, "m m"],
    linkage: Literal["average", "complete", "single"] = "average",
    *,
    clusters: int | None = None,
    threshold: float | None = None,
) -> Labels:
    """Agglomerative clustering by distances between all pairs.

    Args:
        distances: of all pairs.
        linkage: whether the distance between two clusters is the mean, the largest or
            the smallest distance between their members.
        clusters: the number of clusters.
        threshold: clusters are merged up to this distance. If given, `clusters` is not
            used.

    With neither `clusters` nor `threshold`, merging stops at the largest gap between
    the distances of successive merges. This gives 2 to m - 1 clusters, or one cluster
    if all distances are equal or there are only two rows.

    Returns:
        Labels [m].

    Raises:
        ValueError: an unknown linkage, or not 1 to m clusters.
    """
    from scipy.cluster.hierarchy import cut_tree, fcluster
    from scipy.cluster.hierarchy import linkage as merge
    from scipy.spatial.distance import squareform

    count = len(distances)
    linkages = ("average", "complete", "single")
    require_one_of(linkage, linkages, "linkage")
    require(
        clusters is None or 1 <= clusters <= count,
        f"cannot make {clusters} clusters of {count} clients",
    )
    if count == 1:
        return np.zeros(1, np.int64)
    tree = merge(squareform(_symmetric(distances), checks=False), linkage)
    if threshold is not None:
        return number_by_first_member(fcluster(tree, threshold, "distance"))
    if clusters is not None:
        return number_by_first_member(cut_tree(tree, clusters).ravel())
    # The third column of SciPy's tree is the distance of each merge, ascending.
    heights = tree[:, 2]
    gaps = np.diff(heights)
    if count == 2 or gaps.max() <= _HEIGHT_TOLERANCE * heights[-1]:
        return np.zeros(count, np.int64)
    # The merges below the largest gap are applied.
    merges = int(np.argmax(gaps)) + 1
    return number_by_first_member(cut_tree(tree, count - merges).ravel())


def _symmetric(matrix: NDArray[Any]) -> NDArray[np.float64]:
    """The mean of a matrix and its transpose, which differ only by rounding."""
    # SciPy's `squareform` reads one triangle only.
    return (np.asarray(matrix, np.float64) + np.transpose(matrix)) / 2

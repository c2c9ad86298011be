"""Clusters of clients: k-means on rows of weights or on models, how many of them, and
splits in two.

All functions are host code that draws nothing, and number clusters by their first
member; for results that do not depend on the order in which clients are listed, give
the rows sorted by client id.
"""

from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray

from fedtailor.aggregation.distances import Rows, squared_distances
from fedtailor.aggregation.global_k_means import (
    GroupSums,
    Labels,
    Partition,
    partitions,
)
from fedtailor.protocol import require

TradeOff = Callable[[int, float], float]
"""c(k, s): the value of k streams whose silhouette is s (Mestoukirdi et al., algorithm
2).
"""

_SAME = 1e-9
"""Merges of a tree whose heights differ by this part of the largest are at one height.
"""
_ALL_UP_TO = 100
"""Every number of clusters up to this is tried; from there on, numbers a tenth apart.
"""


def k_means(
    rows: Float[np.ndarray, "m p"], k: int
) -> tuple[Labels, Float[np.ndarray, "k p"]]:
    """Global k-means (squared Euclidean distance).

    Rows that differ by rounding only are one point: they stay together, and the number
    of distinct points bounds the number of clusters, which may so be less than k.

    Returns:
        Labels [m] and centroids [k, p]. Centroids of rows that sum to 1 sum to 1.

    Raises:
        ValueError: k is not in 1..m, or a row is not finite.
    """
    rows = np.asarray(rows, np.float64)
    require(
        1 <= k <= len(rows),
        f"cannot make {k} clusters of {len(rows)} rows; ask for 1 to {len(rows)}",
    )
    labels = _of_rows(rows).labels(k)
    centroids = [
        rows[labels == label].mean(axis=0) for label in range(labels.max() + 1)
    ]
    return labels, np.stack(centroids)


def clusterings(
    rows: Float[np.ndarray, "m p"], largest: int
) -> Iterator[tuple[Labels, float]]:
    """`k_means` for many numbers of clusters, in one pass.

    Args:
        rows: what is clustered.
        largest: the most clusters. All numbers up to 100 are tried as far as there are
            distinct rows, from there on numbers a tenth apart.

    Yields:
        The labels [m] of each number of clusters, ascending, and their silhouette.

    Raises:
        ValueError: a row is not finite.
    """
    points = _of_rows(np.asarray(rows, np.float64))
    distances = GroupSums(np.sqrt(points.squared), points.multiplicity)
    for partition in points.partitions(largest):
        distances = distances.moved(partition.labels, partition.count)
        yield (
            _by_first_member(partition.labels[points.of_row]),
            _silhouette(distances, points.multiplicity),
        )


def k_means_of_models(models: Float[Rows, "m d"], k: int) -> Labels:
    """`k_means` of whole models.

    Returns:
        Labels [m].

    Raises:
        ValueError: k is not in 1..m, or a model is not finite.
    """
    require(
        1 <= k <= len(models),
        f"cannot make {k} clusters of {len(models)} models; ask for 1 to {len(models)}",
    )
    return _of_models(models).labels(k)


def costs_of_models(
    models: Float[Rows, "m d"], weights: Float[np.ndarray, " m"], largest: int
) -> tuple[NDArray[np.int64], Float[np.ndarray, " n"]]:
    """How far models lie from the means of their clusters, for numbers of clusters that
    are worth comparing.

    Returns:
        Numbers of clusters [n]: 1, 2, 3, ... up to `largest` as far as there are
        distinct models, from 101 on a tenth apart. For each [n], the sum of `weights`
        times the models' squared distances to the means of their clusters.

    Raises:
        ValueError: a model is not finite.
    """
    points = _of_models(models)
    point_weights = np.bincount(points.of_row, weights)
    numbers = []
    costs = []
    for partition in points.partitions(largest):
        numbers.append(partition.count)
        costs.append(np.einsum("i,i->", point_weights, partition.squared_to_own()))
    return np.array(numbers), np.array(costs)


def choose_streams(
    rows: Float[np.ndarray, "m p"], trade_off: TradeOff | None = None
) -> tuple[int, dict[int, float]]:
    """The number of streams with the best silhouette.

    Compares k = 2..m-1 as far as there are distinct rows; from 101 on, numbers a tenth
    apart. k = 1, whose silhouette counts as 0, wins where no other is positive; the
    fewest streams win on ties. `trade_off` replaces s_k by c(k, s_k) (Mestoukirdi et
    al., algorithm 2).

    Returns:
        The number, and the silhouettes {k: s_k} that were compared.

    Raises:
        ValueError: `trade_off` returns NaN, there are no rows, or one is not finite.
    """
    rows = np.asarray(rows, np.float64)
    require(
        len(rows) > 0,
        "there are no rows to choose a number of streams for; give one for each client",
    )
    scores = {}
    for labels, score in clusterings(rows, len(rows) - 1):
        scores[int(labels.max()) + 1] = score
    best_k = 0
    best_value = -np.inf
    for k, score in scores.items():
        value = score if trade_off is None else trade_off(k, score)
        require(
            not np.isnan(value),
            f"the trade-off function is NaN for k = {k} streams of silhouette"
            f" {score:.3f}",
        )
        # The first number counts even if its value is minus infinity.
        if value > best_value or best_k == 0:
            best_k, best_value = k, value
    return best_k, {k: score for k, score in scores.items() if k > 1}


def silhouette(rows: Float[np.ndarray, "m p"], labels: ArrayLike) -> float:
    """How well clusters are separated (Mestoukirdi et al., section IV-C).

    Args:
        rows: what was clustered.
        labels: [m] the cluster of each row.

    Returns:
        The mean over the rows of (b - a) / max(a, b), in [-1, 1], to 12 decimals: a is
        a row's mean Euclidean distance to its own cluster, b to the nearest other one.
        A row alone in its cluster counts 0, and so does everything in one cluster.
    """
    from scipy.spatial.distance import pdist, squareform

    names, labels = np.unique(labels, return_inverse=True)
    each = np.ones(len(labels))
    distances = GroupSums(squareform(pdist(np.asarray(rows, np.float64))), each)
    return _silhouette(distances.moved(labels, len(names)), each)


def match(cost: Float[np.ndarray, "new old"]) -> NDArray[np.int64]:
    """The one-to-one assignment of new clusters to old ones with the least total cost.

    Returns:
        The old cluster of every new one [new].

    Raises:
        ValueError: there are more new clusters than old ones.
    """
    # SciPy is imported where it is used: it takes its time, and most methods need none
    # of it.
    from scipy.optimize import linear_sum_assignment

    new, old = cost.shape
    require(
        new <= old,
        f"cannot match {new} new clusters to {old} old ones; give at most as many new"
        " ones",
    )
    _, assigned = linear_sum_assignment(cost)
    return assigned.astype(np.int64)


def bipartition(
    similarity: Float[np.ndarray, "m m"],
    linkage: Literal["complete", "single"] = "complete",
) -> Labels:
    """A split in two by agglomerative clustering (Sattler et al. 2020).

    `single` minimises the largest similarity between the two parts, as their paper
    does; `complete` is what their released code runs.

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
    # `squareform` reads one triangle of the matrix; the two may differ by rounding.
    symmetric = (np.asarray(similarity, np.float64) + np.transpose(similarity)) / 2
    dissimilarity = 1.0 - symmetric
    tree = merge(squareform(dissimilarity, checks=False), linkage)
    return _by_first_member(cut_tree(tree, n_clusters=2).ravel())


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
        linkage: how far apart two clusters are: by the mean, the largest or the
            smallest distance between members.
        clusters: how many to end with; or
        threshold: the distance from which on clusters are not merged. With neither, the
            tree is cut where the distance at which clusters merge grows most from one
            merge to the next: in 2 to m - 1 clusters, or in one where all distances are
            equal or there are two rows.

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
    require(
        linkage in linkages,
        f"linkage is {linkage!r}; it must be one of {', '.join(linkages)}",
    )
    require(
        clusters is None or 1 <= clusters <= count,
        f"cannot make {clusters} clusters of {count} clients",
    )
    if count == 1:
        return np.zeros(1, np.int64)
    symmetric = (np.asarray(distances, np.float64) + np.transpose(distances)) / 2
    tree = merge(squareform(symmetric, checks=False), linkage)
    if threshold is not None:
        return _by_first_member(fcluster(tree, threshold, "distance"))
    if clusters is not None:
        return _by_first_member(cut_tree(tree, clusters).ravel())
    # The third column of SciPy's tree: the distance at which each merge is made,
    # ascending.
    heights = tree[:, 2]
    gaps = np.diff(heights)
    if count == 2 or gaps.max() <= _SAME * heights[-1]:
        return np.zeros(count, np.int64)
    # The merges before the largest gap are made, those behind it are not.
    merges = int(np.argmax(gaps)) + 1
    return _by_first_member(cut_tree(tree, count - merges).ravel())


class _Points:
    """The distinct rows with their multiplicities: what k-means sees. Rows at most
    `same` [m, m] apart are one.
    """

    def __init__(self, squared: NDArray[np.float64], same: NDArray[np.float64]) -> None:
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import connected_components

        # "At most `same` apart" is made transitive: whatever hangs together by such
        # pairs is one point.
        _, points = connected_components(
            csr_array(squared <= np.square(same)), directed=False
        )
        self.of_row = _by_first_member(points)
        # of each point one row stands for all
        _, first = np.unique(self.of_row, return_index=True)
        self.squared = squared[np.ix_(first, first)]
        self.multiplicity = np.bincount(self.of_row).astype(np.float64)

    def labels(self, k: int) -> Labels:
        """Labels of the rows in k clusters, or as many as there are points."""
        *_, last = self.partitions(k)
        return _by_first_member(last.labels[self.of_row])

    def partitions(self, largest: int) -> Iterator[Partition]:
        """Of the points in 1, 2, 3, ... up to 100 clusters, then a tenth apart, up to
        `largest` or one for each.
        """
        largest = min(largest, len(self.squared))
        numbers = [1]
        while numbers[-1] < largest:
            step = numbers[-1] // 10 if numbers[-1] >= _ALL_UP_TO else 1
            numbers.append(min(numbers[-1] + step, largest))
        return partitions(self.squared, self.multiplicity, numbers)


def _of_rows(rows: NDArray[np.float64]) -> _Points:
    """The distinct rows of weights.

    Raises:
        ValueError: a row is not finite.
    """
    from scipy.spatial.distance import pdist, squareform

    broken = ~np.isfinite(rows).all(axis=1)
    require(
        not broken.any(),
        f"row {np.argmax(broken)} is not finite; rows of weights are finite numbers",
    )
    return _Points(squareform(pdist(rows, "sqeuclidean")), same=1e-9 * _longer(rows))


def _of_models(models: Rows) -> _Points:
    """The distinct models."""
    # models are single-precision vectors, and distances from a Gram matrix have an
    # error of this order too
    return _Points(squared_distances(models), same=1e-7 * _longer(np.asarray(models)))


def _silhouette(distances: GroupSums, weights: NDArray[np.float64]) -> float:
    """`silhouette` of points that stand for several rows each.

    Args:
        distances: sums of each point's distances to the members of each cluster.
        weights: multiplicities [n] of the points.

    Returns:
        The mean over all rows, to 12 decimals.
    """
    labels = distances.labels
    points = np.arange(len(weights))
    sizes = np.bincount(labels, weights)
    if len(sizes) == 1:
        return 0.0
    size = sizes[labels]
    # a: the mean over the other members of the own cluster
    a = distances.values[labels, points] / np.maximum(size - 1, 1)
    # b: the least of the means over the other clusters
    means = distances.values / sizes[:, None]
    means[labels, points] = np.inf
    b = means.min(axis=0)
    larger = np.maximum(a, b)
    # alone in a cluster, or at one place with everything: 0
    defined = (larger > 0) & (size > 1)
    of_point = np.divide(b - a, larger, where=defined, out=np.zeros(len(size)))
    # sums in another order differ by rounding, which must neither make a silhouette
    # positive nor break ties
    return round(float(weights @ of_point / weights.sum()), 12)


def _by_first_member(labels: NDArray[Any]) -> Labels:
    """The same clusters, numbered in the order of their first members."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    # Sorting twice gives ranks: the new number of each old label.
    rank = np.argsort(np.argsort(first)).astype(np.int64)
    return rank[inverse]


def _longer(rows: NDArray[Any]) -> NDArray[np.float64]:
    """The length of the longer one of each two rows [m, m]."""
    lengths = np.sqrt([np.einsum("i,i->", row, row, dtype=np.float64) for row in rows])
    return np.maximum(lengths[:, None], lengths[None])

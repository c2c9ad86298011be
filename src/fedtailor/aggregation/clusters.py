"""Clusters of clients by k-means, and how many there are.

All functions run on the host, draw no random numbers, and number clusters by their
first member. Results may depend on the order of the rows, so callers sort the rows by
client id.

Functions that compare numbers of clusters k try every k up to 100. Above 100, k grows
in steps of 10 %.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray

from fedtailor._base.choice import require
from fedtailor.aggregation.distances import RowMatrix, squared_distances
from fedtailor.aggregation.global_k_means import (
    ClusterSums,
    Labels,
    Partition,
    partitions,
)

TradeOff = Callable[[int, float], float]
"""c(k, s): the value of k streams of silhouette s (Mestoukirdi et al., algorithm 2)."""

CLEAR = 0.5
"""The silhouette from which clusters count as found.

Kaufman and Rousseeuw (1990) call a structure reasonable from 0.5 on.
"""
_MAX_CONSECUTIVE = 100
"""Every number of clusters k up to this one is tried. Above it, k grows by 10 %."""


def k_means(
    rows: Float[np.ndarray, "m p"], k: int
) -> tuple[Labels, Float[np.ndarray, "k p"]]:
    """Global k-means (squared Euclidean distance).

    Rows that differ only by rounding count as one point and share a cluster. If there
    are fewer distinct points than k, each point is a cluster.

    Returns:
        The cluster of each row [m], and the centroids [k, p].

    Raises:
        ValueError: k is not in 1..m, or a row is not finite.
    """
    rows = np.asarray(rows, np.float64)
    require(
        1 <= k <= len(rows),
        f"cannot make {k} clusters of {len(rows)} rows; ask for 1 to {len(rows)}",
    )
    labels = _distinct_rows(rows).labels(k)
    clusters = range(labels.max() + 1)
    centroids = [rows[labels == cluster].mean(axis=0) for cluster in clusters]
    return labels, np.stack(centroids)


def clusterings(
    rows: Float[np.ndarray, "m p"], largest: int
) -> Iterator[tuple[Labels, float]]:
    """`k_means` for many numbers of clusters, in one pass.

    Args:
        rows: the rows to cluster.
        largest: the largest number of clusters, which is lowered to the number of
            distinct rows.

    Yields:
        For each number of clusters, ascending from 1: the labels [m] and their
        silhouette.

    Raises:
        ValueError: a row is not finite.
    """
    points = _distinct_rows(np.asarray(rows, np.float64))
    # The sum of each point's distances to the members of each cluster. Few points
    # change clusters from one partition to the next, so the sums are updated.
    distance_sums = ClusterSums(np.sqrt(points.squared), points.multiplicity)
    for partition in points.partitions(largest):
        distance_sums = distance_sums.with_labels(partition.labels, partition.count)
        labels_of_rows = partition.labels[points.point_of_row]
        score = _silhouette(distance_sums, points.multiplicity)
        yield number_by_first_member(labels_of_rows), score


def k_means_of_models(models: Float[RowMatrix, "m d"], k: int) -> Labels:
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
    return _distinct_models(models).labels(k)


def costs_of_models(
    models: Float[RowMatrix, "m d"], weights: Float[np.ndarray, " m"], largest: int
) -> tuple[NDArray[np.int64], Float[np.ndarray, " n"]]:
    """The k-means cost of models, for many numbers of clusters.

    Args:
        models: the models to cluster.
        weights: of the models in the cost.
        largest: the largest number of clusters, which is lowered to the number of
            distinct models.

    Returns:
        The numbers of clusters [n], ascending from 1, and the cost of each [n]: the
        weighted sum of the models' squared distances to the means of their clusters.

    Raises:
        ValueError: a model is not finite.
    """
    points = _distinct_models(models)
    point_weights = np.bincount(points.point_of_row, weights)
    numbers = []
    costs = []
    for partition in points.partitions(largest):
        numbers.append(partition.count)
        # `@` would sum in an order that depends on the BLAS library.
        costs.append(np.einsum("i,i->", point_weights, partition.squared_to_mean()))
    return np.array(numbers), np.array(costs)


def choose_streams(
    rows: Float[np.ndarray, "m p"], trade_off: TradeOff | None = None
) -> tuple[int, dict[int, float]]:
    """The number of streams k with the best silhouette s_k.

    k is at least 1 and at most m - 1 and the number of distinct rows. The silhouette of
    k = 1 counts as 0, so 1 is chosen if no other silhouette is positive. On ties the
    smallest k is chosen. With `trade_off`, the k with the largest c(k, s_k) is chosen
    instead (Mestoukirdi et al., algorithm 2).

    Returns:
        The number, and the silhouettes {k: s_k} of all k > 1 that were compared.

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
    values = {}
    for k, score in scores.items():
        values[k] = score if trade_off is None else trade_off(k, score)
        require(
            not np.isnan(values[k]),
            f"the trade-off function is NaN for k = {k} streams of silhouette"
            f" {score:.3f}",
        )
    # k is ascending, and `max` returns the first of the largest values.
    best_k = max(values, key=values.__getitem__)
    return best_k, {k: score for k, score in scores.items() if k > 1}


def silhouette(rows: Float[np.ndarray, "m p"], labels: ArrayLike) -> float:
    """How well clusters are separated (Mestoukirdi et al., section IV-C).

    Args:
        rows: the rows.
        labels: [m] the cluster of each row.

    Returns:
        The mean over the rows of (b - a) / max(a, b), in [-1, 1], rounded to 12
        decimals: a is the mean Euclidean distance of a row to the other members of its
        cluster, b that to the members of the nearest other cluster. A row that is alone
        in its cluster counts 0. The silhouette of a single cluster is 0.
    """
    from scipy.spatial.distance import pdist, squareform

    clusters, labels = np.unique(labels, return_inverse=True)
    weights = np.ones(len(labels))
    distances = squareform(pdist(np.asarray(rows, np.float64)))
    sums = ClusterSums(distances, weights).with_labels(labels, len(clusters))
    return _silhouette(sums, weights)


def match(cost: Float[np.ndarray, "new old"]) -> NDArray[np.int64]:
    """Match new clusters with old ones, one to one, at the least total cost.

    Returns:
        The old cluster of every new one [new].

    Raises:
        ValueError: there are more new clusters than old ones.
    """
    # SciPy is imported where it is used, because the import is slow and most methods do
    # not need it.
    from scipy.optimize import linear_sum_assignment

    new, old = cost.shape
    require(
        new <= old,
        f"cannot match {new} new clusters to {old} old ones; give at most as many new"
        " ones",
    )
    _, assigned = linear_sum_assignment(cost)
    return assigned.astype(np.int64)


class _DistinctPoints:
    """The n distinct points among m rows, which are what k-means clusters.

    Attributes:
        point_of_row: the point of each row [m].
        squared: squared distances between points [n, n].
        multiplicity: the number of rows of each point [n].
    """

    def __init__(
        self, squared: NDArray[np.float64], tolerance: NDArray[np.float64]
    ) -> None:
        """Merge rows that lie at most a tolerance apart.

        Args:
            squared: squared distances between rows [m, m].
            tolerance: for each pair of rows [m, m].
        """
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import connected_components

        # Rows that are connected by pairs within the tolerance are one point.
        is_same = csr_array(squared <= np.square(tolerance))
        _, components = connected_components(is_same, directed=False)
        self.point_of_row = number_by_first_member(components)
        # The first row of each point represents it.
        _, first_row = np.unique(self.point_of_row, return_index=True)
        self.squared = squared[np.ix_(first_row, first_row)]
        self.multiplicity = np.bincount(self.point_of_row).astype(np.float64)

    def labels(self, k: int) -> Labels:
        """The clusters of the rows [m]: k of them, or n if there are fewer points."""
        # Each partition is derived from the previous one, which has fewer clusters.
        *_, last = self.partitions(k)
        return number_by_first_member(last.labels[self.point_of_row])

    def partitions(self, largest: int) -> Iterator[Partition]:
        """Partitions of the points into 1, 2, 3, ... clusters.

        Above 100, the number of clusters grows by 10 %. The last partition has
        `largest` clusters, or n if there are fewer points.
        """
        largest = min(largest, len(self.squared))
        numbers = [1]
        while numbers[-1] < largest:
            last = numbers[-1]
            step = 1 if last < _MAX_CONSECUTIVE else last // 10
            numbers.append(min(last + step, largest))
        return partitions(self.squared, self.multiplicity, numbers)


def _distinct_rows(rows: NDArray[np.float64]) -> _DistinctPoints:
    """The distinct rows of weights.

    Raises:
        ValueError: a row is not finite.
    """
    from scipy.spatial.distance import pdist, squareform

    is_finite = np.isfinite(rows).all(axis=1)
    require(
        bool(is_finite.all()),
        f"row {np.argmin(is_finite)} is not finite; rows of weights are finite numbers",
    )
    # Distances of m rows of m numbers take m^3 steps. Where weights are the same for many
    # clients, most rows are copies.
    _, first, copy = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    originals = rows[np.sort(first)]
    squared = squareform(pdist(originals, "sqeuclidean"))
    points = _DistinctPoints(squared, tolerance=1e-9 * _larger_norm(originals))
    points.point_of_row = points.point_of_row[number_by_first_member(copy.ravel())]
    points.multiplicity = np.bincount(points.point_of_row).astype(np.float64)
    return points


def _distinct_models(models: RowMatrix) -> _DistinctPoints:
    """The distinct models."""
    # The order of the rounding errors of single-precision models, and of distances that
    # are computed from a Gram matrix.
    tolerance = 1e-7 * _larger_norm(np.asarray(models))
    return _DistinctPoints(squared_distances(models), tolerance)


def _silhouette(distance_sums: ClusterSums, weights: NDArray[np.float64]) -> float:
    """`silhouette` of n points in k clusters, where a point represents several rows.

    Args:
        distance_sums: `values` [k, n] are the sums of each point's distances to the
            members of each cluster.
        weights: the number of rows of each point [n].

    Returns:
        The mean over all rows, rounded to 12 decimals.
    """
    labels = distance_sums.labels
    points = np.arange(len(weights))
    cluster_sizes = np.bincount(labels, weights)
    if len(cluster_sizes) == 1:
        return 0.0
    own_size = cluster_sizes[labels]
    # a: the mean distance to the other members of the point's cluster
    a = distance_sums.values[labels, points] / np.maximum(own_size - 1, 1)
    # b: the mean distance to the members of the nearest other cluster
    means = distance_sums.values / cluster_sizes[:, None]
    means[labels, points] = np.inf
    b = means.min(axis=0)
    # A row that is alone in its cluster counts 0, and so do rows that are all equal.
    larger = np.maximum(a, b)
    is_defined = (larger > 0) & (own_size > 1)
    zeros = np.zeros(len(points))
    silhouettes = np.divide(b - a, larger, where=is_defined, out=zeros)
    # Rounding must neither make a silhouette positive nor break ties.
    return round(float(weights @ silhouettes / weights.sum()), 12)


def number_by_first_member(labels: NDArray[Any]) -> Labels:
    """The same clusters, numbered in the order of their first members."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    # The rank of each old label's first member is its new number.
    new_label = np.argsort(np.argsort(first)).astype(np.int64)
    return new_label[inverse]


def _larger_norm(rows: NDArray[Any]) -> NDArray[np.float64]:
    """The larger of the two norms, for each pair of rows [m, m]."""
    # einsum sums float32 rows in double precision without copying them.
    norms = np.sqrt([np.einsum("i,i->", row, row, dtype=np.float64) for row in rows])
    return np.maximum(norms[:, None], norms[None])

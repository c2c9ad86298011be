"""Global k-means on squared distances, for many numbers of clusters in one pass.

Clusters are added one by one where they lower the cost most (Likas, Vlassis and Verbeek
2003). After each addition, points change clusters. First all points move to their
nearest mean (Lloyd). Once every point is at its nearest mean, single points move if
this lowers the cost, including the effect on both means (Hartigan 1975).

Each partition starts from the previous one, so few points move. Distances to means are
computed from sums over the members of clusters, and a move changes only two of these
sums. No random numbers are drawn, so the same distances give the same clusters. Their
cost is seldom above the best of ten k-means++ starts.
"""

from collections.abc import Iterable, Iterator, Sequence
from copy import copy

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

Labels = NDArray[np.int64]
Values = NDArray[np.float64]

_TRIES = 5
"""The number of seeds to try for a new cluster. The one of lowest cost is used."""
_MAX_WORK = 10_000
"""The largest product of points, clusters and tries; it limits the number of tries."""
_MIN_RELATIVE_DECREASE = 1e-5
"""Passes of single moves end when a pass lowers the cost by less than this fraction.

Data without structure would otherwise need thousands of passes.
"""
_ROUNDING = 1e-12
"""Differences below this fraction of the cost are rounding errors."""


def partitions(
    squared: Float[np.ndarray, "n n"],
    weights: Float[np.ndarray, " n"],
    numbers: Iterable[int],
) -> Iterator["Partition"]:
    """Cluster points into several numbers of clusters.

    All clusters between two of the numbers are added together, so a partition depends
    on the previous numbers.

    Args:
        squared: squared distances of distinct points.
        weights: the points' weights, above 0.
        numbers: the numbers of clusters, ascending, in 1..n.

    Yields:
        For each of `numbers`, the partition into that many clusters.
    """
    partition = Partition(squared, weights)
    for number in numbers:
        added = number - partition.count
        if added == 1:
            # Several seeds are tried for a single new cluster.
            affordable = _MAX_WORK // (len(weights) * number)
            tries = max(min(_TRIES, affordable), 1)
            candidates = [
                partition.with_clusters_at([seed]) for seed in partition.seeds(tries)
            ]
            partition = min(candidates, key=lambda candidate: candidate.cost)
        elif added > 1:
            partition = partition.with_clusters_at(partition.seeds(added))
        yield partition


class ClusterSums:
    """Weighted sums of the rows of a matrix over the members of each cluster.

    Attributes:
        weighted: the rows of the matrix times their weights [n, n].
        labels: the cluster of each row [n].
        values: the sums [k, n].
    """

    def __init__(self, matrix: Values, weights: Values) -> None:
        """The sums of one cluster of all points."""
        self.weighted = matrix * weights[:, None]
        self.labels: Labels = np.zeros(len(matrix), np.int64)
        self.values = self.weighted.sum(axis=0, keepdims=True)

    def with_labels(self, labels: Labels, count: int) -> "ClusterSums":
        """The sums after some points have changed clusters.

        Args:
            labels: [n] in 0..count-1.
            count: the number of clusters, not less than before.

        Returns:
            New sums; this object does not change.
        """
        old = self.labels
        new = copy(self)
        new.labels = labels
        empty = np.zeros((count - len(self.values), len(old)))
        new.values = np.concatenate([self.values, empty])
        # Only clusters that points have joined or left have other sums than before.
        changed = np.flatnonzero(labels != old)
        target = labels[changed]
        origin = old[changed]
        for cluster in sorted({*target.tolist(), *origin.tolist()}):
            is_member = labels == cluster
            joined = changed[target == cluster]
            left = changed[origin == cluster]
            before = new.values[cluster]
            gained = self.weighted[joined].sum(axis=0)
            lost = self.weighted[left].sum(axis=0)
            updated = before + gained - lost
            # Compute the sum from its members if that is not more work than an update,
            # or if the update has reduced it to less than half. In that case the
            # rounding error of the larger sum may exceed distances between close
            # points.
            is_as_cheap = len(joined) + len(left) >= is_member.sum()
            inexact = (updated[is_member] < before[is_member] / 2).any()
            if is_as_cheap or inexact:
                updated = self.weighted[is_member].sum(axis=0)
            new.values[cluster] = updated
        return new


class Partition:
    """Points in non-empty clusters. Methods return new partitions.

    Attributes:
        sums: for each cluster and point the weighted sum of squared distances between
            the point and the cluster's members.
        sizes: the sum of the weights of each cluster's members [k].
        cluster_costs: each cluster's part of the cost [k].
        cost: the weighted sum of squared distances of points to the means of their
            clusters.
    """

    def __init__(self, squared: Values, weights: Values) -> None:
        """All points in one cluster."""
        self.squared = squared
        self.weights = weights
        self.points = np.arange(len(weights))
        self._set_sums(ClusterSums(squared, weights))

    @property
    def labels(self) -> Labels:
        """The cluster of every point [n], in no particular order."""
        return self.sums.labels

    @property
    def count(self) -> int:
        """The number of clusters."""
        return len(self.sizes)

    def squared_to_mean(self) -> Values:
        """Squared distances of the points to the means of their clusters.

        They are computed from the distances between points. With j over the members of
        the cluster of point i,

            |x_i - mean|^2
                = ( sum_j w_j |x_i - x_j|^2 - sum_j w_j |x_j - mean|^2 ) / sum_j w_j

        Returns:
            [n], never negative.
        """
        to_members = self.sums.values[self.labels, self.points]
        own_cost = self.cluster_costs[self.labels]
        squared = (to_members - own_cost) / self.sizes[self.labels]
        # Rounding may give negative numbers for points at the mean.
        return np.maximum(squared, 0)

    def seeds(self, number: int) -> list[int]:
        """Points at which new clusters lower the cost most.

        A new cluster at point j lowers the cost by at least

            sum_i w_i max(d_i - |x_i - x_j|^2, 0)

        where d_i is the squared distance of point i to the nearest mean or previous
        seed. The sums are computed for all j and updated after each seed. A point that
        is alone in its cluster is not a seed.

        Returns:
            The points, at most `number` of them.
        """
        nearest = self.squared_to_mean()
        # decrease[j]: by how much a new cluster at point j would lower the cost
        gains = nearest[:, None] - self.squared
        decrease = _weighted_sum(self.weights, np.maximum(gains, 0, out=gains))
        remaining = np.bincount(self.labels)
        decrease[remaining[self.labels] == 1] = -np.inf
        seeds: list[int] = []
        while len(seeds) < number and np.isfinite(decrease.max()):
            seed = int(decrease.argmax())
            seeds.append(seed)
            # Points that are now closer to the new seed gain less from further seeds.
            closer = np.flatnonzero(self.squared[seed] < nearest)
            from_closer = self.squared[closer]
            to_seed = self.squared[seed, closer]
            gain_before = np.maximum(nearest[closer, None] - from_closer, 0)
            gain_now = np.maximum(to_seed[:, None] - from_closer, 0)
            decrease -= _weighted_sum(self.weights[closer], gain_before - gain_now)
            nearest[closer] = to_seed
            # The last point of a cluster must not leave it, as clusters are not empty.
            cluster = self.labels[seed]
            remaining[cluster] -= 1
            if remaining[cluster] == 1:
                decrease[self.labels == cluster] = -np.inf
            decrease[seed] = -np.inf
        return seeds

    def with_clusters_at(self, seeds: list[int]) -> "Partition":
        """Add a cluster at each of the seeds, and move points while the cost decreases.

        Args:
            seeds: points that are not alone in their clusters.
        """
        # Each point moves to the nearest seed, unless its mean is nearer. The distance
        # -1 keeps each seed in its own cluster.
        nearest = self.squared_to_mean()
        nearest[seeds] = -1
        labels = self.labels.copy()
        labels[seeds] = self.count + np.arange(len(seeds))
        for label, seed in enumerate(seeds, self.count):
            is_closer = self.squared[seed] < nearest
            labels[is_closer] = label
            nearest[is_closer] = self.squared[seed, is_closer]
        labels = _without_empty_clusters(self.labels, labels, self.count, seeds)
        best = self._with_labels(labels, self.count + len(seeds))
        candidate = best._after_one_pass()
        while candidate.cost < best.cost:
            best = candidate
            candidate = best._after_one_pass()
        return best

    def _with_labels(self, labels: Labels, count: int) -> "Partition":
        new = copy(self)
        new._set_sums(self.sums.with_labels(labels, count))
        return new

    def _set_sums(self, sums: ClusterSums) -> None:
        self.sums = sums
        self.sizes = np.bincount(sums.labels, self.weights)
        # The cost of a cluster, with i and j over its members:
        # sum_i w_i |x_i - mean|^2 = sum_ij w_i w_j |x_i - x_j|^2 / (2 sum_i w_i)
        to_members = self.weights * sums.values[sums.labels, self.points]
        self.cluster_costs = np.bincount(sums.labels, to_members) / (2 * self.sizes)
        self.cost = float(self.cluster_costs.sum())

    def _after_one_pass(self) -> "Partition":
        """One pass of Lloyd's moves or, if these change no label, of Hartigan's moves.

        Returns:
            A new partition, or this one if no point moves.
        """
        # to_means[k, i] = |x_i - mean_k|^2, as in `squared_to_mean`, for every cluster
        mean_squared = self.sums.values / self.sizes[:, None]
        variances = (self.cluster_costs / self.sizes)[:, None]
        to_means = mean_squared - variances
        labels = self._lloyd_labels(to_means)
        if (labels == self.labels).all():
            labels = self._hartigan_labels(to_means)
        if (labels == self.labels).all():
            return self
        return self._with_labels(labels, self.count)

    def _lloyd_labels(self, to_means: Values) -> Labels:
        """Labels [n] after all points have gone to their nearest mean.

        Args:
            to_means: squared distances of points to the means of all clusters [k, n].
        """
        nearest = to_means.argmin(axis=0)
        to_own = to_means[self.labels, self.points]
        decrease = self.weights * (to_own - to_means[nearest, self.points])
        # Points do not move for differences that are rounding errors.
        labels = np.where(decrease > _ROUNDING * self.cost, nearest, self.labels)
        return _without_empty_clusters(self.labels, labels, self.count)

    def _hartigan_labels(self, to_means: Values) -> Labels:
        """Labels [n] after moves of single points, each of which lowers the cost.

        Moves without a common cluster are independent of each other. The best moves
        that are independent of all better ones are made together.

        Args:
            to_means: squared distances of points to the means of all clusters [k, n].
        """
        target, decrease = self._best_single_moves(to_means)
        improving = np.flatnonzero(decrease > _ROUNDING * self.cost)
        best_first = improving[np.argsort(-decrease[improving], kind="stable")]
        labels = self.labels.copy()
        changed_clusters: set[int] = set()
        total_decrease = 0.0
        for point in best_first.tolist():
            clusters = {int(self.labels[point]), int(target[point])}
            if not clusters & changed_clusters:
                labels[point] = target[point]
                changed_clusters |= clusters
                total_decrease += float(decrease[point])
        return (
            labels
            if total_decrease >= _MIN_RELATIVE_DECREASE * self.cost
            else self.labels
        )

    def _best_single_moves(self, to_means: Values) -> tuple[Labels, Values]:
        """The best other cluster for each point.

        A point of weight w that leaves a cluster of weight W lowers the cluster's cost
        by w W / (W - w) times its squared distance to the mean. A point that joins a
        cluster raises the cost by w W / (W + w) times that distance.

        Args:
            to_means: squared distances of points to the means of all clusters [k, n].

        Returns:
            The clusters [n], and by how much each move lowers the cost [n].
        """
        weights = self.weights
        sizes = self.sizes[:, None]
        own_size = self.sizes[self.labels]
        remaining = own_size - weights
        # A point that is alone in its cluster is the mean, and saves nothing.
        scaled = weights * own_size * to_means[self.labels, self.points]
        zeros = np.zeros(len(remaining))
        saved = np.divide(scaled, remaining, where=remaining > 0, out=zeros)
        added = to_means * ((weights * sizes) / (weights + sizes))
        added[self.labels, self.points] = np.inf
        target = added.argmin(axis=0)
        return target, saved - added[target, self.points]


def _without_empty_clusters(
    old: Labels, labels: Labels, count: int, seeds: Sequence[int] = ()
) -> Labels:
    """Undo moves that leave a cluster without members.

    Args:
        old: [n] labels before the moves.
        labels: [n] labels after the moves.
        count: the number of clusters before the moves.
        seeds: points whose moves are not undone, because they start new clusters.

    Returns:
        Labels [n] with which each of the old clusters has a member.
    """
    # Undoing a move may leave another cluster empty, hence the loop.
    while True:
        is_empty = np.bincount(labels, minlength=count) == 0
        is_restored = is_empty[old] & (labels != old)
        is_restored[[*seeds]] = False
        if not is_restored.any():
            return labels
        labels = np.where(is_restored, old, labels)


def _weighted_sum(weights: Values, rows: Values) -> Values:
    """sum_i weights_i rows_i."""
    # A matrix product would sum in an order that depends on the number of threads.
    return np.einsum("i,ij->j", weights, rows)

"""Global k-means on squared distances: what choosing among hundreds of numbers of
clusters can afford.

One cluster after another is added where it lowers the cost most (Likas, Vlassis and
Verbeek 2003); then points move between clusters, all to their nearest mean (Lloyd) and,
once none is nearer to another, one by one where that lowers the cost, the change of
both means included (Hartigan 1975). Each number of clusters starts from the one before,
so few points move; distances to means come from sums over the members of clusters, of
which a move changes two. Nothing is drawn: the same distances give the same clusters,
at a cost that the best of ten k-means++ starts seldom undercuts.
"""

from collections.abc import Iterable, Iterator, Sequence
from copy import copy

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

Labels = NDArray[np.int64]
Values = NDArray[np.float64]

_TRIES = 5
"""Seeds tried for a new cluster, of which the one of lowest cost is kept."""
_TRIED_CELLS = 10_000
"""The largest product of points, clusters and tries: where it would be larger there are
fewer tries, at least one.
"""
_LEAST_GAIN = 1e-5
"""Moves of single points end when together they lower the cost by less than this share:
where there is no structure they would go on for thousands of times and win nothing."""
_ROUNDING = 1e-12
"""Differences below this share of the cost are rounding."""


def partitions(
    squared: Float[np.ndarray, "n n"],
    weights: Float[np.ndarray, " n"],
    numbers: Iterable[int],
) -> Iterator["Partition"]:
    """Cluster points for several numbers of clusters.

    Clusters that are added between two numbers are seeded at once: those of a number
    depend on the numbers before it.

    Args:
        squared: squared distances of distinct points.
        weights: their weights, above 0.
        numbers: of clusters, ascending, in 1..n.

    Yields:
        The points in so many clusters, for each of `numbers`.
    """
    partition = Partition(squared, weights)
    for number in numbers:
        # Where one cluster is added, several seeds are tried; where numbers leap, the
        # seeds are taken as they come.
        more = number - partition.count
        if more > 1:
            partition = partition.grown(partition.seeds(more))
        elif more:
            tries = max(min(_TRIES, _TRIED_CELLS // (len(weights) * number)), 1)
            grown = [partition.grown([seed]) for seed in partition.seeds(tries)]
            partition = min(grown, key=lambda candidate: candidate.cost)
        yield partition


class GroupSums:
    """Weighted sums of the rows of a matrix [n, n] over the members of each cluster:
    `values` [k, n].
    """

    def __init__(self, matrix: Values, weights: Values) -> None:
        """All points in one cluster."""
        self.rows = matrix * weights[:, None]
        self.labels: Labels = np.zeros(len(matrix), np.int64)
        self.values = self.rows.sum(axis=0, keepdims=True)

    def moved(self, labels: Labels, count: int) -> "GroupSums":
        """The sums after some points have changed clusters.

        Args:
            labels: [n] in 0..count-1.
            count: the number of clusters, not less than before.

        Returns:
            New sums; these stay as they are.
        """
        old = self.labels
        new = copy(self)
        new.labels = labels
        empty = np.zeros((count - len(self.values), len(old)))
        new.values = np.concatenate([self.values, empty])
        # Only clusters that a point has left or joined have other sums than before.
        moved = np.flatnonzero(labels != old)
        target, origin = labels[moved], old[moved]
        for cluster in sorted({*target.tolist(), *origin.tolist()}):
            members = labels == cluster
            joined = moved[target == cluster]
            left = moved[origin == cluster]
            before = new.values[cluster]
            gained = self.rows[joined].sum(axis=0)
            lost = self.rows[left].sum(axis=0)
            updated = before + gained - lost
            # Sum anew where that is no more work than an update, or where little
            # remains of a large sum: it has the rounding of the large one, in which
            # members that lie close together would be lost.
            no_more_work = len(joined) + len(left) >= members.sum()
            inexact = (updated[members] < before[members] / 2).any()
            new.values[cluster] = (
                self.rows[members].sum(axis=0) if no_more_work or inexact else updated
            )
        return new


class Partition:
    """Points in clusters, none of which is empty.

    Attributes:
        sizes: the clusters' weights [k].
        cost: weighted sum of the squared distances of points to the means of their
            clusters.
    """

    def __init__(self, squared: Values, weights: Values) -> None:
        self.squared, self.weights = squared, weights
        self.each = np.arange(len(weights))
        self._take(GroupSums(squared, weights))

    @property
    def labels(self) -> Labels:
        """The cluster of every point [n], in no order."""
        return self.groups.labels

    @property
    def count(self) -> int:
        """Clusters."""
        return len(self.sizes)

    def squared_to_own(self) -> Values:
        """Squared distances of the points to the means of their clusters.

        They follow from distances between points, without coordinates: over the members
        j of a point's cluster,

            |x_i - mean|^2 = ( sum_j w_j |x_i - x_j|^2 - sum_j w_j |x_j - mean|^2 ) / sum_j w_j

        Returns:
            [n], never negative.
        """
        from_members = self.groups.values[self.labels, self.each]
        squared = (from_members - self.within[self.labels]) / self.sizes[self.labels]
        # Rounding may have made those of points at the mean negative.
        return np.maximum(squared, 0)

    def seeds(self, number: int) -> list[int]:
        """Points to start new clusters from, one after another where a cluster would
        lower the cost most.

        Only points of clusters with others in them count. The cost falls by at least
        sum_i w_i max(d_i - d(i, seed), 0), d_i the distance of i to the nearest mean or
        seed: a first sum over all points, then the differences of those that a seed has
        taken over.
        """
        nearest = self.squared_to_own()
        # falls[j]: by how much the cost would fall, at least, with a new cluster at
        # point j.
        falls = nearest[:, None] - self.squared
        falls = _weighted(self.weights, np.maximum(falls, 0, out=falls))
        remaining = np.bincount(self.labels)
        falls[remaining[self.labels] == 1] = -np.inf
        seeds: list[int] = []
        while len(seeds) < number and np.isfinite(falls.max()):
            seed = int(falls.argmax())
            seeds.append(seed)
            # Points that the seed takes over win less by any other seed than they did
            # before.
            taken = np.flatnonzero(self.squared[seed] < nearest)
            to_others = self.squared[taken]
            to_seed = self.squared[seed, taken]
            won_before = np.maximum(nearest[taken, None] - to_others, 0)
            won_now = np.maximum(to_seed[:, None] - to_others, 0)
            falls -= _weighted(self.weights[taken], won_before - won_now)
            nearest[taken] = to_seed
            # The last point of a cluster is no seed: the cluster would be empty.
            cluster = self.labels[seed]
            remaining[cluster] -= 1
            if remaining[cluster] == 1:
                falls[self.labels == cluster] = -np.inf
            falls[seed] = -np.inf
        return seeds

    def grown(self, seeds: list[int]) -> "Partition":
        """With one cluster more at each of the seeds.

        Args:
            seeds: points, none of which is the last one of its cluster.

        Returns:
            The partition after points have moved until no move lowers the cost.
        """
        # Each point joins the nearest seed that is nearer to it than its mean; a seed
        # stays its own cluster's (-1).
        nearest = self.squared_to_own()
        nearest[seeds] = -1
        labels = self.labels.copy()
        labels[seeds] = self.count + np.arange(len(seeds))
        for label, seed in enumerate(seeds, self.count):
            taken = self.squared[seed] < nearest
            labels[taken] = label
            nearest[taken] = self.squared[seed, taken]
        labels = _none_empty(self.labels, labels, self.count, seeds)
        # Then Lloyd's and Hartigan's moves in turn, as long as the cost falls.
        new = self._moved(labels, self.count + len(seeds))
        better = new._improved()
        while better.cost < new.cost:
            new = better
            better = new._improved()
        return new

    def _moved(self, labels: Labels, count: int) -> "Partition":
        new = copy(self)
        new._take(self.groups.moved(labels, count))
        return new

    def _take(self, groups: GroupSums) -> None:
        self.groups = groups
        self.sizes = np.bincount(groups.labels, self.weights)
        # Each cluster's part of the cost: sum_i w_i |x_i - mean|^2 = sum_ij w_i w_j
        # |x_i - x_j|^2 / (2 sum_i w_i).
        from_members = self.weights * groups.values[groups.labels, self.each]
        self.within = np.bincount(groups.labels, from_members) / (2 * self.sizes)
        self.cost = float(self.within.sum())

    def _improved(self) -> "Partition":
        """After moves of all points that are nearer to another mean or, where none is,
        of single points; or itself.
        """
        # to_means[k, i] = |x_i - mean_k|^2, as in `squared_to_own` but for every
        # cluster
        mean_distances = self.groups.values / self.sizes[:, None]
        spreads = (self.within / self.sizes)[:, None]
        to_means = mean_distances - spreads
        labels = self._nearest(to_means)
        if (labels == self.labels).all():
            labels = self._exchanged(to_means)
        if (labels == self.labels).all():
            return self
        return self._moved(labels, self.count)

    def _nearest(self, to_means: Values) -> Labels:
        """After moves of all points to their nearest mean (Lloyd)."""
        other = to_means.argmin(axis=0)
        falls = self.weights * (
            to_means[self.labels, self.each] - to_means[other, self.each]
        )
        # a difference by rounding is no reason to move
        labels = np.where(falls > _ROUNDING * self.cost, other, self.labels)
        return _none_empty(self.labels, labels, self.count)

    def _exchanged(self, to_means: Values) -> Labels:
        """After moves of single points (Hartigan).

        Moves that share no cluster do not influence each other: the best of those are
        made together.
        """
        other, falls = self._best_single_moves(to_means)
        better = np.flatnonzero(falls > _ROUNDING * self.cost)
        best_first = better[np.argsort(-falls[better], kind="stable")]
        labels = self.labels.copy()
        changed: set[int] = set()
        total = 0.0
        for point in best_first.tolist():
            pair = {int(self.labels[point]), int(other[point])}
            if not pair & changed:
                labels[point] = other[point]
                changed |= pair
                total += float(falls[point])
        return labels if total >= _LEAST_GAIN * self.cost else self.labels

    def _best_single_moves(self, to_means: Values) -> tuple[Labels, Values]:
        """The other cluster [n] to which each point would best move, and by how much
        [n] that lowers the cost.

        A point of weight w that leaves a cluster of weight W lowers its cost by w W /
        (W - w) times the squared distance to the mean; one that joins raises it by w W
        / (W + w) times that.
        """
        weights = self.weights
        sizes = self.sizes[:, None]
        own_size = self.sizes[self.labels]
        remaining = own_size - weights
        less = weights * own_size * to_means[self.labels, self.each]
        # Alone in its cluster a point wins nothing by moving: it is the mean.
        less = np.divide(
            less, remaining, where=remaining > 0, out=np.zeros(len(remaining))
        )
        more = to_means * ((weights * sizes) / (weights + sizes))
        more[self.labels, self.each] = np.inf
        other = more.argmin(axis=0)
        return other, less - more[other, self.each]


def _none_empty(
    old: Labels, labels: Labels, count: int, leave: Sequence[int] = ()
) -> Labels:
    """Gives clusters that would lose all their members those back, but for `leave`;
    until none is empty.

    Args:
        old: [n] labels before the moves.
        labels: [n] labels after them.
        count: the number of old clusters.
        leave: points that start new clusters, and do not go back.

    Returns:
        Labels [n] of which each of the old clusters has a member.
    """
    while True:
        is_empty = np.bincount(labels, minlength=count) == 0
        lost = is_empty[old] & (labels != old)
        lost[[*leave]] = False
        if not lost.any():
            return labels
        labels = np.where(lost, old, labels)


def _weighted(weights: Values, rows: Values) -> Values:
    # a product of matrices would add up in an order that depends on the threads it may
    # use
    return np.einsum("i,ij->j", weights, rows)

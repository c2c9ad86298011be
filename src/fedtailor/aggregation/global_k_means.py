"""Global k-means on squared distances: what choosing among hundreds of numbers of clusters can afford.

One cluster after another is added where it lowers the cost most (Likas, Vlassis and Verbeek 2003); then points move
between clusters, all to their nearest mean (Lloyd) and, once none is nearer to another, one by one where that lowers
the cost, the change of both means included (Hartigan 1975). Each number of clusters starts from the one before, so few
points move; distances to means come from sums over the members of clusters, of which a move changes two. Nothing is
drawn: the same distances give the same clusters, at a cost that the best of ten k-means++ starts seldom undercuts.
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
"""Points times clusters times tries, at most; beyond, there are fewer tries, but one."""
_WORTH = 1e-5
"""Share of the cost by which moves of single points lower it together, or they end: they would go on for thousands of
times where there is no structure, and win nothing."""
_ROUNDING = 1e-12
"""Share of the cost that is no difference."""


def partitions(
    squared: Float[np.ndarray, "n n"], weights: Float[np.ndarray, " n"], numbers: Iterable[int]
) -> Iterator["Partition"]:
    """n distinct points of these weights in so many clusters, for each of `numbers`, which rise and lie in 1..n.

    Clusters that are added between two numbers are seeded at once: those of a number depend on the numbers before it.
    """
    partition = Partition(squared, weights)
    for number in numbers:
        more = number - partition.count
        if more > 1:
            partition = partition.grown(partition.seeds(more))
        elif more:
            tries = max(min(_TRIES, _TRIED_CELLS // (len(weights) * number)), 1)
            grown = [partition.grown([seed]) for seed in partition.seeds(tries)]
            partition = min(grown, key=lambda one: one.cost)
        yield partition


class GroupSums:
    """Weighted sums of the rows of a matrix [n, n] over the members of each cluster: `values` [k, n]."""

    def __init__(self, matrix: Values, weights: Values) -> None:
        self.rows = matrix * weights[:, None]
        self.labels: Labels = np.zeros(len(matrix), np.int64)
        self.values = self.rows.sum(axis=0, keepdims=True)

    def moved(self, labels: Labels, count: int) -> "GroupSums":
        """The sums for labels in 0..count-1; count must not be less than before."""
        old, new = self.labels, copy(self)
        new.labels = labels
        new.values = np.concatenate([self.values, np.zeros((count - len(self.values), len(old)))])
        moved = np.flatnonzero(labels != old)
        target, origin = labels[moved], old[moved]
        for cluster in sorted({*target.tolist(), *origin.tolist()}):
            members, joined, left = labels == cluster, moved[target == cluster], moved[origin == cluster]
            before = new.values[cluster]
            row = before + self.rows[joined].sum(axis=0) - self.rows[left].sum(axis=0)
            # what is left of large sums has their rounding: members that lie close together would be lost in it
            fresh = len(joined) + len(left) >= members.sum() or (row[members] < before[members] / 2).any()
            new.values[cluster] = self.rows[members].sum(axis=0) if fresh else row
        return new


class Partition:
    """Points in clusters, none of which is empty.

    Attributes:
        sizes: the clusters' weights [k].
        cost: weighted sum of the squared distances of points to the means of their clusters.
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
        """Squared distances of the points to the means of their clusters [n]."""
        from_members = self.groups.values[self.labels, self.each]
        return np.maximum((from_members - self.within[self.labels]) / self.sizes[self.labels], 0)

    def seeds(self, number: int) -> list[int]:
        """Points to start new clusters from, one after another where a cluster would lower the cost most.

        Only points of clusters with others in them count. The cost falls by at least
        sum_i w_i max(d_i - d(i, seed), 0), d_i the distance of i to the nearest mean or seed: a first sum over all
        points, then the differences of those that a seed has taken over.
        """
        nearest = self.squared_to_own()
        falls = nearest[:, None] - self.squared
        falls = _weighted(self.weights, np.maximum(falls, 0, out=falls))
        remaining = np.bincount(self.labels)
        falls[remaining[self.labels] == 1] = -np.inf
        seeds: list[int] = []
        while len(seeds) < number and np.isfinite(falls.max()):
            seed = int(falls.argmax())
            seeds.append(seed)
            near = np.flatnonzero(self.squared[seed] < nearest)
            rows, now = self.squared[near], self.squared[seed, near]
            less = np.maximum(nearest[near, None] - rows, 0) - np.maximum(now[:, None] - rows, 0)
            falls -= _weighted(self.weights[near], less)
            nearest[near] = now
            cluster = self.labels[seed]
            remaining[cluster] -= 1
            if remaining[cluster] == 1:
                falls[self.labels == cluster] = -np.inf  # somebody has to stay
            falls[seed] = -np.inf
        return seeds

    def grown(self, seeds: list[int]) -> "Partition":
        """With a cluster more at each of the seeds, and the points where they then belong."""
        nearest = self.squared_to_own()
        nearest[seeds] = -1
        labels = self.labels.copy()
        labels[seeds] = self.count + np.arange(len(seeds))
        for label, seed in enumerate(seeds, self.count):
            near = self.squared[seed] < nearest
            labels[near], nearest[near] = label, self.squared[seed, near]
        new = self._moved(_none_empty(self.labels, labels, self.count, seeds), self.count + len(seeds))
        while (better := new._improved()).cost < new.cost:
            new = better
        return new

    def _moved(self, labels: Labels, count: int) -> "Partition":
        new = copy(self)
        new._take(self.groups.moved(labels, count))
        return new

    def _take(self, groups: GroupSums) -> None:
        self.groups = groups
        self.sizes = np.bincount(groups.labels, self.weights)
        from_members = self.weights * groups.values[groups.labels, self.each]
        self.within = np.bincount(groups.labels, from_members) / (2 * self.sizes)  # of the cost, each cluster's part
        self.cost = float(self.within.sum())

    def _improved(self) -> "Partition":
        """After moves of all points that are nearer to another mean or, where none is, of single points; or itself."""
        to_means = self.groups.values / self.sizes[:, None] - (self.within / self.sizes)[:, None]
        labels = self._nearest(to_means)
        if (labels == self.labels).all():
            labels = self._exchanged(to_means)
        return self if (labels == self.labels).all() else self._moved(labels, self.count)

    def _nearest(self, to_means: Values) -> Labels:
        other = to_means.argmin(axis=0)
        falls = self.weights * (to_means[self.labels, self.each] - to_means[other, self.each])
        # a difference by rounding is no reason to move
        labels = np.where(falls > _ROUNDING * self.cost, other, self.labels)
        return _none_empty(self.labels, labels, self.count)

    def _exchanged(self, to_means: Values) -> Labels:
        """After moves of single points. Those that share no cluster do not influence each other: the best of those
        are made together."""
        weights, rest = self.weights, self.sizes[self.labels] - self.weights
        less = weights * self.sizes[self.labels] * to_means[self.labels, self.each]
        less = np.divide(less, rest, where=rest > 0, out=np.zeros(len(rest)))
        more = to_means * ((weights * self.sizes[:, None]) / (weights + self.sizes[:, None]))
        more[self.labels, self.each] = np.inf
        other = more.argmin(axis=0)
        falls = less - more[other, self.each]
        better = np.flatnonzero(falls > _ROUNDING * self.cost)
        labels, used, total = self.labels.copy(), set[int](), 0.0
        for point in better[np.argsort(-falls[better], kind="stable")].tolist():
            pair = {int(self.labels[point]), int(other[point])}
            if not pair & used:
                labels[point] = other[point]
                used |= pair
                total += float(falls[point])
        return labels if total >= _WORTH * self.cost else self.labels


def _none_empty(old: Labels, labels: Labels, count: int, leave: Sequence[int] = ()) -> Labels:
    """Gives clusters that would lose all their members those back, but for `leave`; until none is empty."""
    while True:
        lost = (np.bincount(labels, minlength=count)[old] == 0) & (labels != old)
        lost[[*leave]] = False
        if not lost.any():
            return labels
        labels = np.where(lost, old, labels)


def _weighted(weights: Values, rows: Values) -> Values:
    # a product of matrices would add up in an order that depends on the threads it may use
    return np.einsum("i,ij->j", weights, rows)

"""Global k-means on squared distances: what choosing among hundreds of numbers of clusters can afford.

One cluster after another is added where it lowers the cost most (Likas, Vlassis and Verbeek 2003); then points move
between clusters, all to their nearest mean (Lloyd) and, once none is nearer to another, one by one where that still
lowers the cost (Hartigan 1975). Each number of clusters starts from the one before, so that few points move; distances
to means come from sums over the members of clusters, of which a move changes two. Nothing is drawn: the same distances
give the same clusters, at a cost that the best of ten k-means++ starts seldom undercuts.
"""

from collections.abc import Iterable, Iterator
from copy import copy

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

Labels = NDArray[np.int64]
Values = NDArray[np.float64]

_TRIES = 5
"""Places for a new cluster of which the best is kept,"""
_CELLS = 10_000
"""fewer where this many points times clusters would have to be tried: there, a single one is seldom beaten."""
_WORTH = 1e-5
"""Share of the cost by which exchanges lower it at least; without structure, thousands of them would win nothing."""


def partitions(
    squared: Float[np.ndarray, "n n"], weights: Float[np.ndarray, " n"], numbers: Iterable[int]
) -> Iterator[Labels]:
    """Labels [n] of n distinct points of these weights, for each of `numbers` of clusters, which rise from 2 to n - 1.

    Clusters that are added between two numbers are placed at once. Labels of a number depend on the numbers before it.
    """
    found = _Partition(squared, weights)
    for number in numbers:
        more = number - found.count
        if more > 1:
            found = found.grown(found.places(more))
        else:
            tries = max(min(_TRIES, _CELLS // (len(weights) * number)), 1)
            found = min((found.grown([place]) for place in found.places(tries)), key=lambda one: one.cost)
        yield found.labels


class GroupSums:
    """Weighted sums of the rows of a matrix [n, n] over the members of each cluster: `values` [k, n]."""

    def __init__(self, matrix: Values, weights: Values) -> None:
        self.rows = matrix * weights[:, None]
        self.labels: Labels = np.zeros(len(matrix), np.int64)
        self.values = self.rows.sum(axis=0, keepdims=True)

    def moved(self, labels: Labels, count: int) -> "GroupSums":
        """The sums for labels 0..count-1: sums what has moved, or whole clusters where that is less."""
        old, new = self.labels, copy(self)
        new.labels = labels
        new.values = np.concatenate([self.values, np.zeros((count - len(self.values), len(old)))])
        moved = np.flatnonzero(labels != old)
        sizes = np.bincount(labels, minlength=count)
        to, off = labels[moved], old[moved]
        for cluster in sorted({*to.tolist(), *off.tolist()}):
            came, left = moved[to == cluster], moved[off == cluster]
            if len(came) + len(left) >= sizes[cluster]:
                new.values[cluster] = self.rows[labels == cluster].sum(axis=0)
            else:
                new.values[cluster] += self.rows[came].sum(axis=0) - self.rows[left].sum(axis=0)
        return new


class _Partition:
    """Points in clusters, none of which is empty."""

    def __init__(self, squared: Values, weights: Values) -> None:
        self.squared, self.weights = squared, weights
        self.each = np.arange(len(weights))
        self._take(GroupSums(squared, weights))
        self.rounding = 1e-12 * self.cost / len(weights)

    @property
    def labels(self) -> Labels:
        return self.groups.labels

    @property
    def count(self) -> int:
        return len(self.sizes)

    def places(self, number: int) -> list[int]:
        """Points of clusters with others in them, one after another where a cluster would lower the cost most.

        The cost falls by at least sum_i w_i max(d_i - d(i, place), 0), d_i the distance of i to the nearest mean or
        place; a first sum over all points, then the differences of those that a place has taken over.
        """
        own = self._to_own()
        falls = own[:, None] - self.squared
        falls = _weighted(self.weights, np.maximum(falls, 0, out=falls))
        left = np.bincount(self.labels)
        falls[left[self.labels] == 1] = -np.inf
        places: list[int] = []
        while len(places) < number and np.isfinite(falls.max()):
            place = int(falls.argmax())
            places.append(place)
            near = np.flatnonzero(self.squared[place] < own)
            then = self.squared[place, near]
            rows = self.squared[near]
            less = np.maximum(own[near, None] - rows, 0) - np.maximum(then[:, None] - rows, 0)
            falls -= _weighted(self.weights[near], less)
            own[near] = then
            home = self.labels[place]
            left[home] -= 1
            falls[self.labels == home if left[home] == 1 else place] = -np.inf
        return places

    def grown(self, places: list[int]) -> "_Partition":
        """With a cluster more at each of the places, and the points where they then belong."""
        nearest = self._to_own()
        nearest[places] = -1
        labels = self.labels.copy()
        labels[places] = self.count + np.arange(len(places))
        for label, place in enumerate(places, self.count):
            near = self.squared[place] < nearest
            labels[near], nearest[near] = label, self.squared[place, near]
        new = self._moved(self._keep_one(labels, self.count, places), self.count + len(places))
        while (better := new._improved()).cost < new.cost:
            new = better
        return new

    def _moved(self, labels: Labels, count: int) -> "_Partition":
        new = copy(self)
        new._take(self.groups.moved(labels, count))
        return new

    def _take(self, groups: GroupSums) -> None:
        self.groups = groups
        self.sizes = np.bincount(groups.labels, self.weights)
        own = self.weights * groups.values[groups.labels, self.each]
        self.within = np.bincount(groups.labels, own) / (2 * self.sizes)  # what the members cost in all, [k]
        self.cost = float(self.within.sum())

    def _to_means(self) -> Values:
        """Squared distances of the means of all clusters to all points [k, n]."""
        return self.groups.values / self.sizes[:, None] - (self.within / self.sizes)[:, None]

    def _to_own(self) -> Values:
        """Squared distances of the points to the means of their clusters [n]."""
        means = self.groups.values[self.labels, self.each] - self.within[self.labels]
        return np.maximum(means / self.sizes[self.labels], 0)

    def _keep_one(self, labels: Labels, count: int, leave: list[int]) -> Labels:
        """Gives clusters that would lose all their members those back, but for `leave`."""
        lost = np.bincount(labels, minlength=count)[self.labels] == 0
        lost[leave] = False
        return np.where(lost, self.labels, labels)

    def _improved(self) -> "_Partition":
        """After moves of all points that are nearer to another mean or, where none is, of single points; or itself."""
        far = self._to_means()
        labels = self._nearest(far)
        if (labels != self.labels).any():
            return self._moved(labels, self.count)
        labels = self._exchanged(far)
        return self._moved(labels, self.count) if (labels != self.labels).any() else self

    def _nearest(self, far: Values) -> Labels:
        own, nearest = self.labels, far.argmin(axis=0)
        closer = far[own, self.each] - far[nearest, self.each] > self.rounding
        return self._keep_one(np.where(closer, nearest, own), self.count, [])

    def _exchanged(self, far: Values) -> Labels:
        """After moves of single points that lower the cost, the change of both means included.

        Moves that share no cluster do not influence each other: the best of those are made together.
        """
        own, weights = self.labels, self.weights
        rest = self.sizes[own] - weights
        without = np.divide(
            weights * self.sizes[own] * far[own, self.each], rest, where=rest > 0, out=np.zeros(len(own))
        )
        within = far * ((weights * self.sizes[:, None]) / (weights + self.sizes[:, None]))
        within[own, self.each] = np.inf
        other = within.argmin(axis=0)
        falls = without - within[other, self.each]
        worth = np.flatnonzero(falls > self.rounding)
        labels, used, total = own.copy(), set[int](), 0.0
        for point in worth[np.argsort(-falls[worth], kind="stable")].tolist():
            pair = {int(own[point]), int(other[point])}
            if not pair & used:
                labels[point] = other[point]
                used |= pair
                total += float(falls[point])
        return labels if total >= _WORTH * self.cost else own


def _weighted(weights: Values, rows: Values) -> Values:
    # a product of matrices would add up in an order that depends on the threads it may use
    return np.einsum("i,ij->j", weights, rows)

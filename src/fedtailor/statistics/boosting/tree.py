"""`Tree`, and how one is grown from sums of histograms."""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Self

import numpy as np
from jaxtyping import Float, Int, Integer
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.statistics.boosting.bins import Thresholds

GRADIENT, CURVATURE, ROWS = 0, 1, 2
"""What a histogram adds up, in the order of its last axis."""
LEAST_CURVATURE = 1e-3
"""The least curvature of a leaf's rows."""
TINY = 1e-15
"""Keeps a leaf without curvature finite."""

Histogram = Float[NDArray, "inputs bins 3"]

FIELDS = ("input", "bin", "threshold", "left", "right", "value")
"""The arrays of a tree."""


@dataclass(frozen=True)
class GrowSettings:
    """How a tree is grown; the defaults are those of HistGradientBoosting.

    Attributes:
        most_leaves: leaves of a tree at most; None = as many as its depth allows.
        most_depth: splits above a leaf at most; None = any number.
        least_rows: rows in a leaf at least.
        penalty: L2 penalty of leaves.
        rate: the factor of leaves, the learning rate.
    """

    most_leaves: int | None = 31
    most_depth: int | None = None
    least_rows: int = 20
    penalty: float = 0.0
    rate: float = 0.1


@dataclass(frozen=True)
class Tree:
    """A regression tree as arrays over its nodes, the root first.

    Attributes:
        input: which input a node asks for; -1 in leaves.
        bin: the last bin that goes to the left.
        threshold: the largest value that goes to the left.
        left, right: the numbers of the children; 0 in leaves.
        value: what a leaf predicts.
    """

    input: Int[NDArray, " nodes"]
    bin: Int[NDArray, " nodes"]
    threshold: Float[NDArray, " nodes"]
    left: Int[NDArray, " nodes"]
    right: Int[NDArray, " nodes"]
    value: Float[NDArray, " nodes"]

    def predict(self, x: Float[NDArray, "n inputs"]) -> NDArray[np.float64]:
        """The values [n] of rows."""
        return self._descend(x, self.threshold)

    def predict_bins(self, bins: Integer[NDArray, "n inputs"]) -> NDArray[np.float64]:
        """The values [n] of rows whose inputs are numbers of bins."""
        return self._descend(bins, self.bin)

    def _descend(self, rows: NDArray[Any], limits: NDArray[Any]) -> NDArray[np.float64]:
        node = np.zeros(len(rows), np.int64)
        every = np.arange(len(rows))
        while True:
            asked = self.input[node]
            inner = asked >= 0
            if not inner.any():
                return self.value[node]
            goes_left = rows[every, np.maximum(asked, 0)] <= limits[node]
            child = np.where(goes_left, self.left[node], self.right[node])
            node = np.where(inner, child, node)

    def check(self, inputs: int) -> None:
        """Check a tree that came from outside: every row ends in one of its leaves.

        Raises:
            ValueError: its arrays are not those of a tree on so many inputs.
        """
        size = np.shape(self.input)[:1]
        for name in FIELDS:
            array = getattr(self, name)
            kind = np.float64 if name in ("threshold", "value") else np.int64
            require(
                array.shape == size
                and array.dtype == kind
                and len(array) > 0
                and bool(np.isfinite(array).all()),
                f"the nodes of a tree have no proper {name}",
            )
        inner, places = self.input >= 0, np.arange(len(self.input))
        # Children come after their parents.
        leads_on = all(
            bool(((child > places) & (child < len(places)))[inner].all())
            for child in (self.left, self.right)
        )
        require(
            leads_on and bool((self.input < inputs).all()),
            "a tree has a node that leads nowhere",
        )

    @property
    def leaves(self) -> int:
        """The number of leaves."""
        return int((self.input < 0).sum())


def predict_all(
    trees: Sequence[Tree], x: Float[NDArray, "n inputs"]
) -> Float[NDArray, "trees n"]:
    """The values of rows by each tree, which all rows go down at once."""
    sizes = [len(tree.input) for tree in trees]
    roots = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
    asked, limits, values = (
        np.concatenate([getattr(tree, name) for tree in trees])
        for name in ("input", "threshold", "value")
    )
    offsets = np.repeat(roots, sizes)
    left, right = (
        np.concatenate([getattr(tree, name) for tree in trees]) + offsets
        for name in ("left", "right")
    )
    node = np.repeat(roots[:, None], len(x), axis=1)
    every = np.arange(len(x))
    while True:
        which = asked[node]
        inner = which >= 0
        if not inner.any():
            return values[node]
        goes_left = x[every, np.maximum(which, 0)] <= limits[node]
        child = np.where(goes_left, left[node], right[node])
        node = np.where(inner, child, node)


@dataclass(frozen=True)
class NodeSplit:
    """The best split of a node.

    Attributes:
        gain: by how much it lowers the loss.
        input, bin: the input, and the last bin that goes to the left.
        left, right: sums of gradients, curvatures and rows of the children [3].
    """

    gain: float
    input: int
    bin: int
    left: Float[NDArray, " 3"]
    right: Float[NDArray, " 3"]


@dataclass
class _Node:
    """A node while its tree grows."""

    number: int
    depth: int
    sums: NDArray[np.float64]
    value: float
    histogram: Histogram | None = None
    split: NodeSplit | None = None
    children: tuple[Self, Self] | None = None

    def __lt__(self, other: Self) -> bool:
        """Whether a heap returns this node first: its split gains more."""
        assert self.split is not None and other.split is not None
        return self.split.gain > other.split.gain


def split_gains(
    left: Sequence[Float[NDArray, "*_"]],
    sums: Float[NDArray, "*_"],
    value: Float[NDArray, "*_"] | float,
    settings: GrowSettings,
) -> Float[NDArray, "*_"]:
    """By how much splits lower the loss; -1 where a child would be too small.

    Gains of different splits may be equal, and rounding then decides: it is that of
    scikit-learn, whose sums of single precision are exact in double precision.

    Args:
        left: sums of gradients, of curvatures and of rows in the left children.
        sums: of all rows of a node [..., 3].
        value: what the node predicts as a leaf, without the learning rate.
        settings: what children must have at least.
    """
    right = [sums[..., place] - it for place, it in enumerate(left)]
    allowed = np.ones(left[0].shape, bool)
    losses = []
    for slopes, curvatures, rows in (left, right):
        of_child = -slopes / (curvatures + settings.penalty + TINY)
        losses.append(slopes * of_child)
        allowed &= (rows >= settings.least_rows) & (curvatures >= LEAST_CURVATURE)
    gains = (sums[..., GRADIENT] * value - losses[0]) - losses[1]
    return np.where(allowed, gains, -1.0)


def best_split(
    histogram: Histogram,
    sums: Float[NDArray, " 3"],
    value: float,
    bins: Int[NDArray, " inputs"],
    settings: GrowSettings,
) -> NodeSplit | None:
    """The split with the largest gain; of equal ones the first input's first bin.

    Args:
        histogram: of the node's rows.
        sums: of all its rows [3].
        value: what it predicts as a leaf, without the learning rate.
        bins: the number of bins of each input.
        settings: what children must have at least.
    """
    left = histogram.cumsum(axis=1)[:, :-1]  # up to and with each bin
    gains = split_gains(list(np.moveaxis(left, -1, 0)), sums, value, settings)
    is_there = np.arange(left.shape[1]) < bins[:, None] - 1
    gains = np.where(is_there, gains, -1.0)
    place = int(gains.argmax())
    which, end = divmod(place, gains.shape[1])
    gain = float(gains[which, end])
    if gain <= 0:
        return None
    below = left[which, end]
    return NodeSplit(gain, which, end, below, sums - below)


def grow(
    root: Histogram,
    histogram_of: Callable[[int, NodeSplit, int, bool], Histogram],
    thresholds: Thresholds,
    settings: GrowSettings,
) -> Tree:
    """Grow a tree, the best split first, as HistGradientBoosting does.

    Args:
        root: the histogram of all rows.
        histogram_of: (node, split, number of the left child, whether the left child is
            asked) -> the histogram of the asked child. The right child's number is one
            more. Clients move their rows to the children when they are asked.
        thresholds: of each input.
        settings: how far the tree grows.
    """
    bins = np.array([len(ends) + 1 for ends in thresholds])
    numbers = count(1)
    first = _Node(0, 0, root[0].sum(axis=0), 0.0, root)
    waiting: list[_Node] = []
    leaves, nodes = 0, [first]

    def add(node: _Node) -> bool:
        """Add a node to those that wait for a split; False if it stays a leaf."""
        assert node.histogram is not None
        node.split = best_split(node.histogram, node.sums, node.value, bins, settings)
        if node.split is not None:
            heapq.heappush(waiting, node)
        return node.split is not None

    can_split = first.sums[ROWS] >= 2 * settings.least_rows
    can_split &= first.sums[CURVATURE] >= LEAST_CURVATURE
    if not (can_split and add(first)):
        leaves = 1
    while waiting:
        node = heapq.heappop(waiting)
        split = node.split
        assert split is not None
        left, right = (
            _Node(next(numbers), node.depth + 1, sums, _value(sums, settings))
            for sums in (split.left, split.right)
        )
        node.children = left, right
        nodes += [left, right]
        total = leaves + len(waiting) + 2
        if settings.most_leaves is not None and total == settings.most_leaves:
            break
        may_split = [
            child.sums[ROWS] >= 2 * settings.least_rows
            and node.depth + 1 != settings.most_depth
            for child in (left, right)
        ]
        if not any(may_split):
            leaves += 2
            continue
        # The child of fewer rows is asked for; the other is the difference.
        asks_left = bool(left.sums[ROWS] < right.sums[ROWS])
        found = histogram_of(node.number, split, left.number, asks_left)
        assert node.histogram is not None
        rest = node.histogram - found
        node.histogram = None
        left.histogram, right.histogram = (found, rest) if asks_left else (rest, found)
        for child, may in zip((left, right), may_split, strict=True):
            if not (may and add(child)):
                child.histogram = None
                leaves += 1
    return _as_arrays(nodes, thresholds, settings)


def _value(sums: NDArray[np.float64], settings: GrowSettings) -> float:
    """What a leaf predicts, without the learning rate."""
    return float(-sums[GRADIENT] / (sums[CURVATURE] + settings.penalty + TINY))


def _as_arrays(
    nodes: list[_Node], thresholds: Thresholds, settings: GrowSettings
) -> Tree:
    size = len(nodes)
    asked, ends = np.full(size, -1), np.zeros(size, np.int64)
    limit, value = np.zeros(size), np.zeros(size)
    left, right = np.zeros(size, np.int64), np.zeros(size, np.int64)
    for node in nodes:
        if node.children is None or node.split is None:
            value[node.number] = settings.rate * node.value
            continue
        asked[node.number], ends[node.number] = node.split.input, node.split.bin
        limit[node.number] = thresholds[node.split.input][node.split.bin]
        left[node.number], right[node.number] = (it.number for it in node.children)
    return Tree(asked, ends, limit, left, right, value)

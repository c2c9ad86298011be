"""`Tree`, and how one is grown from sums of histograms."""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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

MOST_NUMBERS = 2**18
"""Numbers of the histograms that one question asks for, unless a single one has more."""

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


@dataclass(frozen=True)
class Move:
    """Rows of a node go to its children, and the histogram of one of these is asked for.

    Attributes:
        node: the node, by the number under which clients know it; 0 = the root.
        input, bin: rows whose bin is at most `bin` go to the left.
        left: the number of the left child; that of the right one is one more.
        asks_left: whether the histogram of the left child is asked for.
    """

    node: int
    input: int
    bin: int
    left: int
    asks_left: bool


@dataclass
class _Node:
    """A node while its tree grows.

    Attributes:
        depth: splits above it.
        sums, value: of its rows, and what it predicts as a leaf without the rate.
        histogram: of its rows, while the histograms of its children are not known.
        split: its best split; None = it stays a leaf.
        children: those of its best split, once they were looked at.
        number: what clients call it.
        is_asked: whether the histograms of its children were asked for.
        is_inner: whether the tree, as far as it is known, has its split.
        place: in the tree as far as it is known.
    """

    depth: int
    sums: NDArray[np.float64]
    value: float
    histogram: Histogram | None = None
    split: NodeSplit | None = None
    children: tuple[Self, Self] | None = None
    number: int = 0
    is_asked: bool = False
    is_inner: bool = False
    place: int = 0

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
    if not left.size:  # no input varies
        return None
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


def most_splits(settings: GrowSettings) -> int:
    """The most splits of a tree that are asked for."""
    return 2 * most_leaves(settings) - 2


def most_leaves(settings: GrowSettings) -> int:
    """The most leaves of a tree."""
    if settings.most_leaves is not None:
        return settings.most_leaves
    assert settings.most_depth is not None
    return 2 ** min(settings.most_depth, 30)


def most_at_once(thresholds: Thresholds) -> int:
    """How many histograms one question asks for at most, so that it is not too large."""
    bins = max((len(ends) for ends in thresholds), default=0) + 1
    return max(1, MOST_NUMBERS // (3 * bins * len(thresholds)))


def grow(
    root: Histogram,
    histograms_of: Callable[[list[Move]], Float[NDArray, "moves inputs bins 3"]],
    thresholds: Thresholds,
    settings: GrowSettings,
) -> Tree:
    """Grow a tree, the best split first, as HistGradientBoosting does.

    The order in which splits are made depends on gains that are known only when the
    children's histograms are. So that few questions are needed, one asks for all splits
    that will be made if no child gains more than the nodes that wait already. Those that
    are not made after all, because the tree has enough leaves, are asked for in vain.

    Args:
        root: the histogram of all rows.
        histograms_of: asks for histograms of children. Clients move their rows to the
            children when they are asked.
        thresholds: of each input.
        settings: how far the tree grows.
    """
    bins = np.array([len(ends) + 1 for ends in thresholds])
    first = _Node(0, root[0].sum(axis=0), 0.0, root)
    if _may_split(first, settings) and first.sums[CURVATURE] >= LEAST_CURVATURE:
        first.split = best_split(root, first.sums, 0.0, bins, settings)
    at_once, asked = most_at_once(thresholds), 0
    while True:
        nodes, unknown, splits = _grown(first, settings)
        if not unknown:
            return _as_arrays(nodes, thresholds, settings)
        # The first one is needed. The others may use up what certain ones leave over.
        spare = most_splits(settings) - asked - (most_leaves(settings) - 1 - splits)
        chosen = unknown[: max(1, min(at_once, spare))]
        moves = []
        for node in chosen:
            assert node.split is not None and node.children is not None
            left, right = node.children
            left.number, right.number = 2 * asked + 1, 2 * asked + 2
            asked += 1
            # The child of fewer rows is asked for; the other is the difference.
            moves.append(
                Move(
                    node.number,
                    node.split.input,
                    node.split.bin,
                    left.number,
                    bool(left.sums[ROWS] < right.sums[ROWS]),
                )
            )
        found = histograms_of(moves)
        for node, move, histogram in zip(chosen, moves, found, strict=True):
            assert node.histogram is not None and node.children is not None
            rest = node.histogram - histogram
            node.histogram, node.is_asked = None, True
            both = (histogram, rest) if move.asks_left else (rest, histogram)
            for child, its in zip(node.children, both, strict=True):
                if _may_split(child, settings):
                    child.split = best_split(
                        its, child.sums, child.value, bins, settings
                    )
                child.histogram = None if child.split is None else its


def _may_split(node: _Node, settings: GrowSettings) -> bool:
    """Whether a node has the rows for two leaves, above the largest depth."""
    has_rows = node.sums[ROWS] >= 2 * settings.least_rows
    return bool(has_rows) and node.depth != settings.most_depth


def _grown(
    first: _Node, settings: GrowSettings
) -> tuple[list[_Node], list[_Node], int]:
    """Grow a tree as far as it is known, the best split first.

    Returns:
        The nodes, in the order of the tree's arrays; the nodes whose children's
        histograms are not known, and which are therefore taken for leaves, in the order
        of their splits; and the number of splits before the first of these.
    """
    nodes, unknown, waiting = [first], list[_Node](), list[_Node]()
    leaves, splits, certain = 0, 0, 0
    if first.split is not None:
        waiting.append(first)
    while waiting:
        node = heapq.heappop(waiting)
        assert node.split is not None
        if node.children is None:
            left, right = (
                _Node(node.depth + 1, sums, _value(sums, settings))
                for sums in (node.split.left, node.split.right)
            )
            node.children = left, right
        node.is_inner = True
        for child in node.children:
            child.is_inner, child.place = False, len(nodes)
            nodes.append(child)
        splits += 1
        if leaves + len(waiting) + 2 == settings.most_leaves:
            break
        if not any(_may_split(child, settings) for child in node.children):
            leaves += 2
            continue
        if not node.is_asked:
            certain = certain if unknown else splits - 1
            unknown.append(node)
            leaves += 2
            continue
        for child in node.children:
            if child.split is None:
                leaves += 1
            else:
                heapq.heappush(waiting, child)
    return nodes, unknown, certain


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
    for place, node in enumerate(nodes):
        if not node.is_inner:
            value[place] = settings.rate * node.value
            continue
        assert node.split is not None and node.children is not None
        asked[place], ends[place] = node.split.input, node.split.bin
        limit[place] = thresholds[node.split.input][node.split.bin]
        left[place], right[place] = (it.place for it in node.children)
    return Tree(asked, ends, limit, left, right, value)

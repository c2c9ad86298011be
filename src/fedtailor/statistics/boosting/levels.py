"""Boosting in a simulation: the trees of many groups of rows at once, level by level.

In one process the sum over clients is a sum over rows. So one pass over all rows makes the
histograms of all nodes of a level: of the trees of all clients together (one group), or of
every client's own trees (each client is a group). The trees are those that `tree.grow`
grows with as many leaves as a depth allows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Bool, Float, Int, Integer
from numpy.typing import NDArray

from fedtailor.statistics.boosting.bins import Thresholds, bin_numbers
from fedtailor.statistics.boosting.boost import (
    BoostedModel,
    BoostingSettings,
    first_prediction,
)
from fedtailor.statistics.boosting.rows import derivatives, row_losses
from fedtailor.statistics.boosting.tree import (
    LEAST_CURVATURE,
    TINY,
    Tree,
    split_gains,
)

_CELLS = 30_000
"""Cells of the histograms that are searched at once: what a cache holds."""
_LEAST_SUPPORT = 10.0
"""Rows of a client without which a split of clients leaves it where most are; they also
draw its mean gradient towards 0 (`cat_smooth` of LightGBM, as scikit-learn has it)."""


@dataclass(frozen=True)
class GroupedRows:
    """Training and validation rows of all clients.

    Attributes:
        x: inputs.
        y: classes or targets.
        client: whose row it is.
        trains: whether it is a training row, no validation row.
        classes: number of classes; None for numbers.
        clients: number of clients.
        weights: how much each row counts in sums and in the validation loss; None = all
            the same. Rows in a leaf are counted without them, as in scikit-learn.
    """

    x: Float[NDArray, "n inputs"]
    y: Float[NDArray, " n"] | Integer[NDArray, " n"]
    client: Int[NDArray, " n"]
    trains: Bool[NDArray, " n"]
    classes: int | None
    clients: int
    weights: Float[NDArray, " n"] | None = None

    @property
    def outputs(self) -> int:
        """Trees of a round; two classes have one output, the logit of the second."""
        many = self.classes is not None and self.classes > 2
        return int(self.classes or 1) if many else 1

    def totals(self, group: Int[NDArray, " n"], groups: int) -> NDArray[np.float64]:
        """Of each group's training rows the number, and the sum of targets or the counts
        of classes; weighted, if rows are."""
        rows, y = group[self.trains], self.y[self.trains]
        counted = np.ones(len(y))
        if self.weights is not None:
            counted = self.weights[self.trains]
        found = [np.bincount(rows, counted, minlength=groups)]
        if self.classes is None:
            found.append(np.bincount(rows, counted * y, minlength=groups))
        else:
            for one in range(self.classes):
                its = y == one
                found.append(np.bincount(rows[its], counted[its], minlength=groups))
        return np.array(found, np.float64).T


@dataclass
class Nodes:
    """The trees of all groups for one round and output. The roots come first.

    Attributes:
        input: which input a node asks for; -1 in leaves, and the number of inputs where
            it asks for the client.
        bin: the last bin that goes to the left.
        left, right: the numbers of the children.
        value: what a leaf predicts.
        clients: node -> whether each client goes to the left, and at last whether a
            newcomer does; of nodes that ask for the client.
    """

    input: Int[NDArray, " nodes"]
    bin: Int[NDArray, " nodes"]
    left: Int[NDArray, " nodes"]
    right: Int[NDArray, " nodes"]
    value: Float[NDArray, " nodes"]
    clients: dict[int, NDArray[np.bool_]] = field(default_factory=dict)

    def tree(self, root: int, thresholds: Thresholds, client: int = -1) -> Tree:
        """The tree of a group as a client has it, who knows its own number.

        Args:
            root: the group.
            thresholds: of its inputs.
            client: the client; -1 = one that did not train.
        """

        def resolved(node: int) -> int:
            while node in self.clients:
                goes_left = self.clients[node][client]
                node = int(self.left[node] if goes_left else self.right[node])
            return node

        order = [resolved(root)]
        left, right = [], []
        for node in order:  # grows while it is read: children come after their parents
            if self.input[node] < 0:
                left.append(0)
                right.append(0)
                continue
            left.append(len(order))
            right.append(len(order) + 1)
            order += [resolved(int(self.left[node])), resolved(int(self.right[node]))]
        asked, ends = self.input[order], self.bin[order]
        limits = [
            thresholds[which][end] if which >= 0 else 0.0
            for which, end in zip(asked, ends, strict=True)
        ]
        return Tree(
            asked,
            ends,
            np.array(limits, np.float64),
            np.array(left, np.int64),
            np.array(right, np.int64),
            self.value[order],
        )


@dataclass(frozen=True)
class GroupedTrees:
    """Boosted trees of groups of rows.

    Attributes:
        classes: the number of classes; None for numbers.
        baselines: what each group predicts without trees.
        rounds: by round, the trees of each output.
        thresholds: of each group.
        raw: the sums of values of all rows.
        losses: the mean loss of all validation rows, before the first round and after
            each; NaN without any.
    """

    classes: int | None
    baselines: Float[NDArray, "groups outputs"]
    rounds: Sequence[Sequence[Nodes]]
    thresholds: Sequence[Thresholds]
    raw: Float[NDArray, "n outputs"]
    losses: Sequence[float]

    def model(self, group: int, client: int = -1) -> BoostedModel:
        """The trees of a group as a client has them; -1 = one that did not train."""
        ends = self.thresholds[group]
        trees = [
            tuple(nodes.tree(group, ends, client) for nodes in of_round)
            for of_round in self.rounds
        ]
        return BoostedModel(self.classes, self.baselines[group], tuple(trees), ends)


def boost_groups(
    rows: GroupedRows,
    thresholds: Sequence[Thresholds],
    settings: BoostingSettings,
    *,
    by_client: bool = False,
    asks_client: bool = False,
    start: GroupedTrees | None = None,
) -> GroupedTrees:
    """Boost trees on the rows of each group.

    Args:
        rows: of all clients.
        thresholds: of each group.
        settings: how trees are grown; their leaves are bounded by `most_depth` only. All
            groups have the same number of rounds.
        by_client: whether each client is a group; else all are one.
        asks_client: whether a split may send some clients to the left. This takes the
            sums of gradients of each client.
        start: trees that these follow, whose predictions they go on from.
    """
    group = rows.client if by_client else np.zeros_like(rows.client)
    groups = len(thresholds)
    if start is None:
        totals = rows.totals(group, groups)
        baselines = np.stack([first_prediction(it, rows.classes) for it in totals])
        raw = baselines[group]
    else:
        baselines, raw = start.baselines, start.raw.copy()
    forest = _Forest(rows, group, thresholds, settings, asks_client)
    held_out = ~rows.trains
    has_any = bool(held_out.any())

    def loss() -> float:
        if not has_any:
            return np.nan
        of_rows = row_losses(raw[held_out], rows.y[held_out], rows.classes)
        if rows.weights is None:
            return float(of_rows.mean())
        return float(np.average(of_rows, weights=rows.weights[held_out]))

    losses, rounds = [loss()], []
    best, best_raw = 0, raw.copy()
    while len(rounds) < settings.trees and len(rounds) - best < settings.patience:
        slopes, curvatures = derivatives(raw, rows.y, rows.classes)
        if rows.weights is not None:
            slopes = slopes * rows.weights[:, None]
            curvatures = curvatures * rows.weights[:, None]
        trees = []
        for output in range(rows.outputs):
            nodes, leaf = forest.grow(slopes[:, output], curvatures[:, output])
            raw[:, output] += nodes.value[leaf]
            trees.append(nodes)
        rounds.append(tuple(trees))
        losses.append(loss())
        is_best = losses[-1] < losses[best]
        if is_best or not (settings.chooses and has_any):
            best, best_raw = len(rounds), raw.copy()
    return GroupedTrees(
        rows.classes, baselines, rounds[:best], thresholds, best_raw, losses
    )


def own_after(
    rows: GroupedRows, shared: GroupedTrees, settings: BoostingSettings
) -> GroupedTrees:
    """Each client's own trees after the shared ones, as many for each client."""
    baselines = np.repeat(shared.baselines, rows.clients, axis=0)
    start = replace(shared, baselines=baselines)
    ends = list(shared.thresholds) * rows.clients
    return boost_groups(rows, ends, settings, by_client=True, start=start)


class _Forest:
    """Grows one tree for each group."""

    def __init__(
        self,
        rows: GroupedRows,
        group: Int[NDArray, " n"],
        thresholds: Sequence[Thresholds],
        settings: BoostingSettings,
        asks_client: bool,
    ) -> None:
        self._rows, self._group, self._settings = rows, group, settings
        self._groups, self._asks_client = len(thresholds), asks_client
        self._inputs = rows.x.shape[1]
        self._bins = np.empty(rows.x.shape, np.int64)
        for place, ends in enumerate(thresholds):
            of_group = group == place
            self._bins[of_group] = bin_numbers(rows.x[of_group], ends)
        widths = [len(ends) for one in thresholds for ends in one]
        self._width = max(widths, default=0) + 1
        self._codes = self._bins + np.arange(self._inputs) * self._width
        self._constant = rows.classes is None and rows.weights is None

    def grow(
        self, slopes: Float[NDArray, " n"], curvatures: Float[NDArray, " n"]
    ) -> tuple[Nodes, Int[NDArray, " n"]]:
        """The trees, and the leaf of each row."""
        settings, train = self._settings, np.flatnonzero(self._rows.trains)
        weights = np.stack([slopes, curvatures]).astype(np.float64)
        node = self._group.copy()
        sums = self._sums(weights[:, train], node[train], self._groups)
        none = np.full(self._groups, -1)
        zero = np.zeros(self._groups, np.int64)
        nodes = Nodes(none, zero, zero.copy(), zero.copy(), np.zeros(self._groups))
        active = np.arange(self._groups)
        of_active, values, depth = sums, np.zeros(self._groups), 0
        while len(active) and depth != settings.most_depth:
            may = of_active[:, 2] >= 2 * settings.least_rows
            may &= of_active[:, 1] >= LEAST_CURVATURE
            active, of_active, values = active[may], of_active[may], values[may]
            split = self._split(weights, train, node, active, of_active, values, nodes)
            # The numbers of the children follow those of all nodes before.
            parents, left, right = active[split.which], split.left, split.right
            first = len(nodes.input)
            nodes.left[parents] = first + np.arange(len(parents))
            nodes.right[parents] = nodes.left[parents] + len(parents)
            self._move(node, nodes, len(nodes.input))
            of_active = np.concatenate([left, right])
            values = -of_active[:, 0] / (of_active[:, 1] + settings.penalty + TINY)
            nodes.input = np.append(nodes.input, np.full(len(values), -1))
            for name in ("bin", "left", "right"):
                longer = np.append(
                    getattr(nodes, name), np.zeros(len(values), np.int64)
                )
                setattr(nodes, name, longer)
            nodes.value = np.append(nodes.value, settings.rate * values)
            active, depth = first + np.arange(len(values)), depth + 1
        nodes.value[nodes.input >= 0] = 0.0
        return nodes, node

    def _sums(
        self, weights: NDArray[np.float64], node: NDArray[np.int64], size: int
    ) -> NDArray[np.float64]:
        """Sums of gradients, curvatures and rows by node [size, 3]."""
        rows = np.bincount(node, minlength=size)
        found = [np.bincount(node, it, minlength=size) for it in weights]
        return np.stack([*found, rows], axis=1).astype(np.float64)

    def _split(
        self,
        weights: NDArray[np.float64],
        train: NDArray[np.int64],
        node: NDArray[np.int64],
        active: NDArray[np.int64],
        sums: NDArray[np.float64],
        values: NDArray[np.float64],
        nodes: Nodes,
    ) -> "_Splits":
        """Split the active nodes that gain by it; says where in `nodes`."""
        place = np.full(len(nodes.input), -1)
        place[active] = np.arange(len(active))
        placed = place[node[train]]
        order = np.argsort(placed, kind="stable")
        starts = np.searchsorted(placed[order], np.arange(len(active) + 1))
        block = max(_CELLS // (self._inputs * self._width), 1)
        parts = []
        for first in range(0, len(active), block):
            last = min(first + block, len(active))
            rows = train[order[starts[first] : starts[last]]]
            within = placed[order[starts[first] : starts[last]]] - first
            its = slice(first, last)
            found = self._best(weights[:, rows], rows, within, sums[its], values[its])
            if self._asks_client:
                client = self._rows.client[rows]
                by_client = best_client_splits(
                    *self._client_sums(weights[:, rows], client, within, last - first),
                    sums[its],
                    values[its],
                    self._settings,
                )
                is_better = by_client.gain > found.gain
                found.take(by_client, is_better, self._inputs)
            for one in np.flatnonzero(found.gain > 0):
                number = int(active[first + one])
                nodes.input[number] = found.input[one]
                nodes.bin[number] = found.bin[one]
                if found.clients is not None and found.input[one] == self._inputs:
                    nodes.clients[number] = found.clients[one]
            parts.append((first, found))
        which = [first + np.flatnonzero(found.gain > 0) for first, found in parts]
        left = [found.left[found.gain > 0] for _, found in parts]
        empty = np.zeros((0, 3))
        chosen = np.concatenate([np.zeros(0, np.int64), *which])
        of_left = np.concatenate([empty, *left])
        return _Splits(chosen, of_left, sums[chosen] - of_left)

    def _best(
        self,
        weights: NDArray[np.float64],
        rows: NDArray[np.int64],
        within: NDArray[np.int64],
        sums: NDArray[np.float64],
        values: NDArray[np.float64],
    ) -> "_Found":
        """The best split of each node by an input, of equal ones the first."""
        inputs, width, many = self._inputs, self._width, len(sums)
        codes = (self._codes[rows] + (within * (inputs * width))[:, None]).ravel()
        size = many * inputs * width

        def below(of: NDArray[np.float64] | None) -> NDArray[np.float64]:
            """Sums up to and with each bin [nodes, inputs, bins - 1]."""
            repeated = None if of is None else np.repeat(of, inputs)
            cells = np.bincount(codes, repeated, minlength=size)
            shaped = cells.reshape(many, inputs, width)[:, :, :-1]
            return shaped.cumsum(axis=2, dtype=np.float64)

        counts, slopes = below(None), below(weights[0])
        curvatures = counts if self._constant else below(weights[1])
        gains = split_gains(
            (slopes, curvatures, counts),
            sums[:, None, None, :],
            values[:, None, None],
            self._settings,
        ).reshape(many, -1)
        if not gains.shape[1]:
            return _Found.none(many)
        best = gains.argmax(axis=1)
        every = np.arange(many)
        left = [
            it.reshape(many, -1)[every, best] for it in (slopes, curvatures, counts)
        ]
        which, end = np.divmod(best, width - 1)
        return _Found(gains[every, best], which, end, np.stack(left, axis=1))

    def _client_sums(
        self,
        weights: NDArray[np.float64],
        client: NDArray[np.int64],
        within: NDArray[np.int64],
        many: int,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Sums of gradients, curvatures and rows [nodes, clients] by node and client."""
        clients = self._rows.clients
        found = self._sums(weights, within * clients + client, many * clients)
        slopes, curvatures, rows = (it.reshape(many, clients) for it in found.T)
        return slopes, curvatures, rows

    def _move(self, node: NDArray[np.int64], nodes: Nodes, known: int) -> None:
        """Move rows of nodes that were split to their children."""
        asked = nodes.input[node]
        rows = np.flatnonzero(asked >= 0)
        its, asked = node[rows], asked[rows]
        by_input = np.minimum(asked, self._inputs - 1)
        goes_left = self._bins[rows, by_input] <= nodes.bin[its]
        for number in np.unique(its[asked == self._inputs]):
            of_node = its == number
            client = self._rows.client[rows[of_node]]
            goes_left[of_node] = nodes.clients[int(number)][client]
        node[rows] = np.where(goes_left, nodes.left[its], nodes.right[its])


@dataclass(frozen=True)
class _Splits:
    """Which active nodes are split, and the sums [3] of their children."""

    which: Int[NDArray, " split"]
    left: Float[NDArray, "split 3"]
    right: Float[NDArray, "split 3"]


@dataclass
class _Found:
    """The best split of each node; a gain of 0 or less is none."""

    gain: Float[NDArray, " nodes"]
    input: Int[NDArray, " nodes"]
    bin: Int[NDArray, " nodes"]
    left: Float[NDArray, "nodes 3"]
    clients: Bool[NDArray, "nodes clients"] | None = None

    @staticmethod
    def none(many: int) -> "_Found":
        zeros = np.zeros(many, np.int64)
        return _Found(np.full(many, -1.0), zeros, zeros, np.zeros((many, 3)))

    def take(
        self, other: "_Found", where: Bool[NDArray, " nodes"], number: int
    ) -> None:
        """Take the splits of another one in some nodes, which ask for this input."""
        self.gain = np.where(where, other.gain, self.gain)
        self.input = np.where(where, number, self.input)
        self.bin = np.where(where, 0, self.bin)
        self.left = np.where(where[:, None], other.left, self.left)
        self.clients = other.clients


def best_client_splits(
    slopes: Float[NDArray, "nodes clients"],
    curvatures: Float[NDArray, "nodes clients"],
    counts: Float[NDArray, "nodes clients"],
    sums: Float[NDArray, "nodes 3"],
    values: Float[NDArray, " nodes"],
    settings: BoostingSettings,
) -> _Found:
    """The best split of each node's clients: in the order of their mean gradients, the
    first ones or the last ones go to the left (Fisher 1958; LightGBM, Ke et al. 2017).

    Args:
        slopes, curvatures, counts: sums of each client's rows.
        sums: of all of a node's rows.
        values: what nodes predict as leaves, without the learning rate.
        settings: what children must have at least.
    """
    many, clients = slopes.shape
    factor = (sums[:, 2] / np.maximum(sums[:, 1], TINY))[:, None]
    known = curvatures * factor >= _LEAST_SUPPORT
    ratio = np.where(known, slopes / (curvatures + _LEAST_SUPPORT), np.inf)
    order = np.argsort(ratio, axis=1, kind="stable")
    used = known.sum(axis=1)
    up = [
        np.take_along_axis(np.where(known, it, 0.0), order, axis=1).cumsum(axis=1)
        for it in (slopes, curvatures, counts)
    ]
    total = [it[:, -1:] for it in up]
    before = [np.concatenate([np.zeros((many, 1)), it[:, :-1]], axis=1) for it in up]
    down = [whole - it for whole, it in zip(total, before, strict=True)]
    rank = np.arange(clients)
    middle = (used + 1)[:, None] // 2
    # Whoever has few rows stays with at least half of the others, on the right.
    may_go_up = (rank < middle) & (used > 1)[:, None]
    from_end = used[:, None] - 1 - rank
    may_go_down = (from_end >= 0) & (from_end < middle - 1)
    gains = []
    for left, may in ((up, may_go_up), (down, may_go_down)):
        found = split_gains(left, sums[:, None, :], values[:, None], settings)
        gains.append(np.where(may, found, -1.0))
    # From the end on, the last client comes first.
    both = np.concatenate([gains[0], gains[1][:, ::-1]], axis=1)
    best, every = both.argmax(axis=1), np.arange(many)
    goes_up = best < clients
    end = np.where(goes_up, best, 2 * clients - 1 - best)
    left = np.stack(
        [
            np.where(goes_up, one[every, end], other[every, end])
            for one, other in zip(up, down, strict=True)
        ],
        axis=1,
    )
    ranks = np.empty_like(order)
    np.put_along_axis(ranks, order, np.tile(rank, (many, 1)), axis=1)
    is_first = goes_up[:, None] & (ranks <= end[:, None])
    is_last = ~goes_up[:, None] & (ranks >= end[:, None])
    chosen = (is_first | is_last) & known
    # A newcomer goes where most rows go.
    strangers = (2 * left[:, 2] > sums[:, 2])[:, None]
    zeros = np.zeros(many, np.int64)
    return _Found(
        both[every, best], zeros, zeros, left, np.concatenate([chosen, strangers], 1)
    )

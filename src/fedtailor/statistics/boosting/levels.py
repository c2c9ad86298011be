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
from scipy.sparse import csc_array

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
_ROWS_A_CELL = 8
"""Numbers added to a cell of a level's histograms, on average, from which these are kept
for the next level: to subtract cells then takes less time than to add up rows."""
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


@dataclass
class _Growing:
    """Trees of one round and output while they grow.

    Attributes:
        terms: what is added up of training rows: gradients, curvatures if these differ
            from numbers of rows, and ones.
        node: the node of each row, of training and validation.
        nodes: all nodes so far.
        parents: histograms of the nodes that were split last; None = not kept. Their
            left children have the numbers from `first` on, the right ones follow.
        first: the number of the first child.
        is_right: of which parents the right child has fewer rows.
    """

    terms: Float[NDArray, "train terms"]
    node: Int[NDArray, " n"]
    nodes: Nodes
    parents: Float[NDArray, "parents cells terms"] | None = None
    first: int = 0
    is_right: Bool[NDArray, " parents"] | None = None


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
        self._train, self._inputs = np.flatnonzero(rows.trains), rows.x.shape[1]
        self._bins = np.empty(rows.x.shape, np.uint8)
        for place, ends in enumerate(thresholds):
            of_group = group == place
            self._bins[of_group] = bin_numbers(rows.x[of_group], ends)
        self._first_bins = np.arange(len(rows.x)) * self._inputs
        widths = [len(ends) for one in thresholds for ends in one]
        self._width = max(widths, default=0) + 1
        # A row is in as many cells of a histogram as there are inputs. Those of clients
        # follow.
        self._of_inputs = self._inputs * self._width
        self._cells = self._of_inputs + (rows.clients if asks_client else 0)
        codes = self._bins[self._train] + np.arange(self._inputs) * self._width
        if asks_client:
            client = self._of_inputs + rows.client[self._train]
            codes = np.column_stack([codes, client])
        self._codes = codes.astype(np.int32)
        self._ones = np.ones(self._codes.size)
        self._constant = rows.classes is None and rows.weights is None

    def grow(
        self, slopes: Float[NDArray, " n"], curvatures: Float[NDArray, " n"]
    ) -> tuple[Nodes, Int[NDArray, " n"]]:
        """The trees, and the leaf of each row."""
        settings, train = self._settings, self._train
        terms = np.ones((len(train), 2 if self._constant else 3))
        terms[:, 0] = slopes[train]
        if not self._constant:
            terms[:, 1] = curvatures[train]
        node = self._group.astype(np.int64)
        of_train = node.take(train)
        found = [np.bincount(of_train, it, self._groups) for it in terms.T]
        sums = np.stack(self._three(np.array(found, np.float64).T), axis=-1)
        none = np.full(self._groups, -1)
        zero = np.zeros(self._groups, np.int64)
        nodes = Nodes(none, zero, zero.copy(), zero.copy(), np.zeros(self._groups))
        growing = _Growing(terms, node, nodes)
        active = np.arange(self._groups)
        of_active, values, depth = sums, np.zeros(self._groups), 0
        while depth != settings.most_depth:
            may = of_active[:, 2] >= 2 * settings.least_rows
            may &= of_active[:, 1] >= LEAST_CURVATURE
            active, of_active, values = active[may], of_active[may], values[may]
            if not len(active):
                break
            split, histograms = self._split(growing, active, of_active, values)
            # The numbers of the children follow those of all nodes before.
            parents, left, right = active[split.which], split.left, split.right
            first = len(nodes.input)
            nodes.left[parents] = first + np.arange(len(parents))
            nodes.right[parents] = nodes.left[parents] + len(parents)
            self._move(node, nodes)
            growing.parents = None if histograms is None else histograms[split.which]
            growing.first, growing.is_right = first, right[:, 2] < left[:, 2]
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

    def _split(
        self,
        growing: _Growing,
        active: NDArray[np.int64],
        sums: NDArray[np.float64],
        values: NDArray[np.float64],
    ) -> "tuple[_Splits, NDArray[np.float64] | None]":
        """Split the active nodes that gain by it, which the trees then say.

        Returns:
            The splits; and the histograms of all active nodes, if these are kept.
        """
        block = max(_CELLS // self._cells, 1)
        # Each part goes through all rows: where these are many, parts are large.
        many = self._codes.size // _ROWS_A_CELL // self._cells
        at_once = max(block, many)
        # Sums of weighted rows are rounded; differences would break ties in other ways.
        is_kept = len(active) <= many and self._rows.weights is None
        parts, histograms = [], None
        for first in range(0, len(active), at_once):
            histograms = self._histograms(growing, active[first : first + at_once])
            for start in range(0, len(histograms), block):
                some = histograms[start : start + block]
                its = slice(first + start, first + start + len(some))
                parts.append(self._best(some, sums[its], values[its]))
        found = _Found.joined(parts)
        which = np.flatnonzero(found.gain > 0)
        growing.nodes.input[active[which]] = found.input[which]
        growing.nodes.bin[active[which]] = found.bin[which]
        if found.clients is not None:
            for one in which[found.input[which] == self._inputs]:
                growing.nodes.clients[int(active[one])] = found.clients[one]
        left = found.left[which]
        splits = _Splits(which, left, sums[which] - left)
        return splits, histograms if is_kept else None

    def _histograms(
        self, growing: _Growing, active: NDArray[np.int64]
    ) -> Float[NDArray, "active cells terms"]:
        """Sums of terms by node and cell. Of two children, the one with fewer rows is
        added up, and the other is the difference to their parent.
        """
        if growing.parents is None:
            return self._added_up(growing, active)
        assert growing.is_right is not None
        count = len(growing.parents)
        parent = (active - growing.first) % count
        asked = np.unique(parent)
        smaller = growing.first + asked + count * growing.is_right[asked]
        place = np.searchsorted(asked, parent)
        found = self._added_up(growing, smaller)[place]
        is_larger = smaller[place] != active
        found[is_larger] = growing.parents[parent[is_larger]] - found[is_larger]
        return found

    def _added_up(
        self, growing: _Growing, numbers: NDArray[np.int64]
    ) -> Float[NDArray, "numbers cells terms"]:
        """Sums of terms by node and cell: the product with a matrix that has a one where
        a row is in a cell. It takes a third of the time of `np.bincount` for each term.
        """
        count = len(numbers)
        place = np.full(len(growing.nodes.input), -1, np.int32)
        place[numbers] = np.arange(count)
        placed = place.take(growing.node.take(self._train))
        rows = np.flatnonzero(placed >= 0)
        codes = self._codes.take(rows, axis=0)
        codes += placed.take(rows)[:, None] * np.int32(self._cells)
        ends = np.arange(0, codes.size + 1, codes.shape[1])
        is_in = csc_array(
            (self._ones[: codes.size], codes.ravel(), ends),
            shape=(count * self._cells, len(rows)),
        )
        found = is_in @ growing.terms.take(rows, axis=0)
        return found.reshape(count, self._cells, -1)

    def _three(self, sums: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
        """Sums of gradients, curvatures and rows from sums of terms, the last axis."""
        return sums[..., 0], sums[..., -1 if self._constant else 1], sums[..., -1]

    def _best(
        self,
        histograms: NDArray[np.float64],
        sums: NDArray[np.float64],
        values: NDArray[np.float64],
    ) -> "_Found":
        """The best split of each node, of equal ones the first."""
        found = self._best_of_inputs(histograms[:, : self._of_inputs], sums, values)
        if self._asks_client:
            slopes, curvatures, counts = self._three(histograms[:, self._of_inputs :])
            by_client = best_client_splits(
                slopes, curvatures, counts, sums, values, self._settings
            )
            found.take(by_client, by_client.gain > found.gain, self._inputs)
        return found

    def _best_of_inputs(
        self,
        histograms: NDArray[np.float64],
        sums: NDArray[np.float64],
        values: NDArray[np.float64],
    ) -> "_Found":
        inputs, width, many = self._inputs, self._width, len(sums)
        if width == 1:
            return _Found.none(many)
        # Sums up to and with each bin [nodes, inputs, bins - 1] of each term.
        cells = np.ascontiguousarray(np.moveaxis(histograms, -1, 0))
        cells = cells.reshape(-1, many, inputs, width)[..., :-1]
        below = self._three(np.moveaxis(cells.cumsum(axis=-1), 0, -1))
        gains = split_gains(
            below, sums[:, None, None, :], values[:, None, None], self._settings
        ).reshape(many, -1)
        best = gains.argmax(axis=1)
        every = np.arange(many)
        left = [it.reshape(many, -1)[every, best] for it in below]
        which, end = np.divmod(best, width - 1)
        return _Found(gains[every, best], which, end, np.stack(left, axis=1))

    def _move(self, node: NDArray[np.int64], nodes: Nodes) -> None:
        """Move rows of nodes that were split to their children."""
        asked = nodes.input.take(node)
        # Rows in leaves look at any bin, and stay where they are.
        seen = np.clip(asked, 0, self._inputs - 1)
        seen += self._first_bins
        goes_left = self._bins.take(seen) <= nodes.bin.astype(np.uint8).take(node)
        rows = np.flatnonzero(asked == self._inputs)
        if len(rows):
            lefts = np.zeros((len(nodes.input), self._rows.clients), bool)
            for number, clients in nodes.clients.items():
                lefts[number] = clients[:-1]
            goes_left[rows] = lefts[node[rows], self._rows.client[rows]]
        is_leaf, same = nodes.input < 0, np.arange(len(nodes.input))
        children = np.where(is_leaf, same, np.stack([nodes.right, nodes.left]))
        node[:] = children.T.ravel().take(2 * node + goes_left)


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

    @staticmethod
    def joined(parts: "Sequence[_Found]") -> "_Found":
        """Splits of one node after another."""
        clients = [it.clients for it in parts if it.clients is not None]
        return _Found(
            np.concatenate([it.gain for it in parts]),
            np.concatenate([it.input for it in parts]),
            np.concatenate([it.bin for it in parts]),
            np.concatenate([it.left for it in parts]),
            np.concatenate(clients) if clients else None,
        )

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

"""`BoostingRows`: one client's part of boosting, which answers requests by arrays that
are added up over clients.

Nothing but the sum over clients is used of any answer, so that secure sums apply: the
server asks, each client adds its answer behind masks. In a simulation the answers are
added in one process.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from fedtailor.statistics.boosting.bins import bin_numbers
from fedtailor.statistics.boosting.tree import Move, Tree
from fedtailor.statistics.grid import (
    WORDS,
    check_numbers,
    check_rows,
    counts_in_words,
    from_grid,
    sums_by_place,
)
from fedtailor.statistics.portable import exp, log_softmax, softplus

_NOTHING = np.zeros(0)

_LARGEST_TARGET = 2.0**20
"""Squares of twice as much are numbers that sums hold."""


@dataclass(frozen=True)
class BoostingRequest:
    """What the server asks of all clients.

    Attributes:
        kind: what to do:

            start      how many rows there are, and their targets' sum or class counts
            counts     how many rows are at most each of `arrays["candidates"]`
            bins       take these thresholds; answers nothing
            baseline   predict this constant; answers nothing
            gradients  begin a tree for the output `output`; the histogram of all rows
            split      move the rows of nodes to their children; a histogram for each
            tree       add a finished tree's values to the predictions; answers nothing
            loss       the loss of the validation rows, and their number
        output: the output (class) that a tree is for.
        moves: the splits of nodes, one after another.
        arrays: what else is sent.
    """

    kind: Literal[
        "start", "counts", "bins", "baseline", "gradients", "split", "tree", "loss"
    ]
    output: int = 0
    moves: tuple[Move, ...] = ()
    arrays: dict[str, Any] = field(default_factory=dict)


class BoostingRows:
    """The rows of one client, with their bins, predictions, and places in a tree."""

    def __init__(
        self,
        x: Float[NDArray, "n inputs"],
        y: NDArray[Any],
        classes: int | None,
        val_x: Float[NDArray, "m inputs"] | None = None,
        val_y: NDArray[Any] | None = None,
        *,
        on_grid: bool = False,
    ) -> None:
        """
        Args:
            x: inputs of the training rows.
            y: their classes or targets [n].
            classes: the number of classes; None for numbers.
            val_x, val_y: validation rows, which choose the number of trees.
            on_grid: whether answers are the words of whole numbers that masks hide, to
                which each row is rounded by itself.

        Raises:
            ValueError: sums on the grid cannot hold the rows.
        """
        self.on_grid = on_grid
        self.x, self.y = np.asarray(x, np.float64), np.asarray(y).reshape(-1)
        self.val_x = self.x[:0] if val_x is None else np.asarray(val_x, np.float64)
        self.val_y = self.y[:0] if val_y is None else np.asarray(val_y).reshape(-1)
        self.classes = classes
        # Two classes have one output, the logit of the second.
        self.outputs = classes if classes is not None and classes > 2 else 1
        if on_grid:
            check_rows(len(self.y) + len(self.val_y))
            if classes is None:
                targets = np.concatenate([self.y, self.val_y])
                check_numbers(targets, "a target", _LARGEST_TARGET)

    def answer(self, request: BoostingRequest) -> NDArray[Any]:
        """This client's part of the sum that a request asks for."""
        return getattr(self, f"_{request.kind}")(request)

    def ask(self, request: BoostingRequest) -> NDArray[np.float64]:
        """The answer as numbers, as if there were no other client."""
        answer = self.answer(request)
        return from_grid(answer) if self.on_grid and answer.size else answer

    def _sums(
        self, values: NDArray[Any], places: NDArray[np.int64], size: int
    ) -> NDArray[Any]:
        """Sums of numbers by their places."""
        if self.on_grid:
            return sums_by_place(values, places, size)
        return np.bincount(places, values, minlength=size)

    def _counts_of(self, counts: NDArray[np.int64]) -> NDArray[Any]:
        return counts_in_words(counts) if self.on_grid else counts.astype(np.float64)

    def _shaped(self, answer: NDArray[Any], *shape: int) -> NDArray[Any]:
        return answer.reshape(*shape, WORDS) if self.on_grid else answer.reshape(shape)

    def _total(self, values: NDArray[Any]) -> NDArray[Any]:
        """The number of some values, and their sum."""
        one = self._sums(values, np.zeros(len(values), np.int64), 1)
        return np.concatenate([self._counts_of(np.array([len(values)])), one])

    # before the first tree

    def _start(self, request: BoostingRequest) -> NDArray[Any]:
        if self.classes is None:
            return self._total(self.y.astype(np.float64))
        counts = np.bincount(self.y.astype(np.int64), minlength=self.classes)
        return self._counts_of(np.append(len(self.y), counts))

    def _counts(self, request: BoostingRequest) -> NDArray[Any]:
        candidates = request.arrays["candidates"]  # [inputs, quantiles]
        counts = [
            np.searchsorted(np.sort(column), ends, side="right")
            for column, ends in zip(self.x.T, candidates, strict=True)
        ]
        flat = self._counts_of(np.array(counts, np.int64).reshape(-1))
        return self._shaped(flat, *candidates.shape)

    def _bins(self, request: BoostingRequest) -> NDArray[Any]:
        thresholds = request.arrays["thresholds"]
        self._width = max((len(ends) for ends in thresholds), default=0) + 1
        self._binned = bin_numbers(self.x, thresholds)
        self._val_binned = bin_numbers(self.val_x, thresholds)
        # A row's places in a flat histogram of all inputs.
        offsets = np.arange(self.x.shape[1]) * self._width
        self._codes = self._binned.astype(np.int64) + offsets
        return _NOTHING

    def _baseline(self, request: BoostingRequest) -> NDArray[Any]:
        constant = request.arrays["baseline"]  # [outputs]
        self._raw = np.tile(constant, (len(self.y), 1))
        self._val_raw = np.tile(constant, (len(self.val_y), 1))
        return _NOTHING

    # trees

    def _gradients(self, request: BoostingRequest) -> NDArray[Any]:
        if request.output == 0:
            self._slopes, self._curvatures = derivatives(
                self._raw, self.y, self.classes
            )
        self._output = request.output
        self._node = np.zeros(len(self.y), np.int64)
        return self._histogram(np.arange(len(self.y)))

    def _histogram(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Sums of gradients, curvatures and rows by input and bin."""
        inputs = self.x.shape[1]
        codes = self._codes[rows].ravel()
        size = inputs * self._width
        found = []
        for values in (self._slopes, self._curvatures):
            weights = np.repeat(values[rows, self._output].astype(np.float64), inputs)
            found.append(self._sums(weights, codes, size))
        found.append(self._counts_of(np.bincount(codes, minlength=size)))
        return self._shaped(np.stack(found, axis=1), inputs, self._width, 3)

    def _split(self, request: BoostingRequest) -> NDArray[Any]:
        histograms = []
        for move in request.moves:
            rows = np.flatnonzero(self._node == move.node)
            goes_left = self._binned[rows, move.input] <= move.bin
            self._node[rows] = np.where(goes_left, move.left, move.left + 1)
            histograms.append(self._histogram(rows[goes_left == move.asks_left]))
        return np.array(histograms)

    def _tree(self, request: BoostingRequest) -> NDArray[Any]:
        tree: Tree = request.arrays["tree"]
        self._raw[:, request.output] += tree.predict_bins(self._binned)
        self._val_raw[:, request.output] += tree.predict_bins(self._val_binned)
        return _NOTHING

    # validation

    def _loss(self, request: BoostingRequest) -> NDArray[Any]:
        return self._total(self.val_losses())[::-1]

    def val_losses(self) -> NDArray[np.float64]:
        """The loss of each validation row with the trees so far."""
        return row_losses(self._val_raw, self.val_y, self.classes)


def derivatives(
    raw: Float[NDArray, "n outputs"], y: NDArray[Any], classes: int | None
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """First and second derivatives of the losses by the outputs, [n, outputs] each, in
    single precision as in scikit-learn.
    """
    if classes is None:
        slopes, curvatures = raw - y[:, None], np.ones_like(raw)
    elif raw.shape[1] == 1:
        # Written as scikit-learn does: other forms differ in the last digit, and single
        # precision makes that a larger one.
        true, odds = y[:, None], exp(-np.maximum(raw, -37))
        slopes = ((1 - true) - true * odds) / (1 + odds)
        curvatures = odds / (1 + odds) ** 2
    else:
        p = exp(log_softmax(raw))
        slopes, curvatures = p.copy(), p * (1 - p)
        slopes[np.arange(len(y)), y.astype(np.int64)] -= 1
    return slopes.astype(np.float32), curvatures.astype(np.float32)


def row_losses(
    raw: Float[NDArray, "n outputs"], y: NDArray[Any], classes: int | None
) -> NDArray[np.float64]:
    """Squared errors, or logarithmic losses, of raw predictions."""
    if classes is None:
        return (raw[:, 0] - y) ** 2
    if raw.shape[1] == 1:
        return softplus(np.where(y == 1, -raw[:, 0], raw[:, 0]))
    return -log_softmax(raw)[np.arange(len(y)), y.astype(np.int64)]

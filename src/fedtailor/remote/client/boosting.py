"""A client's part of boosting over machines: steps, of each of which it adds one vector to
a sum behind masks.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtailor.data.federation import Federation
from fedtailor.engine.storage.personal_model import PersonalModel
from fedtailor.remote.client.steps import StepsClient
from fedtailor.remote.job.plan import Plan
from fedtailor.remote.wire.boosting import (
    BOOST,
    FINISH,
    HALVINGS,
    SUMMED,
    Step,
    most_steps,
    read_steps,
)
from fedtailor.remote.wire.refusals import Refusal, refuse_unless
from fedtailor.statistics.boosting import (
    BoostedModel,
    BoostingRequest,
    BoostingRows,
    Tree,
    as_vectors,
    boost_alone,
)
from fedtailor.statistics.boosting.bins import BISECTIONS
from fedtailor.statistics.boosting.federated import boosting_rows
from fedtailor.statistics.boosting.tree import Move, most_at_once, most_splits
from fedtailor.statistics.grid import WORDS

_NEEDS = {
    "counts": ("start",),
    "bins": ("start",),
    "baseline": ("bins",),
    "gradients": ("loss",),
    "split": ("gradients",),
    "tree": ("baseline",),
    "loss": ("baseline",),
    FINISH: ("loss",),
}
"""What must have come before a step of a kind."""

_ONCE = ("start", "bins", "baseline")
"""Steps that come once in a run."""


MOST_COUNTS = BISECTIONS // HALVINGS
"""The most questions of a run for rows below thresholds."""


class BoostingClient(StepsClient[BoostingRequest | Step]):
    """Takes the steps of boosting on a client's rows.

    Args:
        plan: what this client agreed to, with boosting and sums behind masks.
        federation: a federation of this client only.
    """

    def __init__(self, plan: Plan, federation: Federation) -> None:
        assert plan.boosting is not None and plan.sums is not None
        self._boosting, self._federation = plan.boosting, federation
        self._like = plan.model
        self._inputs = int(np.prod(federation.input_shape, dtype=int))
        classes = federation.classes
        self._outputs = classes if classes is not None and classes > 2 else 1
        super().__init__(
            BOOST,
            "boosting",
            most_steps(plan.boosting.settings, self._outputs),
        )
        self._begin()

    def _begin(self) -> None:
        self._rows: BoostingRows = boosting_rows(self._federation, 0, on_grid=True)
        self._done: set[str] = set()
        self._thresholds: list[NDArray[np.float64]] = []
        self._baseline: NDArray[np.float64] = np.zeros(self._outputs)
        self._trees: list[Tree] = []
        self._counted = 0  # questions of the search for bins
        self._leaves: set[int] = set()  # of the tree that grows; none before its root
        self._moves = 0  # of that tree
        self._measured = -1  # trees at the last loss

    def _read(
        self, plain: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
    ) -> list[BoostingRequest | Step]:
        return read_steps(
            plain, arrays, self._inputs, self._outputs, self._boosting.settings
        )

    def _take(self, step: BoostingRequest | Step) -> NDArray[np.uint32] | None:
        why = self._out_of_order(step)
        refuse_unless(
            not why, Refusal.MALFORMED, f"a step of boosting ({step.kind}) {why}"
        )
        if isinstance(step, Step):
            self.own = self._own_model(step.rounds)
            return None
        self._done.add(step.kind)
        if step.kind == "counts":
            self._counted += 1
        if step.kind == "bins":
            self._thresholds = step.arrays["thresholds"]
        if step.kind == "baseline":
            self._baseline = step.arrays["baseline"]
        if step.kind == "gradients":
            self._leaves, self._moves = {0}, 0
        if step.kind == "split":
            for move in step.moves:
                self._leaves -= {move.node}
                self._leaves |= {move.left, move.left + 1}
            self._moves += len(step.moves)
        if step.kind == "tree":
            self._trees.append(step.arrays["tree"])
            self._leaves = set()
        if step.kind == "loss":
            self._measured = len(self._trees)
        answer = self._rows.answer(step)
        return answer.reshape(-1, WORDS) if step.kind in SUMMED else None

    def _out_of_order(self, step: BoostingRequest | Step) -> str:
        """Why a step cannot come now, in words; empty if it can.

        A run is what `boost` asks for: each question once, and as many as the job's trees
        need. So a coordinator that chooses its questions cannot ask for more of them.
        """
        settings, kind, grown = self._boosting.settings, step.kind, len(self._trees)
        missing = [it for it in _NEEDS.get(kind, ()) if it not in self._done]
        if missing:
            return f"came before {', '.join(missing)}"
        if kind in _ONCE and kind in self._done:
            return "came twice"
        if kind == "counts" and ("bins" in self._done or self._counted == MOST_COUNTS):
            return "came too often, or after the bins"
        if kind == "gradients" and self._leaves:
            return "came twice for a tree"
        if kind in ("gradients", "tree") and step.output != grown % self._outputs:
            return "does not belong to the next tree of its round"
        if isinstance(step, BoostingRequest) and step.kind == "split":
            return self._why_not_moved(step.moves)
        if kind == "tree" and grown == settings.trees * self._outputs:
            return "is one tree too many"
        # The known trees of a boosting that is resumed come before the first loss.
        if kind == "tree" and self._measured >= 0 and not self._leaves:
            return "came before the gradients of its tree"
        if kind == "loss" and (
            self._leaves or grown % self._outputs or self._measured == grown
        ):
            return "came within a round of trees, or twice after one"
        return ""

    def _why_not_moved(self, moves: Sequence[Move]) -> str:
        """Why rows cannot be moved, in words; empty if they can."""
        if len(moves) > most_at_once(self._thresholds):
            return "asks for too many histograms at once"
        if self._moves + len(moves) > most_splits(self._boosting.settings):
            return "asks for more splits than a tree needs"
        leaves = set(self._leaves)
        for number, move in enumerate(moves, self._moves):
            if move.node not in leaves or move.left != 2 * number + 1:
                return "is not of a leaf of this tree"
            leaves -= {move.node}
        return ""

    def _own_model(self, rounds: int) -> PersonalModel:
        """The shared trees of the first rounds, and this client's own after them."""
        each = self._outputs
        trees: list[Any] = [
            tuple(self._trees[start : start + each])
            for start in range(0, len(self._trees), each)
        ]
        federation = self._federation
        shared = BoostedModel(
            federation.classes, self._baseline, tuple(trees[:rounds]), self._thresholds
        )
        model = shared
        if self._boosting.own_trees:
            model = boost_alone(self._rows, shared, self._boosting.settings)
        network, (vector,) = as_vectors([model], self._like)
        return PersonalModel(
            federation.names[0], vector, network, federation.shift, federation.scale
        )

"""A client's part of boosting over machines: steps, of each of which it adds one vector to
a sum behind masks.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtailor.aggregation.secure_sums import MIN_CLIENTS, FixedPoint
from fedtailor.boosting import (
    BoostedModel,
    BoostingRequest,
    BoostingRows,
    Tree,
    as_vectors,
    boost_alone,
)
from fedtailor.boosting.federated import boosting_rows
from fedtailor.federation import Federation
from fedtailor.remote.account import digest_of
from fedtailor.remote.boosting_wire import (
    BOOST,
    FINISH,
    SUMMED,
    Step,
    most_steps,
    read_steps,
    to_vector,
)
from fedtailor.remote.messages import Request
from fedtailor.remote.plan import Plan
from fedtailor.remote.refusals import Refusal, refuse_unless, refusing
from fedtailor.storage.personal_model import PersonalModel

CLIENTS = "clients"
"""Key beside the steps: over how many clients their sum is."""

_NEEDS = {
    "gradients": ("bins", "baseline"),
    "split": ("gradients",),
    "tree": ("bins", "baseline"),
    "loss": ("bins", "baseline"),
    FINISH: ("start", "loss"),
}
"""What must have come before a step of a kind."""


class BoostingClient:
    """Takes the steps of boosting on a client's rows.

    Nothing of a run outlives the process: a client that was started again has no part in
    it any more.

    Args:
        plan: what this client agreed to, with boosting and sums behind masks.
        federation: a federation of this client only.

    Attributes:
        most_steps: the most steps of a run.
        own: the client's own model, once it is made.
    """

    def __init__(self, plan: Plan, federation: Federation) -> None:
        assert plan.boosting is not None and plan.sums is not None
        self._boosting, self._federation = plan.boosting, federation
        self._like = plan.model
        self._fixed_point = FixedPoint(plan.sums.range)
        self._inputs = int(np.prod(federation.input_shape, dtype=int))
        classes = federation.classes
        self._outputs = classes if classes is not None and classes > 2 else 1
        self.most_steps = most_steps(plan.boosting.settings, self._outputs)
        self._run, self._step, self._digest = "", -1, ""
        self._vector: NDArray[np.float64] | None = None
        self._begin()

    def _begin(self) -> None:
        """Begin a run."""
        self._rows: BoostingRows = boosting_rows(self._federation, 0)
        self._done: set[str] = set()
        self._thresholds: list[NDArray[np.float64]] = []
        self._baseline: NDArray[np.float64] = np.zeros(self._outputs)
        self._trees: list[Tree] = []
        self.own: PersonalModel | None = None

    def __call__(self, request: Request) -> NDArray[np.float64] | None:
        """Take a step; one that was taken before is not taken again.

        Returns:
            The vector of its sum; None if it asks for none.

        Raises:
            Refused: the step is not well formed, or not the next one of its run.
        """
        digest = digest_of(request)
        if digest == self._digest:
            return self._vector
        if request.round == 0 and request.run != self._run:
            self._run, self._step = request.run, -1
            self._begin()
        refuse_unless(
            request.run == self._run and request.round == self._step + 1,
            Refusal.NO_STATE,
            f"step {request.round + 1} of boosting is not the next one here: it was"
            " started again in between, or another run has begun",
        )
        plain = request.algorithm[BOOST]
        plain = dict(plain) if isinstance(plain, dict) else {}
        clients = plain.pop(CLIENTS, None)
        with refusing(Refusal.MALFORMED):
            steps = read_steps(plain, request.arrays, self._inputs, self._outputs)
        refuse_unless(
            type(clients) is int and clients >= MIN_CLIENTS,
            Refusal.UNSAFE_SUM,
            f"boosting adds over {MIN_CLIENTS} clients or more, not {clients!r}",
        )
        assert isinstance(clients, int)
        answers = []
        # From here on the rows move: a step that fails is not taken for a second time.
        self._step, self._digest, self._vector = request.round, digest, None
        for step in steps:
            answer = self._take(step)
            if answer is not None:
                answers.append(answer.reshape(-1))
        if answers:
            with refusing(Refusal.SUM_RANGE):
                together = np.concatenate(answers)
                self._vector = to_vector(together, clients, self._fixed_point)
        return self._vector

    def _take(self, step: BoostingRequest | Step) -> NDArray[np.float64] | None:
        """Take one step; returns the answer if it is summed."""
        missing = [kind for kind in _NEEDS.get(step.kind, ()) if kind not in self._done]
        refuse_unless(
            not missing,
            Refusal.MALFORMED,
            f"a step of boosting ({step.kind}) came before {', '.join(missing)}",
        )
        if isinstance(step, Step):
            self.own = self._own_model(step.rounds)
            return None
        self._done.add(step.kind)
        if step.kind == "bins":
            self._thresholds = step.arrays["thresholds"]
        if step.kind == "baseline":
            self._baseline = step.arrays["baseline"]
        if step.kind == "tree":
            refuse_unless(
                len(self._trees) % self._outputs == step.output,
                Refusal.MALFORMED,
                "the trees of a round did not come in order",
            )
            self._trees.append(step.arrays["tree"])
        answer = self._rows.answer(step)
        return answer if step.kind in SUMMED else None

    def _own_model(self, rounds: int) -> PersonalModel:
        """The shared trees of so many rounds, and this client's own after them."""
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

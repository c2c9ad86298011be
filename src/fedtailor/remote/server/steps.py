"""Steps outside rounds, each of which is one sum over all clients behind masks: of
boosting, and of a regression. The coordinator's side.
"""

import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtailor.aggregation.sum_shares import SumHistory
from fedtailor.remote.job.job import Job
from fedtailor.remote.job.plan import plan_of
from fedtailor.remote.job.statistics import Statistics
from fedtailor.remote.sums.server import (
    NamedArrays,
    SecureSumServer,
    SumStage,
    send_stage,
)
from fedtailor.remote.wire.messages import Request
from fedtailor.remote.wire.refusals import Refusal
from fedtailor.remote.wire.request_kind import CLIENTS
from fedtailor.remote.wire.run_log import COORDINATOR_LOG
from fedtailor.remote.wire.secure_sums import KEYS, SUM
from fedtailor.remote.wire.transport import TooFewClients, Transport, send_and_receive
from fedtailor.remote.wire.wire import common_digest
from fedtailor.statistics.grid import WORDS, from_grid

PAUSE_S = 1.0
"""Seconds between two tries of a step."""

_MEANT = {
    Refusal.NO_STATE: "it was started again meanwhile, and has lost the steps before",
    Refusal.UNSAFE_SUM: (
        "the sum would not hide its rows, alone or beside those that it has confirmed,"
        " also of training in the same job; make a new job (with another seed)"
    ),
}
"""What codes mean of a step, where that is not what they mean of a round."""


class StepRefused(TooFewClients):
    """A client refuses a step, and would refuse it again."""


def _check_refusals(refusals: Mapping[str, Refusal]) -> None:
    """Check that the clients that refused a step may answer it later.

    Raises:
        StepRefused: one of them will not.
    """
    for name, code in refusals.items():
        if not code.may_pass:
            raise StepRefused(
                f"client {name}: it refused: {_MEANT.get(code, code.explanation)}"
            )


class StepsServer:
    """Asks all clients for sums, and retries while one of them is away.

    Args:
        key: under which a step stands in a request.
        job: the job, with sums behind masks.
        transport: carries messages to the clients.
        names: of the clients; all of them take part in every sum.
        run: identity of the run.
        statistics: statistics of columns, pooled or of the job; None without
            preprocessing.
        patience: how many seconds to retry a step that a client does not answer.

    Attributes:
        model: of the job, bound.
    """

    def __init__(
        self,
        key: str,
        job: Job,
        transport: Transport,
        names: Collection[str],
        run: str,
        statistics: Statistics | None,
        patience: float,
    ) -> None:
        plan = plan_of(job, statistics)
        assert plan.sums is not None
        self.model = plan.model
        self._key, self._job, self._transport = key, job, transport
        self._names, self._run, self._patience = tuple(names), run, patience
        self._description, self._sums = plan.describe(0), plan.sums
        self._history = SumHistory("run")  # as clients keep sums of steps
        self._asked = ""  # digest of all steps of the run so far
        self._step, self._exchange = 0, 0

    def sum(
        self, step: Mapping[str, Any], arrays: Mapping[str, np.ndarray], size: int
    ) -> NDArray[np.float64]:
        """Have all clients take a step, and add up their answers behind masks.

        Args:
            step: what stands under the key, without the number of clients.
            arrays: those of the step.
            size: how many numbers an answer has.

        Returns:
            Their sums.

        Raises:
            TooFewClients: a client did not answer for so long, or refused for good.
        """
        step = {**step, CLIENTS: len(self._names)}
        asked_of_all = {**self._description, self._key: step}
        self._asked = common_digest(asked_of_all, arrays, self._asked)
        found = self._until_all_answer(partial(self._try_sum, step, arrays, size))
        self._step += 1
        return found

    def end(self, step: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Have all clients take a last step, which asks for no sum.

        Raises:
            TooFewClients: a client did not answer for so long, or refused for good.
        """
        self._until_all_answer(partial(self._try_end, step, arrays))

    def _until_all_answer(self, act: Callable[[], Any]) -> Any:
        """Try until `patience` is over: the same step has the same answers."""
        until = time.monotonic() + self._patience
        while True:
            try:
                return act()
            except StepRefused:
                raise
            except TooFewClients as error:
                left = until - time.monotonic()
                if left <= 0:
                    raise
                COORDINATOR_LOG.warning(
                    f"step {self._step + 1}: {error}; it is retried"
                )
                time.sleep(min(left, PAUSE_S))

    def _try_end(
        self, step: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
    ) -> None:
        step = {**step, CLIENTS: len(self._names)}
        requests = {
            name: self._request(self._key, name, {self._key: step}, arrays)
            for name in self._names
        }
        result = send_and_receive(self._transport, requests, {}, minimum=0)
        _check_refusals(result.refusals)
        if len(result.replies) < len(requests):
            raise TooFewClients("a client did not take the last step")

    def _try_sum(
        self, step: Mapping[str, Any], arrays: Mapping[str, np.ndarray], size: int
    ) -> NDArray[np.float64]:
        count = len(self._names)
        server = SecureSumServer(
            partial(self._run_stage, step, arrays),
            self._names,
            size,
            self._sums,
            minimum=count,
            history=self._history,
            round=self._step,
            asked=self._asked,
            vector=(self._key, None),
            words=WORDS,
        )
        total = server.add_whole()
        if len(server.remaining) < count:
            raise TooFewClients("a client was lost while a sum was unmasked")
        return from_grid(total)

    def _run_stage(
        self,
        step: Mapping[str, Any],
        given: Mapping[str, np.ndarray],
        stage: SumStage,
    ) -> dict[str, NamedArrays]:
        """Send the requests of one stage of a sum; the step is in the first one."""
        is_first = stage.task == KEYS

        def request_of(name: str, arrays: NamedArrays) -> Request:
            vector_id = {"kind": self._key, **stage.settings_for(name)}
            more = {self._key: step if is_first else True, SUM: vector_id}
            arrays = {**arrays, **given} if is_first else arrays
            return self._request(stage.task, name, more, arrays)

        return send_stage(
            self._transport, stage, request_of, on_refusals=_check_refusals
        )

    def _request(
        self,
        task: str,
        name: str,
        more: Mapping[str, Any],
        arrays: Mapping[str, np.ndarray],
    ) -> Request:
        self._exchange += 1
        return Request(
            self._job.identity,
            self._step,
            self._exchange,
            task,
            name,
            deadline=time.time() + self._job.deadline,
            run=self._run,
            algorithm={**self._description, **more},
            arrays=arrays,
        )

"""Updates that the coordinator can sum securely and nothing else."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.aggregation.secure_sums import SecureSums
from fedtailor.aggregation.sum_shares import SumHistory
from fedtailor.protocol import Cohort, HiddenRows, Sums
from fedtailor.remote.sums.server import MASKED, NamedArrays, SecureSumServer, SumStage


class HiddenUpdates:
    """The updates of one exchange, which clients hold until the server needs sums.

    Attributes:
        extra_bytes: [2] bytes sent down and up so far for keys, shares and weights; the
            bytes of masked vectors are not included.
    """

    def __init__(
        self,
        settings: SecureSums,
        cohort: Cohort,
        reporting: NDArray[np.bool_],
        run_stage: Callable[[SumStage, Mapping[str, Any]], Mapping[str, NamedArrays]],
        *,
        minimum: int,
        history: SumHistory,
        asked: str,
    ) -> None:
        """Describe the updates of a cohort; no client is asked yet.

        Args:
            settings: secure aggregation, as the job sets it.
            cohort: the clients of the exchange.
            reporting: [c] whether each client holds an update.
            run_stage: sends the requests of a stage, and returns the answers; its
                second argument identifies the vectors to be added.
            minimum: see `SecureSumServer`.
            history: the sums that the server has had.
            asked: digest of what all clients were asked.
        """
        self._settings, self._run_stage = settings, run_stage
        self._history, self._round, self._asked = history, cohort.round, asked
        self._minimum = minimum
        self._clients, self._reporting = len(cohort), np.flatnonzero(reporting)
        self._names = [cohort.clients.names[row] for row in cohort.rows[reporting]]
        self.extra_bytes = np.zeros(2, np.int64)

    def rows(self, kind: str, shape: Any) -> HiddenRows:
        """The clients' updates of one kind, as rows that can only be summed.

        Args:
            kind: kind of message.
            shape: shape and type of one client's update (`jax.ShapeDtypeStruct`).
        """
        vectors_sent, vector_size = 0, 0  # by each client so far; entries of each

        def run_stage(
            stage: SumStage, vector_id: Mapping[str, Any]
        ) -> Mapping[str, NamedArrays]:
            nonlocal vectors_sent, vector_size
            answers = self._run_stage(stage, vector_id)
            self._count_bytes(stage, answers)
            masked = [answer[MASKED] for answer in answers.values() if MASKED in answer]
            if masked:  # all have the same shape
                vectors_sent += masked[0].shape[0]
                vector_size = masked[0].shape[1]
            return answers

        def add_up(weights: NDArray[np.float64], index: int | None) -> Sums:
            others = np.delete(weights, self._reporting, axis=1)
            require(not others.any(), "the method weighs clients that do not report")
            vector_id = {"kind": kind} | ({} if index is None else {"number": index})
            server = SecureSumServer(
                partial(run_stage, vector_id=vector_id),
                self._names,
                math.prod(shape.shape if index is None else shape.shape[1:]),
                self._settings,
                minimum=self._minimum,
                history=self._history,
                round=self._round,
                asked=self._asked,
                vector=(kind, index),
            )
            sums, are_known = server.run(weights[:, self._reporting])
            self._settings.check_models(kind, sums)
            return sums, are_known

        return HiddenRows(
            (self._clients, *shape.shape),
            np.dtype(shape.dtype),
            add_up,
            lambda: (vectors_sent, vector_size),
        )

    def _count_bytes(self, stage: SumStage, answers: Mapping[str, NamedArrays]) -> None:
        """Add the bytes of a stage to `extra_bytes`.

        Masked vectors are not counted here, as the ledger charges them to the method.
        """
        for arrays in stage.arrays.values():
            self.extra_bytes[0] += sum(array.nbytes for array in arrays.values())
        for answer in answers.values():
            for name, array in answer.items():
                if name != MASKED:
                    self.extra_bytes[1] += array.nbytes

"""Updates that stay with their clients, where the coordinator sees sums only."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtailor.protocol import Cohort, HiddenRows, Sums, require
from fedtailor.remote.secure_sums import SecureSums
from fedtailor.remote.sum_server import MASKED, Arrays, SecureSum, Stage


class HiddenUpdates:
    """What the clients of one exchange hold until the server asks for sums of it.

    Attributes:
        extra_bytes: [2] bytes down and up so far in addition to the masked vectors: keys, shares,
            weights.
    """

    def __init__(
        self,
        settings: SecureSums,
        cohort: Cohort,
        reporting: NDArray[np.bool_],
        ask: Callable[[Stage, Mapping[str, Any]], Mapping[str, Arrays]],
        *,
        minimum: int,
        tell: Callable[[str], None],
    ) -> None:
        """Make the updates of a cohort; nothing is asked yet.

        Args:
            settings: of the job.
            cohort: the clients.
            reporting: [c] who holds an update.
            ask: carries a stage of a sum; its second argument names the vectors that
                are added.
            minimum, tell: as for `SecureSum`.
        """
        self._settings, self._ask = settings, ask
        self._minimum, self._tell = minimum, tell
        self._clients, self._reporting = len(cohort), np.flatnonzero(reporting)
        self._names = [cohort.clients.names[row] for row in cohort.rows[reporting]]
        self.extra_bytes = np.zeros(2, np.int64)

    def rows(self, kind: str, shape: Any) -> HiddenRows:
        """The clients' vectors of one kind, of which sums can be had.

        Args:
            kind: of message.
            shape: shape and type of one client's (`jax.ShapeDtypeStruct`).
        """
        vectors_sent, entries = 0, 0  # by each client so far; of each vector

        def ask(stage: Stage, asked: Mapping[str, Any]) -> Mapping[str, Arrays]:
            nonlocal vectors_sent, entries
            answers = self._ask(stage, asked)
            self._count(stage, answers)
            masked = [answer[MASKED] for answer in answers.values() if MASKED in answer]
            if masked:  # all have the same shape
                vectors_sent += masked[0].shape[0]
                entries = masked[0].shape[1]
            return answers

        def add_up(weights: NDArray[np.float64], number: int | None) -> Sums:
            others = np.delete(weights, self._reporting, axis=1)
            require(not others.any(), "the method weighs clients that do not report")
            secure_sum = SecureSum(
                partial(ask, asked={"kind": kind, "number": number}),
                self._names,
                math.prod(shape.shape if number is None else shape.shape[1:]),
                self._settings,
                minimum=self._minimum,
                tell=self._tell,
            )
            return secure_sum.run(weights[:, self._reporting])

        return HiddenRows(
            (self._clients, *shape.shape),
            np.dtype(shape.dtype),
            add_up,
            lambda: (vectors_sent, entries),
        )

    def _count(self, stage: Stage, answers: Mapping[str, Arrays]) -> None:
        """Add the bytes of a stage; masked vectors are charged as the method's own."""
        for arrays in stage.arrays.values():
            self.extra_bytes[0] += sum(array.nbytes for array in arrays.values())
        for answer in answers.values():
            for name, array in answer.items():
                if name != MASKED:
                    self.extra_bytes[1] += array.nbytes

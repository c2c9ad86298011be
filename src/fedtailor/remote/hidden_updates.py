"""What clients hold after training where the coordinator sees sums only, in the place
of what they would have sent.
"""

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
    """What the clients of one exchange have trained and hold, until the server asks for
    sums of it.

    Attributes:
        beside: [2] bytes down and up so far beside the masked vectors: keys, shares,
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
        """The updates of those of a cohort that report.

        Args:
            settings: of the job.
            cohort: the clients.
            reporting: [c] who holds an update.
            ask: carries the stages of a sum, with what names the vectors that are
                added.
            minimum, tell: as for `SecureSum`.
        """
        self._settings, self._ask, self._minimum, self._tell = (
            settings,
            ask,
            minimum,
            tell,
        )
        self._clients, self._places = len(cohort), np.flatnonzero(reporting)
        self._names = [
            cohort.clients.names[cohort.rows[place]] for place in self._places
        ]
        self.beside = np.zeros(2, np.int64)

    def rows(self, kind: str, form: Any) -> HiddenRows:
        """What each client holds of one kind, in the place of rows.

        Args:
            kind: of message.
            form: shape and type of one client's.
        """
        sent = [0, 0]

        def ask(stage: Stage, asked: Mapping[str, Any]) -> Mapping[str, Arrays]:
            found = self._ask(stage, asked)
            self._count(stage, found)
            masked = next(
                (answer[MASKED] for answer in found.values() if MASKED in answer), None
            )
            if masked is not None:
                sent[:] = sent[0] + masked.shape[0], masked.shape[1]
            return found

        def add_up(weights: NDArray[np.float64], number: int | None) -> Sums:
            others = np.delete(weights, self._places, axis=1)
            require(not others.any(), "the method weighs clients that do not report")
            size = math.prod(form.shape if number is None else form.shape[1:])
            asking = partial(ask, asked={"kind": kind, "number": number})
            one = SecureSum(
                asking,
                self._names,
                size,
                self._settings,
                minimum=self._minimum,
                tell=self._tell,
            )
            return one.run(weights[:, self._places])

        return HiddenRows(
            (self._clients, *form.shape),
            np.dtype(form.dtype),
            add_up,
            lambda: (sent[0], sent[1]),
        )

    def _count(self, stage: Stage, found: Mapping[str, Arrays]) -> None:
        """Count all but what is masked, which is charged as the method's own
        message.
        """
        self.beside[0] += sum(
            array.nbytes for sent in stage.arrays.values() for array in sent.values()
        )
        self.beside[1] += sum(
            array.nbytes
            for answer in found.values()
            for name, array in answer.items()
            if name != MASKED
        )

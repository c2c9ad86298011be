"""Which weighted sums of the clients' answers a method's server needs, before there are any
answers.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from fedtailor.protocol import Answers, Cohort, UnknownRows, WeightedSum


class ServerSums:
    """Finds out which sums a server needs: it aggregates answers that no client has made.
    (`Algorithm.server` is a pure function, so that it may be called for that.)

    Attributes:
        may_be_enough: whether every server that asked for certain sums before a round
            asked for the same ones after it.
    """

    def __init__(self) -> None:
        self.may_be_enough = True

    def of_round(
        self, aggregate: Callable[[Answers], Any], cohort: Cohort, reply: Any
    ) -> "RoundSums | None":
        """The sums of a round.

        Args:
            aggregate: what the server does with the answers.
            cohort: the clients.
            reply: which of them are asked to answer (`Downlink.reply`).

        Returns:
            What says which sums they are; None if sums are not enough.
        """
        if not self.may_be_enough:
            return None
        reporting = cohort.reporting & np.asarray(reply, bool)
        return RoundSums(self, aggregate, reporting)


class RoundSums:
    """The sums that a server needs in one round (implements
    `fedtailor.protocol.ExpectedSums`).
    """

    def __init__(
        self,
        sums: ServerSums,
        aggregate: Callable[[Answers], Any],
        reporting: NDArray[np.bool_],
    ) -> None:
        self._sums = sums
        self._aggregate = aggregate
        self._reporting = reporting

    def __call__(
        self, messages: Mapping[str, jax.ShapeDtypeStruct]
    ) -> Sequence[WeightedSum] | None:
        asked: list[WeightedSum] = []
        update = {}
        for kind, sent in messages.items():
            shape = (len(self._reporting), *sent.shape)
            update[kind] = UnknownRows(shape, sent.dtype, _noting(asked, kind))
        try:
            with np.errstate(all="ignore"):
                self._aggregate(Answers(reporting=self._reporting, update=update))
        # It needs more than sums, or it cannot do without numbers that clients send. If
        # something else is wrong, it is so with the clients' answers, too.
        except Exception:
            return None
        return asked

    def give_up(self) -> None:
        self._sums.may_be_enough = False


def _noting(
    asked: list[WeightedSum], kind: str
) -> Callable[[int | None, NDArray[np.float64]], None]:
    """Notes what is asked for of one kind of message."""
    return lambda index, weights: asked.append(WeightedSum(kind, index, weights))

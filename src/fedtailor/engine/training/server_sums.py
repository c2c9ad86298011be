"""Which weighted sums of the clients' answers a method's server needs, before there are any
answers.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from fedtailor.protocol import Answers, Cohort, UnknownRows, WeightedSum


class _Enough(Exception):
    """As many sums are known as the server has ever asked for in a round."""


class ServerSums:
    """Finds out which sums a server needs: it aggregates answers that no client has made.
    (`Algorithm.server` is a pure function, so that it may be called for that.)

    Attributes:
        may_be_enough: whether sums have been enough so far.
    """

    def __init__(self) -> None:
        self.may_be_enough = True
        self._most = 0

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

    def ask(
        self,
        aggregate: Callable[[Answers], Any],
        reporting: NDArray[np.bool_],
        messages: Mapping[str, jax.ShapeDtypeStruct],
    ) -> tuple[WeightedSum, ...] | None:
        """See `ExpectedSums.__call__`."""
        asked: list[WeightedSum] = []

        def note(kind: str, index: int | None, weights: NDArray[np.float64]) -> None:
            asked.append(WeightedSum(kind, index, weights))
            # What the server makes of the sums need not be computed.
            if len(asked) == self._most:
                raise _Enough

        update = {}
        for kind, sent in messages.items():
            shape = (len(reporting), *sent.shape)
            update[kind] = UnknownRows(shape, sent.dtype, _noting(note, kind))
        try:
            with np.errstate(all="ignore"):
                aggregate(Answers(reporting=reporting, update=update))
        except _Enough:
            pass
        # It needs more than sums, or it cannot do without numbers that clients send. If
        # something else is wrong, it is so with the clients' answers, too.
        except Exception:
            self.may_be_enough = False
            return None
        self._most = max(self._most, len(asked))
        return tuple(asked)


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
        return self._sums.ask(self._aggregate, self._reporting, messages)

    def give_up(self) -> None:
        self._sums.may_be_enough = False


def _noting(
    note: Callable[[str, int | None, NDArray[np.float64]], None], kind: str
) -> Callable[[int | None, NDArray[np.float64]], None]:
    """`note` for messages of one kind."""
    return lambda index, weights: note(kind, index, weights)

"""Steps outside rounds, of each of which a client adds one vector to a sum behind masks:
of boosting, and of a regression.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedtailor.aggregation.secure_sums import MAX_CLIENTS, MIN_CLIENTS
from fedtailor.engine.storage.personal_model import PersonalModel
from fedtailor.remote.client.account import digest_of
from fedtailor.remote.wire.messages import Request
from fedtailor.remote.wire.refusals import Refusal, refuse_unless, refusing
from fedtailor.remote.wire.request_kind import CLIENTS
from fedtailor.remote.wire.wire import common_digest

T = TypeVar("T")


class StepsClient(ABC, Generic[T]):
    """Takes steps on a client's rows, one after another.

    Nothing of a run outlives the process: a client that was started again has no part in
    it any more.

    Args:
        key: under which a step stands in a request.
        what: the steps are of, in words.
        most_steps: the most steps of a run.

    Attributes:
        most_steps: the most steps of a run.
        own: the client's own model, once it is made.
        clients: over how many clients the sum of the last step is.
        asked: digest of all steps of the run so far.
    """

    def __init__(self, key: str, what: str, most_steps: int) -> None:
        self.key, self.what, self.most_steps = key, what, most_steps
        self._run, self._step, self._digest = "", -1, ""
        self._vector: NDArray[np.uint32] | None = None
        self.clients, self.asked = 0, ""
        self.own: PersonalModel | None = None

    def __call__(self, request: Request) -> NDArray[np.uint32] | None:
        """Take a step; one that was taken before is not taken again.

        Returns:
            The words [n, w] of whole numbers that are added; None if it asks for no sum.

        Raises:
            Refused: the step is not well formed, or not the next one of its run.
        """
        digest = digest_of(request)
        if digest == self._digest:
            return self._vector
        if request.round == 0 and request.run != self._run:
            self._run, self._step = request.run, -1
            self.asked, self.own = "", None
            self._begin()
        refuse_unless(
            request.run == self._run and request.round == self._step + 1,
            Refusal.NO_STATE,
            f"step {request.round + 1} of {self.what} is not the next one here: it was"
            " started again in between, or another run has begun",
        )
        plain = dict(request.algorithm[self.key])
        clients = plain.pop(CLIENTS, None)
        with refusing(Refusal.MALFORMED):
            steps = self._read(plain, request.arrays)
        refuse_unless(
            type(clients) is int and MIN_CLIENTS <= clients <= MAX_CLIENTS,
            Refusal.UNSAFE_SUM,
            f"{self.what} adds over {MIN_CLIENTS} to {MAX_CLIENTS} clients, not"
            f" {clients!r}",
        )
        assert isinstance(clients, int)
        self.clients = clients
        self.asked = common_digest(request.algorithm, request.arrays, self.asked)
        # From here on the rows move: a step that fails is not taken for a second time.
        self._step, self._digest, self._vector = request.round, digest, None
        answers = [self._take(step) for step in steps]
        numbers = [answer for answer in answers if answer is not None]
        if numbers:
            self._vector = np.concatenate(numbers)
        return self._vector

    @abstractmethod
    def _begin(self) -> None:
        """Begin a run."""

    @abstractmethod
    def _read(
        self, plain: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
    ) -> list[T]:
        """The steps of a request.

        Raises:
            ValueError: they are not well formed.
        """

    @abstractmethod
    def _take(self, step: T) -> NDArray[np.uint32] | None:
        """Take one step; returns the words [n, w] of the answer if it is summed.

        Raises:
            Refused: it cannot come now, or a number is too large.
        """

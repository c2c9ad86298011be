"""Late clients over machines: the coordinator takes a step as soon as some answers are
there, and does not wait for the others (`LateClients`).

`LateRequests` are the requests that are open. `FirstCome` says whose answers each step
takes: those that come first.
"""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedtailor._base.documentation import see
from fedtailor.engine.storage.interrupts import Interrupted
from fedtailor.engine.training.asynchronous import (
    AnswerRecord,
    LateClients,
    check_buffer,
)
from fedtailor.protocol import Diverged
from fedtailor.remote.wire.messages import ArraySpec, Reply, Request, largest_reply
from fedtailor.remote.wire.transport import (
    PendingExchange,
    TooFewClients,
    Transport,
    identified,
    until_next_poll,
)

if TYPE_CHECKING:
    from fedtailor.remote.server.rounds import RemoteTraining


class LateRequests(PendingExchange):
    """Requests that are open while others are exchanged, each with its own deadline.

    A client has at most one of them. Its answer stays in `replies`, in the order in which
    answers came, until a step takes it.

    Attributes:
        is_used: whether there has been one.
    """

    def __init__(self, transport: Transport) -> None:
        self._by_client: dict[str, Request] = {}
        self._specs: dict[str, dict[str, ArraySpec]] = {}
        super().__init__(
            self._by_client, lambda request: self._specs[request.client], {}, {}
        )
        self._transport = transport
        self.is_used = False

    def ask(
        self, request: Request, cached: Request | None, expected: dict[str, ArraySpec]
    ) -> None:
        """Open a request; it is sent at the next poll.

        Args:
            request: the request.
            cached: the same without the vectors in the client's cache.
            expected: the arrays that its answer must hold.
        """
        name = request.client
        request = identified(self._transport, request)
        self._by_client[name], self._specs[name] = request, expected
        self.is_used = True
        self.open[name] = None
        self.refused.pop(name, None)
        if cached is not None:
            self.cached[name] = replace(request, arrays=cached.arrays)
            self._may_miss.add(name)
        self._transport.expect(largest_reply(expected))

    def release_overdue(self) -> list[str]:
        """Close the requests whose deadline has passed, and name their clients."""
        now = time.time()
        overdue = [name for name in self.open if self._by_client[name].deadline <= now]
        for name in overdue:
            del self.open[name]
            self.forget(name)
        return overdue

    def take(self, names: list[str]) -> dict[str, Reply]:
        """Take the answers of some clients, each once."""
        taken = {name: self.replies[name] for name in names if name in self.replies}
        for name in taken:
            del self.replies[name]
            self.forget(name)
        return taken

    def forget(self, name: str) -> None:
        """Forget a request that is not open; further answers to it are refused."""
        self._by_client.pop(name, None)
        self.cached.pop(name, None)
        self._may_miss.discard(name)


class FirstCome:
    """Whose answers the coordinator takes in each step: those that come first.

    It stands in the place of the simulated clock (`Arrivals`).

    Attributes:
        record: whose answers each step took.
    """

    def __init__(
        self, late: LateClients, training: "RemoteTraining", seed: int
    ) -> None:
        """Nobody has begun yet.

        Args:
            late: the settings.
            training: whose steps these are; it asks the clients.
            seed: of the order in which clients are drawn.

        Raises:
            ValueError: there are fewer clients than answers in a step.
        """
        self._late, self._training, self._seed = late, training, seed
        self._executor = training.executor
        self._clients = clients = training.executor.seen
        check_buffer(late, len(clients))
        self._row = {name: row for row, name in enumerate(clients.names)}
        # How many clients train at the same time.
        self._places = training.participation.reporters(len(clients))
        # The step after which each client [m] began whose answer is still to come, or to
        # be taken; -1 = it is free.
        self._began = np.full(len(clients), -1, np.int64)
        # Whom a coordinator that was killed had asked.
        self._to_ask_again = False
        self.record = AnswerRecord()

    def next_step(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Wait for the answers of the next step, and have free clients begin meanwhile.

        Returns:
            clients [buffer]: the rows of the clients whose answers it takes, ascending;
            ages [buffer]: the number of steps since each of them began.

        Raises:
            TooFewClients: there are too few answers, and nobody is at work.
            Diverged: likewise, as a client's model became NaN or infinite.
            Interrupted: it was stopped.
        """
        requests, begun = self._executor.late, time.monotonic()
        requests.refused.clear()
        requests.diverged.clear()
        while len(requests.replies) < self._late.buffer:
            polled = time.monotonic()
            self._begin()
            if not requests.open:
                self._end_attempt()
            self._executor.poll()
            for name in set(requests.refused) | set(self._executor.released):
                self._began[self._row[name]] = -1
            if len(requests.replies) < self._late.buffer:
                pause = until_next_poll(
                    begun, polled, self._executor.rules.poll_interval
                )
                if self._training.stop.wait(pause):
                    raise Interrupted
        first = list(requests.replies)[: self._late.buffer]
        clients = np.sort(np.array([self._row[name] for name in first], np.int64))
        ages = self._training.round - self._began[clients]
        self._began[clients] = -1
        return clients, ages

    def _begin(self) -> None:
        """Have clients begin that are free and connected, as many as there are places.

        A client whose answer waits for the step is not asked again before it, nor is one
        that has refused.
        """
        requests = self._executor.late
        if self._to_ask_again:
            self._to_ask_again = False
            for began in np.unique(self._began[self._began >= 0]):
                clients = np.flatnonzero(self._began == began)
                self._training.ask(clients, int(began))
        places = self._places - len(requests.open)
        is_free = self._began < 0
        is_free[[self._row[name] for name in requests.refused]] = False
        if places <= 0 or not is_free.any():
            return
        online = self._executor.online()
        is_free &= [name in online for name in self._clients.names]
        round = self._training.round
        order = self._training.participation.order(
            self._clients.ids, self._seed, round, self._clients.sizes
        )
        chosen = np.sort(order[is_free[order]][:places]).astype(np.int64)
        if len(chosen):
            self._began[chosen] = round
            self._training.ask(chosen, round)

    def _end_attempt(self) -> None:
        """End a step that cannot be taken."""
        requests = self._executor.late
        if requests.diverged:
            raise Diverged(requests.diverged[0], self._training.round)
        raise TooFewClients(
            f"{len(requests.replies)} of the {self._late.buffer} answers of a step are"
            f" there, and no client is at work{see('errors#too-few-clients')}"
        )

    @property
    def oldest(self) -> int:
        """The smallest number of steps after which a client began whose answer is still
        to come.
        """
        awaited = self._began[self._began >= 0]
        return int(awaited.min(initial=self._training.round))

    def snapshot(self) -> dict[str, Any]:
        """What a checkpoint stores: who began when, and whose answers were taken."""
        return {"began": self._began, "record": self.record.snapshot()}

    def restore(self, step: int, snapshot: Mapping[str, Any]) -> None:
        """Continue from a snapshot. Who was at work is asked the same again."""
        self._began = np.array(snapshot["began"], np.int64)
        self._to_ask_again = True
        self.record = AnswerRecord.of(snapshot["record"])

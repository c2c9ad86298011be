"""Asynchronous training over machines: requests stay open while the coordinator
continues, and it updates its model as soon as enough answers have arrived
(`AsynchronousServer`).
"""

import time
from dataclasses import replace

from fedtailor._base.documentation import see
from fedtailor.protocol import Diverged
from fedtailor.remote.wire.messages import ArraySpec, Reply, Request, largest_reply
from fedtailor.remote.wire.transport import (
    PendingExchange,
    TooFewClients,
    Transport,
    identified,
)


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

    def began(self, name: str) -> int:
        """The round in which a client began whose answer is there or to come; -1 = none."""
        if name in self.open or name in self.replies:
            return self._by_client[name].round
        return -1

    def end_attempt(self, count: int, round: int, clients: int) -> None:
        """End a step that cannot be taken, as nobody is at work.

        Args:
            count: the number of answers of a step.
            round: the step.
            clients: the number of clients that train.

        Raises:
            Diverged: that follows from the clients whose model became NaN or infinite.
            TooFewClients: there are too few clients.
        """
        if self.diverged and clients - len(self.diverged) < count:
            raise Diverged(self.diverged[0], round)
        raise TooFewClients(
            f"{len(self.replies)} of the {count} answers of a step are there, and no"
            f" client is at work{see('errors#too-few-clients')}"
        )

"""How the coordinator and its clients exchange messages, whoever carries them.

A transport knows who is there and moves bytes; `exchange` asks some clients and
collects what they answer until all have, or until the deadline. It waits for machines
that others own, so nothing that arrives can stop it: what is wrong with an answer
becomes one line that names the client, and the exchange goes on with the others.
"""

import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from fedtailor.protocol import require
from fedtailor.remote.held import HeldVectors, Lacks
from fedtailor.remote.messages import (
    ArraySpec,
    Reply,
    Request,
    check_content,
    check_identity,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
)

PAUSE_S = 0.1
"""Seconds between two looks at what has arrived."""


class Transport(Protocol):
    """Carries messages between the coordinator and clients whose names it has
    verified.
    """

    def online(self) -> Mapping[str, str]:
        """Clients that are there, by name, each with a mark that changes when the
        client has left and come back.
        """
        ...

    def send(self, client: str, body: bytes) -> None:
        """Send a message to a client that is there; the client may get it late or
        never.
        """
        ...

    def receive(self) -> Iterable[tuple[str, bytes]]:
        """Messages that arrived since the last call, each with the verified name of its
        sender.
        """
        ...


@dataclass(frozen=True)
class Collected:
    """What came of an exchange.

    Attributes:
        replies: accepted answers by client, in the order of the requests.
        refused: by client, in one line, why its answer was not accepted.
        missing: clients that did not answer in time.
    """

    replies: dict[str, Reply]
    refused: dict[str, str]
    missing: tuple[str, ...]


class TooFewClients(RuntimeError):
    """An exchange ended with fewer answers than the job's minimum."""


@dataclass
class AnswerBook:
    """Which requests of an exchange are open, and which answers were accepted.

    Attributes:
        requests: all requests, by client.
        expected: from a request to the arrays that its answer must hold.
        shortened: what is sent in place of the requests to clients that hold some of
            their vectors.
        open: clients whose answer is awaited; the mark of the connection on which each
            was asked, None before.
        replies: accepted answers by client.
        refused: why an answer was refused, by client.
    """

    requests: Mapping[str, Request]
    expected: Callable[[Request], Mapping[str, ArraySpec]]
    shortened: dict[str, Request]
    open: dict[str, str | None]
    replies: dict[str, Reply] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.once_shortened = frozenset(self.shortened)

    def accept(self, sender: str, body: bytes) -> None:
        """Take an answer, or note that the client needs the whole request.

        Raises:
            ValueError: in one line that names the client, why the answer is not
                accepted. A stale answer leaves the request open, as the right one may
                be under way; every other wrong answer closes it.
        """
        try:
            require(sender in self.requests, "it was not asked")
            request = self.requests[sender]
            reply = decode_reply(body)
            check_identity(reply, request)
            require(
                sender not in self.replies, "it answered twice; the first answer stands"
            )
            require(
                sender in self.open, "it answered again after its answer was refused"
            )
            if reply.lacks and sender in self.once_shortened:
                if self.shortened.pop(sender, None) is not None:
                    self.open[sender] = None  # it is asked again, with everything
                return  # else that is under way already, as it was started again
            require(not reply.lacks, "it says that it lacks what it was sent")
            check_content(reply, self.expected(request))
        except ValueError as error:
            line = f"client {sender}: {error}"
            if sender in self.open and not _is_stale(body, self.requests[sender]):
                del self.open[sender]
                self.refused[sender] = line
            raise ValueError(line) from None
        del self.open[sender]
        self.replies[sender] = reply


def exchange(
    transport: Transport,
    requests: Mapping[str, Request],
    expected: Mapping[str, ArraySpec] | Callable[[Request], Mapping[str, ArraySpec]],
    *,
    shortened: Mapping[str, Request] | None = None,
    minimum: int = 1,
    tell: Callable[[str], None] = lambda line: None,
    pause: float = PAUSE_S,
) -> Collected:
    """Send requests, and collect the answers until all are there or the (common)
    deadline has passed.

    A client that leaves and comes back is asked again: what it was computing is gone
    with it.

    Args:
        transport: carries the messages.
        requests: by client; each is given a nonce of its own.
        expected: the arrays that each answer must hold, or a function from a request to
            those of its answer.
        shortened: of some requests, a form for a client that holds some of the vectors;
            who lacks one is sent all.
        minimum: answers without which the exchange fails.
        tell: is given a line for every answer that is not accepted, and for every
            client that is missing.
        pause: seconds between two looks.

    Raises:
        TooFewClients: fewer than `minimum` answers were accepted by the deadline.
    """
    marked = {
        client: replace(request, nonce=secrets.token_hex(12))
        for client, request in requests.items()
    }
    short = {
        client: replace(marked[client], arrays=request.arrays)
        for client, request in (shortened or {}).items()
    }
    specs = expected if callable(expected) else lambda request: expected
    book = AnswerBook(marked, specs, short, dict.fromkeys(marked))
    deadline = min((request.deadline for request in requests.values()), default=0.0)
    while book.open:
        _send_open(transport, book)
        for sender, body in transport.receive():
            try:
                book.accept(sender, body)
            except ValueError as error:
                tell(str(error))
        if time.time() >= deadline:
            break
        if book.open:
            time.sleep(pause)
    missing = tuple(book.open)
    if missing:
        tell(f"no answer in time from {', '.join(missing)}")
    if len(book.replies) < minimum:
        counted = f"{len(book.replies)} of {len(requests)} clients answered in time"
        raise TooFewClients(f"{counted}; the job's minimum is {minimum}")
    replies = {
        client: book.replies[client] for client in requests if client in book.replies
    }
    return Collected(replies, book.refused, missing)


def _send_open(transport: Transport, book: AnswerBook) -> None:
    """Send each open request once on every connection that its client makes."""
    there = transport.online()
    for client, asked_on in book.open.items():
        mark = there.get(client)
        if mark is not None and mark != asked_on:
            if asked_on is not None:  # it was started again, and holds nothing any more
                book.shortened.pop(client, None)
            transport.send(
                client,
                encode_request(book.shortened.get(client, book.requests[client])),
            )
            book.open[client] = mark


def _is_stale(body: bytes, request: Request) -> bool:
    """Whether an answer is one to an earlier request of the same experiment, to the
    same client.
    """
    try:
        reply = decode_reply(body)
    except ValueError:
        return False
    same = (reply.experiment, reply.client) == (request.experiment, request.client)
    earlier = (reply.round, reply.exchange) < (request.round, request.exchange)
    resent = (reply.round, reply.exchange) == (
        request.round,
        request.exchange,
    ) and reply.nonce != request.nonce
    return same and (earlier or resent)


Work = Callable[[Request], Mapping[str, np.ndarray]]
"""What a client does with a request: the arrays of its answer. A `ValueError` is
reported to the coordinator.
"""


class Responder:
    """The client's end: checks a request, lets the client work, and remembers the last
    answer.

    A request that comes again (the coordinator was restarted, or did not get the
    answer) is answered from memory, so that no work is done twice and no state is
    changed twice.
    """

    def __init__(
        self,
        experiment: str,
        client: str,
        work: Work,
        own: Callable[[], Iterable[np.ndarray]] = tuple,
    ) -> None:
        """Answer for `client` in `experiment` (`Job.identity`) by calling `work`.

        Args:
            own: makes the vectors that need not be sent, as this client knows them
                anyway.
        """
        self.experiment, self.client, self._work, self._held = (
            experiment,
            client,
            work,
            HeldVectors(own),
        )
        self._last: tuple[Request, Mapping[str, np.ndarray]] | None = None

    def __call__(self, body: bytes) -> bytes:
        """The answer to a message.

        Raises:
            ValueError: it is no request at all, so that there is nobody to answer.
        """
        request = decode_request(body)
        try:
            return encode_reply(Reply.to(request, self._answer(request)))
        except Lacks:
            return encode_reply(Reply.to(request, lacks=True))
        except ValueError as error:
            return encode_reply(Reply.to(request, problem=str(error)))

    def _answer(self, request: Request) -> Mapping[str, np.ndarray]:
        require(
            request.experiment == self.experiment,
            "the job here differs from the coordinator's; copy its job.toml",
        )
        require(
            request.client == self.client,
            f"this is {self.client!r}, and the request is for {request.client!r}",
        )
        require(
            time.time() <= request.deadline, "the request arrived after its deadline"
        )
        request = self._held.complete(request)
        if self._last is not None and _same(self._last[0], request):
            return self._last[1]
        arrays = self._work(request)
        self._last = (request, arrays)
        return arrays


def _same(one: Request, other: Request) -> bool:
    """Whether two requests ask for the same, nonce and deadline aside."""
    if encode_request(
        replace(one, nonce="", deadline=0.0, arrays={})
    ) != encode_request(replace(other, nonce="", deadline=0.0, arrays={})):
        return False
    if one.arrays.keys() != other.arrays.keys():
        return False
    return all(
        np.array_equal(one.arrays[name], other.arrays[name], equal_nan=True)
        for name in one.arrays
    )


class LoopbackTransport:
    """Clients in this process behind real messages: every request and answer goes
    through bytes.

    The transport of `fedtailor federation simulate`, and of tests that lose, repeat or
    change messages.
    """

    def __init__(self, clients: Mapping[str, Callable[[bytes], bytes]]) -> None:
        """Carry messages to `clients`, each a `Responder` or another function from
        bytes to bytes.
        """
        self._clients = dict(clients)
        self._arrived: list[tuple[str, bytes]] = []

    def online(self) -> Mapping[str, str]:
        """All clients are always there."""
        return dict.fromkeys(self._clients, "here")

    def send(self, client: str, body: bytes) -> None:
        """Let the client answer at once."""
        self._arrived.append((client, self._clients[client](body)))

    def receive(self) -> Iterable[tuple[str, bytes]]:
        """What the clients answered."""
        arrived, self._arrived = self._arrived, []
        return arrived

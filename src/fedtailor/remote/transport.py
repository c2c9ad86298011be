"""How the coordinator and its clients exchange messages, whoever carries them.

A transport knows who is online and moves bytes. `exchange` asks some clients and
collects their answers until all are there, or until the deadline. The clients' machines
belong to others, so nothing that arrives can stop it: a wrong answer becomes one line
that names the client, and the exchange goes on with the others.
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
"""Seconds between two polls for answers."""


class Transport(Protocol):
    """Carries messages between the coordinator and clients.

    It has verified the clients' names; it is not trusted to deliver a message, nor to
    deliver it once.
    """

    def online(self) -> Mapping[str, str]:
        """The clients that are online, by name.

        Each has a mark that changes when it was away, or when a message to it or from
        it was lost: then it must be asked again.
        """
        ...

    def send(self, client: str, body: bytes) -> None:
        """Send a message to a client that is online.

        The client may receive it late or never.
        """
        ...

    def receive(self) -> Iterable[tuple[str, bytes]]:
        """Messages since the last call, each with the verified name of its sender."""
        ...


@dataclass(frozen=True)
class Collected:
    """The outcome of an exchange.

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
    """The requests of an exchange that are open, and the answers that were accepted.

    Attributes:
        requests: all requests, by client.
        expected: from a request to the arrays that its answer must hold.
        shortened: what is sent instead to clients that hold some of the vectors.
        open: clients whose answer is awaited, each with the mark of the connection on
            which it was asked; None before that.
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
        self.ever_shortened = frozenset(self.shortened)

    def accept(self, sender: str, body: bytes) -> None:
        """Take an answer, or note that the client needs all vectors.

        Args:
            sender: its verified name.
            body: the message.

        Raises:
            ValueError: the answer is not accepted; in one line that names the client.
                A stale answer leaves the request open, as the right one may be under
                way; every other wrong answer closes it.
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
            if reply.lacks and sender in self.ever_shortened:
                # Ask again, with all vectors; unless that has been done already, as the
                # client was started again after it had lacked one.
                if self.shortened.pop(sender, None) is not None:
                    self.open[sender] = None
                return
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
    """Send requests, and collect the answers until all are there or the deadline.

    A client that leaves and comes back is asked again: what it was computing is gone
    with it.

    Args:
        transport: carries the messages.
        requests: by client; each is given a nonce of its own. The earliest of their
            deadlines ends the exchange.
        expected: the arrays that each answer must hold, or a function from a request to
            those of its answer.
        shortened: some of the requests without the vectors that their client holds; a
            client that lacks one of these is sent all.
        minimum: answers without which the exchange fails.
        tell: is given a line for every answer that is not accepted, and for every
            client that is missing.
        pause: seconds between two polls.

    Returns:
        The accepted answers, and why there are no others.

    Raises:
        TooFewClients: fewer than `minimum` answers were accepted by the deadline.
    """
    # The nonce tells answers to this request from answers to the same request of a
    # coordinator that was killed, and from those that somebody else could make up.
    requests = {
        client: replace(request, nonce=secrets.token_hex(12))
        for client, request in requests.items()
    }
    shortened = {
        client: replace(requests[client], arrays=request.arrays)
        for client, request in (shortened or {}).items()
    }
    specs = expected if callable(expected) else lambda request: expected
    book = AnswerBook(requests, specs, shortened, dict.fromkeys(requests))
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
        raise TooFewClients(
            f"{len(book.replies)} of {len(requests)} clients answered in time; the"
            f" job's minimum is {minimum}"
        )
    replies = {
        client: book.replies[client] for client in requests if client in book.replies
    }
    return Collected(replies, book.refused, missing)


def _send_open(transport: Transport, book: AnswerBook) -> None:
    """Send each open request once on every connection that its client makes."""
    marks = transport.online()
    for client, asked_on in book.open.items():
        mark = marks.get(client)
        if mark is None or mark == asked_on:
            continue
        if asked_on is not None:
            # It may have been started again, and then holds nothing.
            book.shortened.pop(client, None)
        request = book.shortened.get(client, book.requests[client])
        transport.send(client, encode_request(request))
        book.open[client] = mark


def _is_stale(body: bytes, request: Request) -> bool:
    """Whether an answer is the client's to an earlier request of the experiment."""
    try:
        reply = decode_reply(body)
    except ValueError:
        return False
    if (reply.experiment, reply.client) != (request.experiment, request.client):
        return False
    answered = (reply.round, reply.exchange)
    asked = (request.round, request.exchange)
    # The same exchange may have been asked before, by a coordinator that was killed.
    return answered < asked or (answered == asked and reply.nonce != request.nonce)


Work = Callable[[Request], Mapping[str, np.ndarray]]
"""What a client does with a request, to the arrays of its answer.

A `ValueError` is reported to the coordinator.
"""


class Responder:
    """The client's end: checks requests, and has them answered.

    A request that comes again (the coordinator was started again, or did not get the
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
        """Make the end of one client.

        Args:
            experiment: identity of the job (`Job.identity`).
            client: its name.
            work: answers requests that passed the checks.
            own: makes the vectors that need not be sent, as this client can make them
                by itself.
        """
        self.experiment, self.client, self._work = experiment, client, work
        self._held = HeldVectors(own)
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
        if self._last is not None:
            last_request, last_arrays = self._last
            if _same(last_request, request):
                return last_arrays
        arrays = self._work(request)
        self._last = (request, arrays)
        return arrays


def _same(one: Request, other: Request) -> bool:
    """Whether two requests ask for the same, nonce and deadline aside."""
    if one.arrays.keys() != other.arrays.keys():
        return False
    one_rest = replace(one, nonce="", deadline=0.0, arrays={})
    other_rest = replace(other, nonce="", deadline=0.0, arrays={})
    return encode_request(one_rest) == encode_request(other_rest) and all(
        np.array_equal(one.arrays[name], other.arrays[name], equal_nan=True)
        for name in one.arrays
    )


class LoopbackTransport:
    """Clients in this process, with real messages: all that travels becomes bytes.

    Tests use it, and lose, repeat or change messages.

    Args:
        clients: `Responder`s or other functions from bytes to bytes, by name.
    """

    def __init__(self, clients: Mapping[str, Callable[[bytes], bytes]]) -> None:
        self._clients = dict(clients)
        self._arrived: list[tuple[str, bytes]] = []

    def online(self) -> Mapping[str, str]:
        """All clients, always."""
        return dict.fromkeys(self._clients, "here")

    def send(self, client: str, body: bytes) -> None:
        """Let the client answer at once."""
        self._arrived.append((client, self._clients[client](body)))

    def receive(self) -> Iterable[tuple[str, bytes]]:
        """What the clients answered."""
        arrived, self._arrived = self._arrived, []
        return arrived

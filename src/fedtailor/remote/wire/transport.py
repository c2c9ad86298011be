"""Exchanges of messages between the coordinator and its clients, over any transport.

A transport knows which clients are online, and carries bytes. `send_and_receive` sends
requests to clients and collects their answers, until all have arrived or the deadline
has passed. The clients' machines are not trusted: a wrong answer does not end the
exchange, but is logged in one line that names the client.
"""

import logging
import secrets
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from fedtailor._base.choice import require
from fedtailor._base.documentation import see
from fedtailor._base.printable import shortened
from fedtailor.protocol import Diverged
from fedtailor.remote.wire.fingerprints import Origins, OwnOrigin
from fedtailor.remote.wire.messages import (
    ArraySpec,
    Reply,
    Request,
    check_content,
    check_identity,
    check_not_refused,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
    largest_reply,
)
from fedtailor.remote.wire.refusals import Refusal, Refused, refuse_unless
from fedtailor.remote.wire.request_kind import COMPUTING
from fedtailor.remote.wire.run_log import (
    ASKED_FOR,
    CLIENTS,
    COORDINATOR_LOG,
    client_log,
)
from fedtailor.remote.wire.vector_cache import CacheMiss, VectorCache

POLL_INTERVAL_S = 0.1
"""Seconds from one poll for answers to the next, once an exchange has taken a while."""

FIRST_POLLS = 0.05
"""The share of the time since the exchange began that lies between two polls, at first.
A transport may wait for an answer itself, and this time counts.
"""


class Transport(Protocol):
    """Carries messages between the coordinator and clients.

    A transport verifies the clients' names. It may lose messages, and may deliver a
    message several times.

    Attributes:
        origins: where the clients' answers came from.
        revoked: clients that are not let in any more, so that they are not waited for.
    """

    @property
    def origins(self) -> Origins: ...

    @property
    def revoked(self) -> Collection[str]: ...

    def online(self) -> Mapping[str, str]:
        """The clients that are online, each with an id of its connection.

        The id changes if the client was offline in between, or if a message to or from
        it was lost. The client must then be asked again.
        """
        ...

    def expect(self, size: int) -> None:
        """Announce that answers of up to `size` bytes will come.

        A transport may refuse larger ones before it reads them.
        """
        ...

    def send(self, client: str, body: bytes) -> None:
        """Send a message to a client that is online, at the next `receive` at the latest.

        The message may arrive late, or never.
        """
        ...

    def receive(self) -> Iterable[tuple[str, bytes]]:
        """Messages since the last call, each with the verified name of its sender."""
        ...


@dataclass(frozen=True)
class ExchangeResult:
    """The result of an exchange.

    Attributes:
        replies: accepted answers by client, in the order of the requests.
        refused: for each client whose answer was refused, the reason in one line.
        missing: clients that did not answer in time.
        refusals: the codes of the clients that refused the request themselves.
    """

    replies: dict[str, Reply]
    refused: dict[str, str]
    missing: tuple[str, ...]
    refusals: dict[str, Refusal]


class TooFewClients(RuntimeError):
    """An exchange ended with fewer answers than the job's minimum."""


@dataclass
class PendingExchange:
    """The state of an exchange: open requests, and answers that have been accepted.

    Attributes:
        requests: all requests, by client.
        expected: function from a request to the arrays that its answer must hold.
        cached: requests without the vectors in the client's cache, by client. They are
            sent instead of the full requests.
        open: clients whose answer has not arrived. The value is the id of the
            connection on which the request was sent, or None if it was not sent yet.
        replies: accepted answers, by client.
        refused: why an answer was refused, by client.
        refusals: the codes of the clients that refused their request.
    """

    requests: Mapping[str, Request]
    expected: Callable[[Request], Mapping[str, ArraySpec]]
    cached: dict[str, Request]
    open: dict[str, str | None]
    replies: dict[str, Reply] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    refusals: dict[str, Refusal] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._may_miss = set(self.cached)

    @property
    def diverged(self) -> list[str]:
        """The clients that say that their model became NaN or infinite.

        Where nothing is trained that is a refusal as any other, and ends nothing.
        """
        return [
            name
            for name, code in self.refusals.items()
            if code is Refusal.DIVERGED and self.requests[name].task in COMPUTING
        ]

    def accept(self, sender: str, body: bytes) -> None:
        """Accept an answer, or note that the client's cache lacks a vector.

        Args:
            sender: verified name of the client.
            body: the message.

        Raises:
            ValueError: the answer is refused; in one line that names the client. A
                stale answer leaves the request open, as the right one may still come;
                every other wrong answer closes it.
        """
        try:
            require(sender in self.requests, "it was not asked")
            request = self.requests[sender]
            reply = decode_reply(body)
            if reply.refusal is Refusal.UNREADABLE:
                check_not_refused(reply)  # it cannot repeat what it could not read
            check_identity(reply, request)
            require(
                sender not in self.replies, "it answered twice; the first answer stands"
            )
            require(
                sender in self.open, "it answered again after its answer was refused"
            )
            if reply.cache_miss and sender in self._may_miss:
                # Send the full request, unless that has been done already because the
                # client came back on another connection.
                if self.cached.pop(sender, None) is not None:
                    self.open[sender] = None
                return
            if reply.refusal is not None:
                self.refusals[sender] = reply.refusal
            require(not reply.cache_miss, "it says that it lacks what it was sent")
            check_content(reply, self.expected(request))
        except ValueError as error:
            line = shortened(f"client {sender}: {error}")
            if sender in self.open and not _is_stale(body, self.requests[sender]):
                del self.open[sender]
                self.refused[sender] = line
            raise ValueError(line) from None
        del self.open[sender]
        self.replies[sender] = reply


def send_and_receive(
    transport: Transport,
    requests: Mapping[str, Request],
    expected: Mapping[str, ArraySpec] | Callable[[Request], Mapping[str, ArraySpec]],
    *,
    cached: Mapping[str, Request] | None = None,
    minimum: int = 1,
    waiting: Callable[[PendingExchange], None] = lambda pending: None,
    poll_interval: float = POLL_INTERVAL_S,
    late: PendingExchange | None = None,
) -> ExchangeResult:
    """Send requests, and collect the answers until all have arrived or the deadline.

    A client that disconnects and connects again is sent its request again, as it may
    have been restarted.

    Args:
        transport: carries the messages.
        requests: by client. Each gets its own nonce. The earliest of their deadlines
            ends the exchange.
        expected: the arrays that each answer must hold, or a function from a request to
            the arrays of its answer.
        cached: some of the requests without the vectors in their client's cache. A
            client that lacks such a vector is sent the full request.
        minimum: minimum number of accepted answers.
        waiting: called after every poll that leaves requests open.
        poll_interval: longest time in seconds from one poll to the next.
        late: requests that stay open meanwhile, whose answers may come.

    Returns:
        The accepted answers, why others were refused, and which are missing.

    Raises:
        TooFewClients: fewer than `minimum` answers were accepted by the deadline.
        Diverged: likewise, and that follows from the clients whose model became NaN or
            infinite, which it would again.
    """
    # The nonce distinguishes answers to this request from answers to the same request
    # of a coordinator that was killed, and from forged answers.
    requests = {
        client: identified(transport, request) for client, request in requests.items()
    }
    cached = {
        client: replace(requests[client], arrays=request.arrays)
        for client, request in (cached or {}).items()
    }
    specs = expected if callable(expected) else lambda request: expected
    pending = PendingExchange(requests, specs, cached, dict.fromkeys(requests))
    transport.expect(
        max((largest_reply(specs(request)) for request in requests.values()), default=0)
    )
    # Requests carry a time of day; how long to wait for it does not change with the clock.
    deadline = min((request.deadline for request in requests.values()), default=0.0)
    begun = time.monotonic()
    end = begun + deadline - time.time()
    while pending.open:
        polled = time.monotonic()
        poll(transport, pending, late)
        if time.monotonic() >= end:
            break
        if pending.open:
            waiting(pending)
            time.sleep(until_next_poll(begun, polled, poll_interval))
    missing, accepted = tuple(pending.open), pending.replies
    if missing:
        COORDINATOR_LOG.warning(f"no answer in time from {', '.join(missing)}")
    if pending.diverged and len(requests) - len(pending.diverged) < minimum:
        first = pending.diverged[0]
        raise Diverged(first, requests[first].round)
    if len(accepted) < minimum:
        raise TooFewClients(
            f"{len(accepted)} of {len(requests)} clients answered in time, and"
            f" {minimum} are needed{see('errors#too-few-clients')}"
        )
    replies = {client: accepted[client] for client in requests if client in accepted}
    return ExchangeResult(replies, pending.refused, missing, pending.refusals)


def identified(transport: Transport, request: Request) -> Request:
    """A request with a nonce of its own, and with the origin that was heard last."""
    return replace(
        request,
        nonce=secrets.token_hex(12),
        origin=transport.origins.of(request.client),
    )


def poll(
    transport: Transport,
    pending: PendingExchange,
    late: PendingExchange | None = None,
) -> None:
    """Send the requests of an exchange that are to be sent, and take the answers that have
    come, also those to `late` requests, which stay open meanwhile.
    """
    _send_open(transport, pending)
    for client in [name for name in pending.open if name in transport.revoked]:
        del pending.open[client]
        pending.refused[client] = f"client {client}: it was revoked"
    for sender, body in transport.receive():
        exchange = _exchange_of(late, pending, sender, body)
        try:
            exchange.accept(sender, body)
        except ValueError as error:
            COORDINATOR_LOG.warning(str(error))
        else:
            if sender in exchange.replies:
                transport.origins.hear(sender, exchange.replies[sender].origin)


def until_next_poll(begun: float, polled: float, poll_interval: float) -> float:
    """Seconds to wait before the next poll.

    Args:
        begun: when the exchange began (`time.monotonic`).
        polled: when the last poll began.
        poll_interval: the longest time from one poll to the next.
    """
    now = time.monotonic()
    interval = min(poll_interval, max(0.02, FIRST_POLLS * (now - begun)))
    return max(0.0, polled + interval - now)


def _exchange_of(
    late: PendingExchange | None, pending: PendingExchange, sender: str, body: bytes
) -> PendingExchange:
    """The exchange to which a message belongs.

    After training a client is asked for more while its last answer is still to come, so
    that both may have a request of it.
    """
    if late is None or sender not in late.requests:
        return pending
    if sender not in pending.requests:
        return late
    try:
        is_late = decode_reply(body).nonce == late.requests[sender].nonce
    except ValueError:
        is_late = False
    return late if is_late else pending


def _send_open(transport: Transport, pending: PendingExchange) -> None:
    """Send each open request, once on every connection that its client makes."""
    connection_ids = transport.online()
    for client, sent_on in pending.open.items():
        connection_id = connection_ids.get(client)
        if connection_id is None or connection_id == sent_on:
            continue
        if sent_on is not None:
            # The client may have been restarted, which empties its cache.
            pending.cached.pop(client, None)
        request = pending.cached.get(client, pending.requests[client])
        transport.send(client, encode_request(request))
        pending.open[client] = connection_id


def _is_stale(body: bytes, request: Request) -> bool:
    """Whether a message is an answer of the client to an earlier request."""
    try:
        reply = decode_reply(body)
    except ValueError:
        return False
    if (reply.experiment, reply.client) != (request.experiment, request.client):
        return False
    answered = (reply.round, reply.exchange)
    current = (request.round, request.exchange)
    # A coordinator that was killed may have sent the request of the same exchange.
    return answered < current or (answered == current and reply.nonce != request.nonce)


RequestHandler = Callable[[Request], Mapping[str, np.ndarray]]
"""Computes the arrays of a client's answer to a request.

It may raise any exception. A `Refused` names what the coordinator learns.
"""

_RUST = "pyo3_runtime"
"""Module of the panics of libraries in Rust, which are not `Exception`s."""

_UNREAD = Request(experiment="", round=0, exchange=0, task="", client="")
"""Stands for a message that is not a request."""


Recorder = Callable[[Request, Reply, bytes], None]
"""Records an answer to a request, and its message, before the message leaves."""


def not_recorded(request: Request, reply: Reply, message: bytes) -> None:
    """A `Recorder` for tests and benchmarks, which records nothing."""


def answer_message(
    body: bytes,
    answer: Callable[[Request], Reply],
    log: logging.Logger = CLIENTS,
    record: Recorder = not_recorded,
) -> bytes:
    """Answer a message at a client, whatever goes wrong.

    Every exception becomes a refusal with a code. The texts of exceptions may hold the
    client's data, so this function, which alone makes refusals, sends none of them.

    Args:
        body: the message.
        answer: function from a request to its answer.
        log: where it says why a request was refused.
        record: called with every answer. If it fails, a refusal is sent instead.

    Returns:
        The message of the answer.
    """
    request, reply, message = _answer(body, answer, log)
    try:
        record(request, reply, message)
    except Exception as error:
        log.warning(f"an answer was not sent, as it cannot be recorded: {error}")
        return encode_reply(Reply.to(request, refusal=Refusal.NO_AUDIT))
    return message


def _answer(
    body: bytes, answer: Callable[[Request], Reply], log: logging.Logger
) -> tuple[Request, Reply, bytes]:
    """The request in a message, its answer or refusal, and the message of that."""
    request = _UNREAD
    try:
        request = decode_request(body)
        reply = answer(request)
        return request, reply, encode_reply(reply)
    except Refused as error:
        refusal, lines = error.code, [str(error)]
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__module__ != _RUST:
            raise  # such as Ctrl-C
        if request is _UNREAD and isinstance(error, ValueError):
            # Anyone can send what is not a request; that is no fault to be traced.
            refusal, lines = Refusal.UNREADABLE, [str(error)]
        else:
            refusal = Refusal.FAILED
            lines = "".join(traceback.format_exception(error)).splitlines()
    lines = [shortened(line) for line in lines]
    what = repr(request.task) if request.task else "a message"
    last = f"refused {what} of round {request.round + 1} ({refusal}): {lines[-1]}"
    for line in (last, *lines[:-1]):
        log.warning(line, extra=ASKED_FOR)
    reply = Reply.to(request, refusal=refusal)
    return request, reply, encode_reply(reply)


class Responder:
    """A client's end of a transport: checks requests, and answers them.

    The last answer is remembered. A request that arrives again (as the coordinator was
    restarted, or did not receive the answer) is not computed again, so that it does not
    change the client's state twice.
    """

    def __init__(
        self,
        experiment: str,
        client: str,
        handler: RequestHandler,
        common_vectors: Callable[[], Iterable[np.ndarray]] = tuple,
        check: Callable[[Request], None] = lambda request: None,
        record: Recorder = not_recorded,
        origin: OwnOrigin | None = None,
    ) -> None:
        """Make the end of one client.

        Args:
            experiment: identity of the job (`Job.identity`).
            client: name of the client.
            handler: computes the answers to requests that passed the checks.
            common_vectors: computes the vectors that all machines can compute, and that
                are therefore not sent.
            check: raises `Refused` for a request that may not be answered.
            record: called with every answer before it leaves.
            origin: where the answers come from; None = they do not say it.
        """
        self.experiment, self.client, self._handler = experiment, client, handler
        self._log, self._check, self._record = client_log(client), check, record
        self._origin = origin
        self._cache = VectorCache(common_vectors)
        self._last: tuple[Request, Mapping[str, np.ndarray]] | None = None

    @property
    def last_task(self) -> str:
        """The task of the last request that was answered; empty if none was."""
        return "" if self._last is None else self._last[0].task

    def __call__(self, body: bytes) -> bytes:
        """Answer a message; see `answer_message`."""
        return answer_message(body, self.answer, self._log, self._record)

    def answer(self, request: Request) -> Reply:
        """Answer a request.

        Raises:
            Refused: the request is not for this client, or its handler refuses it.
        """
        try:
            reply = Reply.to(request, self._arrays(request))
        except CacheMiss:
            return Reply.to(request, cache_miss=True)
        if self._origin is None:
            return reply
        return replace(reply, origin=self._origin.text)

    def _arrays(self, request: Request) -> Mapping[str, np.ndarray]:
        refuse_unless(
            request.experiment == self.experiment,
            Refusal.OTHER_JOB,
            "the job here differs from the coordinator's; ask for its job.toml",
        )
        refuse_unless(
            request.client == self.client,
            Refusal.OTHER_CLIENT,
            f"this is {self.client!r}, and the request is for {request.client!r}",
        )
        if self._origin is not None:
            # Also before a refusal: a copy of the kit may be what has led to it.
            self._origin.compare(request.origin)
        refuse_unless(
            time.time() <= request.deadline,
            Refusal.LATE,
            "the request arrived after its deadline",
        )
        self._check(request)
        request = self._cache.fill_in(request)
        if self._last is not None:
            last_request, last_arrays = self._last
            if _is_repeated(request, last_request):
                self._cache.remember(request)
                return last_arrays
        arrays = self._handler(request)
        # A message that is refused leaves nothing here.
        self._cache.remember(request)
        self._last = (request, arrays)
        return arrays


def _is_repeated(request: Request, last: Request) -> bool:
    """Whether two requests are equal, but for what differs when one is sent again."""
    if request.arrays.keys() != last.arrays.keys():
        return False
    settings, last_settings = (
        encode_request(replace(each, nonce="", origin="", deadline=0.0, arrays={}))
        for each in (request, last)
    )
    return settings == last_settings and all(
        np.array_equal(array, last.arrays[name], equal_nan=True)
        for name, array in request.arrays.items()
    )


class LoopbackTransport:
    """Connects clients in this process; messages are encoded as on a network.

    For tests and benchmarks.

    Args:
        clients: `Responder`s or other functions from bytes to bytes, by name.
    """

    def __init__(self, clients: Mapping[str, Callable[[bytes], bytes]]) -> None:
        self._clients = dict(clients)
        self.origins, self.revoked = Origins(), set[str]()
        self._inbox: list[tuple[str, bytes]] = []

    def online(self) -> Mapping[str, str]:
        """All clients, always on the same connection."""
        return dict.fromkeys(self._clients, "loopback")

    def expect(self, size: int) -> None:
        """Nothing is refused for its size."""

    def send(self, client: str, body: bytes) -> None:
        """Have the client answer a message at once."""
        self._inbox.append((client, self._clients[client](body)))

    def receive(self) -> Iterable[tuple[str, bytes]]:
        """The answers since the last call."""
        inbox, self._inbox = self._inbox, []
        return inbox

"""Flower's SuperLink, which serves only the clients' interface to other machines.

Flower serves three interfaces on one port: fleet (for clients, which authenticate with
their keys), control (to start runs and register keys) and runtime (to execute runs).
The last two do not authenticate, so here they answer requests of this machine only.

What a request may cost is bounded before it is read, as Flower reads a request before it
looks who sent it: connections, heads and bodies have limits (`Limits`), and only a
registered key may send more than `MAX_UNKNOWN_BODY` bytes. What such a key may leave here
is bounded by what was asked of it (`AnswerBytes`).

A poll for messages is answered when there is one, or after a while (`HeldPolls`), so that
neither side polls often, and neither waits longer than it must.

`python -m fedtailor.remote.flower.superlink` takes the options of `flower-superlink`, and
exits when the process that started it exits.
"""

import asyncio
import base64
import binascii
import datetime
import functools
import ipaddress
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PUBLIC = "/v1/fleet/"
"""Prefix of the clients' paths; Flower checks the signature of each request to them."""

COORDINATOR = "FEDTAILOR_COORDINATOR"
"""Environment variable with the coordinator's directory, which holds the clients' keys
(`clients/NAME.pub`) and `LARGEST_BODY`.
"""

LARGEST_BODY = ".largest-body"
"""File with the size in bytes of the largest request that a client may send now. The
coordinator writes it, as it knows what it has asked for.
"""

MAX_UNKNOWN_BODY = 2**16
"""Bytes of the largest body without a registered key, enough for all but answers."""

DEFAULT_LARGEST_BODY = 2**26
"""Bytes of the largest body until the coordinator says otherwise."""

TOGETHER = 2**28
"""Bytes of all large bodies together that are read at the same time, or eight times the
largest one if that is more.
"""

MAX_HEAD = 2**16
"""Bytes of the largest head of a request."""

HEAD_S = 20.0
"""Seconds in which the head of a request must arrive, from the connection on or from
the end of the last request; Flower's connections send at least a heartbeat in them.
"""

MIN_BYTES_PER_S = 10_000
"""The slowest body: one that is slower is given up, after `HEAD_S` at the earliest."""

CLOCK_S = 60.0
"""Seconds by which the time of a signature may differ from this machine's."""

HELD_S = {"/v1/fleet/pull-messages": 2.0, "/v1/runtime/pull-messages": 0.5}
"""Seconds for which a poll waits for messages, of a client and of the coordinator."""

ANSWER = "/v1/fleet/push-object"
"""Path to which a client sends the parts of an answer."""

ANNOUNCEMENT = "/v1/fleet/push-messages"
"""Path to which a client says of which parts its answer consists."""

ANSWERS = 3
"""How many of the largest answers a client may send for each message to it: one that was
lost on the way is sent again, and the word that it was asked again may be late.
"""

WAKE = "/fedtailor/wake"
"""Path at which the coordinator says for whom it has sent messages."""

FORWARDED = (b"forwarded", b"via", b"x-real-ip")
"""Headers that proxies add, beside those that begin with `x-forwarded-`."""

MAX_POLL_BODY = 2**24
"""Bytes of the largest poll: the coordinator's names all messages without an answer."""

Send = Callable[[Mapping[str, Any]], Awaitable[None]]
App = Callable[[Mapping[str, Any], Any, Send], Awaitable[None]]


class LoopbackOnly:
    """ASGI middleware that serves only the clients' interface to other machines.

    Args:
        app: the application that answers allowed requests.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(
        self, scope: Mapping[str, Any], receive: Any, send: Send
    ) -> None:
        """Pass a request on, or refuse it."""
        allowed = (
            scope["type"] == "lifespan"
            or scope["path"].startswith(PUBLIC)
            or (_is_local(scope.get("client")) and not _is_forwarded(scope))
        )
        if allowed:
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        await _refuse(send, 403, "only the coordinator's own machine may ask this")


@dataclass(frozen=True)
class Limits:
    """Limits of connections, as their number is what whoever reaches the port chooses.

    Attributes:
        connections: number of open connections.
        of_one_peer: number of open connections from one address.
    """

    connections: int
    of_one_peer: int

    @classmethod
    def of(cls, clients: int) -> "Limits":
        """The limits of a federation, whose clients have one or two connections each."""
        return cls(connections=128 + 8 * clients, of_one_peer=64 + 4 * clients)


class AnswerBytes:
    """How many bytes of answers each client has sent since it was asked.

    The SuperLink keeps all parts of an answer until the coordinator takes it, and there
    may be any number of them.

    Args:
        largest: returns the size in bytes of the largest answer.
    """

    def __init__(self, largest: Callable[[], int]) -> None:
        self._largest = largest
        self._sent: dict[bytes, int] = {}  # by key

    def asked(self, key: bytes) -> None:
        """Note that a client was sent a message."""
        self._sent.pop(key, None)

    def take(self, key: bytes, size: int) -> bool:
        """Count bytes of an answer.

        Returns:
            Whether the client may send them.
        """
        sent = self._sent.get(key, 0) + size
        if sent > ANSWERS * max(self._largest(), MAX_UNKNOWN_BODY):
            return False
        self._sent[key] = sent
        return True


class BoundedBodies:
    """ASGI middleware that reads bodies of requests to the clients' interface.

    A body is read if it is small, or if a registered key has signed the request; its
    size and its time are limited, and so is the sum of all that are being read.

    Args:
        app: the application, which is handed the body in one piece.
        largest: returns the size in bytes of the largest body.
        is_known: whether a registered key has signed a request, by its headers.
        answers: counts the bytes of answers; by default nobody is asked twice.
    """

    def __init__(
        self,
        app: App,
        largest: Callable[[], int],
        is_known: Callable[[Mapping[bytes, bytes]], bool],
        answers: AnswerBytes | None = None,
    ) -> None:
        self._app, self._largest, self._is_known = app, largest, is_known
        self._answers = AnswerBytes(largest) if answers is None else answers
        self._reserved = 0  # bytes of the bodies that are being read or answered

    async def __call__(
        self, scope: Mapping[str, Any], receive: Any, send: Send
    ) -> None:
        """Read the body and pass the request on, or refuse it."""
        if scope["type"] != "http" or not scope["path"].startswith(PUBLIC):
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        declared = _length(headers.get(b"content-length"))
        limit = MAX_UNKNOWN_BODY
        # Without a length it is not known how much will come.
        is_large = declared is None or declared > limit
        is_known = is_large and self._is_known(headers)
        if is_known:
            limit = max(limit, self._largest())
        if declared is not None and declared > limit:
            await _refuse(send, 413, "the body is larger than what was asked for")
            return
        reserved = limit if declared is None else declared
        if is_large and self._reserved + reserved > max(TOGETHER, 8 * limit):
            await _refuse(send, 503, "too many requests at the same time")
            return
        self._reserved += reserved
        try:
            async with asyncio.timeout(HEAD_S + reserved / MIN_BYTES_PER_S):
                body = await _read(receive, limit)
        except TimeoutError:
            await _refuse(send, 408, "the body did not arrive in time")
            return
        else:
            if body is None:
                await _refuse(send, 413, "the body is larger than what was asked for")
                return
            is_answer = scope["path"] in (ANSWER, ANNOUNCEMENT)
            # A signature takes half a millisecond to check; that of a large body was.
            if (
                is_answer
                and (is_known or self._is_known(headers))
                and not self._answers.take(_key_of(scope), len(body))
            ):
                await _refuse(send, 413, "the answer is larger than what was asked for")
                return
            await self._app(scope, _Replay(body, receive), send)
        finally:
            self._reserved -= reserved


class _Replay:
    """Hands a body that has been read to an application, then what follows it.

    Args:
        body: the body.
        receive: receives what follows: that the peer has disconnected.
    """

    def __init__(self, body: bytes, receive: Any) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Mapping[str, Any]:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


class HeldPolls:
    """ASGI middleware that lets a poll wait until there is a message to be pulled.

    The coordinator says for whom it has sent messages (`wake`). A client that polls after
    it has sent parts of an answer has sent all of them. A wake that is lost costs a poll
    the time in `HELD_S`, and nothing else.

    Args:
        app: the application that answers polls.
        is_known: whether a registered key has signed a request, by its headers; polls of
            others do not wait.
        asked: called with the key of each client that was sent a message.
    """

    def __init__(
        self,
        app: App,
        is_known: Callable[[Mapping[bytes, bytes]], bool],
        asked: Callable[[bytes], None] = lambda key: None,
    ) -> None:
        self._app, self._is_known, self._asked = app, is_known, asked
        self._sent = asyncio.Event()  # messages to the coordinator
        self._sent_to: dict[bytes, asyncio.Event] = {}  # messages to a client, by key
        self._sending: set[bytes] = set()  # keys of the clients that send an answer

    async def __call__(
        self, scope: Mapping[str, Any], receive: Any, send: Send
    ) -> None:
        """Pass a request on; a poll waits before."""
        path = scope.get("path", "")
        if path == WAKE:
            await self._wake(receive, send)
        elif path == ANSWER:
            await self._app(scope, receive, send)
            if (key := _key_of(scope)) in self._sent_to:
                self._sending.add(key)
        elif path in HELD_S:
            await self._poll(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _poll(self, scope: Mapping[str, Any], receive: Any, send: Send) -> None:
        """Wait until there is a message, and pass the poll on."""
        event = self._sent
        if scope["path"].startswith(PUBLIC):
            if not self._is_known(dict(scope["headers"])):
                await self._app(scope, receive, send)
                return
            key = _key_of(scope)
            event = self._sent_to.setdefault(key, asyncio.Event())
            if key in self._sending:
                self._sending.remove(key)
                self._sent.set()
        body = await _read(receive, MAX_POLL_BODY)
        if body is None:
            await _refuse(send, 413, "the body is larger than that of a poll")
            return
        waiting = asyncio.ensure_future(event.wait())
        gone = asyncio.ensure_future(receive())  # all that may come is a disconnect
        await asyncio.wait(
            (waiting, gone),
            timeout=HELD_S[scope["path"]],
            return_when=asyncio.FIRST_COMPLETED,
        )
        waiting.cancel()
        if gone.done():
            return  # who is gone would lose the message
        # Cleared before the poll is answered: what is sent meanwhile wakes the next one.
        event.clear()
        await self._app(scope, _Replay(body, lambda: gone), send)

    async def _wake(self, receive: Any, send: Send) -> None:
        """Wake the polls of the clients whose keys are in the body."""
        body = await _read(receive, MAX_POLL_BODY) or b""
        for key in body.split(b"\0"):
            self._asked(key)
            if key in self._sent_to:
                self._sent_to[key].set()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})


def _key_of(scope: Mapping[str, Any]) -> bytes:
    """The public key (PEM) that a request to the clients' interface names."""
    from fedtailor.remote.flower.internals import (
        FLEET_HTTP_PUBLIC_KEY_HEADER,
    )

    name = FLEET_HTTP_PUBLIC_KEY_HEADER.lower().encode()
    try:
        return base64.b64decode(dict(scope["headers"]).get(name, b""))
    except binascii.Error:
        return b""


async def _read(receive: Any, limit: int) -> bytes | None:
    """Read a body; None if it is larger than `limit` bytes."""
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return b"".join(parts)  # nobody is there to be answered
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            return None
        if not message.get("more_body", False):
            return b"".join(parts)


def _length(value: bytes | None) -> int | None:
    """The length that a request declares; None if it does not."""
    if value is None or not value.isdigit() or len(value) > 18:
        return None
    return int(value)


async def _refuse(send: Send, status: int, reason: str) -> None:
    """Answer a request with an error, and close the connection."""
    headers = [(b"content-type", b"text/plain"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": f"{reason}\n".encode()})


class Directory:
    """What the coordinator's directory says, which may change while the SuperLink runs.

    Args:
        path: directory of the coordinator.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._keys: tuple[float, frozenset[bytes]] = (-1.0, frozenset())

    def largest_body(self) -> int:
        """The size in bytes of the largest body that a client may send now."""
        try:
            return int((self._path / LARGEST_BODY).read_text())
        except (OSError, ValueError):
            return DEFAULT_LARGEST_BODY

    def keys(self) -> frozenset[bytes]:
        """The registered public keys (PEM)."""
        from fedtailor.remote.keys.keys import registered_form

        folder = self._path / "clients"
        try:
            changed = folder.stat().st_mtime
            if changed != self._keys[0]:
                keys = []
                for path in folder.glob("*.pub"):
                    keys.append(registered_form(path.read_bytes()))
                self._keys = changed, frozenset(keys)
        except (OSError, ValueError):
            return frozenset()
        return self._keys[1]

    def is_known(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether a registered key has signed a request, by its headers.

        Flower checks the same again once it has read the request, and whether the key is
        that of the node.
        """
        from fedtailor.remote.flower.internals import (
            FLEET_HTTP_PUBLIC_KEY_HEADER,
            FLEET_HTTP_SIGNATURE_HEADER,
            TIMESTAMP_HEADER,
            bytes_to_public_key,
            now,
            verify_signature,
        )

        def header(name: str) -> bytes:
            return headers[name.lower().encode()]

        try:
            public = base64.b64decode(
                header(FLEET_HTTP_PUBLIC_KEY_HEADER), validate=True
            )
            signature = base64.b64decode(
                header(FLEET_HTTP_SIGNATURE_HEADER), validate=True
            )
            timestamp = header(TIMESTAMP_HEADER)
            signed = datetime.datetime.fromisoformat(timestamp.decode("ascii"))
            if abs((now() - signed).total_seconds()) > CLOCK_S:
                return False
            if public not in self.keys():
                return False
            return verify_signature(bytes_to_public_key(public), timestamp, signature)
        except (KeyError, ValueError, TypeError, binascii.Error):
            return False


def guarded_protocol(limits: Limits) -> Any:
    """Uvicorn's protocol of a connection, with limits of connections and heads.

    Args:
        limits: limits of connections.

    Returns:
        A class for `uvicorn.Config.http`; the name of a protocol that has a limit of
        heads by itself, if the other one is not installed.
    """
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:
        return "h11"

    class Guarded(HttpToolsProtocol):
        _head = 0  # bytes that have arrived since the last complete head
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            host = self.client[0] if self.client else ""
            peers = sum(
                1 for each in self.connections if each.client and each.client[0] == host
            )
            if len(self.connections) > limits.connections or peers > limits.of_one_peer:
                transport.abort()
                return
            self._wait_for_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self._head_is_complete()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self._timer is None and (
                self.cycle is None or self.cycle.response_complete
            ):
                self._wait_for_head()
            self._head += len(data)
            super().data_received(data)
            if self._timer is not None and self._head > MAX_HEAD:
                self.transport.abort()

        def on_headers_complete(self) -> None:
            self._head_is_complete()
            super().on_headers_complete()

        def _wait_for_head(self) -> None:
            self._head = 0
            self._timer = self.loop.call_later(HEAD_S, self.transport.abort)

        def _head_is_complete(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    return Guarded


def main() -> None:
    """Run the SuperLink until it is stopped, or its parent process has ended."""
    import uvicorn

    from fedtailor.remote.flower.internals import (
        flower_module,
        flower_superlink,
        start_parent_process_monitor,
    )

    superlink = flower_module("create_app")
    original = superlink.create_app
    directory = Directory(Path(os.environ[COORDINATOR]))

    def create_app(*arguments: Any) -> Any:
        app = original(*arguments)
        answers = AnswerBytes(directory.largest_body)
        app.add_middleware(HeldPolls, is_known=directory.is_known, asked=answers.asked)
        app.add_middleware(
            BoundedBodies,
            largest=directory.largest_body,
            is_known=directory.is_known,
            answers=answers,
        )
        # The one that is added last is the first that a request meets.
        app.add_middleware(LoopbackOnly)
        return app

    # Flower has no option for middleware or for limits of connections, but its command
    # looks these names up.
    superlink.create_app = create_app
    uvicorn.run = functools.partial(
        uvicorn.run,
        http=guarded_protocol(Limits.of(len(directory.keys()))),
        ws="none",
        # Else the environment may name peers that are believed when they say that a
        # request is of another address: of this machine, which may ask for everything.
        forwarded_allow_ips="127.0.0.1",
    )
    start_parent_process_monitor(os.getppid())
    sys.argv[0] = "flower-superlink"  # the program name in its messages
    flower_superlink()


def _is_forwarded(scope: Mapping[str, Any]) -> bool:
    """Whether a proxy says that it passes on what somebody else asks. Nothing on this
    machine asks through one.
    """
    names = {bytes(name).lower() for name, _ in scope.get("headers", ())}
    return any(name in FORWARDED or name.startswith(b"x-forwarded-") for name in names)


def _is_local(client: tuple[str, int] | None) -> bool:
    """Whether a peer (address, port) is on this machine; False without an address."""
    if not client:
        return False
    try:
        address = ipaddress.ip_address(client[0])
    except ValueError:
        return False
    # A dual-stack socket reports IPv4 addresses as IPv6 addresses.
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


if __name__ == "__main__":
    main()

"""Messages to and from clients, over the coordinator's port (implements `Transport`).

A client asks for its next message and waits for it (`GET /request/SESSION/AFTER`), and
posts its answer (`POST /answer/SESSION/NUMBER`). A message stays here until it is
answered, so that whatever is lost on the way is asked for, or posted, again: neither does
any harm. A process of a client is a session, with a number that it has drawn, and says so
when it leaves (`POST /leave/SESSION`). When another one comes, what was sent to the
former is forgotten, and the coordinator asks again.
"""

import asyncio
import re
import secrets
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fedtailor.remote.https.port import Call, Port, Result, open_port
from fedtailor.remote.wire.fingerprints import Origins

POLL_S = 20.0
"""Seconds for which a client waits for a message before it asks again."""

RECEIVE_S = 0.5
"""Seconds for which the coordinator waits for an answer before it looks at who is there."""

WAITING = 4
"""Messages that wait for a client; the oldest makes room for the next."""

FORMER = 16
"""Former sessions of a client that are remembered."""

NUMBER = "[0-9a-f]{32}"
"""The form of the numbers of sessions and messages."""

_REQUEST = re.compile(rf"/request/({NUMBER})/({NUMBER}|-)")
_LEAVE = re.compile(rf"/leave/({NUMBER})")
_ANSWER = re.compile(rf"/answer/({NUMBER})/({NUMBER})")


@dataclass
class _Box:
    """The messages to one client.

    Attributes:
        session: of its newest process; empty = none has come.
        former: of earlier ones.
        messages: those without an answer, with their numbers, in the order sent.
        sent: set when there is news for who waits for a message.
    """

    session: str = ""
    former: deque[str] = field(default_factory=lambda: deque(maxlen=FORMER))
    messages: deque[tuple[str, bytes]] = field(
        default_factory=lambda: deque(maxlen=WAITING)
    )
    sent: asyncio.Event = field(default_factory=asyncio.Event)

    def end(self) -> None:
        """End the session, if there is one, and notify whoever waits in it."""
        if self.session:
            self.former.append(self.session)
            self.sent.set()
        self.session = ""
        self.messages.clear()

    def next(self, after: str) -> tuple[str, bytes] | None:
        """The message that follows a given one; the first of all if that is not there."""
        numbers = [number for number, _ in self.messages]
        place = numbers.index(after) + 1 if after in numbers else 0
        return self.messages[place] if place < len(numbers) else None


class HttpsTransport:
    """Carries messages over a port (see `serve_messages`).

    Args:
        origins: where the clients' answers came from, before.
    """

    def __init__(self, origins: Origins | None = None) -> None:
        self.origins = Origins() if origins is None else origins
        self._port: Port | None = None
        self._lock = threading.Lock()  # the port has a thread of its own
        self._boxes: dict[str, _Box] = {}
        self._answers: list[tuple[str, bytes]] = []
        self._news = threading.Event()
        self._largest = 0

    @property
    def port(self) -> Port:
        """The open port."""
        assert self._port is not None
        return self._port

    @property
    def revoked(self) -> frozenset[str]:
        """Clients that are not let in any more, so that they are not waited for."""
        return self.port.revoked

    def online(self) -> Mapping[str, str]:
        """The clients that are connected, each with the number of its session."""
        self.port.check()
        connected = self.port.connected
        with self._lock:
            return {
                name: box.session
                for name, box in self._boxes.items()
                if box.session and name in connected
            }

    def expect(self, size: int) -> None:
        """Take answers of up to `size` bytes."""
        self._largest = max(self._largest, size)

    def send(self, client: str, body: bytes) -> None:
        """Have a client find a message when it asks for the next one."""
        with self._lock:
            box = self._boxes[client]
            box.messages.append((secrets.token_hex(16), body))
        self.port.loop.call_soon_threadsafe(box.sent.set)

    def receive(self) -> Iterable[tuple[str, bytes]]:
        """The answers since the last call; waits a while for the first one."""
        self.port.check()
        self._news.wait(RECEIVE_S)
        self._news.clear()
        with self._lock:
            answers, self._answers = self._answers, []
        return answers

    async def handle(self, call: Call) -> Result:
        """Answer a request of a client."""
        if call.method == "GET" and (found := _REQUEST.fullmatch(call.path)):
            return await self._next(call.client, *found.groups())
        if call.method == "POST" and (found := _ANSWER.fullmatch(call.path)):
            return await self._take(call, *found.groups())
        if call.method == "POST" and (found := _LEAVE.fullmatch(call.path)):
            return self._leave(call.client, found[1])
        return Result(404)

    async def _next(self, client: str, session: str, after: str) -> Result:
        """The next message to a client; waits for one."""
        end = asyncio.get_running_loop().time() + POLL_S
        while True:
            with self._lock:
                box = self._boxes.setdefault(client, _Box())
                if not self._enter(box, session):
                    return Result(409)
                message = box.next(after)
                box.sent.clear()
            if message is not None:
                return Result(200, message[1], message[0])
            try:
                async with asyncio.timeout_at(end):
                    await box.sent.wait()
            except TimeoutError:
                return Result(204)

    def _leave(self, client: str, session: str) -> Result:
        """End a client's session, which waits for nothing any more."""
        with self._lock:
            box = self._boxes.get(client)
            if box is not None and box.session == session:
                box.end()
        return Result(204)

    def _enter(self, box: _Box, session: str) -> bool:
        """Note a client's session; False if a newer one has taken its place."""
        if session in box.former:
            return False
        if session != box.session:
            box.end()
            box.session = session
            self._news.set()
        return True

    async def _take(self, call: Call, session: str, number: str) -> Result:
        """Take the answer to a message, once."""
        if not self._is_awaited(call.client, session, number):
            return Result(410)
        if call.size > self._largest:
            return Result(413)
        body = await call.body()
        with self._lock:
            # Another connection may have brought it meanwhile.
            if not self._is_awaited(call.client, session, number):
                return Result(410)
            box = self._boxes[call.client]
            kept = [each for each in box.messages if each[0] != number]
            box.messages.clear()
            box.messages.extend(kept)
            self._answers.append((call.client, body))
        self._news.set()
        return Result(204)

    def _is_awaited(self, client: str, session: str, number: str) -> bool:
        """Whether a message to a client has no answer yet."""
        box = self._boxes.get(client)
        if box is None or box.session != session:
            return False
        return any(number == of_message for of_message, _ in list(box.messages))


@contextmanager
def serve_messages(
    coordinator: Path,
    port: int,
    *,
    host: str = "0.0.0.0",
    origins: Origins | None = None,
) -> Iterator[HttpsTransport]:
    """Open a coordinator's port, and carry messages until the end of the block.

    Args:
        coordinator, port, host: see `open_port`.
        origins: where the clients' answers came from, before.

    Raises:
        ValueError: see `open_port`.
    """
    transport = HttpsTransport(origins)
    with open_port(coordinator, port, transport.handle, host=host) as opened:
        transport._port = opened
        yield transport

"""The coordinator's open port: HTTPS for the clients of one federation.

Whoever reaches the port can begin a TLS handshake, and nothing else. It ends unless the
other side proves that it has the key of a certificate in `clients/` of the coordinator's
directory: these certificates themselves are what is trusted, so that one which was moved
away is refused like any other, and no list of revocations is needed. The directory is
read again every few seconds.

What everybody may cost is bounded. Of those who have not finished the handshake the
oldest makes room for the next, so that honest ones, which take milliseconds, get in; it
is one of the address that has the most. A client has few connections, small heads, and
bodies of the sizes that it was asked for.

TLS is Python's `ssl`, HTTP is `h11`, which httpx uses as well. A web server in between
would show neither the certificate of the other side nor the connections in handshake.
"""

import asyncio
import hashlib
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fedtailor._base.choice import MachineFailed, require
from fedtailor.remote.keys.keys import check_secret
from fedtailor.remote.keys.kit import CLIENTS, read_certificates
from fedtailor.remote.wire.run_log import COORDINATOR_LOG

if TYPE_CHECKING:
    import h11

T = TypeVar("T")

STRANGERS = 256
"""Connections that may be in handshake at the same time, and of the files that this
process may have open at most a quarter.
"""

OF_ONE_CLIENT = 4
"""Connections of one client; the oldest makes room for the next."""

GROUP = "prime256v1"
"""The group in which keys are agreed, P-256. A stranger may not choose the group: one of
8,192 bits takes the server as long as hundreds of handshakes in this one.
"""

HANDSHAKE_S = 10.0
"""Seconds that a handshake may take."""

IDLE_S = 20.0
"""Seconds in which the head of a request must have arrived, from the connection or the
last answer on.
"""

MIN_BYTES_PER_S = 10_000
"""The slowest body, of a request or an answer, beyond `IDLE_S`."""

MAX_HEAD = 2**14
"""Bytes of the largest head of a request."""

RELOAD_S = 2.0
"""Seconds between two looks at the certificates."""

PART = 2**14
"""Bytes that are read or written at a time."""

MOST_EMPTY = 2**17
"""Bytes of records that may come without any content, as in a handshake."""

OPEN_FILES = 2**14
"""Files that this process may have open, if its machine allows it; a connection is one."""

LINGER_S = 1.0
"""Seconds for which the rest of a refused request is read, so that the refusal is not
lost with it.
"""

CONTENT_TYPE = b"application/octet-stream"
"""The content type of all messages."""


@dataclass(frozen=True)
class Call:
    """A request of a client, before its body is read.

    Attributes:
        client: verified name of the client.
        method, path: of the request.
        size: bytes of its body.
        body: reads the body; to be called once at most.
    """

    client: str
    method: str
    path: str
    size: int
    body: Callable[[], Awaitable[bytes]]


@dataclass(frozen=True)
class Result:
    """What a request is answered.

    Attributes:
        status: of HTTP.
        body: the body.
        message: the number of the message in the body, if any.
    """

    status: int
    body: bytes = b""
    message: str = ""


Handler = Callable[[Call], Coroutine[Any, Any, Result]]


@dataclass(frozen=True)
class _Trust:
    """Who is let in.

    Attributes:
        context: a handshake with it ends unless the other side is a client.
        names: of the clients, by the SHA-256 of their certificates.
        stamp: equal if and only if the files are the same.
    """

    context: ssl.SSLContext
    names: dict[bytes, str]
    stamp: object


def _read_trust(coordinator: Path) -> _Trust:
    """Read the certificates in a coordinator's directory.

    Raises:
        ValueError: a file is missing, or not valid.
    """
    stamp, names = _stamp(coordinator), {}
    check_secret(coordinator / "server.key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_ecdh_curve(GROUP)
    context.num_tickets = 0  # nobody resumes what was begun with another list
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_cert_chain(coordinator / "server.crt", coordinator / "server.key")
    except (OSError, ssl.SSLError) as error:
        raise ValueError(
            f"server.crt and server.key in {coordinator} cannot be used ({error}); make"
            " them again: fedtailor federation renew"
        ) from None
    for name, certificate in read_certificates(coordinator).items():
        try:
            encoded = _encoded(certificate)
            context.load_verify_locations(cadata=encoded)
        except (ValueError, ssl.SSLError):
            raise ValueError(
                f"the certificate of client {name} cannot be read; renew it:"
                f" fedtailor federation renew --clients {name}"
            ) from None
        names[hashlib.sha256(encoded).digest()] = name
    return _Trust(context, names, stamp)


def _encoded(certificate: bytes) -> bytes:
    """What TLS compares of a certificate (PEM).

    Raises:
        ValueError: it is damaged.
    """
    return ssl.PEM_cert_to_DER_cert(certificate.decode("ascii").strip())


def _still_there(coordinator: Path, names: dict[bytes, str]) -> dict[bytes, str]:
    """Those of `names` whose certificates are still in a coordinator's directory. One that
    cannot be read may be written just now, and counts as the former one.
    """
    kept = {}
    for key, name in names.items():
        path = coordinator / CLIENTS / f"{name}.crt"
        try:
            found = hashlib.sha256(_encoded(path.read_bytes())).digest()
        except FileNotFoundError:
            continue
        except (OSError, ValueError):
            found = key
        if found == key:
            kept[key] = name
    return kept


def _stamp(coordinator: Path) -> object:
    """What changes with the certificates in a coordinator's directory."""
    paths = [*(coordinator / CLIENTS).glob("*.crt")]
    paths += [coordinator / "server.crt", coordinator / "server.key"]
    found = set()
    for path in paths:
        with suppress(OSError):
            status = path.stat()
            found.add((path.name, status.st_mtime_ns, status.st_ino))
    return frozenset(found)


class _Connection:
    """A TLS connection in an event loop.

    TLS is given a little of what has arrived at a time. On a socket of its own it would go
    on for as long as more comes, and records without content can come for ever.

    Args:
        context: of TLS.
        accepted: the accepted socket.
    """

    def __init__(self, context: ssl.SSLContext, accepted: socket.socket) -> None:
        self._loop, self._socket = asyncio.get_running_loop(), accepted
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)

    async def handshake(self) -> bytes:
        """Do the handshake, and return the SHA-256 of the other side's certificate.

        Raises:
            OSError: the other side has none that is trusted, or has gone.
        """
        await self._when_arrived(self._tls.do_handshake)
        certificate = self._tls.getpeercert(binary_form=True)
        return hashlib.sha256(certificate or b"").digest()

    async def read(self) -> bytes:
        """The next bytes, one at least.

        Raises:
            OSError: the other side has gone.
        """
        content = await self._when_arrived(lambda: self._tls.read(PART))
        # TLS gives nothing, as often as it is asked, once the other side has said that it
        # ends.
        if not content:
            raise ConnectionError("the other side has ended the connection")
        return content

    async def write(self, content: bytes) -> None:
        """Write all of some bytes."""
        rest = memoryview(content)
        while rest:
            rest = rest[self._tls.write(rest[:PART]) :]
            await self._flush()

    async def _when_arrived(self, action: Callable[[], T]) -> T:
        """Repeat what needs bytes of the other side until there are enough."""
        most = MOST_EMPTY
        while most > 0:
            try:
                return action()
            except ssl.SSLWantReadError:
                pass
            finally:
                await self._flush()  # also the alert that says why TLS ends
            # Others have their turn, however fast this one sends.
            await asyncio.sleep(0)
            received = await self._loop.sock_recv(self._socket, PART)
            if not received:
                raise ConnectionError("the other side has gone")
            self._incoming.write(received)
            most -= len(received)
        raise ConnectionError("the other side sends nothing but empty records")

    async def _flush(self) -> None:
        if self._outgoing.pending:
            await self._loop.sock_sendall(self._socket, self._outgoing.read())


class Port:
    """Answers the requests of clients, in a thread of its own (see `open_port`).

    Args:
        coordinator: directory with server.crt, server.key and clients/NAME.crt.
        listener: the listening socket.
        handler: answers requests; called in the thread of the port.
        strangers: so many connections may be in handshake at the same time.
    """

    def __init__(
        self,
        coordinator: Path,
        listener: socket.socket,
        handler: Handler,
        strangers: int,
    ) -> None:
        self._coordinator, self._listener = coordinator, listener
        self._handler, self._most_strangers = handler, strangers
        self._trust = _read_trust(coordinator)
        self.revoked = frozenset[str]()
        # One for each connection, including those that were asked to end and have not
        # yet.
        self._all: set[asyncio.Task[None]] = set()
        # With their addresses, in the order in which they came.
        self._strangers: dict[asyncio.Task[None], str] = {}
        self._tasks: dict[asyncio.Task[None], tuple[str, bytes]] = {}
        self._failure: BaseException | None = None
        self._pause: asyncio.TimerHandle | None = None
        self.loop = asyncio.SelectorEventLoop()
        self._main = self.loop.create_task(self._serve())
        self._thread = threading.Thread(target=self._run, name="port", daemon=True)
        self._thread.start()

    @property
    def names(self) -> frozenset[str]:
        """The clients that are let in."""
        return frozenset(self._trust.names.values())

    @property
    def connected(self) -> frozenset[str]:
        """The clients that have an open connection."""
        return frozenset(name for name, _ in list(self._tasks.values()))

    def check(self) -> None:
        """Check that the port is served.

        Raises:
            MachineFailed: it is not any more.
        """
        if not self._thread.is_alive():
            raise MachineFailed(f"the port is not served any more: {self._failure!r}")

    def close(self) -> None:
        """End all connections."""
        with suppress(RuntimeError):  # the loop has ended
            self.loop.call_soon_threadsafe(self._main.cancel)
        self._thread.join()

    def _run(self) -> None:
        try:
            with suppress(asyncio.CancelledError):
                self.loop.run_until_complete(self._main)
        except BaseException as error:  # told by `check`
            self._failure = error
        finally:
            self.loop.close()

    async def _serve(self) -> None:
        """Accept connections until cancelled."""
        # Not `sock_accept`: what it has accepted when it is cancelled nobody closes.
        self.loop.add_reader(self._listener, self._accept)
        try:
            await self._reload()
        finally:
            self.loop.remove_reader(self._listener)
            if self._pause is not None:
                self._pause.cancel()
            for task in self._all:
                task.cancel()
            await asyncio.gather(*self._all, return_exceptions=True)

    def _accept(self) -> None:
        """Begin with a connection that has come."""
        try:
            accepted, address = self._listener.accept()
        except BlockingIOError:
            return  # it has gone again
        except OSError:  # such as too many open files
            self._make_place()
            self.loop.remove_reader(self._listener)
            listen = self.loop.add_reader, self._listener, self._accept
            self._pause = self.loop.call_later(0.1, *listen)
            return
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if len(self._strangers) >= self._most_strangers:
            self._make_place()
        task = self.loop.create_task(self._meet(accepted))
        self._all.add(task)
        self._strangers[task] = address[0]

        def ended(task: asyncio.Task[None]) -> None:
            accepted.close()
            self._all.discard(task)
            self._strangers.pop(task, None)
            self._tasks.pop(task, None)

        task.add_done_callback(ended)

    def _make_place(self) -> None:
        """Cancel the oldest stranger, if any, of the address that has the most."""
        if not self._strangers:
            return
        most, _ = Counter(self._strangers.values()).most_common(1)[0]
        oldest = next(task for task, of in self._strangers.items() if of == most)
        del self._strangers[oldest]
        oldest.cancel()

    async def _meet(self, accepted: socket.socket) -> None:
        """Shake hands with whoever has connected, and answer a client's requests."""
        task = asyncio.current_task()
        assert task is not None
        try:
            connection = _Connection(self._trust.context, accepted)
            async with asyncio.timeout(HANDSHAKE_S):
                digest = await connection.handshake()
            self._strangers.pop(task, None)
            name = self._trust.names.get(digest)
            if name is None:  # revoked since the handshake began
                return
            own = [other for other, (of, _) in self._tasks.items() if of == name]
            for oldest in own[: len(own) - OF_ONE_CLIENT + 1]:
                del self._tasks[oldest]
                oldest.cancel()
            self._tasks[task] = name, digest
            await self._converse(connection, name)
        except (OSError, TimeoutError):
            pass  # the other side has gone, or is none of ours
        except asyncio.CancelledError:
            # A task keeps this error, which leads back to the task: all that TLS holds
            # would stay until the next collection of cycles.
            pass

    async def _reload(self) -> None:
        """Look at the certificates now and then; who is gone is disconnected."""
        told = ""
        while True:
            await asyncio.sleep(RELOAD_S)
            try:
                hindrance = self._look()
            except OSError as error:  # such as too many open files; it may pass
                hindrance = str(error)
            if hindrance not in ("", told):
                COORDINATOR_LOG.warning(
                    f"no client is let in that was not before: {hindrance}"
                )
            told = hindrance

    def _look(self) -> str:
        """Let in whose certificates are there now, and nobody else.

        Returns:
            Why only those are let in that were before; "" if so are others.

        Raises:
            OSError: the directory cannot be read; nothing has changed.
        """
        if _stamp(self._coordinator) == self._trust.stamp:
            return ""
        before, hindrance = self.names, ""
        try:
            self._trust = _read_trust(self._coordinator)
        except (OSError, ValueError) as error:
            # A file that is being written, or a mistake that the operator can mend.
            hindrance = str(error)
            names = _still_there(self._coordinator, self._trust.names)
            self._trust = replace(self._trust, names=names)
        self.revoked = (self.revoked | before) - self.names
        for name in sorted(self.names - before):
            COORDINATOR_LOG.info(f"client {name} may join now")
        for name in sorted(before - self.names):
            is_renewed = (self._coordinator / CLIENTS / f"{name}.crt").exists()
            what = ": its former key is refused" if is_renewed else " was revoked"
            COORDINATOR_LOG.info(f"client {name}{what}")
        for task, (_, digest) in list(self._tasks.items()):
            if digest not in self._trust.names:
                task.cancel()
        return hindrance

    async def _converse(self, connection: _Connection, name: str) -> None:
        """Answer one request of a client after the other.

        Raises:
            OSError, TimeoutError: the client has gone, or is too slow.
        """
        import h11

        http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
        while True:
            try:
                async with asyncio.timeout(IDLE_S):
                    request = await _next_event(http, connection)
                if not isinstance(request, h11.Request):
                    return
                result = await self._answer(http, connection, name, request)
            except h11.RemoteProtocolError:
                result = Result(400)
            if result is None:
                return
            await _respond(http, connection, result)
            http.start_next_cycle()

    async def _answer(
        self,
        http: "h11.Connection",
        connection: _Connection,
        name: str,
        request: "h11.Request",
    ) -> Result | None:
        """Answer a request; None if the client has gone meanwhile."""
        headers = dict(request.headers)
        if request.http_version != b"1.1":
            return Result(505)
        if b"transfer-encoding" in headers:
            return Result(411)
        if b"expect" in headers:
            return Result(417)
        size = int(headers.get(b"content-length", b"0"))
        has_other_type = headers.get(b"content-type") != CONTENT_TYPE
        if size and (has_other_type or b"content-encoding" in headers):
            return Result(415)
        method = request.method.decode("ascii")
        path = request.target.decode("ascii", "replace")
        if size:
            call = Call(name, method, path, size, lambda: _body(http, connection, size))
            return await self._handler(call)
        call = Call(name, method, path, 0, _no_body)
        # Without a body nothing more comes before the answer, but the end.
        answering = self.loop.create_task(self._handler(call))
        gone = self.loop.create_task(connection.read())
        try:
            await asyncio.wait((answering, gone), return_when=asyncio.FIRST_COMPLETED)
            return None if gone.done() else answering.result()
        finally:
            answering.cancel()
            gone.cancel()
            await asyncio.gather(answering, gone, return_exceptions=True)


async def _no_body() -> bytes:
    return b""


async def _next_event(http: "h11.Connection", connection: _Connection) -> object:
    """The next event of a connection.

    Raises:
        h11.RemoteProtocolError: what has arrived is not HTTP, or the head is too large.
    """
    import h11

    while (event := http.next_event()) is h11.NEED_DATA:
        http.receive_data(await connection.read())
    return event


async def _body(http: "h11.Connection", connection: _Connection, size: int) -> bytes:
    """Read the body of a request; slow ones are given up.

    Raises:
        h11.RemoteProtocolError: it ends before its size.
        TimeoutError: it is too slow.
    """
    import h11

    body = bytearray()  # its parts may be single bytes, which would take more memory
    async with asyncio.timeout(IDLE_S + size / MIN_BYTES_PER_S):
        while not isinstance(
            event := await _next_event(http, connection), h11.EndOfMessage
        ):
            assert isinstance(event, h11.Data)
            body += event.data
    return bytes(body)


async def _respond(
    http: "h11.Connection", connection: _Connection, result: Result
) -> None:
    """Send an answer.

    Raises:
        OSError, TimeoutError: the client has gone, or is too slow, or no other request may
            follow on this connection.
    """
    import h11

    if http.their_state is h11.SEND_BODY:
        with suppress(h11.RemoteProtocolError):
            http.next_event()  # the end, unless there is a body that was not read
    # What is not read of a request would be taken for the next one.
    is_read = http.their_state is h11.DONE
    headers = [
        ("content-type", CONTENT_TYPE),
        ("content-length", str(len(result.body))),
        ("message", result.message),
        ("connection", "keep-alive" if is_read else "close"),
    ]
    if not result.message:
        del headers[2]
    event = h11.Response(status_code=result.status, headers=headers)
    async with asyncio.timeout(IDLE_S + len(result.body) / MIN_BYTES_PER_S):
        for part in (event, h11.Data(data=result.body), h11.EndOfMessage()):
            await connection.write(http.send(part) or b"")
    if is_read and http.our_state is h11.DONE:
        return
    async with asyncio.timeout(LINGER_S):
        while True:
            await connection.read()


def _allow_connections() -> int:
    """Let this process have more files open than systems allow at first.

    Returns:
        How many it may have open.
    """
    import resource  # not on Windows, where federations do not run

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return most
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most


@contextmanager
def open_port(
    coordinator: Path,
    port: int,
    handler: Handler,
    *,
    host: str = "0.0.0.0",
) -> Iterator[Port]:
    """Listen on a port until the end of the block.

    Args:
        coordinator: directory with server.crt, server.key and clients/NAME.crt.
        port: the port; 0 = any that is free.
        handler: answers requests; called in another thread.
        host: address to listen on; by default all addresses of this machine.

    Raises:
        ValueError: a file is missing or not valid, or the port is in use.
    """
    strangers = min(STRANGERS, _allow_connections() // 4)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen(STRANGERS)
        except OSError as error:
            require(
                False,
                f"cannot listen on {host}:{port}: {error.strerror}; is another"
                " coordinator running?",
            )
        listener.setblocking(False)
        served = Port(coordinator, listener, handler, strangers)
        try:
            yield served
        finally:
            served.close()

"""A client's connection to the port of its coordinator, which answers messages.

It connects outwards only, to the one address of its job, also through a proxy that the
environment names (`HTTPS_PROXY`). The coordinator is not trusted: nothing leads a client
elsewhere, and what it reads is bounded.
"""

import logging
import queue
import re
import secrets
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Any, NamedTuple

from fedtailor._base.choice import require
from fedtailor._base.documentation import see
from fedtailor._base.memory import total_memory
from fedtailor._base.printable import one_line
from fedtailor.remote.https.port import CONTENT_TYPE, GROUP
from fedtailor.remote.https.server import NUMBER, POLL_S
from fedtailor.remote.keys.keys import days_left
from fedtailor.remote.keys.kit import Kit
from fedtailor.remote.wire.run_log import ASKED_FOR, client_log

if TYPE_CHECKING:
    import httpx

RETRY_S = (1.0, 15.0)
"""Seconds between attempts to connect: at first, and after minutes."""

MAX_REFUSAL_S = 30.0
"""Seconds for which the coordinator may refuse a certificate before the client ends."""

CONNECT_S = 20.0
"""Seconds that a connection, or a part of a message, may take."""

LEAVE_S = 2.0
"""Seconds for which a client waits for a word to its leave."""

LARGEST_SHARE = 0.125
"""The largest share of this machine's memory that a message may take.

There are several copies of a message while it is read.
"""

MOST_WAITING = 1
"""Messages that wait while another one is answered."""

_OF_ANOTHER_TIME = {9: "is not valid yet", 10: "has expired"}
"""OpenSSL's codes of certificates that a clock that is wrong makes invalid."""

_END = (
    "the training is over, and its coordinator has ended; stop this client with Ctrl-C, or"
    " let it run: it takes part if the job is served again"
)


class Message(NamedTuple):
    """A message of the coordinator."""

    number: str
    body: bytes


@dataclass
class ClientStatus:
    """What a client does.

    Attributes:
        name: its name.
        is_connected: whether its coordinator was reached when it was asked last.
        answers: messages that it has answered.
        problem: what is wrong with the connection; empty = nothing.
    """

    name: str
    is_connected: bool = False
    answers: int = 0
    problem: str = ""


class Disconnected(RuntimeError):
    """The coordinator cannot be reached, or has trouble."""


class Refused(Disconnected):
    """The coordinator can be reached, but refuses this client."""


class Connection:
    """The connection of one process of a client: a session.

    Args:
        kit: with the address of the coordinator, the federation's authority (no other
            one is trusted), and the client's key and certificate.

    Raises:
        ValueError: the certificate or the key cannot be used.
    """

    def __init__(self, kit: Kit) -> None:
        import httpx

        self.address, self.log = kit.job.address, client_log(kit.name)
        self._authority = kit.authority
        try:
            context = ssl.create_default_context(cadata=kit.authority.decode("ascii"))
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.set_ecdh_curve(GROUP)
            context.load_cert_chain(kit.pem)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"the certificates in {kit.directory} cannot be used ({error}); copy the"
                " whole kit"
            ) from None
        self.session = secrets.token_hex(16)
        self._largest = int(LARGEST_SHARE * total_memory())
        self._streams = dict[int, Any]()  # thread -> the last connection that it made
        self._client = httpx.Client(
            base_url=f"https://{self.address}",
            verify=context,
            follow_redirects=False,
            headers={"accept-encoding": "identity"},
            # A jar grows with every answer that holds cookies; this one takes none.
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        )

    def next(self, after: str) -> Message | None:
        """Wait for the next message; None if none came for a while.

        Args:
            after: number of the message that was received last; "-" = none.

        Raises:
            ValueError: the server is not the coordinator of the kit.
            Disconnected: the coordinator cannot be reached, or refuses this client.
        """
        status, headers, body = self._ask("GET", f"/request/{self.session}/{after}")
        if status == 204:
            return None
        number = headers.get("message", "")
        if status != 200 or not re.fullmatch(NUMBER, number):
            raise Disconnected(f"the coordinator at {self.address} has trouble")
        return Message(number, body)

    def answer(self, number: str, body: bytes) -> bool:
        """Send the answer to a message.

        Returns:
            Whether it was taken; else nobody waits for it any more.

        Raises:
            ValueError, Disconnected: see `next`; or it is too large.
        """
        path = f"/answer/{self.session}/{number}"
        status, _, _ = self._ask("POST", path, body)
        if status not in (204, 410, 413):
            raise Disconnected(f"the coordinator at {self.address} has trouble")
        return status == 204

    def close(self) -> None:
        """Go offline; tells the coordinator if it can be reached."""
        _run_for(LEAVE_S, self._leave)
        self._close()

    def _leave(self) -> None:
        with suppress(Disconnected, ValueError):
            self._ask("POST", f"/leave/{self.session}", seconds=LEAVE_S)

    def _close(self) -> None:
        """Close all connections, also one that another thread is just making."""
        self._client.close()
        for stream in list(self._streams.values()):
            stream.close()

    def _trace(self, event: str, info: dict[str, Any]) -> None:
        """Keep a connection that was made: httpx does not close it if it is closed before
        that connection's first request.
        """
        if event.endswith("start_tls.complete"):
            self._streams[threading.get_ident()] = info["return_value"]
            if self._client.is_closed:
                info["return_value"].close()

    def _ask(
        self,
        method: str,
        path: str,
        content: bytes | None = None,
        seconds: float = POLL_S + CONNECT_S,
    ) -> "tuple[int, httpx.Headers, bytes]":
        """Send a request.

        Args:
            method, path, content: of the request.
            seconds: how long the answer may let wait.

        Returns:
            The status, the headers and the body of the answer.

        Raises:
            ValueError, Disconnected: see `next`.
        """
        import httpx

        headers = {} if content is None else {"content-type": CONTENT_TYPE.decode()}
        try:
            timeout = httpx.Timeout(min(CONNECT_S, seconds), read=seconds)
            with self._client.stream(
                method,
                path,
                content=content,
                headers=headers,
                timeout=timeout,
                extensions={"trace": self._trace},
            ) as response:
                if response.status_code == 409:
                    raise Refused(
                        f"another process has come to {self.address} with this client's"
                        " kit"
                    )
                if response.is_redirect:
                    raise Disconnected(
                        f"the server at {self.address} answers with a redirect"
                        f" ({response.status_code}), which a client does not follow; check"
                        " the address in job.toml, and what stands before that server"
                    )
                body = bytearray()  # its parts may be single bytes
                for part in response.iter_raw():
                    body += part
                    if len(body) > self._largest:
                        raise Disconnected(
                            f"the coordinator at {self.address} sends a message that is"
                            " larger than what this machine takes"
                        )
                return response.status_code, response.headers, bytes(body)
        except Disconnected:
            raise
        except Exception as error:  # a coordinator can answer anything
            raise self._translated(error) from None

    def _translated(self, error: Exception) -> Exception:
        """The error that the caller gets instead of one of the network."""
        import httpx

        # httpx wraps the error of the TLS library, some versions more than once.
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, ssl.SSLCertVerificationError):
                if cause.verify_code in _OF_ANOTHER_TIME:
                    renewal = "have the coordinator run fedtailor federation renew DIR"
                    if not days_left(self._authority):
                        renewal += " --authority, and copy its ca.crt into this kit"
                    return ValueError(
                        f"the certificate of the coordinator at {self.address}"
                        f" {_OF_ANOTHER_TIME[cause.verify_code]} by this machine's clock"
                        f" ({datetime.now():%Y-%m-%d %H:%M}); set the clock, or {renewal}"
                    )
                return ValueError(
                    f"the server at {self.address} has no certificate of this"
                    " federation's authority for that address; check the address in"
                    " job.toml, and that the kit is of this federation"
                )
            # The other side's word that it ends the handshake.
            if isinstance(cause, ssl.SSLError) and "ALERT" in str(cause.reason):
                if "CERTIFICATE_EXPIRED" in str(cause.reason):
                    return Refused(
                        "the certificate of this client has expired; ask the coordinator"
                        " for another: fedtailor federation renew DIR --clients NAME"
                    )
                return Refused(
                    f"the coordinator at {self.address} does not accept this client's"
                    " certificate (yet)"
                )
            cause = cause.__cause__ or cause.__context__
        if isinstance(error, httpx.ProxyError):
            return Disconnected(
                f"the proxy of HTTPS_PROXY does not lead to {self.address}"
                f" ({one_line(str(error)[:60])})"
            )
        return Disconnected(f"cannot reach the coordinator at {self.address}")


def answer_messages(
    connection: Connection,
    respond: Callable[[bytes], bytes],
    *,
    stop: threading.Event,
    is_over: Callable[[], bool] = lambda: False,
    status: ClientStatus | None = None,
) -> None:
    """Answer the coordinator's messages until `stop` is set.

    A connection that is lost is made again, without a limit of time. Messages are waited
    for in another thread, so that the coordinator knows that this client is there while
    it works.

    Args:
        connection: connection to the coordinator.
        respond: function from a message to its answer, which raises no exception (see
            `transport.answer_message`).
        stop: set by another thread or a signal handler.
        is_over: whether the coordinator has asked for the last thing that it asks, so
            that its end is no trouble.
        status: kept up to date.

    Raises:
        ValueError: the coordinator's certificate is not trusted, or it refuses this
            client permanently.
    """
    status = ClientStatus("") if status is None else status
    waiting = _Waiting(connection, stop, is_over, status)
    thread = threading.Thread(target=waiting.run, name="messages", daemon=True)
    thread.start()
    try:
        while not stop.is_set():
            try:
                message = waiting.messages.get(timeout=0.2)
            except queue.Empty:
                continue
            body = respond(message.body)
            _run_for(CONNECT_S, partial(_answer, connection, message, body, stop), stop)
            status.answers += 1
    finally:
        stop.set()
        connection.close()
    thread.join(CONNECT_S)
    if waiting.failure is not None:
        raise waiting.failure


def _run_for(
    seconds: float, work: Callable[[], None], stop: threading.Event | None = None
) -> None:
    """Do some work, and wait so many seconds for its end (from when `stop` is set).

    It has a thread of its own: each byte that a coordinator sends may let the next one wait,
    and a client must end whatever it sends.
    """
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    while stop is not None and thread.is_alive() and not stop.is_set():
        thread.join(0.2)
    thread.join(seconds)


def _answer(
    connection: Connection, message: Message, body: bytes, stop: threading.Event
) -> None:
    """Send an answer, again and again until it has arrived."""
    begun = time.monotonic()
    while not stop.is_set():
        try:
            if not connection.answer(message.number, body):
                connection.log.warning(
                    "an answer was not taken: it is late, or larger than was asked for",
                    extra=ASKED_FOR,
                )
            return
        except (Disconnected, ValueError):
            # The thread that waits for messages says what is wrong.
            stop.wait(_pause(time.monotonic() - begun))


def _pause(lost_for: float) -> float:
    """Seconds until the next attempt."""
    shortest, longest = RETRY_S
    return min(longest, max(shortest, lost_for / 20))


class _Waiting:
    """Waits for messages, and says what is wrong with the connection.

    Args: see `answer_messages`.

    Attributes:
        messages: those that have come.
        failure: why it has ended, if it has.
    """

    def __init__(
        self,
        connection: Connection,
        stop: threading.Event,
        is_over: Callable[[], bool],
        status: ClientStatus,
    ) -> None:
        self._connection, self._stop, self._status = connection, stop, status
        self._is_over, self._log = is_over, connection.log
        self.messages = queue.Queue[Message](MOST_WAITING)
        self.failure: Exception | None = None
        self._lost_at = 0.0
        self._refused_at: float | None = None

    def run(self) -> None:
        """Wait for messages until it is stopped, or refused for good."""
        after, status = "-", self._status
        while not self._stop.is_set():
            begun = time.monotonic()
            try:
                message = self._connection.next(after)
            except Exception as error:
                if self._stop.is_set():
                    return
                status.is_connected = False
                try:
                    self._has_failed(error)
                except Exception as failure:
                    self.failure = failure
                    self._stop.set()  # also for an answer that cannot be sent
                    return
                self._stop.wait(_pause(time.monotonic() - self._lost_at))
                continue
            if not status.is_connected:
                self._log.info(f"connected to {self._connection.address}")
            status.is_connected, status.problem, self._refused_at = True, "", None
            if message is not None:
                after = message.number
                self._keep(message)
            elif time.monotonic() - begun < RETRY_S[0]:
                # A coordinator lets it wait for its next message.
                self._stop.wait(RETRY_S[0])

    def _keep(self, message: Message) -> None:
        """Have a message wait for its answer; no other one is fetched before there is
        place for it.
        """
        while not self._stop.is_set():
            with suppress(queue.Full):
                self.messages.put(message, timeout=0.2)
                return

    def _has_failed(self, error: Exception) -> None:
        """Say what is wrong, once.

        Raises:
            ValueError: further attempts are useless.
        """
        if not isinstance(error, Disconnected):
            raise error
        now = time.monotonic()
        if not self._status.problem:
            self._lost_at = now
        has_ended = self._is_over() and not isinstance(error, Refused)
        problem = _END if has_ended else f"{error}; trying again"
        if problem != self._status.problem:
            self._status.problem = problem
            self._log.log(logging.INFO if has_ended else logging.WARNING, problem)
        if not isinstance(error, Refused):
            self._refused_at = None
        elif self._refused_at is None:
            self._refused_at = now
        else:
            require(
                now - self._refused_at < MAX_REFUSAL_S,
                f"the coordinator at {self._connection.address} refuses this client: its"
                " certificate must be registered there and be valid, and no other process"
                f" may use the kit{see('errors#a-certificate-that-is-not-accepted')}",
            )

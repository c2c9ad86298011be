"""What a coordinator is doing, for its operator and for a monitor.

A file in the coordinator's directory has the state, for `fedtailor federation status`.
A small server has it for programs: `/health`, and `/metrics` in Prometheus' text format.
Neither holds anything of a client's data, nor a client's name.
"""

import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fedtailor._base.choice import MachineFailed, require
from fedtailor._base.files import atomic_write
from fedtailor.engine.training import Callback, Training
from fedtailor.protocol.plain import parse

STATUS = "status.json"
"""File with the state of a coordinator, in its directory."""

STATES = ("waiting", "training", "delivering", "done", "stopped")
"""What a coordinator may be doing, in the order in which it does it."""

METRICS: Mapping[str, tuple[str, str, str]] = {
    "round": ("fedtailor_rounds_done", "gauge", "Rounds that are done."),
    "rounds": ("fedtailor_rounds", "gauge", "Rounds that the job asks for."),
    "registered": ("fedtailor_clients_registered", "gauge", "Clients that have a key."),
    "online": ("fedtailor_clients_online", "gauge", "Clients that are connected."),
    "asked": ("fedtailor_clients_asked", "gauge", "Clients asked in the last round."),
    "answered": (
        "fedtailor_clients_answered",
        "gauge",
        "Clients whose answers were used in the last round.",
    ),
    "warnings": ("fedtailor_warnings_total", "counter", "Warnings in the log."),
    "round_seconds": (
        "fedtailor_round_seconds",
        "gauge",
        "Seconds that the last round took, without its evaluation.",
    ),
    "last_round": (
        "fedtailor_last_round_timestamp_seconds",
        "gauge",
        "Time of the end of the last round, in seconds since 1970.",
    ),
    "certificate_days": (
        "fedtailor_certificate_days",
        "gauge",
        "Days until the first certificate of the federation ends.",
    ),
}
"""Field of `Status` -> name, type and description of a metric."""


@dataclass
class Status:
    """The state of a coordinator.

    Attributes:
        state: one of `STATES`.
        title: name of the federation.
        round, rounds: rounds done, and rounds that the job asks for.
        registered, online: clients that have a key, and that are connected.
        asked, answered: clients that were asked in the last round, and those whose
            answers were used.
        warnings: warnings in the log since the start.
        round_seconds: seconds that the last round took.
        started, last_round: times in seconds since the epoch; 0 = not yet.
        certificate_days: days until the first certificate of the federation ends.
    """

    state: str = "waiting"
    title: str = ""
    round: int = 0
    rounds: int = 0
    registered: int = 0
    online: int = 0
    asked: int = 0
    answered: int = 0
    warnings: int = 0
    round_seconds: float = 0.0
    started: float = 0.0
    last_round: float = 0.0
    certificate_days: int = 0

    def as_prometheus(self) -> str:
        """The numbers in Prometheus' text format."""
        lines = []
        for field, (name, kind, text) in METRICS.items():
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
            lines.append(f"{name} {getattr(self, field):.15g}")
        lines += [
            "# HELP fedtailor_state What the coordinator is doing.",
            "# TYPE fedtailor_state gauge",
        ]
        for state in STATES:
            lines.append(
                f'fedtailor_state{{state="{state}"}} {int(state == self.state)}'
            )
        return "\n".join(lines) + "\n"


class Monitor(Callback):
    """Keeps the status of a coordinator up to date.

    Args:
        status: the state at the start.
        path: file for the state; None = none is written.
        clients: returns the number of clients that have a key, and of those that were
            online a moment ago, without asking anybody; None = the status says it.
        certificate_days: returns the days until the first certificate ends;
            None = the status says it.
        check: raises an exception if the coordinator cannot work any more.
        say: called with a line about every round.
    """

    def __init__(
        self,
        status: Status,
        path: Path | None = None,
        *,
        clients: Callable[[], tuple[int, int]] | None = None,
        certificate_days: Callable[[], int] | None = None,
        check: Callable[[], None] = lambda: None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.status, self._path = status, path
        self._clients, self._certificate_days = clients, certificate_days
        self._check, self._say = check, say
        status.started = time.time()
        self._write()

    def enter(self, state: str) -> None:
        """Note what the coordinator is doing now."""
        self.status.state = state
        self._write()

    def warn(self) -> None:
        """Note that there was a warning."""
        self.status.warnings += 1

    def on_start(self, training: Training, rounds: int) -> None:
        self.status.round, self.status.rounds = training.round, rounds
        self.enter("training")

    def after_round(self, training: Training, evaluated: bool) -> None:
        status = self.status
        status.round, status.last_round = training.round, time.time()
        status.round_seconds = float(training.round_seconds[-1])
        answers = [
            entry
            for entry in training.ledger.entries
            if entry.round == training.round - 1 and entry.phase == "round"
        ]
        up = [entry.unicasts for entry in answers if entry.direction == "up"]
        down = [entry.unicasts for entry in answers if entry.direction == "down"]
        status.answered, status.asked = max(up, default=0), max(down, default=0)
        self._write()
        self._say(
            f"round {status.round} of {status.rounds} done in"
            f" {status.round_seconds:.1f} s"
        )

    def on_end(self, training: Training) -> None:
        self.enter("delivering")

    def health(self) -> tuple[bool, str]:
        """Whether the coordinator works, and what it is doing."""
        try:
            self._check()
        except Exception:  # whatever it is, the coordinator does not work
            return False, "the port is not served any more"
        return True, self.status.state

    def refresh(self) -> None:
        """Bring up to date what changes without rounds: connections, the certificate."""
        if self._clients is not None:
            # The last numbers stay when the port is not served any more.
            with suppress(MachineFailed):
                self.status.registered, self.status.online = self._clients()
        if self._certificate_days is not None:
            # It may be taken away; training goes on, and the last number stays.
            with suppress(OSError, ValueError):
                self.status.certificate_days = self._certificate_days()

    def _write(self) -> None:
        self.refresh()
        if self._path is None:
            return
        with atomic_write(self._path) as temporary:
            temporary.write_text(json.dumps(asdict(self.status)), encoding="utf-8")


def read_status(path: Path) -> Status:
    """Read the state that a coordinator has written.

    Raises:
        ValueError: there is none, or it is damaged.
    """
    require(
        path.is_file(),
        f"no training has begun here: there is no {path}, which serve writes",
    )
    try:
        return parse(Status, json.loads(path.read_text("utf-8")), what="entry")
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"cannot read {path}: {error}") from None


REQUEST_S = 5.0
"""Seconds from a connection to its end. Whoever reaches the port may send a byte at a time."""

CONNECTIONS = 16
"""Connections at a time, each with a thread; further ones are closed."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, *arguments: Any) -> None:
        self._places = threading.BoundedSemaphore(CONNECTIONS)
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, if there is a place."""
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # there is no thread, which would give the place back
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, and end the connection after `REQUEST_S` at the latest."""
        end = threading.Timer(REQUEST_S, _shut_down, [request])
        end.daemon = True
        try:
            end.start()
            super().process_request_thread(request, client_address)
        finally:
            end.cancel()
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that ends early, as that of a health check, is not logged."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


def _shut_down(connection: socket.socket) -> None:
    """End a connection, whatever its thread waits for."""
    with suppress(OSError):  # it has ended
        connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def monitor_server(monitor: Monitor, address: str) -> Iterator[str]:
    """Serve `/health` and `/metrics` until the end of the block.

    Args:
        monitor: what is served.
        address: "PORT" on this machine's loopback interface, or "HOST:PORT".

    Yields:
        "host:port" of the server.

    Raises:
        ValueError: the address is none, or is in use.
    """
    host, _, port = address.rpartition(":")
    require(
        port.isdecimal() and int(port) < 65536,
        f"{address!r} is not a port for a monitor; write PORT or HOST:PORT",
    )

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/metrics":
                monitor.refresh()
                self._answer(200, monitor.status.as_prometheus(), "version=0.0.4")
            elif self.path == "/health":
                is_well, text = monitor.health()
                self._answer(200 if is_well else 503, f"{text}\n")
            else:
                self._answer(404, "there are /health and /metrics\n")

        def _answer(self, code: int, text: str, form: str = "charset=utf-8") -> None:
            body = text.encode()
            self.send_response(code)
            self.send_header("Content-Type", f"text/plain; {form}")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Requests of a monitor are not logged."""

    try:
        server = _Server((host or "127.0.0.1", int(port)), Handler)
    except OSError as error:
        raise ValueError(
            f"cannot serve a monitor at {address}: {error.strerror or error}"
        ) from None
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"{server.server_address[0]}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

"""The open port: whoever reaches it sends what it likes. The server is a real process."""

import os
import socket
import ssl
from contextlib import ExitStack, suppress
from pathlib import Path
from unittest.mock import patch

import numpy as np

from fedtailor.remote.flower.common import require_flower
from fedtailor.remote.flower.processes import SuperLink, free_port, running_superlink
from fedtailor.remote.keys.kit import COORDINATOR, JOB, make_federation

MORE_MEMORY = 3 * 2**28
"""Bytes that strangers may cost the server at most: `superlink.TOGETHER`, and some."""

CONNECTIONS = 300
"""Connections that are opened at once."""

_PATHS = (
    "/v1/fleet/activate-node",
    "/v1/fleet/push-object",
    "/v1/fleet/pull-messages",
    "/v1/fleet/../control/start-run",
    "/v1/control/start-run",
    "/v1/runtime/acquire-task",
    "/",
    "/docs",
    "/openapi.json",
    "/%2e%2e/%2e%2e/etc/passwd",
    "/" + "a" * 10**5,
)
_LENGTHS = ("0", "10", "70000", "1000000000", "-1", "1e9", "99999999999999999999", "x")


class OpenPort:
    """Tries at one server.

    Args:
        folder: for the files of its federation.
    """

    def __init__(self, folder: Path) -> None:
        require_flower()
        self._stack = ExitStack()
        make_federation(folder, ("a", "b"), address="127.0.0.1:9092")
        self._kit = folder / "kits" / "a"
        (self._kit / JOB).write_bytes((folder / JOB).read_bytes())
        self._port = free_port()
        # Containers are often started with this, which lets anyone forge an address.
        with patch.dict(os.environ, FORWARDED_ALLOW_IPS="*"):
            self._link: SuperLink = self._stack.enter_context(
                running_superlink(folder / COORDINATOR, self._port, host="127.0.0.1")
            )
        self._context = ssl.create_default_context(cadata=self._link.authority.decode())
        self._still_there()
        self._memory = self._held()

    def stop(self) -> None:
        """End the server."""
        self._stack.close()

    def open_port(self, rng: np.random.Generator) -> None:
        """One thing that a stranger does; then the server still answers honest ones."""
        kinds = (
            *(self._bytes, self._requests, self._half, self._big, self._many),
            self._forged,
        )
        kind = kinds[int(rng.integers(len(kinds)))]
        drawn = kind(rng)
        self._link.check()
        grown = self._held() - self._memory
        assert grown < MORE_MEMORY, f"{drawn}: {grown / 1e6:.0f} MB more"
        try:
            self._still_there()
        except OSError as error:
            raise AssertionError(
                f"{drawn}: honest ones are not answered: {error}"
            ) from None

    def _bytes(self, rng: np.random.Generator) -> str:
        """Bytes that are no TLS, or none after it."""
        tls = bool(rng.random() < 0.5)
        with self._connect(tls) as connection, suppress(OSError):
            connection.sendall(rng.bytes(int(rng.integers(1, 2**17))))
            self._read(connection)
        return f"bytes, {tls=}"

    def _requests(self, rng: np.random.Generator) -> str:
        """Requests whose parts are drawn; no answer may be one of success."""
        method = str(rng.choice(["POST", "POST", "GET", "PUT", "TRACE", "\x00", "PRI"]))
        path = _PATHS[int(rng.integers(len(_PATHS)))]
        length = str(rng.choice(_LENGTHS))
        body = rng.bytes(int(rng.integers(0, 2**12)))
        more = "".join(
            f"x-{number}: {'y' * 50}\r\n"
            for number in range(int(rng.choice([0, 5, 3000])))
        )
        chunked = "transfer-encoding: chunked\r\n" if rng.random() < 0.2 else ""
        head = (
            f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n"
            f"{chunked}content-type: application/protobuf\r\n{more}\r\n"
        )
        with self._connect(True) as connection, suppress(OSError):
            connection.sendall(head.encode() + body)
            answer = self._read(connection)
            served = answer.startswith(b"HTTP/1.1 200") and "/v1/" in path
            assert not served, f"{path}: {answer[:200]!r}"
            assert b"Traceback" not in answer and b".py" not in answer, answer[:500]
        return f"{method} {path[:60]}, length {length}, {bool(chunked)=}, {len(more)}"

    def _forged(self, rng: np.random.Generator) -> str:
        """Requests that say that they come from another address: nobody's word counts,
        but that of a server on this machine, which forwards them.
        """
        forged = str(rng.choice(["203.0.113.9", "10.1.2.3", "::ffff:10.1.2.3", "x"]))
        header = str(rng.choice(["x-forwarded-for", "X-FORWARDED-FOR"]))
        path = str(rng.choice(["/v1/control/start-run", "/v1/runtime/acquire-task"]))
        more = str(
            rng.choice(["forwarded: for=127.0.0.1", "x-real-ip: 127.0.0.1", "a: b"])
        )
        answers = {}
        for source, chain in (
            ("127.0.0.1", f"127.0.0.1, {forged}"),
            ("127.0.0.1", f"{forged}, 127.0.0.1"),
            ("127.0.0.2", forged),  # has no word, and is this machine all the same
            ("127.0.0.2", f"{forged}, {forged}"),
        ):
            head = (
                f"POST {path} HTTP/1.1\r\nhost: x\r\n{header}: {chain}\r\n{more}\r\n"
                "x-forwarded-proto: https\r\ncontent-length: 1\r\n\r\n\xff"
            )
            with self._connect(True, source=source) as connection:
                connection.sendall(head.encode("latin-1"))
                answer = self._read(connection)
            is_refused = answer.startswith(b"HTTP/1.1 403")
            answers[source, chain] = is_refused
            expected = source == "127.0.0.1"
            assert answer and is_refused == expected, (
                f"{source}, {chain}: {answer[:200]!r}"
            )
        return f"forged addresses {answers}"

    def _half(self, rng: np.random.Generator) -> str:
        """Connections that send a part of a request and stay."""
        count = int(rng.integers(1, 30))
        head = b"POST /v1/fleet/push-object HTTP/1.1\r\nhost: x\r\ncontent-length: 60000\r\n\r\n"
        with ExitStack() as stack:
            for _ in range(count):
                with suppress(OSError):
                    connection = stack.enter_context(self._connect(True))
                    connection.sendall(head[: int(rng.integers(len(head) + 1))])
        return f"{count} halves"

    def _big(self, rng: np.random.Generator) -> str:
        """A body without a key that is as large as it may be, in pieces or declared."""
        declared = bool(rng.random() < 0.5)
        size = (
            "content-length: 1000000000" if declared else "transfer-encoding: chunked"
        )
        head = f"POST /v1/fleet/push-object HTTP/1.1\r\nhost: x\r\n{size}\r\n\r\n"
        piece = bytes(2**20)
        if not declared:
            piece = b"100000\r\n" + piece + b"\r\n"
        sent = 0
        with self._connect(True) as connection, suppress(OSError):
            connection.sendall(head.encode())
            for _ in range(1000):
                connection.sendall(piece)
                sent += 1
        return f"a body, {declared=}, {sent} MB"

    def _many(self, rng: np.random.Generator) -> str:
        """Many connections at once, which say nothing."""
        tls = bool(rng.random() < 0.5)
        with ExitStack() as stack:
            for _ in range(CONNECTIONS):
                with suppress(OSError):
                    stack.enter_context(self._connect(tls, 2.0))
        return f"{CONNECTIONS} connections, {tls=}"

    def _connect(
        self, tls: bool, seconds: float = 10.0, source: str = "127.0.0.1"
    ) -> socket.socket:
        plain = socket.create_connection(
            ("127.0.0.1", self._port), seconds, source_address=(source, 0)
        )
        plain.settimeout(seconds)
        if not tls:
            return plain
        try:
            return self._context.wrap_socket(plain, server_hostname="127.0.0.1")
        except BaseException:
            plain.close()
            raise

    def _read(self, connection: socket.socket) -> bytes:
        answer = b""
        with suppress(OSError):
            connection.settimeout(3.0)
            while len(answer) < 2**16 and (part := connection.recv(2**14)):
                answer += part
        return answer

    def _still_there(self) -> None:
        """A TLS connection, and an answer to a request."""
        with self._connect(True, 60.0) as connection:
            connection.sendall(
                b"GET /v1/fleet/x HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
            )
            connection.settimeout(60.0)
            if not connection.recv(100).startswith(b"HTTP/1.1 "):
                raise OSError("no answer")

    def _held(self) -> int:
        """The largest number of bytes that the server has held."""
        peak, pid = 0, self._link.process.pid
        for task in [pid, *_children(pid)]:
            with suppress(OSError, StopIteration):
                lines = Path(f"/proc/{task}/status").read_text().splitlines()
                line = next(line for line in lines if line.startswith("VmHWM"))
                peak += int(line.split()[1]) * 1024
        return peak


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        return [int(child) for child in text.split()]
    return []

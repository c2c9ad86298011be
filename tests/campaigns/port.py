"""The open port: whoever reaches it sends what it likes, with the certificate of a client
or without. The server is a real process (`python -m campaigns.port DIRECTORY PORT`),
which answers one honest client all the time.
"""

import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from fedtailor.remote.keys.kit import Kit

MORE_MEMORY = 100 * 2**20
"""Bytes that anybody may cost the server at most, beyond its idle size."""

LARGEST = 2**20
"""Bytes of the largest answer that is asked for."""

IDLE = 600
"""Connections that are opened at once, and say nothing."""

FLOOD_S, FLOOD = 3.0, 1000
"""A flood of connections: 20,000 in a minute."""

PATIENCE_S = 60.0
"""Seconds in which the honest client is answered, on a machine with much else to do."""

_NUMBER = "0123456789abcdef" * 2
_PATHS = (
    f"/request/{_NUMBER}/-",
    f"/request/{_NUMBER}/{_NUMBER}",
    f"/answer/{_NUMBER}/{_NUMBER}",
    *("/", "/request", "/answer/", "/docs", "/%2e%2e/%2e%2e/etc/passwd", "*"),
    "/" + "a" * 10**5,
)
_LENGTHS = ("0", "10", "70000", "1000000000", "-1", "1e9", "9" * 20, "x", "5\r\n 5")
_VERSIONS = ("HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/0.9", "HTTP/2", "X")


class OpenPort:
    """Tries at one server.

    Args:
        folder: for the files of its federation.
    """

    def __init__(self, folder: Path) -> None:
        from fedtailor.remote.demo import free_port
        from fedtailor.remote.keys.kit import JOB, make_federation, read_kit, revoke

        self._folder, self._port = folder, free_port()
        names = ("honest", "hostile", "revoked")
        make_federation(folder, names, address=f"127.0.0.1:{self._port}")
        for name in names:
            shutil.copy(folder / JOB, folder / "kits" / name)
        revoke(folder, "revoked")
        other = folder.with_name(f"{folder.name}-other")
        make_federation(other, ("hostile",), address="127.0.0.1:9092")
        kits = folder / "kits"
        self._pems = {
            "none": None,
            "other": other / "kits" / "hostile" / "client.pem",
            "revoked": kits / "revoked" / "client.pem",
            "hostile": kits / "hostile" / "client.pem",
        }
        self._authority = (folder / "coordinator" / "ca.crt").read_text()
        with (folder / "port.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "campaigns.port", str(folder), str(self._port)],
                stdout=log,
                stderr=log,
            )
        self._begin(read_kit(kits / "honest"))
        self._still_there("the start")
        self._memory = self._held()

    def _begin(self, kit: "Kit") -> None:
        """Let the honest client answer in a thread."""
        from fedtailor.remote.https.client import Connection, answer_messages

        self._asked, self._stop = 0, threading.Event()

        def respond(body: bytes) -> bytes:
            self._asked += 1
            return body

        self._honest = threading.Thread(
            target=answer_messages,
            args=(Connection(kit), respond),
            kwargs={"stop": self._stop},
        )
        self._honest.start()

    def stop(self) -> None:
        """End the server."""
        self._stop.set()
        self._honest.join()
        self._process.kill()
        self._process.wait()

    def open_port(self, rng: np.random.Generator) -> None:
        """One thing that somebody does; meanwhile and then the honest are served."""
        kinds = (
            *(self._bytes, self._requests, self._half, self._big, self._idle),
            *(self._flood, self._polls, self._slow_reader),
        )
        kind = kinds[int(rng.integers(len(kinds)))]
        drawn = kind(rng)
        self._still_there(drawn)
        grown = self._held() - self._memory
        assert grown < MORE_MEMORY, f"{drawn}: {grown / 1e6:.0f} MB more"

    def _bytes(self, rng: np.random.Generator) -> str:
        """Bytes that are not TLS, or no HTTP in it."""
        who = self._drawn(rng)
        tls = bool(rng.random() < 0.5)
        with suppress(OSError), self._connect(who if tls else None) as connection:
            connection.sendall(rng.bytes(int(rng.integers(1, 2**17))))
            self._read(connection)
        return f"bytes of {who}, {tls=}"

    def _requests(self, rng: np.random.Generator) -> str:
        """Requests whose parts are drawn; no answer is one of success, and without a
        certificate there is none.
        """
        who = self._drawn(rng)
        method = str(rng.choice(["POST", "POST", "GET", "PUT", "TRACE", "\x00", "PRI"]))
        path = _PATHS[int(rng.integers(len(_PATHS)))]
        version = str(rng.choice(_VERSIONS))
        length = str(rng.choice(_LENGTHS))
        lines = [f"{method} {path} {version}", "host: x", f"content-length: {length}"]
        optional = (
            "transfer-encoding: chunked",
            "transfer-encoding: gzip, chunked",
            "content-encoding: gzip",
            "expect: 100-continue",
            "content-length: 7",
            "connection: close",
            "upgrade: h2c",
        )
        lines += [line for line in optional if rng.random() < 0.15]
        if rng.random() < 0.7:
            lines.append("content-type: application/octet-stream")
        count = int(rng.choice([0, 5, 3000]))
        lines += [f"x-{number}: {'y' * 50}" for number in range(count)]
        head = "\r\n".join(lines) + "\r\n\r\n"
        answer = b""
        with suppress(OSError), self._connect(who) as connection:
            connection.sendall(head.encode("latin-1"))
            connection.sendall(rng.bytes(int(rng.integers(0, 2**12))))
            answer = self._read(connection)
        drawn = f"{who}: {head[:150]!r}: {answer[:200]!r}"
        assert b"Traceback" not in answer and b".py" not in answer, drawn
        is_served = answer.startswith(b"HTTP/1.1 2")
        waits = method == "GET" and path.startswith("/request/")
        assert not is_served or waits, drawn
        assert who == "hostile" or not answer, drawn
        return drawn

    def _half(self, rng: np.random.Generator) -> str:
        """Connections that send a part of a request and stay."""
        who, count = self._drawn(rng), int(rng.integers(1, 30))
        head = f"POST {_PATHS[2]} HTTP/1.1\r\nhost: x\r\ncontent-length: 60000\r\n\r\n"
        with ExitStack() as stack:
            for _ in range(count):
                with suppress(OSError):
                    connection = stack.enter_context(self._connect(who))
                    connection.sendall(
                        head[: int(rng.integers(len(head) + 1))].encode()
                    )
            self._still_there("halves")
        return f"{count} halves of {who}"

    def _big(self, rng: np.random.Generator) -> str:
        """A body that nobody asked for, of 1 GB or without an end, and compressed."""
        who = self._drawn(rng)
        kind = str(
            rng.choice(
                [
                    "content-length: 1000000000",
                    "content-length: 1000000000\r\ncontent-encoding: gzip",
                    "transfer-encoding: chunked",
                ]
            )
        )
        head = (
            f"POST {_PATHS[2]} HTTP/1.1\r\nhost: x\r\n{kind}\r\n"
            "content-type: application/octet-stream\r\n\r\n"
        )
        piece, sent = b"100000\r\n" + bytes(2**20) + b"\r\n", 0
        with suppress(OSError), self._connect(who) as connection:
            connection.sendall(head.encode())
            for _ in range(1000):
                connection.sendall(piece)
                sent += 1
        return f"a body of {who}, {kind}, {sent} MB"

    def _idle(self, rng: np.random.Generator) -> str:
        """Many connections at once, which say nothing."""
        who = self._drawn(rng) if rng.random() < 0.5 else None
        with ExitStack() as stack:
            for _ in range(IDLE if who is None else IDLE // 10):
                with suppress(OSError):
                    stack.enter_context(self._connect(who, 2.0))
            self._still_there("idle connections")
        return f"idle connections of {who}"

    def _flood(self, rng: np.random.Generator) -> str:
        """Connections that come as fast as a flood, some of which begin a handshake."""
        begun, tried = time.monotonic(), 0
        said = self._hello() if rng.random() < 0.5 else rng.bytes(5)
        with ExitStack() as stack:
            while tried < FLOOD and time.monotonic() - begun < FLOOD_S:
                with suppress(OSError):
                    plain = stack.enter_context(self._connect(None, 2.0))
                    plain.sendall(said)
                tried += 1
            self._still_there("a flood")
        seconds = time.monotonic() - begun
        return f"{tried} connections in {seconds:.1f} s, {len(said)} bytes each"

    def _polls(self, rng: np.random.Generator) -> str:
        """Sessions of a client that replace each other."""
        count = int(rng.integers(1, 40))
        with ExitStack() as stack:
            for _ in range(count):
                with suppress(OSError):
                    connection = stack.enter_context(self._connect("hostile"))
                    path = f"/request/{rng.bytes(16).hex()}/-"
                    connection.sendall(
                        f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode()
                    )
        return f"{count} sessions"

    def _slow_reader(self, rng: np.random.Generator) -> str:
        """Requests whose answers are not read."""
        head = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
        with suppress(OSError), self._connect("hostile") as connection:
            connection.sendall(head * int(rng.integers(1, 2000)))
        return "answers that are not read"

    def _drawn(self, rng: np.random.Generator) -> str:
        return str(rng.choice(list(self._pems)))

    def _connect(self, who: str | None, seconds: float = 10.0) -> socket.socket:
        """A connection with TLS and the certificate of somebody; None = without TLS."""
        plain = socket.create_connection(("127.0.0.1", self._port), seconds)
        if who is None:
            return plain
        context = ssl.create_default_context(cadata=self._authority)
        if (pem := self._pems[who]) is not None:
            context.load_cert_chain(pem)
        try:
            return context.wrap_socket(plain, server_hostname="127.0.0.1")
        except BaseException:
            plain.close()
            raise

    def _hello(self) -> bytes:
        """The first bytes of a handshake, which cost the server most of one."""
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = ssl.create_default_context(cadata=self._authority)
        tls = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        with suppress(ssl.SSLWantReadError):
            tls.do_handshake()
        return outgoing.read()

    def _read(self, connection: socket.socket) -> bytes:
        answer = b""
        with suppress(OSError):
            connection.settimeout(3.0)
            while len(answer) < 2**16 and (part := connection.recv(2**14)):
                answer += part
        return answer

    def _still_there(self, drawn: str) -> None:
        """The honest client is asked and answers a few more times."""
        wanted, end = self._asked + 3, time.monotonic() + PATIENCE_S
        while self._asked < wanted:
            assert self._process.poll() is None, f"{drawn}: the server ended"
            assert self._honest.is_alive(), f"{drawn}: the honest client was refused"
            assert time.monotonic() < end, f"{drawn}: the honest are not served"
            time.sleep(0.02)

    def _held(self) -> int:
        """The largest number of bytes that the server has held."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024


def _serve(folder: Path, port: int) -> None:
    """Ask the honest client again and again, until the process that began this ends."""
    from fedtailor.remote.https.server import serve_messages

    parent = os.getppid()
    with serve_messages(folder / "coordinator", port, host="127.0.0.1") as transport:
        transport.expect(LARGEST)
        is_asked = {}
        while os.getppid() == parent:
            session = transport.online().get("honest")
            if session is not None and is_asked.get("honest") != session:
                is_asked["honest"] = session
                transport.send("honest", os.urandom(2**16))
            for name, _ in transport.receive():
                assert name == "honest"
                is_asked.pop(name, None)


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), int(sys.argv[2]))

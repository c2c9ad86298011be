"""The SuperLink as a process of this one: started with TLS and authentication of
clients, and never left behind.
"""

import os
import secrets
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedtailor.protocol import require
from fedtailor.remote.flower import SETTINGS, require_flower
from fedtailor.remote.keys import check_secret

READY_S = 60.0
"""How long a SuperLink may take until it answers (about 2 s on an idle machine)."""

STOP_S = 10.0
"""How long a process may take to end when asked."""


@dataclass(frozen=True)
class SuperLink:
    """A SuperLink that runs.

    Attributes:
        address: "host:port" on which this machine reaches it.
        authority: PEM certificate of the federation's authority.
        secret: what proves that a request to carry out runs comes from the process that
            started it.
        process: its process.
        log: file with what it says.
    """

    address: str
    authority: bytes
    secret: bytes
    process: "subprocess.Popen[bytes]"
    log: Path

    def check(self) -> None:
        """Raise `RuntimeError`, in one line, if it has ended."""
        if self.process.poll() is not None:
            raise RuntimeError(
                f"the SuperLink ended: {_last_line(self.log)} (all of it in {self.log})"
            )


@contextmanager
def running_superlink(
    coordinator: Path, port: int, *, host: str = "0.0.0.0"
) -> Iterator[SuperLink]:
    """Start a SuperLink with the certificates of a coordinator's directory, and stop it
    at the end.

    Args:
        coordinator: directory with ca.crt, server.crt and server.key.
        port: that all machines use.
        host: address to listen on; all of this machine's by default.

    Raises:
        ValueError: Flower or a file is missing, or the port is taken.
        RuntimeError: the SuperLink did not start.
    """
    require_flower()
    for name in ("ca.crt", "server.crt"):
        require(
            (coordinator / name).is_file(),
            f"{coordinator / name} is missing; make it with federation init",
        )
    check_secret(coordinator / "server.key")
    _wait_for_port(host, port)
    secret_file, log = coordinator / ".superlink-secret", coordinator / "superlink.log"
    secret = secrets.token_bytes(32)
    _write_private(secret_file, secret)
    command = [
        sys.executable,
        "-m",
        "fedtailor.remote.superlink",
        "--host",
        host,
        "--port",
        str(port),
        "--ssl-ca-certfile",
        str(coordinator / "ca.crt"),
        "--ssl-certfile",
        str(coordinator / "server.crt"),
        "--ssl-keyfile",
        str(coordinator / "server.key"),
        "--enable-supernode-auth",
        "--disable-runtime-dependency-installation",
        "--isolation",
        "process",
        "--superexec-auth-secret-file",
        str(secret_file),
    ]
    environment = os.environ | SETTINGS | {"FLWR_HOME": str(coordinator / ".flower")}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    local = "127.0.0.1" if host in ("0.0.0.0", "::", "localhost") else host
    link = SuperLink(
        f"{local}:{port}", (coordinator / "ca.crt").read_bytes(), secret, process, log
    )
    try:
        _wait_until_ready(link, local, port)
        yield link
    finally:
        stop(process)
        secret_file.unlink(missing_ok=True)


def stop(process: "subprocess.Popen[bytes]") -> None:
    """End a process: ask, wait, then kill."""
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def free_port() -> int:
    """A port on which nobody listens at the moment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _wait_for_port(host: str, port: int) -> None:
    """Wait for a SuperLink whose coordinator was killed a moment ago to be gone."""
    end = time.monotonic() + STOP_S
    while True:
        with socket.socket(
            socket.AF_INET6 if ":" in host else socket.AF_INET
        ) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((host, port))
                return
            except OSError as error:
                taken = (
                    f"cannot listen on {host}:{port}: {error.strerror}; is another"
                    " coordinator running?"
                )
        require(time.monotonic() < end, taken)
        time.sleep(0.2)


def _wait_until_ready(link: SuperLink, host: str, port: int) -> None:
    """Wait until TLS connections are answered, with a certificate of this
    federation.
    """
    context = ssl.create_default_context(cadata=link.authority.decode())
    end = time.monotonic() + READY_S
    while time.monotonic() < end:
        link.check()
        try:
            with (
                socket.create_connection((host, port), 1) as plain,
                context.wrap_socket(plain, server_hostname=host),
            ):
                return
        except ssl.SSLCertVerificationError as error:
            raise ValueError(
                f"server.crt does not fit ca.crt: {error.verify_message}"
            ) from None
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(
        f"the SuperLink did not answer within {READY_S:.0f} s; see {link.log}"
    )


def _write_private(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def _last_line(log: Path) -> str:
    lines = [
        line.strip()
        for line in log.read_text(errors="replace").splitlines()
        if line.strip()
    ]
    return lines[-1] if lines else "it said nothing"

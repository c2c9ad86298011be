"""Runs Flower's SuperLink as a child process, with TLS and authenticated clients.

The SuperLink never outlives the process that started it: it is stopped at the end, and
exits by itself if that process is killed.
"""

import os
import secrets
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedtailor._base.choice import MachineFailed, require
from fedtailor._base.printable import say
from fedtailor.remote.flower.common import SETTINGS, require_flower
from fedtailor.remote.flower.superlink import COORDINATOR, LARGEST_BODY
from fedtailor.remote.keys.keys import check_secret, write_new

READY_S = 60.0
"""Seconds after which a line says that a SuperLink takes long to start (about 2 on an idle
machine).
"""

GIVE_UP_S = 900.0
"""Seconds that a SuperLink may take to start while its process lives."""

STOP_S = 10.0
"""Seconds that a process may take to terminate."""


@dataclass(frozen=True)
class SuperLink:
    """A running SuperLink.

    Attributes:
        address: "host:port" at which this machine reaches it.
        authority: PEM certificate of the federation's authority.
        secret: authorizes the process that started it to execute runs.
        process: its process.
        log: file with its output.
    """

    address: str
    authority: bytes
    secret: bytes
    process: "subprocess.Popen[bytes]"
    log: Path

    def check(self) -> None:
        """Check that the SuperLink is running.

        Raises:
            MachineFailed: it has ended; with the last line of its output.
        """
        if self.process.poll() is not None:
            raise MachineFailed(
                f"the SuperLink ended: {_last_line(self.log)} (all of it in {self.log})"
            )


@contextmanager
def running_superlink(
    coordinator: Path,
    port: int,
    *,
    host: str = "0.0.0.0",
    log: Callable[[str], None] = say,
) -> Iterator[SuperLink]:
    """Start a SuperLink, and stop it at the end of the block.

    Args:
        coordinator: directory with ca.crt, server.crt and server.key.
        port: port of the SuperLink.
        host: address to listen on; by default all addresses of this machine.
        log: called with a line if it takes long.

    Raises:
        ValueError: Flower or a file is missing, or the port is in use.
        MachineFailed: the SuperLink did not start.
    """
    require_flower()
    for name in ("ca.crt", "server.crt"):
        require(
            (coordinator / name).is_file(),
            f"{coordinator / name} is missing; make it with federation init",
        )
    check_secret(coordinator / "server.key")
    _wait_for_port(host, port)
    output_file = coordinator / "superlink.log"
    secret_file = coordinator / ".superlink-secret"
    secret = secrets.token_bytes(32)
    secret_file.unlink(missing_ok=True)  # of a coordinator that was killed
    write_new(secret_file, secret, secret=True)
    command = [
        sys.executable,
        "-m",
        "fedtailor.remote.flower.superlink",
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
    environment = (
        os.environ
        | SETTINGS
        | {
            "FLWR_HOME": str(coordinator / ".flower"),
            COORDINATOR: str(coordinator.resolve()),
        }
    )
    (coordinator / LARGEST_BODY).unlink(missing_ok=True)
    with output_file.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    local = "127.0.0.1" if host in ("0.0.0.0", "::", "localhost") else host
    link = SuperLink(
        f"{local}:{port}",
        (coordinator / "ca.crt").read_bytes(),
        secret,
        process,
        output_file,
    )
    try:
        _wait_until_ready(link, local, port, log)
        yield link
    finally:
        stop(process)
        secret_file.unlink(missing_ok=True)


def stop(process: "subprocess.Popen[bytes]") -> None:
    """Terminate a process, and kill it if it does not end in time."""
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def free_port() -> int:
    """Find a port that is not in use at the moment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _wait_for_port(host: str, port: int) -> None:
    """Wait until a port is free.

    The SuperLink of a coordinator that was killed needs some time to release it.

    Raises:
        ValueError: the port stays in use.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    end = time.monotonic() + STOP_S
    while True:
        with socket.socket(family) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((host, port))
                return
            except OSError as error:
                problem = error.strerror
        require(
            time.monotonic() < end,
            f"cannot listen on {host}:{port}: {problem}; is another coordinator"
            " running?",
        )
        time.sleep(0.2)


def _wait_until_ready(
    link: SuperLink, host: str, port: int, log: Callable[[str], None]
) -> None:
    """Wait until the SuperLink answers TLS connections, as long as it lives: a machine
    may have much else to do.

    Raises:
        ValueError: its certificate is not one of this federation.
        MachineFailed: it has ended, or takes too long.
    """
    context = ssl.create_default_context(cadata=link.authority.decode())
    begun, has_said = time.monotonic(), False
    while (passed := time.monotonic() - begun) < GIVE_UP_S:
        link.check()
        if passed > READY_S and not has_said:
            has_said = True
            log(
                f"the SuperLink has not answered for {passed:.0f} s, and its process lives:"
                f" this machine may be busy; waiting (its output is in {link.log})"
            )
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
    raise MachineFailed(
        f"the SuperLink did not answer within {GIVE_UP_S:.0f} s; see {link.log}"
    )


def _last_line(log: Path) -> str:
    text = log.read_text(errors="replace").strip()
    return text.splitlines()[-1].strip() if text else "it said nothing"

"""A client in a process of its own, whose coordinator is whoever starts the process.

`python -m campaigns.client_process KIT DATA` runs what `fedtailor federation join` runs.
Only its connection is another one: messages come from the standard input, and answers
go to the standard output, each with 8 bytes of its length in front.
"""

import os
import resource
import subprocess
import sys
import threading
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from fedtailor.remote.client.client import responder_of
from fedtailor.remote.client.store import ClientStore
from fedtailor.remote.keys.kit import Kit, read_kit
from fedtailor.remote.wire.run_log import Lines, client_log

if TYPE_CHECKING:
    from fedtailor.remote.https.client import Message

MOST_MEMORY = 24 * 2**30
"""Bytes of addresses that the process may ask for."""

DISK = b"disk"
"""Begins a message that bounds the size of files, in place of a full disk."""

NO_ANSWER = b""


class Ended(AssertionError):
    """A client's process has ended, or does not answer."""


class ClientProcess:
    """The process of a client, seen from its coordinator.

    Args:
        kit: directory of the client's kit.
        data: the client's file.
        log: file for what it says.
    """

    def __init__(self, kit: Path, data: Path, log: Path) -> None:
        self.log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "campaigns.client_process", str(kit), str(data)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
            )

    @property
    def pid(self) -> int:
        """For signals."""
        return self._process.pid

    def ask(self, body: bytes, seconds: float = 90.0) -> bytes:
        """Send a message, and wait for the answer; `NO_ANSWER` = it was not answered.

        Raises:
            Ended: the process ended, or did not answer in time.
        """
        late = threading.Timer(seconds, self._process.kill)
        late.start()
        try:
            stdin, stdout = self._process.stdin, self._process.stdout
            assert stdin is not None and stdout is not None
            _write(stdin, body)
            answer = _read(stdout)
        except OSError:
            answer = None
        finally:
            late.cancel()
        if answer is None:
            code = self._process.wait()
            raise Ended(f"the client ended ({code}): {self.said()[-1500:]}")
        return answer

    def fill_disk(self, size: int | None) -> None:
        """Let no file grow beyond a size; None = any size again."""
        self.ask(DISK + str(-1 if size is None else size).encode())

    def said(self) -> str:
        """What it has logged."""
        return self.log.read_text("utf-8", errors="replace")

    def peak_memory(self) -> int:
        """The largest number of bytes that it has held."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


class ClientHere:
    """A client in this process, with the interface of `ClientProcess`.

    It starts at once, so that many more messages can be tried.
    """

    def __init__(self, kit: Path, data: Path, log: Path) -> None:
        self._lines: list[str] = []
        read = read_kit(kit)
        self._name = read.name
        self._store = ClientStore(read.state, read.job.identity).__enter__()
        try:
            with self._hearing():
                self._responder = responder_of(read, self._store, data)
        except BaseException:
            self.stop()  # the lock of a process goes with it
            raise

    def ask(self, body: bytes, seconds: float = 90.0) -> bytes:
        """Answer a message.

        Raises:
            Ended: an exception would have ended the process.
        """
        try:
            with self._hearing():
                return self._responder(body)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            raise Ended(f"the client ended: {type(error).__name__}: {error}") from error

    def _hearing(self) -> AbstractContextManager[None]:
        """Notes what it logs until the end of the block, as others may have its name."""
        return Lines(self._lines.append).of(client_log(self._name))

    def said(self) -> str:
        """What it has logged."""
        return "\n".join(self._lines)

    def peak_memory(self) -> int:
        """The largest number of bytes that this process has held."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def stop(self) -> None:
        """Let another client use the directory."""
        self._store.__exit__(None, None, None)


def _write(stream: IO[bytes], body: bytes) -> None:
    stream.write(len(body).to_bytes(8, "big") + body)
    stream.flush()


def _read(stream: IO[bytes]) -> bytes | None:
    head = stream.read(8)
    if len(head) < 8:
        return None
    body = stream.read(int.from_bytes(head, "big"))
    return body if len(body) == int.from_bytes(head, "big") else None


class _Pipe:
    """In place of the `Connection` of a client."""

    def __init__(self, kit: Kit) -> None:
        self.address, self.log = "a pipe", client_log(kit.name)
        self._in, self._out = sys.stdin.buffer, _ANSWERS

    def next(self, after: str) -> "Message":
        from fedtailor.remote.https.client import Message

        while True:
            body = _read(self._in)
            if body is None:
                os._exit(0)
            if not body.startswith(DISK):
                return Message("0", body)
            size = int(body[len(DISK) :])
            limit = resource.RLIM_INFINITY if size < 0 else size
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            _write(self._out, NO_ANSWER)

    def answer(self, number: str, body: bytes) -> bool:
        _write(self._out, body)
        return True

    def close(self) -> None:
        pass


def _main() -> None:
    from fedtailor.remote.https import client
    from fedtailor.remote.service import join

    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    client.Connection = _Pipe  # type: ignore[misc,assignment]
    join(read_kit(Path(sys.argv[1])), Path(sys.argv[2]))


if __name__ == "__main__":
    # Lines of the log go to the standard error: the standard output holds answers.
    _ANSWERS = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _main()

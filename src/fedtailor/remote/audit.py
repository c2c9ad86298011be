"""A client's log of every message that left it, as JSON lines on its own disk.

A line is on the disk before its message leaves. The log holds no data: it says when what
kind of message left, how large it was, and its SHA-256, by which a copy of the message
that turns up elsewhere is recognised.
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from fedtailor._files import reason
from fedtailor.remote.account import append
from fedtailor.remote.messages import Reply, Request

AUDIT = "audit.jsonl"
"""File in the directory of a client's states. Older lines are in audit.1.jsonl, ..."""

ENTRIES = ("time", "run", "round", "kind", "bytes", "sha256")
"""The entries of a line; a refusal has its code as "refused", too."""

MAX_BYTES = 2**24
"""Size at which a new file is begun: about 60,000 messages."""

MAX_FILES = 5
"""Number of files that are kept; the oldest one is deleted."""


class AuditLog:
    """The log of one client (a `Recorder` for `Responder`).

    Args:
        directory: directory of the client's states.
        tasks: the tasks that a client knows. Others are logged as "unknown", as they
            are any text of the coordinator's.
        max_bytes: size at which a new file is begun.
    """

    def __init__(
        self, directory: Path, tasks: Sequence[str], *, max_bytes: int = MAX_BYTES
    ) -> None:
        self.path = directory / AUDIT
        self._tasks, self._max_bytes = frozenset(tasks), max_bytes

    def __call__(self, request: Request, reply: Reply, message: bytes) -> None:
        """Log a message that is about to leave.

        Raises:
            ValueError: the log cannot be written.
        """
        values = (
            datetime.now(UTC).isoformat(timespec="milliseconds"),
            request.run,
            request.round,
            request.task if request.task in self._tasks else "unknown",
            len(message),
            hashlib.sha256(message).hexdigest(),
        )
        line: dict[str, Any] = dict(zip(ENTRIES, values, strict=True))
        if reply.refusal is not None:
            line["refused"] = reply.refusal.value
        elif reply.cache_miss:
            line["refused"] = "cache-miss"
        data = (json.dumps(line) + "\n").encode()
        try:
            with self._locked() as file:
                append(file, _newline_if_torn(file) + data)
        except OSError as error:
            raise ValueError(
                f"cannot write the audit log {self.path}: {reason(error)}"
            ) from None

    @contextmanager
    def _locked(self) -> Iterator[IO[bytes]]:
        """Open the file for appending; no other process does at this time."""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        while True:
            with open(os.open(self.path, flags, 0o600), "r+b", buffering=0) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                # Another process may have renamed the file meanwhile.
                if not os.path.samestat(os.fstat(file.fileno()), os.stat(self.path)):
                    continue
                if file.seek(0, os.SEEK_END) < self._max_bytes:
                    yield file
                    return
                self._rotate()

    def _rotate(self) -> None:
        """Rename all files, so that the next line begins a new one."""
        files = [self.path, *_older(self.path)]
        for number in reversed(range(1, len(files))):
            if files[number - 1].exists():
                files[number - 1].replace(files[number])


def _newline_if_torn(file: IO[bytes]) -> bytes:
    """A newline if the last line was not written to its end, as the power failed."""
    size = file.seek(0, os.SEEK_END)
    if size == 0:
        return b""
    file.seek(size - 1)
    return b"" if file.read(1) == b"\n" else b"\n"


def read_audit(directory: Path) -> Iterator[dict[str, Any]]:
    """The lines of a client's log, from the oldest one.

    A line that was not written to its end, as the power failed, is left out: its message
    did not leave.

    Raises:
        ValueError: a file cannot be read.
    """
    path = directory / AUDIT
    for file in reversed([path, *_older(path)]):
        if not file.exists():
            continue
        try:
            text = file.read_text("utf-8", errors="replace")
        except OSError as error:
            raise ValueError(f"cannot read {file}: {reason(error)}") from None
        for line in text.splitlines():
            with suppress(ValueError):
                entry = json.loads(line)
                if isinstance(entry, dict) and entry.keys() >= set(ENTRIES):
                    yield entry


def _older(path: Path) -> list[Path]:
    """The files of older lines, from the newest one."""
    return [path.with_name(f"audit.{number}.jsonl") for number in range(1, MAX_FILES)]

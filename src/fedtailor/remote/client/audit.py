"""A client's log of every message that left it, as JSON lines on its own disk.

A line is on the disk before its message leaves. The log holds no data: it says when what
kind of message left, how large it was, and its SHA-256, which identifies a copy of the
message that turns up elsewhere.

A coordinator can be refused, or ask for the same answer again, as often as it likes. Such
messages have files of their own, so that they push out no record of an answer.
"""

import hashlib
import heapq
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from fedtailor._base.files import reason
from fedtailor.engine.storage.lock import locked_lines
from fedtailor.remote.client.account import append
from fedtailor.remote.wire.messages import Reply, Request
from fedtailor.remote.wire.secure_sums import SUM

AUDIT = "audit.jsonl"
"""File of answers in the directory of a client's states. Older lines are in
audit.1.jsonl, ...
"""

REPEATED = "audit-repeated.jsonl"
"""File of refusals, and of answers that the same process has given before."""

ENTRIES = {
    "time": str,
    "run": str,
    "round": int,
    "kind": str,
    "bytes": int,
    "sha256": str,
}
"""The entries of a line and their types; a refusal has its code as "refused", too."""

MAX_BYTES = 2**24
"""Size at which a new file is begun: about 60,000 messages."""

MAX_FILES = 5
"""Number of files of each kind that are kept; the oldest one is deleted."""


class AuditLog:
    """The log of one client (a `Recorder` for `Responder`).

    Args:
        directory: directory of the client's states.
        tasks: the tasks that a client knows. Others are logged as "unknown", as they
            are any text of the coordinator's.
        before_training: those of them that belong to no round of a run, so that they
            are answered again in each.
        max_bytes: size at which a new file is begun.
    """

    def __init__(
        self,
        directory: Path,
        tasks: Sequence[str],
        *,
        before_training: Sequence[str] = (),
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self.path, self._repeated = directory / AUDIT, directory / REPEATED
        self._tasks, self._max_bytes = frozenset(tasks), max_bytes
        self._before_training = frozenset(before_training)
        # Places of the answers that this process has logged.
        self._answered: set[tuple[Any, ...]] = set()

    def __call__(self, request: Request, reply: Reply, message: bytes) -> None:
        """Log a message that is about to leave.

        Raises:
            ValueError: the log cannot be written.
        """
        values = (
            datetime.now(UTC).isoformat(timespec="microseconds"),
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
        # A request that is refused may hold anything.
        place = None if "refused" in line else self._place_of(request)
        is_repeated = place is None or place in self._answered
        path = self._repeated if is_repeated else self.path
        try:
            with self._locked(path) as file:
                append(file, _newline_if_torn(file) + data)
        except OSError as error:
            raise ValueError(
                f"cannot write the audit log {path}: {reason(error)}"
            ) from None
        if place is not None:
            self._answered.add(place)

    def _place_of(self, request: Request) -> tuple[Any, ...]:
        """What has one answer, however often it is asked for.

        A coordinator cannot ask for many of them: a job has so many rounds, phases, steps
        and vectors. Sums have names that it chooses; these do not count.
        """
        asked, task = request.algorithm, request.task
        if task in self._before_training:
            return "", 0, task, asked.get("step")
        vector = asked.get(SUM)
        kind = (vector.get("kind"), vector.get("number")) if vector else ()
        return request.run, request.round, task, asked.get("phase"), *kind

    @contextmanager
    def _locked(self, path: Path) -> Iterator[IO[bytes]]:
        """Open a file for appending; no other process does at this time."""
        while True:
            with locked_lines(path) as file:
                if file.seek(0, os.SEEK_END) < self._max_bytes:
                    yield file
                    return
                _rotate(path)


def _rotate(path: Path) -> None:
    """Rename a file and its older ones, so that the next line begins a new one."""
    files = [path, *_older(path)]
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
    kinds = (_read(directory / AUDIT), _read(directory / REPEATED))
    yield from heapq.merge(*kinds, key=lambda entry: str(entry["time"]))


def _read(path: Path) -> Iterator[dict[str, Any]]:
    for file in reversed([path, *_older(path)]):
        if not file.exists():
            continue
        try:
            text = file.read_text("utf-8", errors="replace")
        except OSError as error:
            raise ValueError(f"cannot read {file}: {reason(error)}") from None
        for line in text.splitlines():
            with suppress(ValueError, RecursionError):
                entry = json.loads(line)
                if isinstance(entry, dict) and all(
                    type(entry.get(name)) is kind for name, kind in ENTRIES.items()
                ):
                    yield entry


def _older(path: Path) -> list[Path]:
    """The files of older lines, from the newest one."""
    return [
        path.with_name(f"{path.stem}.{number}{path.suffix}")
        for number in range(1, MAX_FILES)
    ]

"""Where a client's answers come from: its place, and its rows.

A kit that is copied with its state can answer in the client's name, and a client can be
started again with other rows. Both may be meant, so nothing is refused, but both sides
are warned: the client compares with what it has stored and with what the coordinator
has heard, and the coordinator with what it has heard before.

What is sent reveals nothing: digests under a key that only the client has, so that
nobody else can tell rows or machines by trying them.
"""

import hashlib
import hmac
import json
import logging
import os
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fedtailor._base.files import atomic_write, create_secret
from fedtailor.remote.wire.run_log import COORDINATOR_LOG

KEY, ORIGIN = ".origin-key", "origin"
"""Files in a client's directories: the key of its digests, and its last origin."""

KEY_BYTES = 32

MACHINE_FILES = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))

DIGITS = 16
"""Hexadecimal digits of a digest."""


@dataclass(frozen=True)
class Origin:
    """Digests, equal if and only if what they stand for is.

    Attributes:
        place: of the machine and the directory.
        rows: of the rows and how they are split.
    """

    place: str
    rows: str

    @property
    def text(self) -> str:
        """The origin as messages and files hold it."""
        return self.place + self.rows

    @classmethod
    def of(cls, text: str) -> "Origin | None":
        """The origin that `text` holds; None if it holds none."""
        digits = len(text) == 2 * DIGITS and all(c in "0123456789abcdef" for c in text)
        return cls(text[:DIGITS], text[DIGITS:]) if digits else None


class OwnOrigin:
    """The origin of this process, a client of one job.

    Args:
        client_directory: directory of the client, for all of its jobs.
        job_directory: the part of it for this job.
        rows: everything that the client's rows consist of.
        log: where lines for the user go.

    Raises:
        ValueError: a file cannot be read or written.
    """

    def __init__(
        self,
        client_directory: Path,
        job_directory: Path,
        rows: Iterable[bytes],
        log: logging.Logger,
    ) -> None:
        self._log = log
        file = job_directory / ORIGIN
        try:
            key = _key(client_directory / KEY)
            self._own = Origin(
                _digest(key, b"place", [_place(client_directory)]),
                _digest(key, b"rows", rows),
            )
            before = Origin.of(file.read_text("ascii")) if file.exists() else None
            with atomic_write(file) as temporary:
                temporary.write_text(self._own.text)
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"cannot use {client_directory}: {error}") from None
        # Places from which this state has answered, as far as this process knows.
        self._known, self._is_said = {self._own.place}, False
        if before is None:
            return
        self._known.add(before.place)
        if before.place != self._own.place:
            log.warning(
                "this kit was used on another machine or in another directory before;"
                " if it was copied, stop one of the two: they take the connection from"
                " each other, and one of them spoils the other's state"
            )
        if before.rows != self._own.rows:
            log.warning(
                "the rows differ from those that this client had in this job"
                " before, and the coordinator learns that they changed; training"
                " continues with them, but for sums behind masks: these need the former"
                " rows, or a new job"
            )

    @property
    def text(self) -> str:
        """The origin as replies hold it."""
        return self._own.text

    def compare(self, heard: str) -> None:
        """Log a line, once, if another process has answered in this client's name.

        Args:
            heard: the origin that the coordinator has heard last; empty if none.
        """
        other = Origin.of(heard)
        if self._is_said or other is None or other.place in self._known:
            return
        # The coordinator chooses what was heard, and would choose how many lines there are.
        self._is_said = True
        self._log.warning(
            "a process on another machine or in another directory has answered in this"
            " client's name: a copy of its kit is in use; stop it, and tell the"
            " coordinator if it is not yours"
        )


class Origins:
    """The origins that a coordinator has heard.

    Args:
        path: file that keeps them from one start to the next; None = they are not kept.
        experiment: identity of the job; origins of other jobs do not count.
    """

    def __init__(
        self,
        path: Path | None = None,
        experiment: str = "",
    ) -> None:
        self._path, self._experiment = path, experiment
        self._heard: dict[str, Origin] = {}
        if path is None or not path.is_file():
            return
        try:
            content = json.loads(path.read_text("utf-8"))
            if content["experiment"] == experiment:
                for name, text in content["clients"].items():
                    if origin := Origin.of(text):
                        self._heard[name] = origin
        except (
            *(OSError, ValueError, KeyError),
            *(TypeError, AttributeError, RecursionError),
        ):
            COORDINATOR_LOG.warning(
                f"{path} is damaged; clients are not compared with earlier starts"
            )

    def of(self, client: str) -> str:
        """The origin of a client that was heard last; empty if none."""
        origin = self._heard.get(client)
        return "" if origin is None else origin.text

    def hear(self, client: str, text: str) -> None:
        """Note the origin of an answer; log a line if it is another one than before."""
        now, before = Origin.of(text), self._heard.get(client)
        if now is None or now == before:
            return
        self._heard[client] = now
        if before is not None and now.place != before.place:
            COORDINATOR_LOG.warning(
                f"client {client}: it answers from another machine or directory than"
                " before; if its kit was not moved, a copy of it is in use"
            )
        if before is not None and now.rows != before.rows:
            COORDINATOR_LOG.warning(
                f"client {client}: its rows differ from before; it keeps the weight"
                " that was agreed at the start"
            )
        if self._path is not None:
            clients = {name: origin.text for name, origin in self._heard.items()}
            content = {"experiment": self._experiment, "clients": clients}
            with atomic_write(self._path) as temporary:
                temporary.write_text(json.dumps(content), encoding="utf-8")


def _key(path: Path) -> bytes:
    """Read the key of a client's digests, or draw it at the first call.

    One of another length is damaged, and drawn again: under a part of it, whoever tries rows
    could tell them from their digests.
    """
    if path.is_file() and path.stat().st_size != KEY_BYTES:
        path.unlink(missing_ok=True)
    if not path.is_file():
        create_secret(path, secrets.token_bytes(KEY_BYTES))
    return path.read_bytes()


def _place(directory: Path) -> bytes:
    """What differs on another machine, and in a copy of the directory."""
    machine = b""
    for path in MACHINE_FILES:
        if path.is_file():
            machine = path.read_bytes()
            break
    number = str(directory.stat().st_ino).encode()
    return b"\0".join((machine, os.fsencode(directory.resolve()), number))


def _digest(key: bytes, purpose: bytes, parts: Iterable[bytes]) -> str:
    digest = hmac.new(key, purpose, hashlib.sha256)
    for part in parts:
        # Lengths keep ("ab", "c") and ("a", "bc") apart.
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()[:DIGITS]

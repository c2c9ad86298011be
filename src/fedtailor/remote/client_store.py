"""What a client keeps from round to round, on its own disk and nowhere else.

A state is written under the round after which it holds, whole or not at all. Which
round is the last one accepted is the coordinator's to say, and it says so in every
request; so an answer that was lost, late or refused leaves no trace: the next request
names an older state, and the newer one is dropped.
"""

import fcntl
import os
import re
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from fedtailor.protocol import require
from fedtailor.storage.checkpoint import load_tree, save_tree

_NAME = re.compile(r"round-(\d{8})\.safetensors")


class ClientStore:
    """The states of one client in one experiment.

    Used as a context manager it holds the directory's lock, so that two processes never
    work in it.

    Args:
        directory: of the client; made if it is not there, readable by its owner only.
        experiment: identity of the job (`Job.identity`).

    Raises:
        ValueError: the directory cannot be made.
    """

    def __init__(self, directory: Path, experiment: str) -> None:
        self.directory = directory / experiment[:16]
        self._lock: IO[bytes] | None = None
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(
                f"cannot make the state directory {self.directory}: {error.strerror}"
            ) from None

    def __enter__(self) -> "ClientStore":
        """Take the lock; raises `ValueError` if another process has it."""
        self._lock = (self.directory / ".lock").open("wb")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise ValueError(
                f"another process works in {self.directory}; stop it, or wait for"
                " its end"
            ) from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release the lock."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def rounds(self) -> list[int]:
        """Rounds after which a state is here, in order."""
        found = (_NAME.fullmatch(path.name) for path in self.directory.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def load(self, state_round: int) -> Any | None:
        """The state after a round; None for -1, the state of a client that has not
        taken part.

        Raises:
            ValueError: it is not here, or damaged.
        """
        if state_round < 0:
            return None
        path = self._path(state_round)
        require(
            path.is_file(),
            f"the state after round {state_round} is not in {self.directory}; restore"
            " it from a backup, or join as a new client",
        )
        return load_tree(path)

    def save(self, round: int, state: Any) -> None:
        """Write the state after a round (a tree of plain containers and arrays), whole
        or not at all.
        """
        save_tree(self._path(round), state)

    def prune(self, state_round: int, durable_state_round: int) -> None:
        """Drop what no coordinator can ask for any more.

        That is what is older than the coordinator's disk says, and what is newer than
        it accepted.

        Args:
            state_round: of the request: the state that the coordinator accepted last.
            durable_state_round: of the request: the same, as it stands on the
                coordinator's disk.
        """
        for round in self.rounds():
            # the state on the disk stays also where a new phase of a schedule starts
            # without one (state_round = -1)
            if (
                round != durable_state_round
                and not durable_state_round <= round <= state_round
            ):
                self._path(round).unlink(missing_ok=True)

    def size(self) -> int:
        """Bytes of all states here."""
        return sum(os.path.getsize(self._path(round)) for round in self.rounds())

    def _path(self, round: int) -> Path:
        return self.directory / f"round-{round:08d}.safetensors"

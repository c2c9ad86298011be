"""What a client keeps from round to round, on its own disk and nowhere else.

A state is written under the round after which it holds, whole or not at all. The
coordinator decides which round counts, and every request names the state to start from.
So an answer that was lost, late or refused leaves no trace: the next request names an
older state, and the newer one is dropped.
"""

import fcntl
import re
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from fedtailor.protocol import require
from fedtailor.storage.checkpoint import load_tree, save_tree

_NAME = re.compile(r"round-(\d{8})\.safetensors")


class ClientStore:
    """The states of one client in one experiment.

    As a context manager it holds the directory's lock, so that two processes never work
    in it.

    Args:
        directory: of the client; made if it does not exist, readable by its owner only.
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
        """Take the lock.

        Raises:
            ValueError: another process has it.
        """
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
        """The rounds after which a state is stored, in order."""
        matches = (_NAME.fullmatch(path.name) for path in self.directory.iterdir())
        return sorted(int(match[1]) for match in matches if match)

    def load(self, state_round: int) -> Any | None:
        """Read the state after a round.

        Returns:
            What `save` was given; None for round -1, as a client that has not taken
            part has no state.

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
        """Write the state after a round, whole or not at all.

        Args:
            round: after which it holds.
            state: a tree of plain containers and arrays.
        """
        save_tree(self._path(round), state)

    def prune(self, state_round: int, durable_state_round: int) -> None:
        """Delete the states that no coordinator can ask for any more.

        Those are older than the state on the coordinator's disk, where it would start
        again after a crash, or newer than the last one it accepted.

        Args:
            state_round: of the request: the state that the coordinator accepted last.
            durable_state_round: of the request: the same, as it is on the coordinator's
                disk.
        """
        for round in self.rounds():
            needed = durable_state_round <= round <= state_round
            # A new phase of a schedule starts without a state (state_round = -1). Until
            # the coordinator has saved that, it may still go back to the durable one.
            if not needed and round != durable_state_round:
                self._path(round).unlink(missing_ok=True)

    def _path(self, round: int) -> Path:
        return self.directory / f"round-{round:08d}.safetensors"

"""A client's states on its own disk.

The file of a state names the round that produced it, and is written atomically. The
coordinator decides which state is valid, and every request names the state to start
from. So an answer that was lost, late or refused has no effect: the next request names
an older state, and the newer one is deleted.

All states are of one run, the one that saved last. So a run cannot be continued from the
states of another: the same request would have another answer then, and another noise.
"""

import re
import shutil
from pathlib import Path
from types import TracebackType
from typing import Any

from fedtailor._base.choice import require
from fedtailor.engine.storage.checkpoint import load_tree, save_tree
from fedtailor.engine.storage.lock import LOCK, ProcessLock, is_held

RUN = "run-"
"""Beginning of the name of a run's directory of states."""

_NAME = re.compile(r"round-(\d{8})\.safetensors")


class ClientStore:
    """The states of one client in one experiment.

    As a context manager it locks its directory, so that no two processes use it at the
    same time.

    Args:
        directory: the client's directory, of all its jobs; created, readable by its owner only, if it
            does not exist.
        experiment: identity of the job (`Job.identity`).

    Raises:
        ValueError: the directory cannot be created.
    """

    def __init__(self, directory: Path, experiment: str) -> None:
        self.client_directory = directory
        self.directory = _folder_of(directory, experiment)
        self._lock = ProcessLock(self.directory / LOCK)
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(
                f"cannot make the state directory {self.directory}: {error.strerror}"
            ) from None

    def __enter__(self) -> "ClientStore":
        """Take the lock.

        Raises:
            ValueError: another process holds it.
        """
        require(
            not self._lock.try_acquire(),
            f"another process works in {self.directory}; stop it, or wait for its end",
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release the lock."""
        self._lock.release()

    def rounds(self, run: str = "") -> list[int]:
        """The rounds of a run whose states are stored, in ascending order."""
        folder = self._folder(run)
        if not folder.is_dir():
            return []
        matches = (_NAME.fullmatch(path.name) for path in folder.iterdir())
        return sorted(int(match[1]) for match in matches if match)

    def load(self, state_round: int, run: str = "") -> Any | None:
        """Read the state after a round.

        Args:
            state_round: the round; -1 = before the first.
            run: identity of the run.

        Returns:
            The state as passed to `save`; None for round -1, as a client that has not
            taken part has no state.

        Raises:
            ValueError: there is no such state, or its file is damaged.
        """
        if state_round < 0:
            return None
        path = self._path(state_round, run)
        require(
            path.is_file(),
            f"the state after round {state_round} of this run is not in"
            f" {self.directory}; restore it from a backup, or begin a new run",
        )
        return load_tree(path)

    def save(self, round: int, state: Any, run: str = "") -> None:
        """Write the state after a round, atomically; those of another run are deleted.

        Args:
            round: the round that produced the state.
            state: a tree of plain containers and arrays.
            run: identity of the run.
        """
        folder = self._folder(run)
        folder.mkdir(mode=0o700, exist_ok=True)
        save_tree(self._path(round, run), state)
        for other in self.directory.glob(f"{RUN}*"):
            if other != folder:
                shutil.rmtree(other, ignore_errors=True)

    def prune(self, state_round: int, durable_state_round: int, run: str = "") -> None:
        """Delete the states of a run that the coordinator cannot ask for any more.

        Those are states older than the one in the coordinator's last checkpoint, from
        which it resumes after a crash. If that one is not here, the number is wrong,
        and all are kept. States newer than the last accepted one are kept, too: an old
        request that arrives once more must not cost the client its state, and the
        round that made such a state replaces it when it is done again.

        Args:
            state_round: see `Request`.
            durable_state_round: see `Request`.
            run: identity of the run.
        """
        stored = self.rounds(run)
        if durable_state_round >= 0 and durable_state_round not in stored:
            return
        for round in stored:
            if round < durable_state_round and round != state_round:
                self._path(round, run).unlink(missing_ok=True)

    def _folder(self, run: str) -> Path:
        """The directory of a run's states."""
        return self.directory / f"{RUN}{run}" if run else self.directory

    def _path(self, round: int, run: str) -> Path:
        return self._folder(run) / f"round-{round:08d}.safetensors"


def is_running(directory: Path, experiment: str) -> bool:
    """Whether a process works as this client, in one experiment.

    Args:
        directory, experiment: see `ClientStore`.
    """
    return is_held(_folder_of(directory, experiment) / LOCK)


def _folder_of(directory: Path, experiment: str) -> Path:
    """The folder of a client's states in an experiment."""
    return directory / experiment[:16]

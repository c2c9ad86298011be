"""Run directories: what a run was, what it measured, and where it can go on.

    manifest.toml           every setting, the data, versions
    clients.parquet         client, group, unseen, and the number of its train, val and test samples
    metrics.parquet         round, client, unseen, split, metric, value
    ledger.parquet          what travelled and was computed; at the end, the delivery of the final models too
    checkpoint.safetensors  the state after the last saved round
    states-<phase>.bin      the clients' states, where they do not fit into memory (`Settings.state_limit`)
    summary.json            the run in numbers: written last, so a directory that has it holds a finished run

A file is replaced whole or not at all, and the checkpoint last: whenever a run is killed, `resume` continues from its
last checkpoint and ends with the same bytes in `metrics.parquet` as a run that was never interrupted. (On accelerators
to rounding: how many clients are trained at once depends on the memory that is free; `Settings.chunk` fixes it.)
"""

import json
import signal
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import tomli_w
from safetensors import SafetensorError

from fedtailor.accounting import Ledger
from fedtailor.engine import Diverged, Metrics, Participation, Run, Settings, Training, finish
from fedtailor.engine.run import Progress, as_participation, bind
from fedtailor.engine.together import Seat
from fedtailor.experiments.checkpoint import all_here, load_tree, save_tree, write_atomically
from fedtailor.experiments.manifest import difference, manifest
from fedtailor.federation import Federation
from fedtailor.federation.validation import SPLITS
from fedtailor.models import Architecture, Model
from fedtailor.protocol import Algorithm, require

MANIFEST, CLIENTS, METRICS, LEDGER = "manifest.toml", "clients.parquet", "metrics.parquet", "ledger.parquet"
CHECKPOINT, SUMMARY = "checkpoint.safetensors", "summary.json"


class Interrupted(KeyboardInterrupt):
    """The user stopped a run; its directory holds everything up to the last round."""


def run_in(
    directory: Path | str,
    algorithm: Algorithm,
    federation: Federation,
    model: Model | Architecture,
    rounds: int,
    *,
    seed: int = 0,
    participation: Participation | float | int = Participation(),  # noqa: B008 (frozen)
    evaluate_every: int = 1,
    checkpoint_every: int = 10,
    settings: Settings = Settings(),  # noqa: B008 (frozen)
    resume: bool = False,
    progress: Progress | None = None,
    seat: Seat | None = None,
) -> Run:
    """`fedtailor.run` that keeps a run directory.

    Args:
        directory: is made if it does not exist; must be empty unless `resume`.
        checkpoint_every: save after every n-th round (and after the last, and on Ctrl-C).
        resume: continue the run that the directory holds, to `rounds` rounds; start one if it is empty.
        seat: at the meeting of runs that ask their clients together (`fedtailor.engine.together`).

    Raises:
        ValueError: the directory belongs to something else, to a run with other settings, or is damaged; or as `run`.
        Interrupted: Ctrl-C; the last finished round is saved.
        Diverged: a model became NaN or infinite; the round before is saved.
    """
    require(rounds >= 1, f"rounds is {rounds}; it must be 1 or more")
    require(checkpoint_every >= 1, f"checkpoint_every is {checkpoint_every}; it must be 1 or more")
    participation, bound = as_participation(participation), bind(model, federation)
    found = manifest(algorithm, federation, bound, seed, participation, evaluate_every)
    store = RunDirectory(Path(directory))
    continued = store.claim(found, resume)
    training = Training(
        algorithm, federation, bound, seed=seed, participation=participation, settings=settings, directory=store.path,
        seat=seat,
    )  # fmt: skip
    earlier = store.load(training) if continued else []
    if not continued:
        store.write(CLIENTS, clients(federation))

    def save_now_and_then(training: Training, evaluated: bool) -> None:
        if training.round % checkpoint_every == 0 or training.round == rounds or stopped.is_set():
            store.save(training, seconds)
        if progress is not None:
            progress(training, evaluated)
        if stopped.is_set():
            raise Interrupted

    seconds: list[float] = list(earlier)
    with interrupts() if seat is None else nullcontext(seat.stopped) as stopped:
        try:
            done = finish(training, rounds, evaluate_every, save_now_and_then, seconds)
        except Diverged as error:
            store.save(training, seconds)
            store.conclude({"rounds": rounds, "diverged": str(error)})
            raise
    store.write(LEDGER, done.ledger.frame())  # with the delivery of the final models
    store.conclude({**done.summary().as_dict(), "training_seconds": float(sum(seconds))})
    return done


def clients(federation: Federation) -> pl.DataFrame:
    """Who took part: client (name), group (null where there are none), unseen, and samples by split."""
    groups = [None] * len(federation) if federation.groups is None else federation.groups.tolist()
    sizes = {name: getattr(federation, name).sizes for name in SPLITS}
    columns = {"client": list(federation.names), "group": groups, "unseen": federation.unseen, **sizes}
    return pl.DataFrame(columns, schema_overrides={"group": pl.Int64})


class RunDirectory:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def claim(self, found: dict[str, Any], resume: bool) -> bool:
        """Make the directory this run's; whether it holds a checkpoint to continue from.

        Raises:
            ValueError: it is a file, cannot be written, holds other things, or a run that is not to be resumed.
        """
        path = self.path
        try:
            path.mkdir(parents=True, exist_ok=True)
            inside = sorted(entry.name for entry in path.iterdir() if not entry.name.startswith("."))
        except OSError as error:
            raise ValueError(f"cannot use {path} for a run: {error.strerror}; name another directory") from None
        all_here("run directory seen")  # before one of them writes
        if inside and MANIFEST not in inside:
            raise ValueError(f"{path} holds other files ({inside[0]}, ...), not a run; name an empty or new directory")
        if inside and not resume:
            raise ValueError(f"{path} already holds a run; continue it with resume, or name another directory")
        if inside:
            self._require_equal(found)
            return (path / CHECKPOINT).exists()
        try:
            write_atomically(path / MANIFEST, lambda file: file.write_text(tomli_w.dumps(found)))
        except OSError as error:
            raise ValueError(f"cannot write to {path}: {error.strerror}; name another directory") from None
        return False

    def save(self, training: Training, round_seconds: list[float]) -> None:
        """Everything up to the last finished round.

        Raises:
            ValueError: the files cannot be written (the ones of the save before stay).
        """
        metrics, ledger = training.metrics.frame(training.federation.names), training.ledger.frame()
        self.write(METRICS, metrics)
        self.write(LEDGER, ledger)
        rows = {"metrics": len(metrics), "ledger": len(ledger), "seconds": np.asarray(round_seconds, float)}
        with self._one_line():
            save_tree(self.path / CHECKPOINT, {**training.snapshot(), "saved": rows})
            training.saved()

    def write(self, name: str, frame: pl.DataFrame) -> None:
        """Put a table into the directory.

        Raises:
            ValueError: it cannot be written (the old one stays).
        """
        with self._one_line():
            write_atomically(self.path / name, frame.write_parquet)

    @contextmanager
    def _one_line(self) -> Iterator[None]:
        """Failures of the disk, as a `ValueError`."""
        try:
            yield
        except (OSError, SafetensorError, pl.exceptions.PolarsError) as error:
            why = getattr(error, "strerror", None) or error
            raise ValueError(
                f"cannot write to {self.path}: {why}; what was saved before is kept: make room and resume"
            ) from None

    def conclude(self, summary: dict[str, Any]) -> None:
        """Say that the run is over, and how it ended.

        Raises:
            ValueError: it cannot be written.
        """
        with self._one_line():
            write_atomically(self.path / SUMMARY, lambda file: file.write_text(json.dumps(summary, indent=1)))

    def ended(self, rounds: int) -> dict[str, Any] | None:
        """The summary of a run that has done `rounds` rounds (or diverged on the way); None if it has not ended."""
        try:
            summary = json.loads((self.path / SUMMARY).read_text())
        except (OSError, ValueError):
            return None
        return summary if isinstance(summary, dict) and summary.get("rounds") == rounds else None

    def load(self, training: Training) -> list[float]:
        """Put a fresh training where the last checkpoint stood; the seconds of its rounds.

        Raises:
            ValueError: a file is missing or damaged.
        """
        snapshot = load_tree(self.path / CHECKPOINT)
        saved = snapshot.pop("saved")
        training.restore(snapshot)
        metrics, ledger = self._frame(METRICS, saved["metrics"]), self._frame(LEDGER, saved["ledger"])
        training.metrics = Metrics.from_frame(metrics, training.federation.names)
        training.ledger = Ledger.from_frame(ledger)
        return saved["seconds"].tolist()

    def _frame(self, name: str, rows: int) -> pl.DataFrame:
        """The first `rows` of a table: what is past them was written by a save that did not end."""
        path = self.path / name
        try:
            frame = pl.read_parquet(path)
        except (OSError, pl.exceptions.PolarsError) as error:
            raise ValueError(f"{path} is missing or damaged ({error}); remove the directory and start again") from None
        require(len(frame) >= rows, f"{path} is shorter than its checkpoint says; remove the directory and start again")
        return frame.head(rows)

    def _require_equal(self, found: dict[str, Any]) -> None:
        path = self.path / MANIFEST
        try:
            old = tomllib.loads(path.read_text())
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ValueError(f"{path} is damaged ({error}); remove the directory and start again") from None
        changed = difference(old, tomllib.loads(tomli_w.dumps(found)))
        require(changed is None, f"{self.path} holds a run with other settings ({changed}); name another directory")


@contextmanager
def interrupts() -> Iterator[threading.Event]:
    """An event that Ctrl-C sets, so that a round can end; a second Ctrl-C stops at once."""
    stopped, asked = threading.Event(), False
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return

    def stop(signum: int, frame: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        stopped.set()

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, before)

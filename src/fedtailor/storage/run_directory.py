"""Run directories: what a run was, what it measured, and where it can go on.

    manifest.toml           every setting, the data, versions
    clients.parquet         client, group, unseen, and the number of its train, val and test samples
    metrics.parquet         round, client, unseen, split, metric, value
    ledger.parquet          what travelled and was computed; at the end, the delivery of the final models too
    checkpoint.safetensors  the state after the last saved round
    states-<phase>.bin      the clients' states, where they do not fit into memory (`Settings.state_limit`)
    diagnostics.json        what the method tells about itself in the end (arrays: diagnostics.safetensors)
    rows.parquet            where asked for: client, row, loss and prediction of every test row in the end
    baseline.parquet        with it: as metrics.parquet, what a model that learns nothing reaches
    summary.json            the run in numbers: written last, so a directory that has it holds a finished run

A file is replaced whole or not at all, and the checkpoint last: whenever a run is killed, `resume` continues from its
last checkpoint and ends with the same bytes in `metrics.parquet` as a run that was never interrupted. (On accelerators
to rounding: how many clients are trained at once depends on the memory that is free; `Settings.chunk` fixes it.)
"""

import json
import signal
import threading
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import tomli_w
from safetensors import SafetensorError

from fedtailor.accounting import Ledger
from fedtailor.federation import Federation
from fedtailor.federation.validation import SPLITS
from fedtailor.protocol import require
from fedtailor.protocol.diagnostics import Diagnostic
from fedtailor.storage.checkpoint import all_here, load_tree, save_tree, write_atomically
from fedtailor.storage.diagnostics import write_diagnostics
from fedtailor.storage.manifest import difference
from fedtailor.training import Callback, Metrics, Training

MANIFEST, CLIENTS, METRICS, LEDGER = "manifest.toml", "clients.parquet", "metrics.parquet", "ledger.parquet"
CHECKPOINT, SUMMARY = "checkpoint.safetensors", "summary.json"
ROWS, BASELINE = "rows.parquet", "baseline.parquet"


class Interrupted(KeyboardInterrupt):
    """The user stopped a run; its directory holds everything up to the last round."""


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

    def open(self, settings: dict[str, Any], resume: bool) -> bool:
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
            self._require_equal(settings)
            return (path / CHECKPOINT).exists()
        try:
            write_atomically(path / MANIFEST, lambda file: file.write_text(tomli_w.dumps(settings)))
        except OSError as error:
            raise ValueError(f"cannot write to {path}: {error.strerror}; name another directory") from None
        return False

    def save(self, training: Training) -> None:
        """Everything up to the last finished round.

        Raises:
            ValueError: the files cannot be written (the ones of the save before stay).
        """
        metrics, ledger = training.metrics.frame(training.client_names), training.ledger.frame()
        self._write(METRICS, metrics)
        with self._one_line():  # what a run was in numbers before it was extended is no longer true
            (self.path / SUMMARY).unlink(missing_ok=True)
            (self.path / ROWS).unlink(missing_ok=True)
        self._write(LEDGER, ledger)
        rows = {"metrics": len(metrics), "ledger": len(ledger), "seconds": np.asarray(training.round_seconds, float)}
        rows["total_seconds"] = training.seconds
        with self._one_line():
            save_tree(self.path / CHECKPOINT, {**training.snapshot(), "saved": rows})
            training.executor.saved()

    def write_clients(self, federation: Federation) -> None:
        """Put down who takes part.

        Raises:
            ValueError: it cannot be written.
        """
        self._write(CLIENTS, clients(federation))

    def write_ledger(self, ledger: Ledger) -> None:
        """Put down what travelled.

        Raises:
            ValueError: it cannot be written (the old file stays).
        """
        self._write(LEDGER, ledger.frame())

    def write_table(self, name: str, frame: pl.DataFrame) -> None:
        """Put down one more table.

        Raises:
            ValueError: it cannot be written.
        """
        self._write(name, frame)

    def write_diagnostics(self, found: Sequence[Diagnostic]) -> None:
        """Put down what the method tells about itself.

        Raises:
            ValueError: it cannot be written.
        """
        with self._one_line():
            write_diagnostics(self.path, found)

    def _write(self, name: str, frame: pl.DataFrame) -> None:
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

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Say that the run is over, and how it ended.

        Raises:
            ValueError: it cannot be written.
        """
        with self._one_line():
            write_atomically(self.path / SUMMARY, lambda file: file.write_text(json.dumps(summary, indent=1)))

    def finished_summary(self, rounds: int) -> dict[str, Any] | None:
        """The summary of a run that has done `rounds` rounds (or diverged on the way); None if it has not ended."""
        try:
            summary = json.loads((self.path / SUMMARY).read_text())
        except (OSError, ValueError):
            return None
        if not isinstance(summary, dict):
            return None
        return summary if summary.get("asked_rounds", summary.get("rounds")) == rounds else None

    def load(self, training: Training) -> None:
        """Put a fresh training where the last checkpoint stood.

        Raises:
            ValueError: a file is missing or damaged.
        """
        snapshot = load_tree(self.path / CHECKPOINT)
        saved = snapshot.pop("saved")
        training.restore(snapshot)
        metrics, ledger = self._frame(METRICS, saved["metrics"]), self._frame(LEDGER, saved["ledger"])
        training.metrics = Metrics.from_frame(metrics, training.client_names)
        training.ledger = Ledger.from_frame(ledger)
        training.round_seconds = saved["seconds"].tolist()
        training.seconds = saved["total_seconds"]

    def _frame(self, name: str, rows: int) -> pl.DataFrame:
        """The first `rows` of a table: what is past them was written by a save that did not end."""
        path = self.path / name
        try:
            frame = pl.read_parquet(path)
        except (OSError, pl.exceptions.PolarsError) as error:
            raise ValueError(f"{path} is missing or damaged ({error}); remove the directory and start again") from None
        require(len(frame) >= rows, f"{path} is shorter than its checkpoint says; remove the directory and start again")
        return frame.head(rows)

    def _require_equal(self, settings: dict[str, Any]) -> None:
        path = self.path / MANIFEST
        try:
            old = tomllib.loads(path.read_text())
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ValueError(f"{path} is damaged ({error}); remove the directory and start again") from None
        changed = difference(old, tomllib.loads(tomli_w.dumps(settings)))
        require(changed is None, f"{self.path} holds a run with other settings ({changed}); name another directory")


class Checkpoints(Callback):
    """Saves a training into a run directory now and then, at its end, and when it is asked to stop."""

    def __init__(self, store: RunDirectory, every: int, stopped: threading.Event) -> None:
        self._store, self._every, self._stopped = store, every, stopped
        self._saved: int | None = None

    def after_round(self, training: Training, evaluated: bool) -> None:
        if training.round % self._every == 0 or self._stopped.is_set():
            self._save(training)

    def on_end(self, training: Training) -> None:
        if self._saved != training.round:
            self._save(training)

    def _save(self, training: Training) -> None:
        self._store.save(training)
        self._saved = training.round


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

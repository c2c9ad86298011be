"""Run directories: what a run was, what it measured, and where it can go on.

    manifest.toml           every setting, the data, versions, devices
    clients.parquet         client, group, unseen, and the number of its train, val and test samples
    metrics.parquet         round, client, unseen, split, metric, value
    ledger.parquet          what travelled and was computed; at the end, the delivery of the final models too
    checkpoint.safetensors  the state after the last saved round, with digests of the files above
    checkpoint-before.safetensors  the same of the save before: what is continued from where the last one is damaged
    states-<phase>.bin      the clients' states, where they do not fit into memory (`Settings.state_limit`)
    diagnostics.json        what the method tells about itself in the end (arrays: diagnostics.safetensors)
    rows.parquet            where asked for: client, row, loss and prediction of every test row in the end
    models.safetensors      the personal models of all clients in the end, where not too large; models.json says
                            what they are
    preprocessing.json      of a table: how its rows become inputs of the models
    baseline.parquet        with it: as metrics.parquet, what a model that learns nothing reaches
    summary.json            the run in numbers, with digests of the files: written last, so a directory that has it
                            holds a finished run
    .lock                   while a process writes here: its id

A file is replaced whole or not at all, and the checkpoint last: whenever a run is
killed, `resume` continues from its last checkpoint and ends with the same bytes in
`metrics.parquet` as a run that was never interrupted. (On accelerators to rounding: how
many clients are trained at once depends on the memory that is free; `Settings.chunk`
fixes it.)
"""

import json
import logging
import threading
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
import polars as pl
import tomli_w
from safetensors import SafetensorError

from fedtailor._files import (
    private_folder,
    publish,
    reason,
    remove_leftovers,
    replacing,
    sync_tree,
)
from fedtailor._parquet import write_parquet
from fedtailor.accounting import Ledger
from fedtailor.federation import Federation
from fedtailor.protocol.diagnostics import Diagnostic
from fedtailor.storage.checkpoint import (
    checkpoint_format,
    load_tree,
    refuse_other_format,
    wait_for_all,
    write_tree,
)
from fedtailor.storage.diagnostics import write_diagnostics
from fedtailor.storage.digests import file_digest, frame_digest, sealed
from fedtailor.storage.errors import Damaged, Unusable
from fedtailor.storage.export import MODELS, PREPROCESSING, write_models
from fedtailor.storage.lock import DirectoryLock
from fedtailor.storage.manifest import difference, other_circumstances
from fedtailor.storage.personal_model import PersonalModel
from fedtailor.storage.run_files import (
    CHECKPOINT,
    CHECKPOINT_BEFORE,
    CLIENTS,
    DIGESTS,
    KEPT,
    LEDGER,
    MANIFEST,
    METRICS,
    ROWS,
    SUMMARY,
    clients,
    read_frame,
    read_manifest,
    read_summary,
)
from fedtailor.tables import Preprocessing
from fedtailor.training import Callback, Metrics, Training

_log = logging.getLogger("fedtailor")


class RunDirectory:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = DirectoryLock(path)
        # whether the last checkpoint can be resumed, so that it is worth keeping
        self._last_is_good = False

    def open(self, settings: dict[str, Any], resume: bool) -> bool:
        """Make the directory this run's until `close`; whether it holds a checkpoint to
        continue from.

        Raises:
            Unusable: it is a file, cannot be written, is in use, or holds other things
                or a run not to be resumed.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._inside()
            self._lock.acquire()
        except OSError as error:
            raise Unusable(
                f"cannot use {self.path} for a run: {error.strerror}; name another"
                " directory"
            ) from None
        try:
            return self._open(settings, resume)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let others write to the directory."""
        self._lock.release()

    def _inside(self) -> list[str]:
        """What stands in the directory.

        Raises:
            Unusable: it is no run.
        """
        inside = sorted(
            entry.name
            for entry in self.path.iterdir()
            if not entry.name.startswith(".")
        )
        if inside and MANIFEST not in inside:
            raise Unusable(
                f"{self.path} holds other files ({inside[0]}, ...), not a run; name an"
                " empty or new directory"
            )
        return inside

    def _open(self, settings: dict[str, Any], resume: bool) -> bool:
        path, inside = self.path, self._inside()
        wait_for_all("run directory seen")  # before one of them writes
        if inside and not resume:
            raise Unusable(
                f"{path} already holds a run; continue it with resume, or name another"
                " directory"
            )
        if inside:
            old = self._require_equal(settings)
            self._remove_leftovers()
            if (path / CHECKPOINT).exists() or (path / CHECKPOINT_BEFORE).exists():
                if changed := other_circumstances(old, settings):
                    _log.warning(
                        "fedtailor: %s goes on under other circumstances: %s",
                        path,
                        changed,
                    )
                return True
            _log.warning(
                "fedtailor: %s has no checkpoint yet: the run starts again from its"
                " first round",
                path,
            )
        try:
            self._write_text(MANIFEST, tomli_w.dumps(settings))
        except OSError as error:
            raise Unusable(
                f"cannot write to {path}: {error.strerror}; name another directory"
            ) from None
        return False

    def _remove_leftovers(self) -> None:
        """What killed processes were writing: folders, and (0.1) files."""
        if jax.process_index() == 0:
            remove_leftovers(self.path)
            with self._one_line():
                for name in (MANIFEST, CLIENTS, METRICS, LEDGER, CHECKPOINT, SUMMARY):
                    (self.path / f".{name}.part").unlink(missing_ok=True)

    def save(self, training: Training) -> None:
        """Everything up to the last finished round.

        All is written before anything takes the place of an older file: where that
        fails, the directory stays as it is.

        Raises:
            Unusable: the files cannot be written (the ones of the save before stay).
        """
        metrics, ledger = (
            training.metrics.frame(training.client_names),
            training.ledger.frame(),
        )
        saved = {
            "metrics": len(metrics),
            "ledger": len(ledger),
            "total_seconds": training.seconds,
            "seconds": np.asarray(training.round_seconds, float),
        }
        snapshot = training.snapshot()  # of several processes, all take part in this
        with self._one_line():
            if jax.process_index() == 0:
                saved["digests"] = self._digests(metrics, ledger)
                self._save(metrics, ledger, {**snapshot, "saved": saved})
            training.executor.saved()

    def _save(
        self, metrics: pl.DataFrame, ledger: pl.DataFrame, snapshot: dict[str, Any]
    ) -> None:
        with private_folder(self.path, "save") as folder:
            write_parquet(metrics, folder / METRICS)
            write_parquet(ledger, folder / LEDGER)
            write_tree(folder / CHECKPOINT, snapshot)
            sync_tree(folder)
            # Summary and rows of a finished run that is extended are about fewer
            # rounds.
            (self.path / SUMMARY).unlink(missing_ok=True)
            for name in (ROWS, KEPT, MODELS):
                (self.path / name).unlink(missing_ok=True)
            publish(folder / METRICS, self.path / METRICS)
            publish(folder / LEDGER, self.path / LEDGER)
            if self._last_is_good:
                (self.path / CHECKPOINT).replace(self.path / CHECKPOINT_BEFORE)
            publish(folder / CHECKPOINT, self.path / CHECKPOINT)
        self._last_is_good = True

    def _digests(self, metrics: pl.DataFrame, ledger: pl.DataFrame) -> dict[str, str]:
        """What a checkpoint belongs to: manifest and clients of this directory, and the
        tables so far.
        """
        return {
            "manifest": file_digest(self.path / MANIFEST),
            "clients": frame_digest(read_frame(self.path / CLIENTS)),
            "metrics": frame_digest(metrics),
            "ledger": frame_digest(ledger),
        }

    def write_clients(self, federation: Federation) -> None:
        """Write who takes part.

        Raises:
            Unusable: it cannot be written.
        """
        self._write(CLIENTS, clients(federation))

    def write_ledger(self, ledger: Ledger) -> None:
        """Write what travelled.

        Raises:
            Unusable: it cannot be written (the old file stays).
        """
        self._write(LEDGER, ledger.frame())

    def write_table(self, name: str, frame: pl.DataFrame) -> None:
        """Write one more table.

        Raises:
            ValueError: it cannot be written.
        """
        self._write(name, frame)

    def write_models(self, personal: Iterable[PersonalModel]) -> None:
        """Put down what clients predict with.

        Raises:
            ValueError: it cannot be written.
        """
        if jax.process_index() == 0:
            with self._one_line():
                write_models(personal, self.path, KEPT)

    def write_preprocessing(self, preprocessing: Preprocessing) -> None:
        """Put down how rows of a table become inputs.

        Raises:
            ValueError: it cannot be written.
        """
        with self._one_line():
            self._write_text(PREPROCESSING, preprocessing.to_json())

    def write_diagnostics(self, diagnostics: Sequence[Diagnostic]) -> None:
        """Write the method's diagnostics.

        Raises:
            ValueError: it cannot be written.
        """
        with self._one_line():
            write_diagnostics(self.path, diagnostics)

    def _write(self, name: str, frame: pl.DataFrame) -> None:
        if jax.process_index() == 0:
            with self._one_line(), replacing(self.path / name) as temporary:
                write_parquet(frame, temporary)

    def _write_text(self, name: str, text: str) -> None:
        if jax.process_index() == 0:
            with replacing(self.path / name) as temporary:
                temporary.write_text(text, "utf-8")

    @contextmanager
    def _one_line(self) -> Iterator[None]:
        """Failures of the disk, as `Unusable`."""
        try:
            yield
        except (OSError, SafetensorError, pl.exceptions.PolarsError) as error:
            raise Unusable(
                f"cannot write to {self.path}: {reason(error)}; what was saved before"
                " is kept: make room and resume"
            ) from None

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Say that the run is over, and how it ended; with digests of all files that no
        checkpoint vouches for.

        Raises:
            Unusable: it cannot be written.
        """
        # Checkpoints hold digests of their own and of the states; hidden files are
        # locks and leftovers.
        excluded = (CHECKPOINT, CHECKPOINT_BEFORE, SUMMARY)
        with self._one_line():
            files = [
                entry
                for entry in sorted(self.path.iterdir())
                if entry.is_file() and entry.name not in excluded
            ]
            files = [
                entry
                for entry in files
                if not entry.name.startswith(".") and entry.suffix != ".bin"
            ]
            content = {
                **summary,
                DIGESTS: {entry.name: file_digest(entry) for entry in files},
            }
            self._write_text(
                SUMMARY, json.dumps(sealed(content), indent=1, allow_nan=False)
            )

    def finished_summary(self, rounds: int) -> dict[str, Any] | None:
        """The summary of a run that has done `rounds` rounds (or diverged on the way);
        None if it has not ended, or its summary is damaged."""
        try:
            summary = read_summary(self.path / SUMMARY)
        except Unusable:
            return None
        return (
            summary
            if summary.get("asked_rounds", summary.get("rounds")) == rounds
            else None
        )

    def load(self, training: Training) -> None:
        """Put a fresh training where the last checkpoint stood; where that is damaged,
        where the one before did.

        Raises:
            Unusable: a file is missing, damaged or belongs to another run.
        """
        try:
            snapshot = load_tree(self.path / CHECKPOINT)
            self._last_is_good = True
        except Damaged as error:
            if not (self.path / CHECKPOINT_BEFORE).exists():
                raise
            snapshot = load_tree(self.path / CHECKPOINT_BEFORE)
            _log.warning(
                "fedtailor: %s; going on from the one before, round %d",
                str(error).partition(";")[0],
                snapshot["round"],
            )
        saved = snapshot.pop("saved")
        metrics, ledger = (
            self._frame(METRICS, saved["metrics"]),
            self._frame(LEDGER, saved["ledger"]),
        )
        digests = self._digests(metrics, ledger)
        for name, file in (
            ("manifest", MANIFEST),
            ("clients", CLIENTS),
            ("metrics", METRICS),
            ("ledger", LEDGER),
        ):
            if digests[name] != saved["digests"][name]:
                raise Damaged(
                    f"{self.path / file} is damaged, or the checkpoint is another run's"
                    " (their digests differ); remove the directory and start again"
                )
        training.restore(snapshot)
        training.metrics = Metrics.from_frame(metrics, training.client_names)
        training.ledger = Ledger.from_frame(ledger)
        training.round_seconds = saved["seconds"].tolist()
        training.seconds = saved["total_seconds"]

    def _frame(self, name: str, rows: int) -> pl.DataFrame:
        """The first `rows` of a table: what is past them was written by a save that did
        not end.
        """
        frame = read_frame(self.path / name)
        if len(frame) < rows:
            raise Damaged(
                f"{self.path / name} is shorter than its checkpoint says; remove the"
                " directory and start again"
            )
        return frame.head(rows)

    def _require_equal(self, settings: dict[str, Any]) -> dict[str, Any]:
        """The settings of the run that stands here, which must be these."""
        path = self.path / MANIFEST
        for name in (CHECKPOINT, CHECKPOINT_BEFORE):
            made = checkpoint_format(self.path / name)
            if made is not None and made.startswith("fedtailor checkpoint "):
                refuse_other_format(self.path / name, made)
        old = read_manifest(path)
        changed = difference(old, tomllib.loads(tomli_w.dumps(settings)))
        if changed is not None:
            raise Unusable(
                f"{self.path} holds a run with other settings ({changed}); name another"
                " directory"
            )
        return old


class Checkpoints(Callback):
    """Saves a training into a run directory now and then, at its end, and when it is
    asked to stop.
    """

    def __init__(
        self, store: RunDirectory, every: int, stopped: threading.Event
    ) -> None:
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

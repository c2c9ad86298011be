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
        """Take the directory for this run, until `close`.

        Args:
            settings: the run's manifest (`fedtailor.storage.manifest`).
            resume: whether to continue a run that is there.

        Returns:
            Whether the directory holds a checkpoint to continue from.

        Raises:
            Unusable: it is a file, cannot be written, is in use, or holds other things
                or a run not to be resumed.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            # Before the lock is made: a directory of somebody else's gets no file.
            self._require_run_or_empty()
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

    def _require_run_or_empty(self) -> bool:
        """Refuse a directory of other files; hidden files do not count.

        Returns:
            Whether it holds a run; else it is empty.

        Raises:
            Unusable: it holds something else.
        """
        names = sorted(
            entry.name
            for entry in self.path.iterdir()
            if not entry.name.startswith(".")
        )
        if names and MANIFEST not in names:
            raise Unusable(
                f"{self.path} holds other files ({names[0]}, ...), not a run; name an"
                " empty or new directory"
            )
        return bool(names)

    def _open(self, settings: dict[str, Any], resume: bool) -> bool:
        path = self.path
        holds_run = self._require_run_or_empty()
        # Of several processes all must have looked before the first one writes, or some
        # would find its manifest and take it for an old run.
        wait_for_all("run directory seen")
        if holds_run:
            if not resume:
                raise Unusable(
                    f"{path} already holds a run; continue it with resume, or name"
                    " another directory"
                )
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
        """Remove what killed processes left behind: folders, and files of fedtailor
        0.1.
        """
        if jax.process_index() == 0:
            remove_leftovers(self.path)
            with self._as_unusable():
                for name in (MANIFEST, CLIENTS, METRICS, LEDGER, CHECKPOINT, SUMMARY):
                    (self.path / f".{name}.part").unlink(missing_ok=True)

    def save(self, training: Training) -> None:
        """Save everything up to the last finished round.

        All files are written before any of them replaces an older one: where that
        fails, the directory stays as it is.

        Raises:
            Unusable: the files cannot be written (the ones of the save before stay).
        """
        metrics = training.metrics.frame(training.client_names)
        ledger = training.ledger.frame()
        # The numbers of rows say which part of the two tables a checkpoint is about:
        # the tables are replaced before it, so a process that is killed in between
        # leaves tables with more rows than the checkpoint knows.
        saved = {
            "metrics": len(metrics),
            "ledger": len(ledger),
            "total_seconds": training.seconds,
            "seconds": np.asarray(training.round_seconds, float),
        }
        # Of several processes all take part in this, and only the first one writes.
        snapshot = training.snapshot()
        with self._as_unusable():
            if jax.process_index() == 0:
                saved["digests"] = self._digests(metrics, ledger)
                self._replace_files(metrics, ledger, {**snapshot, "saved": saved})
            training.executor.snapshot_saved()

    def _replace_files(
        self, metrics: pl.DataFrame, ledger: pl.DataFrame, checkpoint: dict[str, Any]
    ) -> None:
        """Write a save's three files, and put them in place one after another.

        Whenever the process is killed, there is a checkpoint whose rows are the first
        ones of the tables: a save only appends rows, and the checkpoint that needs them
        comes last.
        """
        with private_folder(self.path, "save") as folder:
            write_parquet(metrics, folder / METRICS)
            write_parquet(ledger, folder / LEDGER)
            write_tree(folder / CHECKPOINT, checkpoint)
            # A full disk shows here, where nothing has been replaced yet.
            sync_tree(folder)
            # When a finished run is extended, its results are of fewer rounds. The
            # summary goes first: without it nobody takes the run for finished.
            for name in (SUMMARY, ROWS, KEPT, MODELS):
                (self.path / name).unlink(missing_ok=True)
            publish(folder / METRICS, self.path / METRICS)
            publish(folder / LEDGER, self.path / LEDGER)
            # A damaged checkpoint must not take the place of the good one before it.
            if self._last_is_good:
                (self.path / CHECKPOINT).replace(self.path / CHECKPOINT_BEFORE)
            publish(folder / CHECKPOINT, self.path / CHECKPOINT)
        self._last_is_good = True

    def _digests(self, metrics: pl.DataFrame, ledger: pl.DataFrame) -> dict[str, str]:
        """Digests of what a checkpoint belongs to: manifest and clients of this
        directory, and the tables so far.

        With them a checkpoint that was copied beside another run's files is refused.
        """
        return {
            "manifest": file_digest(self.path / MANIFEST),
            "clients": frame_digest(read_frame(self.path / CLIENTS)),
            "metrics": frame_digest(metrics),
            "ledger": frame_digest(ledger),
        }

    # Of several processes of one run, the first one writes for all.

    def write_table(self, name: str, frame: pl.DataFrame) -> None:
        """Write a table (`fedtailor.storage.run_files` has the names).

        Raises:
            Unusable: it cannot be written (the old file stays).
        """
        if jax.process_index() == 0:
            with self._as_unusable(), replacing(self.path / name) as temporary:
                write_parquet(frame, temporary)

    def write_models(self, personal: Iterable[PersonalModel]) -> None:
        """Write what clients predict with.

        Raises:
            Unusable: it cannot be written.
        """
        if jax.process_index() == 0:
            with self._as_unusable():
                write_models(personal, self.path, KEPT)

    def write_preprocessing(self, preprocessing: Preprocessing) -> None:
        """Write how rows of a table become inputs.

        Raises:
            Unusable: it cannot be written.
        """
        with self._as_unusable():
            self._write_text(PREPROCESSING, preprocessing.to_json())

    def write_diagnostics(self, diagnostics: Sequence[Diagnostic]) -> None:
        """Write the method's diagnostics.

        Raises:
            Unusable: it cannot be written.
        """
        if jax.process_index() == 0:
            with self._as_unusable():
                write_diagnostics(self.path, diagnostics)

    def _write_text(self, name: str, text: str) -> None:
        if jax.process_index() == 0:
            with replacing(self.path / name) as temporary:
                temporary.write_text(text, "utf-8")

    @contextmanager
    def _as_unusable(self) -> Iterator[None]:
        """Failures of the disk, as `Unusable`."""
        try:
            yield
        except (OSError, SafetensorError, pl.exceptions.PolarsError) as error:
            raise Unusable(
                f"cannot write to {self.path}: {reason(error)}; what was saved before"
                " is kept: make room and resume"
            ) from None

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write how the run ended, with digests of its files.

        Raises:
            Unusable: it cannot be written.
        """
        # Checkpoints hold their own digest and those of the states (*.bin); hidden
        # files are the lock and leftovers.
        excluded = (CHECKPOINT, CHECKPOINT_BEFORE, SUMMARY)
        with self._as_unusable():
            digests = {
                entry.name: file_digest(entry)
                for entry in sorted(self.path.iterdir())
                if entry.is_file()
                and entry.name not in excluded
                and not entry.name.startswith(".")
                and entry.suffix != ".bin"
            }
            content = {**summary, DIGESTS: digests}
            self._write_text(
                SUMMARY, json.dumps(sealed(content), indent=1, allow_nan=False)
            )

    def finished_summary(self, rounds: int) -> dict[str, Any] | None:
        """The summary of a run of `rounds` rounds that has ended.

        Returns:
            The summary, also of a run that diverged; None where the run has not ended,
            has done another number of rounds, or its summary is damaged.
        """
        try:
            summary = read_summary(self.path / SUMMARY)
        except Unusable:
            return None
        # "rounds" alone, where a callback may have stopped the run, is of fedtailor 0.1
        # and of runs that diverged.
        asked_rounds = summary.get("asked_rounds", summary.get("rounds"))
        return summary if asked_rounds == rounds else None

    def load(self, training: Training) -> None:
        """Restore a fresh training from the last checkpoint, or, if that is damaged,
        from the one before.

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
        metrics = self._frame(METRICS, saved["metrics"])
        ledger = self._frame(LEDGER, saved["ledger"])
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
        """The first `rows` rows of a table: the others are of a save that was killed
        before its checkpoint was in place.
        """
        frame = read_frame(self.path / name)
        if len(frame) < rows:
            raise Damaged(
                f"{self.path / name} is shorter than its checkpoint says; remove the"
                " directory and start again"
            )
        return frame.head(rows)

    def _require_equal(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Refuse a run with other settings, or of another version's format.

        Returns:
            The manifest of the run that is here; versions and machine may differ.
        """
        for name in (CHECKPOINT, CHECKPOINT_BEFORE):
            made = checkpoint_format(self.path / name)
            if made is not None and made.startswith("fedtailor checkpoint "):
                refuse_other_format(self.path / name, made)
        old = read_manifest(self.path / MANIFEST)
        # Through TOML and back, as the old ones went: tuples become lists there.
        changed = difference(old, tomllib.loads(tomli_w.dumps(settings)))
        if changed is not None:
            raise Unusable(
                f"{self.path} holds a run with other settings ({changed}); name another"
                " directory"
            )
        return old


class Checkpoints(Callback):
    """Saves a training into a run directory after every n-th round, at the end, and
    when the run is asked to stop.
    """

    def __init__(
        self, store: RunDirectory, every: int, stopped: threading.Event
    ) -> None:
        self._store = store
        self._every = every
        self._stopped = stopped
        self._saved_round: int | None = None

    def after_round(self, training: Training, evaluated: bool) -> None:
        if training.round % self._every == 0 or self._stopped.is_set():
            self._save(training)

    def on_end(self, training: Training) -> None:
        if self._saved_round != training.round:
            self._save(training)

    def _save(self, training: Training) -> None:
        self._store.save(training)
        self._saved_round = training.round

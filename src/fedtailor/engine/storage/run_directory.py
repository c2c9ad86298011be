"""Run directories: the settings, results and checkpoints of a run.

    manifest.toml           every setting, the data, versions, devices
    clients.parquet         client, group, unseen, and the number of its train, val and test samples
    metrics.parquet         round, client, unseen, split, metric, value
    answers.parquet         of machines that may be late: round, client and age of each answer that was taken
    ledger.parquet          messages and computation of each round, and the delivery of the final models
    checkpoint.safetensors  the state after the last saved round, with digests of the files above
    checkpoint-before.safetensors  the previous checkpoint, which is used if the last one is damaged
    states-<phase>.bin      the clients' states, if they do not fit into memory (`Settings.state_limit`)
    states-<digest>.safetensors  the states of the clients of one process, where several share a federation
    diagnostics.json        the method's diagnostics at the end (arrays are in diagnostics.safetensors)
    rows.parquet            if requested: client, row, loss and prediction of every test row at the end
    validation.parquet      likewise, of every validation row
    models.safetensors      the personal models of all clients at the end, unless they are too large
    models.json             the manifest of models.safetensors
    preprocessing.json      for a table: how its rows become inputs of the models
    baseline.parquet        for a table: the metrics of a model without inputs, in the form of metrics.parquet
    summary.json            the results, with digests of the files; written last, so that only the directory of a
                            finished run has it
    .lock                   the id of the process that is writing to the directory

Files are replaced atomically, the checkpoint last. A run that was killed at any time
can be resumed from its last checkpoint. At its end `metrics.parquet` has the same bytes
as after an uninterrupted run. (On accelerators it is equal up to rounding: how many
clients are trained at once depends on the free memory, unless `Settings.chunk` is set.)
"""

import json
import logging
import threading
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import jax
import numpy as np
import polars as pl
import tomli_w
from safetensors import SafetensorError

from fedtailor._base.digests import frame_digest, with_digest
from fedtailor._base.documentation import see
from fedtailor._base.files import (
    atomic_write,
    file_digest,
    private_folder,
    publish,
    reason,
    remove_leftovers,
    sync_tree,
)
from fedtailor._base.parquet import write_parquet
from fedtailor._base.printable import one_line
from fedtailor.aggregation.accounting import Ledger
from fedtailor.engine.storage.checkpoint import (
    checkpoint_format,
    load_tree,
    refuse_other_format,
    wait_for_all,
    write_tree,
)
from fedtailor.engine.storage.diagnostics import write_diagnostics
from fedtailor.engine.storage.errors import Damaged, Unusable
from fedtailor.engine.storage.export import MODELS, PREPROCESSING, write_models
from fedtailor.engine.storage.frozen_file import write_frozen
from fedtailor.engine.storage.lock import DirectoryLock
from fedtailor.engine.storage.manifest import difference, environment_changes
from fedtailor.engine.storage.personal_model import PersonalModel
from fedtailor.engine.storage.run_files import (
    CHECKPOINT,
    CLIENTS,
    DIGESTS,
    LEDGER,
    MANIFEST,
    METRICS,
    MODELS_MANIFEST,
    PREVIOUS_CHECKPOINT,
    ROWS,
    SUMMARY,
    VALIDATION,
    read_frame,
    read_manifest,
    read_summary,
)
from fedtailor.engine.training import Callback, Metrics, Training
from fedtailor.models import Model
from fedtailor.protocol import PreprocessingFacts
from fedtailor.protocol.diagnostics import Diagnostic

SECONDS_BETWEEN_CHECKPOINTS = 60.0
"""Seconds after which `Checkpoints` saves, even if few rounds were done."""

_log = logging.getLogger("fedtailor")


class RunDirectory:
    """The files of one run.

    Example:
        >>> from pathlib import Path
        >>> from fedtailor.engine.storage import RunDirectory
        >>> RunDirectory(Path("run")).path.name
        'run'
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = DirectoryLock(path)
        # Whether checkpoint.safetensors is valid, so that it may replace the previous
        # one.
        self._checkpoint_is_valid = False

    def open(self, settings: dict[str, Any], resume: bool) -> bool:
        """Acquire the directory for a run, until `close`.

        Args:
            settings: the run's manifest (`fedtailor.engine.storage.manifest`).
            resume: whether to continue a run that is in the directory.

        Returns:
            Whether the directory has a checkpoint from which to continue.

        Raises:
            Unusable: the path is a file, cannot be written or is in use, or the
                directory has other files or a run that cannot be resumed.
        """
        self.make()
        try:
            self._lock.acquire()
        except OSError as error:
            raise self._unusable(error) from None
        try:
            return self._open(settings, resume)
        except BaseException:
            self.close()
            raise

    def make(self) -> None:
        """Make the directory if there is none, and write nothing into it.

        Raises:
            Unusable: the path is a file, cannot be written, or has other files.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._require_run_or_empty()
        except OSError as error:
            raise self._unusable(error) from None

    def _unusable(self, error: OSError) -> Unusable:
        return Unusable(
            f"cannot use {self.path} for a run: {error.strerror}; name another"
            " directory"
        )

    def close(self) -> None:
        """Release the directory."""
        self._lock.release()

    def _require_run_or_empty(self) -> bool:
        """Require a directory that has a run or is empty, except for hidden files.

        Returns:
            Whether the directory has a run.

        Raises:
            Unusable: the directory has other files.
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
        # All processes must reach this point before the first one writes. Otherwise
        # some would find its manifest and mistake it for that of an old run.
        wait_for_all("run directory seen")
        if holds_run:
            if not resume:
                raise Unusable(
                    f"{path} already holds a run; continue it with resume, or name"
                    " another directory"
                )
            old = self._require_same_run(settings)
            self._remove_leftovers()
            if (path / CHECKPOINT).exists() or (path / PREVIOUS_CHECKPOINT).exists():
                if changes := environment_changes(old, settings):
                    _log.warning(
                        "fedtailor: %s continues under other circumstances: %s",
                        one_line(path),
                        one_line(changes),
                    )
                return True
            _log.warning(
                "fedtailor: %s has no checkpoint yet: the run starts again from its"
                " first round",
                one_line(path),
            )
        try:
            self._write_text(MANIFEST, tomli_w.dumps(settings))
        except OSError as error:
            raise Unusable(
                f"cannot write to {path}: {error.strerror}; name another directory"
            ) from None
        return False

    def _remove_leftovers(self) -> None:
        """Remove temporary folders of killed processes."""
        if jax.process_index() == 0:
            remove_leftovers(self.path)

    def save(self, training: Training) -> None:
        """Save the training up to the last finished round.

        All files are written before the first of them replaces an old one. If writing
        fails, the directory is unchanged.

        Raises:
            Unusable: the files cannot be written.
        """
        metrics = training.metrics.frame(training.client_names)
        ledger = training.ledger.frame()
        # The checkpoint records the numbers of rows of the two tables. The tables are
        # replaced before the checkpoint, so they may have additional rows if the
        # process is killed in between.
        saved = {
            "metrics": len(metrics),
            "ledger": len(ledger),
            "total_seconds": training.seconds,
            "core_seconds": training.core_seconds,
            "seconds": np.asarray(training.round_seconds, float),
        }
        # All processes take part in the snapshot, and only the first one writes it.
        snapshot = training.snapshot()
        with self._disk_errors():
            if jax.process_index() == 0:
                saved["digests"] = self._digests(metrics, ledger)
                self._replace_files(metrics, ledger, {**snapshot, "saved": saved})
            training.executor.snapshot_saved()

    def _replace_files(
        self, metrics: pl.DataFrame, ledger: pl.DataFrame, checkpoint: dict[str, Any]
    ) -> None:
        """Write the tables and the checkpoint, then replace the old files one by one.

        A save only appends rows to the tables, and the checkpoint is replaced last. So
        whenever the process is killed, the tables start with the checkpoint's rows.
        """
        with private_folder(self.path, "save") as folder:
            write_parquet(metrics, folder / METRICS)
            write_parquet(ledger, folder / LEDGER)
            write_tree(folder / CHECKPOINT, checkpoint)
            # A full disk raises here, before any file is replaced.
            sync_tree(folder)
            # If a finished run is extended, remove its final results. Remove the
            # summary first, which marks the run as finished.
            for name in (SUMMARY, ROWS, VALIDATION, MODELS_MANIFEST, MODELS):
                (self.path / name).unlink(missing_ok=True)
            publish(folder / METRICS, self.path / METRICS)
            publish(folder / LEDGER, self.path / LEDGER)
            # A damaged checkpoint must not replace the valid previous one.
            if self._checkpoint_is_valid:
                (self.path / CHECKPOINT).replace(self.path / PREVIOUS_CHECKPOINT)
            publish(folder / CHECKPOINT, self.path / CHECKPOINT)
        self._checkpoint_is_valid = True

    def _digests(self, metrics: pl.DataFrame, ledger: pl.DataFrame) -> dict[str, str]:
        """Digests of the manifest, the clients and the tables, for the checkpoint.

        They detect a checkpoint that was copied from another run.
        """
        return {
            "manifest": file_digest(self.path / MANIFEST),
            "clients": frame_digest(read_frame(self.path / CLIENTS)),
            "metrics": frame_digest(metrics),
            "ledger": frame_digest(ledger),
        }

    # In a distributed run, only the first process writes the following files.

    def write_table(self, name: str, frame: pl.DataFrame) -> None:
        """Write a table under one of the names in `fedtailor.engine.storage.run_files`.

        Raises:
            Unusable: it cannot be written; the old file is unchanged.
        """
        if jax.process_index() == 0:
            with self._disk_errors(), atomic_write(self.path / name) as temporary:
                write_parquet(frame, temporary)

    def write_models(self, personal: Iterable[PersonalModel]) -> None:
        """Write the personal models.

        Raises:
            Unusable: it cannot be written.
        """
        if jax.process_index() == 0:
            with self._disk_errors():
                write_models(personal, self.path, MODELS_MANIFEST)

    def write_preprocessing(self, preprocessing: PreprocessingFacts) -> None:
        """Write the preprocessing of a table.

        Raises:
            Unusable: it cannot be written.
        """
        with self._disk_errors():
            self._write_text(PREPROCESSING, preprocessing.to_json())

    def write_frozen(self, model: Model) -> None:
        """Write the frozen arrays of the model, if it has any.

        Raises:
            Unusable: it cannot be written.
        """
        if jax.process_index() == 0:
            with self._disk_errors():
                write_frozen(model, self.path)

    def write_diagnostics(self, diagnostics: Sequence[Diagnostic]) -> None:
        """Write the method's diagnostics.

        Raises:
            Unusable: it cannot be written.
        """
        if jax.process_index() == 0:
            with self._disk_errors():
                write_diagnostics(self.path, diagnostics)

    def _write_text(self, name: str, text: str) -> None:
        if jax.process_index() == 0:
            with atomic_write(self.path / name) as temporary:
                temporary.write_text(text, "utf-8")

    @contextmanager
    def _disk_errors(self) -> Iterator[None]:
        """A context that turns errors of the disk into `Unusable`."""
        try:
            yield
        except (OSError, SafetensorError, pl.exceptions.PolarsError) as error:
            raise Unusable(
                f"cannot write to {self.path}: {reason(error)}; what was saved before"
                " is kept: make room and resume"
            ) from None

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write the results of the finished run, with digests of its files.

        Raises:
            Unusable: it cannot be written.
        """
        # Checkpoints contain their own digests and those of the states. Hidden files are
        # the lock and temporary folders.
        excluded = (CHECKPOINT, PREVIOUS_CHECKPOINT, SUMMARY)
        with self._disk_errors():
            digests = {
                entry.name: file_digest(entry)
                for entry in sorted(self.path.iterdir())
                if entry.is_file()
                and entry.name not in excluded
                and not entry.name.startswith(".")
                and not entry.name.startswith("states-")
            }
            content = {**summary, DIGESTS: digests}
            self._write_text(
                SUMMARY, json.dumps(with_digest(content), indent=1, allow_nan=False)
            )

    def finished_summary(self, rounds: int) -> dict[str, Any] | None:
        """Read the summary of a finished run.

        Args:
            rounds: the number of rounds for which the run was started.

        Returns:
            The summary, even if the run diverged; None if the run has not finished, was
            started for another number of rounds, or its summary is damaged.
        """
        try:
            summary = read_summary(self.path / SUMMARY)
        except Unusable:
            return None
        # Runs that diverged and baselines have "rounds" instead.
        requested_rounds = summary.get("asked_rounds", summary.get("rounds"))
        return summary if requested_rounds == rounds else None

    def load(self, training: Training) -> None:
        """Restore a new training from the last checkpoint.

        If it is damaged, the previous checkpoint is used.

        Raises:
            Unusable: a file is missing or damaged, or belongs to another run.
        """
        try:
            snapshot = load_tree(self.path / CHECKPOINT)
            self._checkpoint_is_valid = True
        except Damaged as error:
            if not (self.path / PREVIOUS_CHECKPOINT).exists():
                raise
            snapshot = load_tree(self.path / PREVIOUS_CHECKPOINT)
            _log.warning(
                "fedtailor: %s; continuing from the one before, round %d",
                one_line(str(error).partition(";")[0]),
                snapshot["round"],
            )
        saved = snapshot.pop("saved")
        metrics = self._first_rows(METRICS, saved["metrics"])
        ledger = self._first_rows(LEDGER, saved["ledger"])
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
                    f"{see('errors#a-damaged-run')}"
                )
        training.restore(snapshot)
        training.metrics = Metrics.from_frame(metrics, training.client_names)
        training.ledger = Ledger.from_frame(ledger)
        training.round_seconds = saved["seconds"].tolist()
        training.seconds = saved["total_seconds"]
        # Runs of earlier versions did not measure it.
        training.core_seconds = saved.get("core_seconds")

    def _first_rows(self, name: str, rows: int) -> pl.DataFrame:
        """Read the first `rows` rows of a table.

        Further rows were written by a process that was killed before it replaced the
        checkpoint.
        """
        frame = read_frame(self.path / name)
        if len(frame) < rows:
            raise Damaged(
                f"{self.path / name} is shorter than its checkpoint says; remove the"
                f" directory and start again{see('errors#a-damaged-run')}"
            )
        return frame.head(rows)

    def _require_same_run(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Require that the directory's run has these settings and the current format.

        Returns:
            The manifest of the directory's run; versions and machine may differ.
        """
        for name in (CHECKPOINT, PREVIOUS_CHECKPOINT):
            file_format = checkpoint_format(self.path / name)
            if file_format is not None and file_format.startswith(
                "fedtailor checkpoint "
            ):
                refuse_other_format(self.path / name, file_format)
        old = read_manifest(self.path / MANIFEST)
        # Convert to TOML and back like the old settings, as tuples become lists.
        change = difference(old, tomllib.loads(tomli_w.dumps(settings)))
        if change is not None:
            raise Unusable(
                f"{self.path} holds a run with other settings ({change}); name another"
                " directory"
            )
        return old


class Checkpoints(Callback):
    """Saves a training to a run directory.

    It saves after every `every`-th round, at the end, and after the current round when
    the event `stopped` is set. Where rounds take long, it also saves about once a
    minute, so that a process that is killed loses little; less often if saving takes
    more than a twentieth of the time.
    """

    def __init__(
        self, directory: RunDirectory, every: int, stopped: threading.Event
    ) -> None:
        self._directory = directory
        self._every = every
        self._stopped = stopped
        self._saved_round: int | None = None
        self._next_save = monotonic() + SECONDS_BETWEEN_CHECKPOINTS

    def after_round(self, training: Training, evaluated: bool) -> None:
        # All processes of a distributed run save together, but their clocks differ.
        is_late = jax.process_count() == 1 and monotonic() >= self._next_save
        is_due = training.round % self._every == 0
        if is_due or is_late or self._stopped.is_set():
            self._save(training)

    def on_end(self, training: Training) -> None:
        if self._saved_round != training.round:
            self._save(training)

    def _save(self, training: Training) -> None:
        started = monotonic()
        self._directory.save(training)
        self._saved_round = training.round
        saved = monotonic()
        pause = max(SECONDS_BETWEEN_CHECKPOINTS, 20 * (saved - started))
        self._next_save = saved + pause

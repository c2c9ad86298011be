"""`open_run`, which restores a run from its directory."""

from collections.abc import Sequence
from dataclasses import MISSING, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from fedtailor._base.choice import check_choice, require
from fedtailor.aggregation.accounting import Ledger
from fedtailor.data.federation import Federation
from fedtailor.data.tables import Preprocessing
from fedtailor.deployment.data import federation_of, require_same
from fedtailor.engine.executors import DeviceExecutor, Settings
from fedtailor.engine.runs import Run, Summary
from fedtailor.engine.runs.baseline import baseline
from fedtailor.engine.runs.row_outcomes import row_outcomes
from fedtailor.engine.runs.run import create_training, executor_of
from fedtailor.engine.storage import Damaged, PersonalModel, RunDirectory
from fedtailor.engine.storage.export import MANIFEST as EXPORT_MANIFEST
from fedtailor.engine.storage.export import load_models
from fedtailor.engine.storage.final_models import (
    DEFAULT_FOLDER,
    RECORD,
    RUNS,
    FinalModels,
    read_final,
)
from fedtailor.engine.storage.frozen_file import read_frozen
from fedtailor.engine.storage.manifest import difference, manifest
from fedtailor.engine.storage.run_files import (
    MANIFEST,
    MODELS_MANIFEST,
    SUMMARY,
)
from fedtailor.engine.training import Metrics, RunSpec, Training
from fedtailor.engine.training.spec import method_of_run, model_of_run
from fedtailor.lab.baselines import NAME_IN_MANIFEST
from fedtailor.lab.results.experiment import COMPARISON_INDEX
from fedtailor.lab.results.stored import StoredRun
from fedtailor.models import Architecture, Model
from fedtailor.protocol import Algorithm, drive

_NAIVE = {
    "client": pl.String,
    "split": pl.String,
    "metric": pl.String,
    "value": pl.Float64,
}
"""Columns of the metrics of a constant predictor."""


def open_run(
    directory: Path | str,
    *,
    federation: Federation | None = None,
    algorithm: Algorithm | None = None,
    model: Model | Architecture | None = None,
    table: Path | str | None = None,
    settings: Settings = Settings(),  # noqa: B008 (frozen)
) -> "OpenedRun":
    """Open the directory of a finished run.

    Measurements, the ledger and stored personal models are read from the directory.
    Other methods (`enroll`, `row_outcomes`, models that were too large to be stored)
    need the data: the scenario is built again, or the table is read again. The data
    must be the same as in training.

    Args:
        directory: the run directory.
        federation: the data of a run that was started in Python on a federation of the
            user's own.
        algorithm: the method, if its settings hold functions or arrays, which the
            directory does not store.
        model: the model, likewise.
        table: path of the table, if the file was moved.
        settings: devices and other settings of the executor.

    Raises:
        ValueError: the directory holds no finished run, or the run diverged.

    Example:
        >>> _ = ft.run(
        ...     ft.FedAvg(), federation, ft.models.logistic(), rounds=2, directory="runs/kept"
        ... )
        >>> ft.open("runs/kept").summary().rounds
        2
    """
    path = Path(directory)
    require(path.is_dir(), f"there is no directory {path}; check the path")
    final = final_folder(path)
    if final is not None:
        path = final / RUNS / read_final(final).run
    is_comparison = (path / COMPARISON_INDEX).exists() or any(
        path.glob(f"*/{COMPARISON_INDEX}")
    )
    require(
        not is_comparison,
        f"{path} is a comparison of several runs; name one of them (`fedtailor models"
        f" {path}` lists them), or make models of what it chose (`fedtailor finalize"
        f" {path}`)",
    )
    require_run(path)
    stored = StoredRun(path)
    require(
        not _is_baseline(stored) or (path / MODELS_MANIFEST).exists(),
        f"{path} holds what a baseline predicted, and no models; name the run of a"
        " method",
    )
    require(
        not stored.diverged, f"{path} holds no models: {stored.summary.get('diverged')}"
    )
    return OpenedRun(
        stored,
        federation,
        algorithm,
        model,
        None if table is None else Path(table),
        settings,
    )


def _is_baseline(stored: StoredRun) -> bool:
    return bool(stored.manifest["algorithm"].get(NAME_IN_MANIFEST, False))


def require_run(path: Path) -> None:
    """Check that a directory is not an export of models.

    Raises:
        ValueError: it is an export.
    """
    require(
        not is_export(path),
        f"{path} holds exported models and no measurements; name the run that they are"
        " from",
    )


def is_export(path: Path) -> bool:
    """Whether a directory holds exported models rather than a run."""
    return (path / EXPORT_MANIFEST).exists() and not (path / MANIFEST).exists()


def final_folder(path: Path) -> Path | None:
    """The directory of final models that a path means; None if there is none.

    Args:
        path: that directory, or the results of a comparison that were finalized.
    """
    if (path / RECORD).is_file():
        return path
    candidates = [path / DEFAULT_FOLDER]
    if not (path / COMPARISON_INDEX).exists():
        candidates = [
            index.parent / DEFAULT_FOLDER
            for index in path.glob(f"*/{COMPARISON_INDEX}")
        ]
    found = [folder for folder in candidates if (folder / RECORD).is_file()]
    return found[0] if len(found) == 1 else None


def final_record(path: Path) -> FinalModels | None:
    """The record of the final models that a path means; None if there are none.

    Raises:
        ValueError: the record is damaged.
    """
    final = final_folder(path) if path.is_dir() else None
    return None if final is None else read_final(final)


def runs_of_clients(
    directory: Path | str,
    clients: Sequence[str] | None = None,
    model: Model | Architecture | None = None,
) -> "dict[str, OpenedRun]":
    """Open the run of each client's model: of final models, clients may have several.

    Args:
        directory: a run directory, or a directory of final models.
        clients: names of the clients; None for all.
        model: the model, or its network, if only the user's code knows it.

    Raises:
        ValueError: the directory is neither, or there is no such client.
    """
    path = Path(directory)
    final = final_folder(path) if path.is_dir() else None
    if final is None:
        run = open_run(path, model=model)
        return dict.fromkeys(run.names if clients is None else clients, run)
    record = read_final(final)
    by_default = open_run(final, model=model)
    opened = {record.run: by_default}
    result = {}
    for name in by_default.names if clients is None else clients:
        check_choice(name, by_default.names, f"client of {path} called")
        # Clients that never trained have the method for all.
        own = record.clients.get(name)
        folder = record.run if own is None else own.run
        if folder not in opened:
            opened[folder] = open_run(final / RUNS / folder, model=model)
        result[name] = opened[folder]
    return result


def models_at(
    directory: Path | str,
    clients: Sequence[str] | None = None,
    model: Model | Architecture | None = None,
) -> dict[str, PersonalModel]:
    """Load the personal models of a run, of final models or of an export, by client.

    Args:
        directory: directory of the run, of the final models or of the export.
        clients: names of the clients; None for all.
        model: the model, or its network, if only the user's code knows it.

    Raises:
        ValueError: the directory is neither a run nor an export, or there is no such
            client.
    """
    path = Path(directory)
    if is_export(path):
        models = load_models(path, model)
        if clients is None:
            return models
        for name in clients:
            check_choice(name, models, f"client of {path} called")
        return {name: models[name] for name in clients}
    runs = runs_of_clients(path, clients, model)
    return {name: run.personal(name) for name, run in runs.items()}


class OpenedRun(Run):
    """A run that was opened from its directory; see `open_run`.

    Attributes:
        path: the run directory.
        stored: the files of the run.

    Example:
        >>> kept = ft.run(
        ...     ft.Local(), federation, ft.models.logistic(), rounds=1, directory="opened"
        ... )
        >>> ft.open("opened", federation=federation).summary().rounds
        1
    """

    def __init__(
        self,
        stored: StoredRun,
        federation: Federation | None,
        algorithm: Algorithm | None,
        model: Model | Architecture | None,
        table: Path | None,
        settings: Settings,
    ) -> None:
        self.path = stored.path
        self.stored = stored
        self._user_federation = federation
        self._user_algorithm = algorithm
        self._user_model = model
        self._table = table
        self._settings = settings

    # Read from the directory.

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the clients, in the federation's order."""
        return tuple(self.stored.clients["client"])

    @property
    def manifest(self) -> dict[str, Any]:
        """All settings of the run."""
        return self.stored.manifest

    @property
    def is_baseline(self) -> bool:
        """Whether these are the models of a baseline, which no method has trained."""
        return _is_baseline(self.stored)

    @property
    def ledger(self) -> Ledger:
        return self.stored.ledger

    @cached_property
    def metrics(self) -> Metrics:
        return Metrics.from_frame(self.stored.metrics, self.names)

    def frame(self) -> pl.DataFrame:
        return self.stored.metrics

    def summary(self) -> Summary:
        self._require_method("a summary")
        stored = self.stored.summary
        values = {}
        for field in fields(Summary):
            if field.name in stored:
                values[field.name] = stored[field.name]
            # Older runs lack fields that have a default.
            elif field.default is MISSING:
                raise Damaged(
                    f"{self.path / SUMMARY} has no {field.name!r}; repeat the run"
                )
        return Summary(**values)

    @cached_property
    def preprocessing(self) -> Preprocessing | None:
        return self.stored.preprocessing

    def _require_method(self, what: str) -> None:
        title = self.manifest["algorithm"].get("title", self.stored.method)
        require(
            not self.is_baseline,
            f"{self.path} holds {title}, which has no {what}: no messages of a method"
            " trained it; predict, export and card take it",
        )

    @cached_property
    def algorithm(self) -> Algorithm:
        self._require_method("method that goes on")
        return self._user_algorithm or method_of_run(self.manifest)

    @cached_property
    def model(self) -> Model:
        return model_of_run(self.manifest, self._user_model, read_frozen(self.path))

    # Personal models.

    @property
    def keeps_models(self) -> bool:
        """Whether the directory holds the personal models."""
        return (self.path / MODELS_MANIFEST).exists()

    @cached_property
    def _stored_models(self) -> dict[str, PersonalModel]:
        model = None if self._user_model is None else self.model
        return load_models(self.path, model, manifest_name=MODELS_MANIFEST)

    def personal(self, client: int | str) -> PersonalModel:
        if not self.keeps_models:
            return super().personal(client)
        if isinstance(client, str):
            check_choice(client, self.names, f"client of {self.path} called")
            return self._stored_models[client]
        count = len(self.names)
        require(
            -count <= client < count,
            f"there is no client {client}; the run has {count}, counted from 0",
        )
        return self._stored_models[self.names[client]]

    def personal_models(self) -> dict[str, PersonalModel]:
        return (
            dict(self._stored_models)
            if self.keeps_models
            else super().personal_models()
        )

    # Computed from the data.

    @cached_property
    def federation(self) -> Federation:
        federation = self._user_federation
        if federation is None:
            return federation_of(self.path, self.manifest, self._table)
        require_same(federation, self.manifest, self.path)
        return federation

    @cached_property
    def training(self) -> Training[DeviceExecutor]:
        """The training at its end, from the checkpoint."""
        spec = self.spec
        executor = executor_of(self.federation, self.model, self._settings, self.path)
        training = create_training(spec, executor)
        # Settings may differ from those of the run, as defaults may have changed.
        changed = difference(self.manifest, manifest(spec, self.federation))
        require(
            changed is None,
            f"{self.path} was run with other settings than it is opened with"
            f" ({changed})",
        )
        RunDirectory(self.path).load(training)
        return training

    @cached_property
    def spec(self) -> RunSpec:
        """The settings of the run."""
        return RunSpec.from_plain(
            self.manifest,
            self.stored.summary["rounds"],
            algorithm=self.algorithm,
            model=self.model,
        )

    @cached_property
    def test_rows(self) -> tuple[pl.DataFrame, pl.DataFrame] | None:
        """The final outcome of each test row, and the metrics of a constant predictor.

        Both are read from the run if it stored them, else computed from its data.

        Returns:
            See `row_outcomes` and `baseline`; None if the data are not found.

        Raises:
            Damaged: a file of the run is damaged.
        """
        if self.is_baseline and self.stored.rows is not None:
            return self.stored.rows, pl.DataFrame(schema=_NAIVE)
        # A run stores both or neither.
        if self.stored.rows is not None and self.stored.baseline is not None:
            return self.stored.rows, self.stored.baseline.metrics
        try:
            rows = self.row_outcomes()
            metrics = self.training.measured
            return rows, baseline(self.federation, self.model, metrics)
        except Damaged:  # also a ValueError, but not one of data that are not found
            raise
        except ValueError:
            return None

    @cached_property
    def validation_rows(self) -> pl.DataFrame | None:
        """The final outcome of each validation row (`row_outcomes`), like `test_rows`.

        Raises:
            Damaged: a file of the run is damaged.
        """
        if self.stored.validation is not None:
            return self.stored.validation
        try:
            outcomes = row_outcomes(self.training, self.executor, "val")
            return drive(outcomes, self.executor)
        except Damaged:
            raise
        except ValueError:
            return None

    @property
    def executor(self) -> DeviceExecutor:
        return self.training.executor

"""`open_run`: a run directory as the `Run` that wrote it."""

from collections.abc import Sequence
from dataclasses import MISSING, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedtailor.accounting import Ledger
from fedtailor.deployment.data import federation_of, require_same
from fedtailor.deployment.settings import (
    rebuilt_algorithm,
    rebuilt_model,
    rebuilt_participation,
    rebuilt_pipeline,
)
from fedtailor.executors import DeviceExecutor, Settings
from fedtailor.federation import Federation
from fedtailor.models import Architecture, Model
from fedtailor.protocol import Algorithm, check_choice, require
from fedtailor.report.experiment import INDEX
from fedtailor.report.stored import StoredRun
from fedtailor.runs import Run, Summary
from fedtailor.runs.baseline import baseline
from fedtailor.runs.binding import bind
from fedtailor.runs.run import executor_of
from fedtailor.runs.target_units import default_metrics, target_units
from fedtailor.storage import Damaged, PersonalModel, RunDirectory
from fedtailor.storage.export import MANIFEST as EXPORTED
from fedtailor.storage.export import PREPROCESSING, load_models
from fedtailor.storage.manifest import difference, manifest
from fedtailor.storage.run_files import (
    MANIFEST,
    MODELS_MANIFEST,
    SUMMARY,
    require_unchanged,
)
from fedtailor.tables import Preprocessing
from fedtailor.training import Metrics, Training

if TYPE_CHECKING:
    import polars as pl


def open_run(
    directory: Path | str,
    *,
    federation: Federation | None = None,
    algorithm: Algorithm | None = None,
    model: Model | Architecture | None = None,
    table: Path | str | None = None,
    settings: Settings = Settings(),  # noqa: B008 (frozen)
) -> "OpenedRun":
    """The finished run that a directory holds.

    Its measurements, ledger and (where the run kept them) personal models need nothing
    but the directory. What needs data (`enroll`, `row_outcomes`, models that were too
    large to be kept) finds them again: a scenario is built, a table is read from where
    it was; both must be the same as in training.

    Args:
        directory: of the run.
        federation: the data, of a run that was made in Python from data of its own.
        algorithm: the method, where it was given what only Python code knows (a
            function, an array).
        model: likewise.
        table: where the table is now, if it is not where it was.
        settings: devices and the like, for what is computed.

    Raises:
        ValueError: the directory holds no run that has ended, or one that diverged.
    """
    path = Path(directory)
    require(path.is_dir(), f"there is no directory {path}; check the path")
    is_comparison = (path / INDEX).exists() or any(path.glob(f"*/{INDEX}"))
    require(
        not is_comparison,
        f"{path} is a comparison of several runs; name one of them (`fedtailor models"
        f" {path}` lists them)",
    )
    require_run(path)
    stored = StoredRun(path)
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


def require_run(path: Path) -> None:
    """Refuse an export where a run is needed.

    Raises:
        ValueError: it is one.
    """
    require(
        not is_export(path),
        f"{path} holds exported models and no measurements; name the run that they are"
        " from",
    )


def is_export(path: Path) -> bool:
    """Whether a directory holds exported models, and not the run that they are from."""
    return (path / EXPORTED).exists() and not (path / MANIFEST).exists()


def models_at(
    directory: Path | str, clients: Sequence[str] | None = None
) -> dict[str, PersonalModel]:
    """The personal models of a run directory or of an export, by client.

    Args:
        directory: of either.
        clients: whose models; None: all.

    Raises:
        ValueError: the directory holds neither, or there is no such client.
    """
    path = Path(directory)
    if is_export(path):
        models = load_models(path)
        if clients is None:
            return models
        for name in clients:
            check_choice(name, models, f"client of {path} called")
        return {name: models[name] for name in clients}
    run = open_run(path)
    if clients is None:
        return run.personal_models()
    return {name: run.personal(name) for name in clients}


class OpenedRun(Run):
    """A run that was read from its directory; see `open_run`.

    Attributes:
        path: the directory.
        stored: its files.
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
        self._given_federation = federation
        self._given_algorithm = algorithm
        self._given_model = model
        self._table = table
        self._settings = settings

    # What the directory says.

    @property
    def names(self) -> tuple[str, ...]:
        """The clients, in the federation's order."""
        return tuple(self.stored.clients["client"])

    @property
    def manifest(self) -> dict[str, Any]:
        """Every setting."""
        return self.stored.manifest

    @property
    def ledger(self) -> Ledger:
        return self.stored.ledger

    @cached_property
    def metrics(self) -> Metrics:
        return Metrics.from_frame(self.stored.metrics, self.names)

    def frame(self) -> "pl.DataFrame":
        return self.stored.metrics

    def summary(self) -> Summary:
        written = self.stored.summary
        values = {}
        for field in fields(Summary):
            if field.name in written:
                values[field.name] = written[field.name]
            # What has a default, such as a guarantee of privacy, may be missing.
            elif field.default is MISSING:
                raise Damaged(
                    f"{self.path / SUMMARY} has no {field.name!r}; repeat the run"
                )
        return Summary(**values)

    @cached_property
    def preprocessing(self) -> Preprocessing | None:
        path = self.path / PREPROCESSING
        require_unchanged(path, self.stored.summary)
        return Preprocessing.load(path) if path.exists() else None

    @cached_property
    def algorithm(self) -> Algorithm:
        return self._given_algorithm or rebuilt_algorithm(self.manifest["algorithm"])

    @cached_property
    def model(self) -> Model:
        given = self._given_model
        if given is None:
            return rebuilt_model(self.manifest["model"])
        return given if isinstance(given, Model) else bind(given, self.federation)

    # Personal models.

    @property
    def keeps_models(self) -> bool:
        """Whether the directory holds the personal models."""
        return (self.path / MODELS_MANIFEST).exists()

    @cached_property
    def _kept(self) -> dict[str, PersonalModel]:
        model = None if self._given_model is None else self.model
        return load_models(self.path, model, manifest_name=MODELS_MANIFEST)

    def personal(self, client: int | str) -> PersonalModel:
        if not self.keeps_models:
            return super().personal(client)
        if isinstance(client, str):
            check_choice(client, self.names, f"client of {self.path} called")
            return self._kept[client]
        count = len(self.names)
        require(
            -count <= client < count,
            f"there is no client {client}; the run has {count}, counted from 0",
        )
        return self._kept[self.names[client]]

    def personal_models(self) -> dict[str, PersonalModel]:
        return dict(self._kept) if self.keeps_models else super().personal_models()

    # What needs the data.

    @cached_property
    def federation(self) -> Federation:
        given = self._given_federation
        if given is None:
            return federation_of(self.path, self.manifest, self._table)
        require_same(given, self.manifest, self.path)
        return given

    @cached_property
    def training(self) -> Training[DeviceExecutor]:
        """The training as it ended, from the checkpoint."""
        run, federation = self.manifest["run"], self.federation
        executor = executor_of(federation, self.model, self._settings, self.path)
        training = Training(
            self.algorithm,
            executor,
            self.model,
            seed=run["seed"],
            **self.travel,
            metrics=run.get("metrics") or default_metrics(federation),
            target_scale=target_units(federation)[1],
        )
        # What was rebuilt must be what was run: a default may have changed since.
        names = run.get("metrics", ())
        metrics = [metric for metric in training.measured if metric.name in names]
        rebuilt = manifest(
            self.algorithm,
            federation,
            self.model,
            run["seed"],
            training.participation,
            run["evaluate_every"],
            training.uplink,
            training.downlink,
            metrics,
        )
        changed = difference(self.manifest, rebuilt)
        require(
            changed is None,
            f"{self.path} was run with other settings than it is opened with"
            f" ({changed})",
        )
        RunDirectory(self.path).load(training)
        return training

    @cached_property
    def test_rows(self) -> "tuple[pl.DataFrame, pl.DataFrame] | None":
        """What became of every test row in the end, and what learning nothing reaches.

        They were kept by the run, or are computed from its data.

        Returns:
            See `row_outcomes` and `baseline`; None where the data are not found.

        Raises:
            Damaged: a file of the run is.
        """
        # Runs keep both, or neither.
        if self.stored.rows is not None and self.stored.baseline is not None:
            return self.stored.rows, self.stored.baseline.metrics
        try:
            rows = self.row_outcomes()
            measured = self.training.measured
            return rows, baseline(self.federation, self.model, measured)
        except Damaged:
            raise
        except ValueError:
            return None

    @property
    def travel(self) -> dict[str, Any]:
        """Who reported, and the transforms of what travelled.

        As `fedtailor.run` takes them.
        """
        reported = self.manifest["run"]["participation"]
        uplink = self.manifest.get("uplink", [])
        downlink = self.manifest.get("downlink", [])
        return {
            "participation": rebuilt_participation(reported),
            "uplink": rebuilt_pipeline(uplink, "uplink"),
            "downlink": rebuilt_pipeline(downlink, "downlink"),
        }

    @property
    def executor(self) -> DeviceExecutor:
        return self.training.executor

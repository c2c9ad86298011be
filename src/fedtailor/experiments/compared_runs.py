"""`ComparedRuns`: trains the runs of a comparison, and names their directories."""

import hashlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedtailor._files import file_digest
from fedtailor._version import __version__
from fedtailor.baselines import Baseline, evaluate
from fedtailor.executors import DeviceExecutor, LockstepGroup, Settings
from fedtailor.experiments.experiment import Candidate, Column, Entry, Experiment
from fedtailor.federation import Federation
from fedtailor.models import Model, linear
from fedtailor.protocol import Diverged, Exchanges, drive, to_plain
from fedtailor.runs import run_exchanges
from fedtailor.runs.run import Store, executor_of
from fedtailor.storage import Interrupted, Unusable, interrupts
from fedtailor.storage.manifest import stored_versions
from fedtailor.storage.run_directory import RunDirectory
from fedtailor.storage.run_files import MANIFEST
from fedtailor.trackers import Tracker, find_trackers
from fedtailor.training import AfterRound, RunSpec, Training
from fedtailor.training.binding import bind

RUNS = "runs"
KEEP_CORRELATED = "keep_correlated"
"""The parameter of tables whose inputs are left as they are."""


@dataclass
class ComparedRuns:
    """Trains the runs of an experiment that are not yet in their directories.

    The name of a run is the path of its directory, relative to the result directory.

    Attributes:
        experiment: the experiment.
        results: the result directory.
        settings: settings of the executor.
        progress: called at the start of each run, with None in place of a training, and
            after each round.
        at_once: number of seeds of a method that are trained at once.
        any_version: accept runs of other versions of fedtailor.
        track: names of the trackers of the runs.
        refusals: the error message of each run whose method refused its settings, by
            the run's name.
        seconds: duration of each finished run, by the run's name.
        shares: finished share of each run's rounds, by the run's name.
    """

    experiment: Experiment
    results: Path
    settings: Settings
    progress: Callable[[Entry, int, Training | None], None]
    at_once: int
    any_version: bool
    track: Sequence[str]

    def __post_init__(self) -> None:
        self.refusals: dict[str, str] = {}
        self.seconds: dict[str, float] = {}
        self.shares: dict[str, float] = {}
        self._federations: dict[tuple[str, int], Federation] = {}

    def train(
        self, entry: Entry, candidate: Candidate, seed: int, rounds: int | None = None
    ) -> str:
        """Train a run, unless its directory has the finished run.

        Args:
            entry: the method and the scenario.
            candidate: the settings of the method.
            seed: random seed of the run.
            rounds: number of rounds; by default that of the column.

        Returns:
            The name of the run.
        """
        column = entry.column
        name = self.name_of(entry, candidate, seed)
        summary = self._finished(name, column, rounds)
        if summary is None:
            federation = self.data(column, seed)
            path, model = self.results / name, column.model_of(candidate)
            executor = executor_of(federation, model, self.settings, path)
            drive(self._run(entry, candidate, seed, executor, rounds=rounds), executor)
            if name in self.refusals:
                return name
            summary = self._finished(name, column, rounds)
            assert summary is not None
        if rounds in (None, column.rounds):
            self.seconds[name] = summary.get("seconds", 0.0)
        return name

    def train_at_once(
        self, entry: Entry, candidate: Candidate, seeds: Sequence[int]
    ) -> None:
        """Train several seeds at once, if two or more runs are unfinished."""
        column = entry.column
        names = {seed: self.name_of(entry, candidate, seed) for seed in seeds}
        unfinished = [
            seed for seed in seeds if self._finished(names[seed], column) is None
        ]
        if len(unfinished) < 2:
            return
        federations = [self.data(column, seed) for seed in unfinished]
        model = column.model_of(candidate)
        models = [bind(model, federation) for federation in federations]
        directories = [self.results / names[seed] for seed in unfinished]
        group = LockstepGroup(federations, models, self.settings, directories)
        with interrupts() as stopped:
            runs = [
                self._run(entry, candidate, seed, executor, stopped)
                for seed, executor in zip(unfinished, group.executors, strict=True)
            ]
            group.drive(runs, stopped)
            if stopped.is_set():
                raise Interrupted

    def train_baseline(self, column: Column, baseline: Baseline, seed: int) -> str:
        """Train a baseline, unless its directory has the finished run.

        Returns:
            The name of its run.

        Raises:
            ValueError: the baseline cannot be trained on these data.
        """
        name = self._name_of_baseline(column, baseline, seed)
        if RunDirectory(self.results / name).finished_summary(1) is not None:
            return name
        scenario = column.scenario
        # Trees do not see through the rotation that helps gradient steps.
        if KEEP_CORRELATED in scenario.parameters:
            scenario = scenario.sized(**{KEEP_CORRELATED: True})
            uncorrelated = replace(column, scenario=scenario, label=f"{column.label}/")
            federation = self.data(uncorrelated, seed)
        else:
            federation = self.data(column, seed)
        evaluate(
            baseline,
            federation,
            bind(linear(), federation),
            self.results / name,
            seed=seed,
            metrics=self.experiment.file.measured,
        )
        return name

    def _name_of_baseline(self, column: Column, baseline: Baseline, seed: int) -> str:
        """The name of a baseline's run, which depends on its data and on the version."""
        content = {
            "data": {**column.arguments, "file": _digest_of_file(column)},
            "measured": self.experiment.file.measured,
        }
        name = f"{baseline.name}-{_fingerprint(content)}-s{seed}"
        return self._of_this_version(f"{RUNS}/{column.scenario.name}/{name}")

    def is_finished(self, entry: Entry, candidate: Candidate, seed: int) -> bool:
        """Whether the directory of a run has the finished run."""
        name = self.name_of(entry, candidate, seed)
        return self._finished(name, entry.column) is not None

    def _finished(
        self, name: str, column: Column, rounds: int | None = None
    ) -> dict[str, Any] | None:
        """The summary of a run if it has finished this number of rounds, or None."""
        directory = RunDirectory(self.results / name)
        return directory.finished_summary(rounds or column.rounds)

    def _run(
        self,
        entry: Entry,
        candidate: Candidate,
        seed: int,
        executor: DeviceExecutor,
        stopped: threading.Event | None = None,
        rounds: int | None = None,
    ) -> Exchanges[None]:
        """Train a run, as a generator of exchanges.

        If the run diverges, there is no error: its directory and the tables report it.
        If the method refuses its settings for these clients, the message is added to
        `refusals`.
        """
        column = entry.column
        name = self.name_of(entry, candidate, seed)
        rounds = rounds or column.rounds
        self.progress(entry, seed, None)
        self.refusals.pop(name, None)
        callbacks = [
            AfterRound(self._after_round(entry, seed, name)),
            *self._trackers(entry, candidate, seed),
        ]
        try:
            spec = self.spec(entry, candidate, seed, executor.model)
            store = Store(
                self.results / name,
                resume=True,
                checkpoint_every=max(column.rounds // 5, 1),
                keep_rows=rounds == column.rounds,
                origin=column.scenario.origin(seed),
            )
            yield from run_exchanges(
                replace(spec, rounds=rounds),
                executor,
                callbacks=callbacks,
                store=store,
                stopped=stopped,
            )
        except Diverged:
            return
        except Unusable:
            # Other runs would fail as well.
            raise
        except ValueError as error:
            self.refusals[name] = str(error)

    def spec(
        self, entry: Entry, candidate: Candidate, seed: int, model: Model
    ) -> RunSpec:
        """The settings of a run.

        Args:
            entry: the method and the scenario.
            candidate: the settings of the method.
            seed: random seed of the run.
            model: the model, bound to the data.
        """
        file, column = self.experiment.file, entry.column
        return RunSpec(
            candidate.algorithm,
            model,
            column.rounds,
            seed=seed,
            participation=column.participation,
            uplink=entry.uplink,
            metrics=file.measured,
            evaluate_every=self.evaluate_every(column),
            until_still=file.until_still,
        )

    def _trackers(self, entry: Entry, candidate: Candidate, seed: int) -> list[Tracker]:
        """The trackers of a run."""
        parameters = candidate.parameters.items()
        method = ", ".join(
            [entry.row, *(f"{key} {value}" for key, value in parameters)]
        )
        title = f"{method} on {entry.column.label}, seed {seed}"
        directory = self.results / self.name_of(entry, candidate, seed)
        return find_trackers(
            self.track, directory, experiment=self.experiment.name, run=title
        )

    def _after_round(
        self, entry: Entry, seed: int, name: str
    ) -> Callable[[Training, bool], None]:
        def after_round(training: Training, evaluated: bool) -> None:
            self.shares[name] = training.round / entry.column.rounds
            self.progress(entry, seed, training)

        return after_round

    def data(self, column: Column, seed: int) -> Federation:
        """The federation of a column and a seed, from a small cache."""
        key = column.label, seed
        if key not in self._federations:
            # Keep only federations of this column, and of at most `at_once` seeds.
            cached = list(self._federations)
            excess = max(len(cached) + 1 - self.at_once, 0)
            other_columns = [entry for entry in cached if entry[0] != column.label]
            for entry in other_columns or cached[:excess]:
                del self._federations[entry]
            self._federations[key] = column.scenario.build(seed)
        return self._federations[key]

    def evaluate_every(self, column: Column) -> int:
        """Number of rounds between two evaluations."""
        return self.experiment.file.evaluate_every or max(column.rounds // 20, 1)

    def name_of(self, entry: Entry, candidate: Candidate, seed: int) -> str:
        """The name of a run, which depends on its settings and on the version."""
        method = candidate.algorithm.about.name
        fingerprint = self.fingerprint(entry, candidate)
        name = f"{RUNS}/{entry.column.scenario.name}/{method}-{fingerprint}-s{seed}"
        return self._of_this_version(name)

    def _of_this_version(self, name: str) -> str:
        """The name of a run, with the version if another version has made that run."""
        versions = stored_versions(self.results / name / MANIFEST)
        if versions.get("fedtailor", __version__) == __version__:
            return name
        # The run of that name was made by another version.
        versioned_name = f"{name}-{__version__}"
        if self.any_version and not (self.results / versioned_name).exists():
            return name
        return versioned_name

    def fingerprint(self, entry: Entry, candidate: Candidate) -> str:
        """The fingerprint of all settings of a run but its seed."""
        column = entry.column
        measured = self.experiment.file.measured
        settings = {
            "algorithm": to_plain(candidate.algorithm),
            "model": to_plain(column.model_of(candidate)),
            "data": {**column.arguments, "file": _digest_of_file(column)},
            "rounds": column.rounds,
            "every": self.evaluate_every(column),
            "participation": to_plain(column.participation),
        }
        # Added only if they are set, so that the fingerprints of runs without them are
        # the same as in older versions.
        if entry.uplink:
            settings["uplink"] = to_plain(entry.uplink)
        if measured:
            settings["measured"] = measured
        if self.experiment.file.until_still:
            settings["until_still"] = True
        return _fingerprint(settings)


def _fingerprint(settings: Mapping[str, Any]) -> str:
    text = json.dumps(settings, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def _digest_of_file(column: Column) -> str:
    """SHA-256 of the user's file, if the scenario reads one; otherwise ""."""
    path = column.arguments.get("path")
    if path is None:
        return ""
    try:
        return file_digest(Path(path))
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None

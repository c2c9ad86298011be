"""The runs of a comparison.

Where each stands in the result directory, its data, and how it is made.
"""

import hashlib
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtailor._version import __version__
from fedtailor.executors import DeviceExecutor, LockstepGroup, Settings
from fedtailor.experiments.experiment import Candidate, Column, Entry, Experiment
from fedtailor.federation import Federation
from fedtailor.protocol import Diverged, Exchanges, drive
from fedtailor.runs import run_exchanges
from fedtailor.runs.binding import bind
from fedtailor.runs.run import executor_of
from fedtailor.storage import Interrupted, Unusable, interrupts
from fedtailor.storage.manifest import settings as described
from fedtailor.storage.manifest import stored_versions
from fedtailor.storage.run_directory import RunDirectory
from fedtailor.storage.run_files import MANIFEST
from fedtailor.trackers import Tracker, find_trackers
from fedtailor.training import AfterRound, Training

RUNS = "runs"


@dataclass
class ComparedRuns:
    """Makes the runs of an experiment, unless their directories hold them already.

    Attributes:
        experiment: what is compared.
        results: the result directory.
        settings: devices and the like.
        progress: called when a run begins (without a training) and after each of its
            rounds.
        at_once: how many seeds of a method are trained at once.
        any_version: take runs that another version of fedtailor made as if this one had
            made them.
        track: trackers that are shown every run.
        refusals: why a run's method refused its settings, by the run's name.
        seconds: what each finished run took, by its name.
        shares: the share of its rounds that a run has done, by its name.
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
        """One run, unless its directory holds it already.

        Args:
            entry: the method and the scenario.
            candidate: the method's settings.
            seed: of the run.
            rounds: how many of the column's rounds, all by default.

        Returns:
            Where it stands in the result directory.
        """
        column = entry.column
        name = self.name_of(entry, candidate, seed)
        summary = self._finished(name, column, rounds)
        if summary is None:
            federation = self.data(column, seed)
            model = bind(column.scenario.model, federation)
            path = self.results / name
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
        """The runs that are not over, unless only one is left."""
        column = entry.column
        names = {seed: self.name_of(entry, candidate, seed) for seed in seeds}
        left = [seed for seed in seeds if self._finished(names[seed], column) is None]
        if len(left) < 2:
            return
        federations = [self.data(column, seed) for seed in left]
        models = [bind(column.scenario.model, federation) for federation in federations]
        directories = [self.results / names[seed] for seed in left]
        group = LockstepGroup(federations, models, self.settings, directories)
        with interrupts() as stopped:
            runs = [
                self._run(entry, candidate, seed, executor, stopped)
                for seed, executor in zip(left, group.executors, strict=True)
            ]
            group.drive(runs, stopped)
            if stopped.is_set():
                raise Interrupted

    def _finished(
        self, name: str, column: Column, rounds: int | None = None
    ) -> dict[str, Any] | None:
        """The summary of a run that has done so many rounds; None of another one."""
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
        """One run as exchanges.

        One that diverges ends without an error: its directory says so, and the tables
        will. So does one whose method refuses its settings for these clients: the index
        says so.
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
            yield from run_exchanges(
                candidate.algorithm,
                executor,
                rounds,
                seed=seed,
                participation=column.participation,
                evaluate_every=self.evaluate_every(column),
                uplink=entry.uplink,
                callbacks=callbacks,
                directory=self.results / name,
                resume=True,
                checkpoint_every=max(column.rounds // 5, 1),
                stopped=stopped,
                metrics=self.experiment.file.measured,
                keep_rows=rounds == column.rounds,
                origin=column.scenario.origin(seed),
            )
        except Diverged:
            return
        except Unusable:
            # Not the method's doing: nothing else could be run either.
            raise
        except ValueError as error:
            self.refusals[name] = str(error)

    def _trackers(self, entry: Entry, candidate: Candidate, seed: int) -> list[Tracker]:
        """The trackers that are shown a run."""
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
        """The clients of one column and seed; only the last ones stay in memory."""
        key = column.label, seed
        if key not in self._federations:
            loaded = list(self._federations)
            # Those of other columns go first; else there is room for `at_once` seeds.
            too_many = max(len(loaded) + 1 - self.at_once, 0)
            others = [other for other in loaded if other[0] != column.label]
            for other in others or loaded[:too_many]:
                del self._federations[other]
            self._federations[key] = column.scenario.build(seed)
        return self._federations[key]

    def evaluate_every(self, column: Column) -> int:
        """Rounds between two evaluations."""
        return self.experiment.file.evaluate_every or max(column.rounds // 20, 1)

    def name_of(self, entry: Entry, candidate: Candidate, seed: int) -> str:
        """Where a run stands in the result directory.

        Runs of equal settings and version have equal names.
        """
        column = entry.column
        measured = self.experiment.file.measured
        settings = {
            "algorithm": described(candidate.algorithm),
            "model": described(column.scenario.model),
            "data": {**column.arguments, "file": _digest_of_file(column)},
            "rounds": column.rounds,
            "every": self.evaluate_every(column),
            "participation": described(column.participation),
        }
        # Left out where they say nothing: the fingerprints of runs without them stay
        # what they were.
        if entry.uplink:
            settings["uplink"] = described(entry.uplink)
        if measured:
            settings["measured"] = measured
        text = json.dumps(settings, sort_keys=True, default=str)
        fingerprint = hashlib.sha256(text.encode()).hexdigest()[:10]
        method = candidate.algorithm.about.name
        name = f"{RUNS}/{column.scenario.name}/{method}-{fingerprint}-s{seed}"
        versions = stored_versions(self.results / name / MANIFEST)
        if versions.get("fedtailor", __version__) == __version__:
            return name
        # Another version made the run of that name; ours stands beside it.
        beside = f"{name}-{__version__}"
        if self.any_version and not (self.results / beside).exists():
            return name
        return beside


def _digest_of_file(column: Column) -> str:
    """A digest of the user's own file, where the scenario reads one.

    Runs on other contents are other runs.
    """
    path = column.arguments.get("path")
    if path is None:
        return ""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None

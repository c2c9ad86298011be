"""`ComparedRuns`: trains the runs of a comparison, and names their directories."""

import hashlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax

from fedtailor._base.files import file_digest
from fedtailor._base.own_code import own_code
from fedtailor._version import __version__
from fedtailor.data.federation import Federation
from fedtailor.engine.executors import (
    DeviceExecutor,
    LockstepGroup,
    Place,
    Settings,
    place_together,
)
from fedtailor.engine.runs import run_exchanges
from fedtailor.engine.runs.run import Store, executor_of
from fedtailor.engine.storage import Interrupted, Unusable, interrupts
from fedtailor.engine.storage.manifest import stored_versions
from fedtailor.engine.storage.run_directory import RunDirectory
from fedtailor.engine.storage.run_files import MANIFEST
from fedtailor.engine.training import AfterRound, RunSpec, Training
from fedtailor.engine.training.binding import bind
from fedtailor.lab.baselines import Baseline, evaluate
from fedtailor.lab.experiments.experiment import (
    Candidate,
    ComparedMethod,
    ComparedScenario,
    Experiment,
)
from fedtailor.lab.trackers import Tracker, find_trackers
from fedtailor.models import Architecture, Model, linear
from fedtailor.protocol import Diverged, Exchanges, drive
from fedtailor.protocol.plain import to_plain

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
        progress: called at the start of each run, with None instead of a training, and
            after each round.
        at_once: number of seeds of a method that are trained at once.
        any_version: accept runs of other versions of fedtailor.
        track: names of the trackers of the runs.
        refusals: the error message of each run whose method refused its settings, by
            the run's name.
        seconds: duration of each finished run, by the run's name.
        core_seconds: processor time of each, likewise; None where it was not measured.
        shares: finished share of each run's rounds, by the run's name.
    """

    experiment: Experiment
    results: Path
    settings: Settings
    progress: Callable[[ComparedMethod, int, Training | None], None]
    at_once: int
    any_version: bool
    track: Sequence[str]

    def __post_init__(self) -> None:
        self.refusals: dict[str, str] = {}
        self.seconds: dict[str, float] = {}
        self.core_seconds: dict[str, float | None] = {}
        self.shares: dict[str, float] = {}
        self._federations: dict[tuple[str, int], Federation] = {}
        # Where examples are: of one scenario, for models of one type.
        self._places: tuple[Any, dict[int, Place | None]] = (None, {})

    def train(
        self,
        method: ComparedMethod,
        candidate: Candidate,
        seed: int,
        rounds: int | None = None,
    ) -> str:
        """Train a run, unless its directory has the finished run.

        Args:
            method: the method in its scenario.
            candidate: the settings of the method.
            seed: random seed of the run.
            rounds: number of rounds; by default that of the scenario.

        Returns:
            The name of the run.
        """
        scenario = method.scenario
        name = self.name_of(method, candidate, seed)
        summary = self._finished(name, scenario, rounds)
        if summary is None:
            federation = self.data(scenario, seed)
            path, model = self.results / name, scenario.model_of(candidate)
            place = self._place(scenario, seed, model)
            executor = executor_of(federation, model, self.settings, path, place)
            drive(self._run(method, candidate, seed, executor, rounds=rounds), executor)
            if name in self.refusals:
                return name
            summary = self._finished(name, scenario, rounds)
            assert summary is not None
        if rounds in (None, scenario.rounds):
            self.add_time(name, summary)
        return name

    def add_time(self, name: str, summary: Mapping[str, Any]) -> None:
        """Add what a finished run took, by its summary."""
        self.seconds[name] = summary.get("seconds", 0.0)
        self.core_seconds[name] = summary.get("core_seconds")

    @property
    def total_core_seconds(self) -> float | None:
        """Processor time of all finished runs; None if one of them did not measure it."""
        total = 0.0
        for seconds in self.core_seconds.values():
            if seconds is None:
                return None
            total += seconds
        return total

    def train_at_once(
        self, method: ComparedMethod, candidate: Candidate, seeds: Sequence[int]
    ) -> None:
        """Train several seeds at once, if two or more runs are unfinished."""
        scenario = method.scenario
        names = {seed: self.name_of(method, candidate, seed) for seed in seeds}
        unfinished = [
            seed for seed in seeds if self._finished(names[seed], scenario) is None
        ]
        if len(unfinished) < 2:
            return
        federations = [self.data(scenario, seed) for seed in unfinished]
        model = scenario.model_of(candidate)
        models = [bind(model, federation) for federation in federations]
        directories = [self.results / names[seed] for seed in unfinished]
        places = [self._place(scenario, seed, model) for seed in unfinished]
        group = LockstepGroup(federations, models, self.settings, directories, places)
        with interrupts() as stopped:
            runs = [
                self._run(method, candidate, seed, executor, stopped)
                for seed, executor in zip(unfinished, group.executors, strict=True)
            ]
            group.drive(runs, stopped)
            if stopped.is_set():
                raise Interrupted

    def train_baseline(
        self, scenario: ComparedScenario, baseline: Baseline, seed: int
    ) -> str:
        """Train a baseline, unless its directory has the finished run.

        Returns:
            The name of its run.

        Raises:
            ValueError: the baseline cannot be trained on these data.
        """
        name = self._name_of_baseline(scenario, baseline, seed)
        if RunDirectory(self.results / name).finished_summary(1) is not None:
            return name
        definition = scenario.definition
        # Trees do not see through the rotation that helps gradient steps.
        if KEEP_CORRELATED in definition.parameters:
            scenario = replace(
                scenario,
                definition=definition.sized(**{KEEP_CORRELATED: True}),
                label=f"{scenario.label}/",
            )
        federation = self.data(scenario, seed)
        evaluate(
            baseline,
            federation,
            bind(linear(), federation),
            self.results / name,
            seed=seed,
            metrics=self.experiment.file.measured,
        )
        return name

    def _name_of_baseline(
        self, scenario: ComparedScenario, baseline: Baseline, seed: int
    ) -> str:
        """The name of a baseline's run, which depends on its data and on the version."""
        content = {
            "data": {**scenario.arguments, "file": _digest_of_file(scenario)},
            "measured": self.experiment.file.measured,
        }
        name = f"{baseline.name}-{_fingerprint(content)}-s{seed}"
        return self._of_this_version(f"{RUNS}/{scenario.definition.name}/{name}")

    def is_finished(
        self, method: ComparedMethod, candidate: Candidate, seed: int
    ) -> bool:
        """Whether the directory of a run has the finished run."""
        name = self.name_of(method, candidate, seed)
        return self._finished(name, method.scenario) is not None

    def _finished(
        self, name: str, scenario: ComparedScenario, rounds: int | None = None
    ) -> dict[str, Any] | None:
        """The summary of a run if it has finished this number of rounds, or None."""
        directory = RunDirectory(self.results / name)
        return directory.finished_summary(rounds or scenario.rounds)

    def _run(
        self,
        method: ComparedMethod,
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
        scenario = method.scenario
        name = self.name_of(method, candidate, seed)
        rounds = rounds or scenario.rounds
        self.progress(method, seed, None)
        self.refusals.pop(name, None)
        callbacks = [
            AfterRound(self._after_round(method, seed, name)),
            *self._trackers(method, candidate, seed),
        ]
        try:
            spec = self.spec(method, candidate, seed, executor.model)
            # Runs of a process are saved once a minute anyway, and short ones are done by
            # then; the clocks of several processes differ.
            shares = 1 if jax.process_count() == 1 else 5
            store = Store(
                self.results / name,
                resume=True,
                checkpoint_every=max(scenario.rounds // shares, 1),
                keep_rows=rounds == scenario.rounds,
                origin=scenario.definition.origin(seed),
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
        self, method: ComparedMethod, candidate: Candidate, seed: int, model: Model
    ) -> RunSpec:
        """The settings of a run.

        Args:
            method: the method in its scenario.
            candidate: the settings of the method.
            seed: random seed of the run.
            model: the model, bound to the data.
        """
        file, scenario = self.experiment.file, method.scenario
        return RunSpec(
            candidate.algorithm,
            model,
            scenario.rounds,
            seed=seed,
            participation=scenario.participation,
            uplink=method.uplink,
            asynchronous=method.asynchronous,
            metrics=file.measured,
            evaluate_every=self.evaluate_every(scenario),
            until_converged=file.until_converged,
        )

    def _trackers(
        self, method: ComparedMethod, candidate: Candidate, seed: int
    ) -> list[Tracker]:
        """The trackers of a run."""
        parameters = candidate.parameters.items()
        name = ", ".join(
            [method.label, *(f"{key} {value}" for key, value in parameters)]
        )
        title = f"{name} on {method.scenario.label}, seed {seed}"
        directory = self.results / self.name_of(method, candidate, seed)
        return find_trackers(
            self.track, directory, experiment=self.experiment.name, run=title
        )

    def _after_round(
        self, method: ComparedMethod, seed: int, name: str
    ) -> Callable[[Training, bool], None]:
        def after_round(training: Training, evaluated: bool) -> None:
            self.shares[name] = training.round / method.scenario.rounds
            self.progress(method, seed, training)

        return after_round

    def data(self, scenario: ComparedScenario, seed: int) -> Federation:
        """The federation of a scenario and a seed, from a small cache."""
        key = scenario.label, seed
        if key not in self._federations:
            # Keep only federations of this scenario, and of at most `at_once` seeds.
            cached = list(self._federations)
            excess = max(len(cached) + 1 - self.at_once, 0)
            of_others = [known for known in cached if known[0] != scenario.label]
            for known in of_others or cached[:excess]:
                del self._federations[known]
            self._federations[key] = scenario.definition.build(seed)
        return self._federations[key]

    def _place(
        self, scenario: ComparedScenario, seed: int, model: Model | Architecture
    ) -> Place | None:
        """Where the examples of a seed are: with those of the seeds that are trained at
        once with it, so that all of their runs share programs; None = nowhere yet.
        """
        if self.at_once == 1:
            return None
        seeds = self.experiment.file.seeds
        first = seeds.index(seed) // self.at_once * self.at_once
        together = seeds[first : first + self.at_once]
        federations = [self.data(scenario, one) for one in together]
        dtypes = [bind(model, it).precision.sums for it in federations]
        key = scenario.label, first, tuple(dtypes)
        if self._places[0] != key:
            places = place_together(federations, dtypes, self.settings)
            self._places = key, dict(zip(together, places, strict=True))
        return self._places[1][seed]

    def evaluate_every(self, scenario: ComparedScenario) -> int:
        """Number of rounds between two evaluations."""
        return self.experiment.file.evaluate_every or max(scenario.rounds // 20, 1)

    def name_of(self, method: ComparedMethod, candidate: Candidate, seed: int) -> str:
        """The name of a run, which depends on its settings and on the version."""
        algorithm = candidate.algorithm.about.name
        fingerprint = self.fingerprint(method, candidate)
        name = f"{RUNS}/{method.scenario.definition.name}/{algorithm}-{fingerprint}-s{seed}"
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

    def fingerprint(self, method: ComparedMethod, candidate: Candidate) -> str:
        """The fingerprint of all settings of a run but its seed."""
        scenario = method.scenario
        measured = self.experiment.file.measured
        settings = {
            "algorithm": to_plain(candidate.algorithm),
            "model": to_plain(scenario.model_of(candidate)),
            "data": {**scenario.arguments, "file": _digest_of_file(scenario)},
            "rounds": scenario.rounds,
            "every": self.evaluate_every(scenario),
            "participation": to_plain(scenario.participation),
        }
        # Added only if they are set, so that the fingerprints of runs without them are
        # the same as in older versions.
        if method.uplink:
            settings["uplink"] = to_plain(method.uplink)
        if method.asynchronous is not None:
            settings["asynchronous"] = to_plain(method.asynchronous)
        if measured:
            settings["measured"] = measured
        if self.experiment.file.until_converged:
            settings["until_converged"] = True
        trained = [candidate.algorithm, scenario.model_of(candidate), method.uplink]
        code = {**scenario.code_of(candidate), **own_code(trained)}
        if code:
            settings["code"] = code
        return _fingerprint(settings)


def _fingerprint(settings: Mapping[str, Any]) -> str:
    text = json.dumps(settings, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def _digest_of_file(scenario: ComparedScenario) -> str:
    """SHA-256 of the user's file, if the scenario reads one; otherwise ""."""
    path = scenario.arguments.get("path")
    if path is None:
        return ""
    try:
        return file_digest(Path(path))
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None

"""`Comparison`: train all runs of an experiment, with results in one directory.

    RESULTS/runs/<scenario>/<method>-<fingerprint>-s<seed>/    the run directories
    RESULTS/<experiment>/experiment.json                       the index: settings of the experiment, and its runs

The name of a run directory contains a fingerprint of all settings of the run. So
experiments share runs, and a comparison that was stopped can be resumed. Runs of other
versions of fedtailor are not modified. They are repeated in a directory whose name ends
with the version, unless `any_version` is True. The index is rewritten after every run,
or after every group of seeds that are trained at once.
"""

import hashlib
import json
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from fedtailor._base.choice import require
from fedtailor._base.files import reason
from fedtailor._base.memory import forget_programs_in_time
from fedtailor._base.notebook import html_paragraphs, html_table
from fedtailor._base.printable import say_status
from fedtailor.engine.executors import Settings
from fedtailor.engine.storage import DirectoryLock, Unusable
from fedtailor.engine.storage.comparison_index import (
    BaselineRun,
    MethodRun,
    write_index,
)
from fedtailor.engine.storage.run_files import (
    COMPARISON_INDEX,
    MANIFEST,
    SUMMARY,
    read_manifest,
    read_summary,
)
from fedtailor.engine.training import Training
from fedtailor.lab.experiments.budget import Halving
from fedtailor.lab.experiments.choosing import Choosing, finished_runs
from fedtailor.lab.experiments.compared_runs import ComparedRuns
from fedtailor.lab.experiments.experiment import (
    Candidate,
    ComparedMethod,
    ComparedScenario,
    Experiment,
)
from fedtailor.lab.experiments.index_entries import (
    IndexEntries,
    collect_versions,
    index_of,
    labels_of,
    require_own_index,
)
from fedtailor.lab.experiments.plan import BeforeSetting, PlannedRuns, plan_runs
from fedtailor.lab.experiments.search import STUDIES
from fedtailor.lab.experiments.sharded_runs import ShardedRuns
from fedtailor.lab.experiments.sharding import Shard, ShardedTask, do_all
from fedtailor.lab.trackers import find_trackers

ComparisonProgress = Callable[
    ["Comparison", ComparedMethod, int, Training | None], None
]
"""A function that is called at the start of each run and after each of its rounds.

It is not called for runs that are already finished. The arguments are the comparison
(see `done` and `progressed`), the method, the seed, and the training (None at the
start).
"""


@dataclass
class Comparison:
    """Trains all runs of an experiment, and writes the index.

    Attributes:
        experiment: the experiment.
        results: the result directory.
        settings: settings of the executor.
        progress: a function that is called for each run and round.
        at_once: number of seeds of a method that are trained at once, as one cohort.
        source: the experiment file, if there is one.
        any_version: accept runs of other versions of fedtailor.
        track: names of trackers, in addition to those of the experiment file.
        budget: select methods and settings by successive halving, instead of training
            all of them to the end.
        shard: share the runs with other processes, which have the same results
            directory; None = train all.
        entries: the entries of the index so far.
    """

    experiment: Experiment
    results: Path
    settings: Settings
    progress: ComparisonProgress | None = None
    at_once: int = 1
    source: Path | None = None
    any_version: bool = False
    track: Sequence[str] = ()
    budget: bool = False
    shard: Shard | None = None

    def __post_init__(self) -> None:
        require(
            self.shard is None or not self.budget,
            "a budget compares all runs after each step, which processes do not share;"
            " leave out the budget or the shard",
        )
        require(
            self.shard is None or self.at_once == 1,
            "processes share single runs; leave out seeds at once or the shard",
        )
        require(
            not self.budget or not any(it.space for it in self.experiment.methods),
            "a budget compares all settings after each step, and a search proposes one"
            " after another; leave out the budget or the search",
        )
        # With the runs of a comparison in it, it could not be opened any more.
        require(
            not (self.results / MANIFEST).exists(),
            f"{self.results} holds a single run; name another directory for the results",
        )
        self.track = (*self.experiment.file.track, *self.track)
        find_trackers(self.track)  # raises if a tracker is not installed
        require(
            self.at_once >= 1, f"seeds at once is {self.at_once}; it must be 1 or more"
        )
        self.entries = IndexEntries()
        self._runs = ComparedRuns(
            self.experiment,
            self.results,
            self.settings,
            progress=self._report_progress,
            at_once=self.at_once,
            any_version=self.any_version,
            track=self.track,
        )
        choosing = Halving if self.budget else Choosing
        self._choosing = choosing(self._runs, self.entries)

    def _repr_html_(self) -> str:
        """The comparison in a notebook: how far it is, and each method's mean."""
        metrics: dict[tuple[str, str], list[float]] = {}
        for one in self.entries.method_runs:
            summary = read_summary(self.results / one.run / SUMMARY)
            if "diverged" not in summary:
                place = (one.scenario, f"{one.algorithm} ({summary['metric']})")
                metrics.setdefault(place, []).append(summary["mean"])
        rows = [
            (*place, len(means), float(np.mean(means)))
            for place, means in metrics.items()
        ]
        text = [f"{self.experiment.name}: {self.done} of {self.runs} runs are done"]
        header = ("scenario", "method", "seeds", "mean over clients and seeds")
        return html_paragraphs([*text, f"results: {self.index.parent}"]) + html_table(
            header, rows
        )

    @property
    def runs(self) -> int:
        """Number of runs, with those that bracketing has added so far."""
        return self.experiment.runs + self.entries.added_runs

    @property
    def done(self) -> int:
        """Number of runs that are finished or skipped."""
        skipped = sum(skipped.runs for skipped in self.entries.skipped)
        return len(self._runs.seconds) + skipped

    @property
    def progressed(self) -> float:
        """`done`, plus the finished shares of the runs that are in progress."""
        unfinished = (
            share
            for name, share in self._runs.shares.items()
            if name not in self._runs.seconds
        )
        return self.done + sum(unfinished)

    @property
    def index(self) -> Path:
        """Path of the index."""
        return self.results / self.experiment.name / COMPARISON_INDEX

    def finished(self) -> int:
        """Number of runs in the result directory that are finished."""
        seeds = self.experiment.file.seeds
        methods = self.experiment.methods
        return sum(finished_runs(self._runs, method, seeds) for method in methods)

    def plan(self, before: BeforeSetting | None = None) -> Iterator[PlannedRuns]:
        """Time some rounds of each setting whose runs are missing; nothing is written.

        Args:
            before: called before each setting is timed.

        Raises:
            ValueError: data are missing, or methods are to be halved.
        """
        require(
            not self.budget,
            "a plan counts whole runs; leave out the budget, which takes about a third"
            " of their rounds",
        )
        return plan_runs(self._runs, before)

    def digest(self) -> str:
        """A digest of everything that the results depend on.

        These are the settings of all runs and the seeds, but not the code.
        """
        settings = []
        for method in self.experiment.methods:
            for candidate in method.candidates:
                fingerprint = self._runs.fingerprint(method, candidate)
                settings.append([*labels_of(method).values(), fingerprint])
        content = json.dumps([self.experiment.file.seeds, settings])
        return hashlib.sha256(content.encode()).hexdigest()[:10]

    def run(self) -> Path:
        """Train all runs, in order.

        If a run diverges, or its method refuses its settings, the others are still run.

        Returns:
            The path of the index.

        Raises:
            ValueError: the index belongs to another experiment file of the same name,
                data are missing, the disk is full, a directory cannot be written or is
                in use, or every method refuses its settings. Finished runs are kept.
            Interrupted: Ctrl-C or SIGTERM; the last finished round is saved.
        """
        require_own_index(self.index, self.source)
        if self.shard is not None:
            do_all(self.shard.order(ShardedRuns(self._runs).tasks()))
        lock = DirectoryLock(self.index.parent)
        try:
            self.index.parent.mkdir(parents=True, exist_ok=True)
            if self.shard is None:
                lock.acquire()
            else:
                # All runs are finished. Each process writes the same index, in turn.
                do_all([partial(_acquire, lock)])
        except OSError as error:
            raise Unusable(
                f"cannot use {self.index.parent}: {reason(error)}; name another"
                " directory"
            ) from None
        try:
            return self._run_all()
        finally:
            lock.release()

    def _run_all(self) -> Path:
        """Choose settings on the first seed, and train them on all seeds."""
        seeds = self.experiment.file.seeds
        # Searches are played again from their beginning.
        studies = self.index.parent / STUDIES
        studies.unlink(missing_ok=True)
        self._choosing.studies = studies
        for scenario in self.experiment.scenarios:
            methods = self.experiment.methods_of(scenario)
            chosen = self._choosing.choose_all(methods, seeds[0])
            for start in range(0, len(seeds), self.at_once):
                group = seeds[start : start + self.at_once]
                for method in methods:
                    candidate = chosen[id(method)]
                    if candidate is not None:
                        self._train_seeds(method, candidate, group)
            self._train_baselines(scenario)
        if not self.entries.method_runs and self.entries.skipped:
            raise ValueError(f"nothing could be run: {self.entries.skipped[0].why}")
        self._write()
        return self.index

    def _report_progress(
        self, method: ComparedMethod, seed: int, training: Training | None
    ) -> None:
        if self.progress is not None:
            self.progress(self, method, seed, training)

    def _train_seeds(
        self, method: ComparedMethod, candidate: Candidate, seeds: Sequence[int]
    ) -> None:
        """Train a candidate on some seeds, and add its runs to the index."""
        forget_programs_in_time()
        if len(seeds) > 1:
            self._runs.train_at_once(method, candidate, seeds)
        for seed in seeds:
            run = self._runs.train(method, candidate, seed)
            if run in self._runs.refusals:
                message = self._runs.refusals[run]
                self.entries.skip(method, seed, candidate.parameters, message, runs=1)
                continue
            chosen = dict(candidate.parameters)
            self.entries.method_runs.append(
                MethodRun(**labels_of(method), seed=seed, run=run, chosen=chosen)
            )
        self._write()

    def _train_baselines(self, scenario: ComparedScenario) -> None:
        """Train the baselines on all seeds, and add their runs to the index."""
        baselines = self.experiment.baselines
        if not baselines:
            return
        # Seed by seed, as its table is read once for all of them.
        for seed in self.experiment.file.seeds:
            task = self._runs.data(scenario, seed).task
            applicable = [baseline for baseline in baselines if baseline.applies(task)]
            if applicable and self.progress is not None:
                names = ", ".join(baseline.name for baseline in applicable)
                say_status(f"baselines, seed {seed}: {names}")
            for baseline in applicable:
                try:
                    run = self._runs.train_baseline(scenario, baseline, seed)
                except Unusable:
                    raise
                except ValueError as error:
                    baselines.remove(baseline)
                    self.entries.skip_baseline(scenario, baseline, str(error))
                    continue
                trained = read_manifest(self.results / run / MANIFEST)["algorithm"]
                self.entries.baselines.append(
                    BaselineRun(
                        scenario=scenario.label,
                        name=baseline.name,
                        title=trained.get("title", baseline.title),
                        needs_pooled_data=baseline.needs_pooled_data,
                        is_linear=baseline.is_linear,
                        is_alone=baseline.is_alone,
                        seed=seed,
                        run=run,
                    )
                )

    def _write(self) -> None:
        """Write the index."""
        runs = [self.results / one.run for one in self.entries.method_runs]
        index = index_of(
            self.experiment,
            self.index,
            self.source,
            self.entries,
            seconds=sum(self._runs.seconds.values()),
            core_seconds=self._runs.total_core_seconds,
            machine=f"{os.cpu_count()} cores, {platform.machine()}",
            versions=collect_versions(runs),
        )
        write_index(self.index, index)


def _acquire(lock: DirectoryLock) -> list[ShardedTask]:
    """Acquire a lock as a task."""
    lock.acquire()
    return []

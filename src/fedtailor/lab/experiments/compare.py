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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor._base.files import reason
from fedtailor._base.notebook import html_paragraphs, html_table
from fedtailor._base.printable import say_status
from fedtailor.algorithms import Local
from fedtailor.engine.executors import Settings
from fedtailor.engine.storage import DirectoryLock, Unusable
from fedtailor.engine.storage.comparison_index import (
    BaselineRun,
    CandidateRun,
    MethodRun,
    RoundBudget,
    Skipped,
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
from fedtailor.engine.training.binding import bind
from fedtailor.lab.baselines import Baseline, find_baseline
from fedtailor.lab.experiments import bracketing, halving
from fedtailor.lab.experiments.compared_runs import ComparedRuns
from fedtailor.lab.experiments.comparison_index import (
    collect_versions,
    index_of,
    labels_of,
    require_own_index,
)
from fedtailor.lab.experiments.experiment import (
    Candidate,
    ComparedMethod,
    ComparedScenario,
    Experiment,
    with_setting,
)
from fedtailor.lab.experiments.plan import BeforeSetting, PlannedRuns, plan_runs
from fedtailor.lab.experiments.run_scores import (
    client_scores,
    has_diverged,
    stored_score,
    validation_score,
)
from fedtailor.lab.experiments.sharing import Shard, SharedTask, do_all
from fedtailor.lab.trackers import find_trackers
from fedtailor.models.metrics import Metric, find_metric, find_metrics
from fedtailor.protocol.plain import RefusedSettings

ALL_FAILED = (
    "every candidate diverged or was refused; offer smaller learning rates in its grid"
)

Scored = tuple[Candidate, float | None]
"""A candidate, and its validation score; None if it failed."""

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
        method_runs: entries of the index for the runs of selected candidates.
        candidates: entries of the index for all candidates that were compared.
        baselines: entries of the index for the runs of baselines.
        skipped: entries of the index for what was not run, with the reasons.
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
        self.track = (*self.experiment.file.track, *self.track)
        find_trackers(self.track)  # raises if a tracker is not installed
        require(
            self.at_once >= 1, f"seeds at once is {self.at_once}; it must be 1 or more"
        )
        self.method_runs: list[MethodRun] = []
        self.candidates: list[CandidateRun] = []
        self.skipped: list[Skipped] = []
        self.baselines: list[BaselineRun] = []
        self._runs = ComparedRuns(
            self.experiment,
            self.results,
            self.settings,
            progress=self._report_progress,
            at_once=self.at_once,
            any_version=self.any_version,
            track=self.track,
        )
        self._rounds = 0
        self._added_runs = 0

    def _repr_html_(self) -> str:
        """The comparison in a notebook: how far it is, and each method's mean."""
        metrics: dict[tuple[str, str], list[float]] = {}
        for one in self.method_runs:
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
        return self.experiment.runs + self._added_runs

    @property
    def done(self) -> int:
        """Number of runs that are finished or skipped."""
        skipped = sum(skipped.runs for skipped in self.skipped)
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
        return sum(
            self._runs.is_finished(method, candidate, seed)
            for method in self.experiment.methods
            for candidate in method.candidates
            for seed in seeds
        )

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
        settings = [
            [*labels_of(method).values(), self._runs.fingerprint(method, candidate)]
            for method in self.experiment.methods
            for candidate in method.candidates
        ]
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
            do_all(self.shard.order(self._shared_tasks()))
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

    def _shared_tasks(self) -> Iterator[SharedTask]:
        """The runs that processes share: all candidates of a method on the first seed,
        from which the one for the other seeds is chosen.
        """
        seeds = self.experiment.file.seeds
        for scenario in self.experiment.scenarios:
            methods = self.experiment.methods_of(scenario)
            for method in methods:
                # The last candidate that is done is followed by the choice.
                done: list[Candidate] = []
                if len(method.candidates) > 1:
                    for candidate in method.candidates:
                        yield partial(
                            self._train_shared, method, candidate, seeds[0], done
                        )
            # Seed by seed, as each seed has data of its own.
            for seed in seeds:
                for method in methods:
                    if len(method.candidates) == 1:
                        (candidate,) = method.candidates
                        yield partial(self._train_alone, method, candidate, seed)

    def _train_shared(
        self,
        method: ComparedMethod,
        candidate: Candidate,
        seed: int,
        done: list[Candidate],
    ) -> list[SharedTask]:
        """Train one candidate; after the last of a method, the task is to choose."""
        self._runs.train(method, candidate, seed)
        done.append(candidate)
        if len(done) < len(method.candidates):
            return []
        return [partial(self._choose_shared, method, seed)]

    def _choose_shared(self, method: ComparedMethod, seed: int) -> list[SharedTask]:
        """Choose among candidates whose runs are finished, or bracket them."""
        # What a choice writes down is written by `_run_all`, which makes it once more.
        alone = replace(self, shard=None)
        alone._runs = self._runs
        chosen = alone._choose(method, seed)
        if chosen is None:
            return []
        seeds = self.experiment.file.seeds
        return [partial(self._train_alone, method, chosen, seed) for seed in seeds]

    def _train_alone(
        self, method: ComparedMethod, candidate: Candidate, seed: int
    ) -> list[SharedTask]:
        self._runs.train(method, candidate, seed)
        return []

    def _run_all(self) -> Path:
        """Choose settings on the first seed, and train them on all seeds."""
        seeds = self.experiment.file.seeds
        for scenario in self.experiment.scenarios:
            methods = self.experiment.methods_of(scenario)
            if self.budget:
                chosen = self._halve(methods, seeds[0])
            else:
                chosen = {
                    id(method): self._choose(method, seeds[0]) for method in methods
                }
            for start in range(0, len(seeds), self.at_once):
                group = seeds[start : start + self.at_once]
                for method in methods:
                    candidate = chosen[id(method)]
                    if candidate is not None:
                        self._train_seeds(method, candidate, group)
            self._train_baselines(scenario)
        if not self.method_runs and self.skipped:
            raise ValueError(f"nothing could be run: {self.skipped[0].why}")
        self._write()
        return self.index

    def _report_progress(
        self, method: ComparedMethod, seed: int, training: Training | None
    ) -> None:
        if self.progress is not None:
            self.progress(self, method, seed, training)

    def _choose(self, method: ComparedMethod, seed: int) -> Candidate | None:
        """Choose the candidate with the best validation score after the last round.

        Returns:
            The candidate; None if all candidates diverged or were refused.
        """
        self._skip_refused(method)
        if len(method.candidates) == 1:
            return method.candidates[0]
        runs: dict[int, str] = {}

        def score(candidate: Candidate) -> float | None:
            name = self._runs.train(method, candidate, seed)
            runs[id(candidate)] = name
            if name in self._runs.refusals:
                refusal = self._runs.refusals[name]
                self._skip(method, seed, candidate.parameters, refusal)
                return None
            return validation_score(self.results / name)

        scored = self._bracketed(method, seed, score)
        best = self._best(method, scored, seed, None)
        if best is None:
            other_seeds = len(self.experiment.file.seeds) - 1
            self._skip(method, None, {}, ALL_FAILED, runs=other_seeds)
        for candidate, value in scored:
            self._add_candidate(
                method,
                candidate,
                seed,
                run=runs[id(candidate)],
                val=value,
                chosen=candidate is best,
            )
        return best

    def _best(
        self,
        method: ComparedMethod,
        scored: Sequence[Scored],
        seed: int,
        rounds: int | None,
    ) -> Candidate | None:
        """The candidate with the best score; None if all failed.

        Of equal scores, the first candidate is the best. Of several models it is one of
        the first model, unless another's is better by more than a standard error. Of
        the values of a bracketed setting it is the first one, unless another is better
        by more than chance.
        """
        best = _highest(scored)
        of_first = _highest(
            [(one, score) for one, score in scored if one.model == scored[0][0].model]
        )
        if best is not None and of_first is not None and best.model != of_first.model:
            by_client = [
                client_scores(
                    self.results / self._runs.name_of(method, one, seed), rounds
                )
                for one in (best, of_first)
            ]
            if not bracketing.is_ahead(*by_client):
                best = of_first
        for setting in self.experiment.file.bracket:
            if best is None or setting not in best.parameters:
                continue
            line = bracketing.line_through(best, (one for one, _ in scored), setting)
            value = bracketing.best_value(
                self._client_scores(method, line, seed, rounds)
            )
            if value is not None:
                best = line[value]
        return best

    def _client_scores(
        self,
        method: ComparedMethod,
        line: Mapping[float, Candidate],
        seed: int,
        rounds: int | None,
    ) -> dict[float, NDArray[np.float64] | None]:
        """The validation scores of candidates by client, after `rounds` rounds."""
        return {
            value: client_scores(
                self.results / self._runs.name_of(method, candidate, seed), rounds
            )
            for value, candidate in line.items()
        }

    def _bracketed(
        self,
        method: ComparedMethod,
        seed: int,
        score: Callable[[Candidate], float | None],
        rounds: int | None = None,
    ) -> list[Scored]:
        """Score a method's candidates, and further ones until the best value of each
        bracketed setting lies inside its grid.

        Args:
            method: the method in its scenario.
            seed: the seed on which settings are chosen.
            score: trains a candidate and returns its validation score; None if it
                diverged or was refused.
            rounds: the rounds that `score` trains; None = to the end.

        Returns:
            All candidates with their scores.
        """
        scored: list[Scored] = []
        # Each model has a grid of its own.
        for model in dict.fromkeys(one.model for one in method.candidates):
            own = [one for one in method.candidates if one.model == model]
            scored += self._bracketed_model(method, own, seed, score, rounds)
        return scored

    def _bracketed_model(
        self,
        method: ComparedMethod,
        candidates: Sequence[Candidate],
        seed: int,
        score: Callable[[Candidate], float | None],
        rounds: int | None,
    ) -> list[Scored]:
        """`_bracketed` for the candidates of one model."""
        scored: list[Scored] = [(one, score(one)) for one in candidates]
        for setting in self.experiment.file.bracket:
            refused: dict[float, None] = {}
            for _ in range(bracketing.MAX_EXTENSIONS):
                centre = self._best(method, scored, seed, rounds) or scored[-1][0]
                if setting not in centre.parameters:
                    break
                line = bracketing.line_through(
                    centre, (one for one, _ in scored), setting
                )
                scores = self._client_scores(method, line, seed, rounds)
                value = bracketing.next_value(scores | refused)
                if value is None:
                    break
                try:
                    candidate = with_setting(centre, setting, value)
                except RefusedSettings as error:
                    parameters = {**centre.parameters, setting: value}
                    self._skip(method, None, parameters, str(error))
                    refused[value] = None
                    continue
                self._added_runs += 1
                scored.append((candidate, score(candidate)))
        return scored

    def _add_candidate(
        self, method: ComparedMethod, candidate: Candidate, seed: int, **result: Any
    ) -> None:
        """Add a candidate to the index."""
        parameters = dict(candidate.parameters)
        self.candidates.append(
            CandidateRun(
                **labels_of(method), parameters=parameters, seed=seed, **result
            )
        )

    def _halve(
        self, methods: Sequence[ComparedMethod], seed: int
    ) -> dict[int, Candidate | None]:
        """Compare all candidates of a scenario by successive halving, on one seed.

        Runs that are stopped at a cut are resumed from their checkpoints.

        Returns:
            For the id of each method, the candidate that was trained to the end; None if
            all of its candidates were eliminated.
        """
        scenario = methods[0].scenario
        for method in methods:
            self._skip_refused(method)

        # Train in stages, each of which ends with a cut. The last stage ends with the
        # scenario's rounds, and its finalists are then trained on all seeds.
        cuts = halving.cut_rounds(scenario.rounds, self._runs.evaluate_every(scenario))
        kept = halving.methods_after_cuts(len(methods), len(cuts))
        first_cut = [*cuts, scenario.rounds][0]
        remaining = [
            (method, candidate)
            for method in methods
            for candidate, _ in self._bracketed(
                method,
                seed,
                lambda one, method=method: self._score_after(
                    method, one, seed, first_cut
                ),
                first_cut,
            )
        ]
        done = 0
        for rounds, keep in zip(
            [*cuts, scenario.rounds], [*kept, halving.FINALISTS], strict=True
        ):
            scores = [
                self._score_after(method, candidate, seed, rounds)
                for method, candidate in remaining
            ]
            self._rounds += len(remaining) * (rounds - done)
            done = rounds
            selected = halving.select(
                scores,
                methods=[id(method) for method, _ in remaining],
                is_local=[
                    isinstance(candidate.algorithm, Local) for _, candidate in remaining
                ],
                keep=keep,
            )
            # Add each candidate to the index when its training ends.
            is_last = rounds == scenario.rounds
            for index, (method, candidate) in enumerate(remaining):
                if is_last or index not in selected:
                    self._add_halved(
                        method,
                        candidate,
                        seed,
                        rounds,
                        scores[index],
                        chosen=index in selected,
                    )
            remaining = [remaining[index] for index in selected]

        other_seeds = len(self.experiment.file.seeds) - 1
        self._rounds += other_seeds * len(remaining) * scenario.rounds
        finalists: dict[int, Candidate | None] = dict.fromkeys(map(id, methods))
        finalists |= {id(method): candidate for method, candidate in remaining}
        for method in methods:
            if finalists[id(method)] is None:
                message = self._elimination_message(method)
                self._skip(method, None, {}, message, runs=other_seeds)
        return finalists

    def _elimination_message(self, method: ComparedMethod) -> str:
        """The reason why halving has eliminated all candidates of a method."""
        candidates = [
            candidate
            for candidate in self.candidates
            if (candidate.scenario, candidate.algorithm)
            == (method.scenario.label, method.label)
        ]
        if all(candidate.val is None for candidate in candidates):
            return ALL_FAILED
        total = method.scenario.rounds
        rounds = max(candidate.rounds_of(total) for candidate in candidates)
        return (
            f"left out after {rounds} of {total} rounds by its"
            " validation data (--budget)"
        )

    def _score_after(
        self, method: ComparedMethod, candidate: Candidate, seed: int, rounds: int
    ) -> float | None:
        """Train a candidate for some rounds.

        Returns:
            Its validation score; None if it diverged or was refused.
        """
        scenario = method.scenario
        name = self._runs.name_of(method, candidate, seed)
        path, metric = self.results / name, self._metric(scenario, seed)
        if rounds < scenario.rounds:
            # An earlier comparison may have trained it to this round or further.
            score = stored_score(path, metric, rounds)
            if score is not None:
                return score
        if not has_diverged(path):
            self._runs.train(method, candidate, seed, rounds)
        if name in self._runs.refusals:
            self._skip(method, seed, candidate.parameters, self._runs.refusals[name])
            return None
        return None if has_diverged(path) else stored_score(path, metric, rounds)

    def _metric(self, scenario: ComparedScenario, seed: int) -> Metric:
        """The metric by which the runs of a scenario are compared."""
        federation = self._runs.data(scenario, seed)
        require(
            len(federation.val.rows) > 0,
            f"a budget is spent by validation data, and scenario {scenario.label!r} has"
            " none; give it some, such as val = 0.1, or leave out the budget",
        )
        model = bind(scenario.definition.model, federation)
        names = self.experiment.file.measured or federation.default_metrics
        return find_metrics(names, model)[0] if names else find_metric(model.metric)

    def _add_halved(
        self,
        method: ComparedMethod,
        candidate: Candidate,
        seed: int,
        rounds: int,
        score: float | None,
        *,
        chosen: bool,
    ) -> None:
        """Add a candidate to the index, with its number of rounds."""
        name = self._runs.name_of(method, candidate, seed)
        summary_file = self.results / name / SUMMARY
        summary = read_summary(summary_file) if summary_file.exists() else {}
        self._runs.seconds[name] = summary.get("seconds", 0.0)
        self._add_candidate(
            method, candidate, seed, run=name, val=score, chosen=chosen, rounds=rounds
        )

    def _skip(
        self,
        method: ComparedMethod,
        seed: int | None,
        parameters: Mapping[str, Any],
        message: str,
        *,
        runs: int = 0,
    ) -> None:
        """Add skipped runs to the index.

        Args:
            method: the method in its scenario.
            seed: the seed; None for all seeds.
            parameters: the values from the grid.
            message: the reason, in one line.
            runs: number of runs of the experiment that are skipped.
        """
        self.skipped.append(
            Skipped(
                **labels_of(method),
                seed=seed,
                parameters=dict(parameters),
                why=message,
                runs=runs,
            )
        )

    def _skip_refused(self, method: ComparedMethod) -> None:
        """Add the settings that the method refuses to the index."""
        for refusal in method.refused:
            self._skip(method, None, refusal.parameters, refusal.message)

    def _train_seeds(
        self, method: ComparedMethod, candidate: Candidate, seeds: Sequence[int]
    ) -> None:
        """Train a candidate on some seeds, and add its runs to the index."""
        if len(seeds) > 1:
            self._runs.train_at_once(method, candidate, seeds)
        for seed in seeds:
            run = self._runs.train(method, candidate, seed)
            if run in self._runs.refusals:
                message = self._runs.refusals[run]
                self._skip(method, seed, candidate.parameters, message, runs=1)
                continue
            chosen = dict(candidate.parameters)
            self.method_runs.append(
                MethodRun(**labels_of(method), seed=seed, run=run, chosen=chosen)
            )
        self._write()

    def _train_baselines(self, scenario: ComparedScenario) -> None:
        """Train the baselines on all seeds, and add their runs to the index."""
        baselines = [find_baseline(name) for name in self.experiment.file.baselines]
        if not baselines:
            return
        # Seed by seed, as its table is read once for all of them.
        for seed in self.experiment.file.seeds:
            task = self._runs.data(scenario, seed).task
            applicable = [baseline for baseline in baselines if baseline.applies(task)]
            if applicable and self.progress is not None:
                names = ", ".join(baseline.name for baseline in applicable)
                say_status(f"beside the methods, seed {seed}: {names}")
            for baseline in applicable:
                try:
                    run = self._runs.train_baseline(scenario, baseline, seed)
                except Unusable:
                    raise
                except ValueError as error:
                    baselines.remove(baseline)
                    self._skip_baseline(scenario, baseline, str(error))
                    continue
                trained = read_manifest(self.results / run / MANIFEST)["algorithm"]
                self.baselines.append(
                    BaselineRun(
                        scenario=scenario.label,
                        name=baseline.name,
                        title=trained.get("title", baseline.title),
                        needs_pooled_data=baseline.needs_pooled_data,
                        is_linear=baseline.is_linear,
                        seed=seed,
                        run=run,
                    )
                )

    def _skip_baseline(
        self, scenario: ComparedScenario, baseline: Baseline, why: str
    ) -> None:
        """Add a baseline that cannot be trained to the index."""
        self.skipped.append(
            Skipped(scenario.label, baseline.title, None, {}, why=why, runs=0)
        )

    def _write(self) -> None:
        """Write the index."""
        runs = [self.results / one.run for one in self.method_runs]
        index = index_of(
            self.experiment,
            self.index,
            self.source,
            runs=self.runs,
            method_runs=self.method_runs,
            baselines=self.baselines,
            candidates=self.candidates,
            skipped=self.skipped,
            budget=self._budget_rounds(),
            seconds=sum(self._runs.seconds.values()),
            machine=f"{os.cpu_count()} cores, {platform.machine()}",
            versions=collect_versions(runs),
        )
        write_index(self.index, index)

    def _budget_rounds(self) -> RoundBudget | None:
        """The number of rounds with successive halving, and without ("full").

        Without halving, all candidates are trained on one seed, and the best candidate
        of each method on the others.
        """
        if not self.budget:
            return None
        other_seeds = len(self.experiment.file.seeds) - 1
        full = sum(
            (len(method.candidates) + other_seeds) * method.scenario.rounds
            for method in self.experiment.methods
        )
        scenario_rounds = self.experiment.scenarios[0].rounds
        full += self._added_runs * scenario_rounds
        return RoundBudget(self._rounds, full)


def _acquire(lock: DirectoryLock) -> list[SharedTask]:
    """Acquire a lock as a task."""
    lock.acquire()
    return []


def _highest(scored: Sequence[Scored]) -> Candidate | None:
    """The first candidate with the highest score; None if all failed."""
    best, best_score = None, None
    for candidate, score in scored:
        if score is not None and (best_score is None or score > best_score):
            best, best_score = candidate, score
    return best

"""`compare`: run an experiment into a result directory, run by run.

A comparison that was stopped goes on where it was.

    RESULTS/runs/<scenario>/<method>-<fingerprint>-s<seed>/    one run directory for each training
    RESULTS/<experiment>/experiment.json                       the index: what was compared, and which runs say so

A run's directory is named by a fingerprint of all its settings: experiments that share
a training share its directory, and a comparison started again finds what is done. A run
of another version of fedtailor stays as it is, and is made anew beside it, in a
directory whose name ends with the version (unless `any_version`). Only the index
belongs to one experiment; it is written anew after every run (of all seeds that are
trained at once) from what the run directories hold.
"""

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtailor._files import reason
from fedtailor.algorithms import Local
from fedtailor.executors import Settings
from fedtailor.experiments import halving
from fedtailor.experiments.compared_runs import ComparedRuns
from fedtailor.experiments.comparison_index import (
    described_experiment,
    names,
    require_own_index,
    versions_of,
    write_index,
)
from fedtailor.experiments.experiment import Candidate, Column, Entry, Experiment
from fedtailor.experiments.run_scores import (
    has_diverged,
    stored_score,
    validation_score,
)
from fedtailor.metrics import Metric, find_metric, find_metrics
from fedtailor.protocol import require
from fedtailor.runs.binding import bind
from fedtailor.runs.target_units import table_metrics
from fedtailor.storage import DirectoryLock, Unusable
from fedtailor.storage.run_files import INDEX, SUMMARY, read_summary
from fedtailor.trackers import find_trackers
from fedtailor.training import Training

ALL_FAILED = (
    "every candidate diverged or was refused; offer smaller learning rates in its grid"
)

Progress = Callable[["Comparison", Entry, int, Training | None], None]
"""Called when a run begins (without a training) and after each of its rounds.

For finished runs it is not called at all. The arguments are the comparison (see `done`
and `progressed`), what runs, its seed, its training.
"""


@dataclass
class Comparison:
    """An experiment on its way.

    Attributes:
        experiment: what is compared.
        results: the result directory.
        settings: devices and the like.
        at_once: how many seeds of a method are trained at once, as one cohort.
        source: the file that says what is compared, if there is one.
        any_version: take runs that another version of fedtailor made as if this one had
            made them.
        budget: whether methods and settings are halved on validation data instead of
            all being trained to the end.
        track: trackers that are shown every run, beside those that the file names.
        cells, candidates: the index so far.
        skipped: what was not run, or could not be chosen, and why.
    """

    experiment: Experiment
    results: Path
    settings: Settings
    progress: Progress | None = None
    at_once: int = 1
    source: Path | None = None
    any_version: bool = False
    track: Sequence[str] = ()
    budget: bool = False

    def __post_init__(self) -> None:
        self.track = (*self.experiment.file.track, *self.track)
        find_trackers(self.track)  # refuses what is not installed before anything runs
        require(
            self.at_once >= 1, f"seeds at once is {self.at_once}; it must be 1 or more"
        )
        self.cells: list[dict[str, Any]] = []
        self.candidates: list[dict[str, Any]] = []
        self.skipped: list[dict[str, Any]] = []
        self._runs = ComparedRuns(
            self.experiment,
            self.results,
            self.settings,
            self._show,
            self.at_once,
            self.any_version,
            self.track,
        )
        self._rounds = 0

    @property
    def done(self) -> int:
        """Runs that are over, or will not be made."""
        skipped = sum(skipped["runs"] for skipped in self.skipped)
        return len(self._runs.seconds) + skipped

    @property
    def progressed(self) -> float:
        """Runs that are over, and the shares of their rounds that others have done."""
        begun = (
            share
            for name, share in self._runs.shares.items()
            if name not in self._runs.seconds
        )
        return self.done + sum(begun)

    @property
    def index(self) -> Path:
        """Where the index stands."""
        return self.results / self.experiment.name / INDEX

    def run(self) -> Path:
        """All runs, in order.

        A run that diverges, or whose method refuses its settings, ends alone.

        Returns:
            The index.

        Raises:
            ValueError: the index belongs to another file of the same name; data are
                missing, a disk is full, a directory cannot be written or is in use:
                what is finished is kept. Or no method takes its settings.
            Interrupted: Ctrl-C or SIGTERM; the last finished round is saved.
        """
        require_own_index(self.index, self.source)
        try:
            self.index.parent.mkdir(parents=True, exist_ok=True)
            lock = DirectoryLock(self.index.parent)
            lock.acquire()
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
        """Choose settings on the first seed, and train the chosen ones on all seeds."""
        seeds = self.experiment.file.seeds
        for column in self.experiment.columns:
            entries = [
                entry for entry in self.experiment.entries if entry.column is column
            ]
            if self.budget:
                chosen = self._halve(entries, seeds[0])
            else:
                chosen = {id(entry): self._choose(entry, seeds[0]) for entry in entries}
            for start in range(0, len(seeds), self.at_once):
                together = seeds[start : start + self.at_once]
                for entry in entries:
                    candidate = chosen[id(entry)]
                    if candidate is not None:
                        self._cells(entry, candidate, together)
        if not self.cells and self.skipped:
            raise ValueError(f"nothing could be run: {self.skipped[0]['why']}")
        self._write()
        return self.index

    def _show(self, entry: Entry, seed: int, training: Training | None) -> None:
        if self.progress is not None:
            self.progress(self, entry, seed, training)

    def _choose(self, entry: Entry, seed: int) -> Candidate | None:
        """The candidate that is best on the clients' validation data.

        After the last round, on the first seed.

        Returns:
            None where every candidate diverged or was refused.
        """
        for refusal in entry.refused:
            self._skip(entry, None, refusal.parameters, refusal.why)
        if len(entry.candidates) == 1:
            return entry.candidates[0]
        runs: list[str] = []
        scores: list[float | None] = []
        for candidate in entry.candidates:
            name = self._runs.train(entry, candidate, seed)
            runs.append(name)
            if name in self._runs.refusals:
                refusal = self._runs.refusals[name]
                self._skip(entry, seed, candidate.parameters, refusal)
                scores.append(None)
            else:
                scores.append(validation_score(self.results / name))
        # The first of equally good ones.
        best, best_score = None, None
        for number, score in enumerate(scores):
            if score is not None and (best_score is None or score > best_score):
                best, best_score = number, score
        if best is None:
            other_seeds = len(self.experiment.file.seeds) - 1
            self._skip(entry, None, {}, ALL_FAILED, runs=other_seeds)
        for number, candidate in enumerate(entry.candidates):
            self._list(
                entry,
                candidate,
                seed,
                run=runs[number],
                val=scores[number],
                chosen=number == best,
            )
        return None if best is None else entry.candidates[best]

    def _list(
        self, entry: Entry, candidate: Candidate, seed: int, **result: Any
    ) -> None:
        """Add a candidate to the index."""
        parameters = dict(candidate.parameters)
        self.candidates.append(
            {**names(entry), "parameters": parameters, "seed": seed, **result}
        )

    def _halve(
        self, entries: Sequence[Entry], seed: int
    ) -> dict[int, Candidate | None]:
        """Successive halving of all candidates of a column, on one seed (see `halving`).

        A run that is stopped at a cut and goes on later is resumed from its checkpoint.

        Returns:
            For each entry, by its id, the candidate that was trained to the end; None
            where all were left out.
        """
        column = entries[0].column
        for entry in entries:
            for refusal in entry.refused:
                self._skip(entry, None, refusal.parameters, refusal.why)

        # Train in stages. After each, some candidates go on; after the last, which ends
        # with the column's rounds, the finalists are those that are trained on all
        # seeds.
        cuts = halving.cuts(column.rounds, self._runs.evaluate_every(column))
        kept = halving.kept(len(entries), len(cuts))
        remaining = [
            (entry, candidate) for entry in entries for candidate in entry.candidates
        ]
        done = 0
        for rounds, keep in zip(
            [*cuts, column.rounds], [*kept, halving.FINALISTS], strict=True
        ):
            scores = [
                self._score_after(entry, candidate, seed, rounds)
                for entry, candidate in remaining
            ]
            self._rounds += len(remaining) * (rounds - done)
            done = rounds
            survivors = halving.survivors(
                scores,
                methods=[id(entry) for entry, _ in remaining],
                is_local=[
                    isinstance(candidate.algorithm, Local) for _, candidate in remaining
                ],
                keep=keep,
            )
            # The index has one line for each candidate: from where it ended.
            is_last = rounds == column.rounds
            for position, (entry, candidate) in enumerate(remaining):
                survives = position in survivors
                if is_last or not survives:
                    self._list_halved(
                        entry,
                        candidate,
                        seed,
                        rounds,
                        scores[position],
                        chosen=survives,
                    )
            remaining = [remaining[position] for position in survivors]

        other_seeds = len(self.experiment.file.seeds) - 1
        self._rounds += other_seeds * len(remaining) * column.rounds
        finalists: dict[int, Candidate | None] = dict.fromkeys(map(id, entries))
        finalists |= {id(entry): candidate for entry, candidate in remaining}
        for entry in entries:
            if finalists[id(entry)] is None:
                self._skip(entry, None, {}, self._why_left_out(entry), runs=other_seeds)
        return finalists

    def _why_left_out(self, entry: Entry) -> str:
        """Why halving has left no candidate of a method."""
        tried = [
            candidate
            for candidate in self.candidates
            if names(entry).items() <= candidate.items()
        ]
        if all(candidate["val"] is None for candidate in tried):
            return ALL_FAILED
        reached = max(candidate["rounds"] for candidate in tried)
        return (
            f"left out after {reached} of {entry.column.rounds} rounds by its"
            " validation data (--budget)"
        )

    def _score_after(
        self, entry: Entry, candidate: Candidate, seed: int, rounds: int
    ) -> float | None:
        """A candidate's score on validation data after some rounds.

        Returns:
            None if it diverged before, or was refused.
        """
        column = entry.column
        name = self._runs.name_of(entry, candidate, seed)
        path, metric = self.results / name, self._metric(column, seed)
        if rounds < column.rounds:
            # It may have stopped here before, or have gone on already.
            score = stored_score(path, metric, rounds)
            if score is not None:
                return score
        if not has_diverged(path):
            self._runs.train(entry, candidate, seed, rounds)
        if name in self._runs.refusals:
            self._skip(entry, seed, candidate.parameters, self._runs.refusals[name])
            return None
        return None if has_diverged(path) else stored_score(path, metric, rounds)

    def _metric(self, column: Column, seed: int) -> Metric:
        """What the runs of a column are judged by."""
        federation = self._runs.data(column, seed)
        require(
            len(federation.val.rows) > 0,
            f"a budget is spent by validation data, and scenario {column.label!r} has"
            " none; give it some, such as val = 0.1, or leave out the budget",
        )
        model = bind(column.scenario.model, federation)
        asked = self.experiment.file.measured or table_metrics(federation)
        return find_metrics(asked, model)[0] if asked else find_metric(model.metric)

    def _list_halved(
        self,
        entry: Entry,
        candidate: Candidate,
        seed: int,
        rounds: int,
        score: float | None,
        *,
        chosen: bool,
    ) -> None:
        """Add a candidate to the index, with the rounds that it was trained for."""
        name = self._runs.name_of(entry, candidate, seed)
        summary_file = self.results / name / SUMMARY
        summary = read_summary(summary_file) if summary_file.exists() else {}
        self._runs.seconds[name] = summary.get("seconds", 0.0)
        self._list(
            entry, candidate, seed, run=name, val=score, chosen=chosen, rounds=rounds
        )

    def _skip(
        self,
        entry: Entry,
        seed: int | None,
        parameters: Mapping[str, Any],
        why: str,
        *,
        runs: int = 0,
    ) -> None:
        """Add something that is not run to the index.

        Args:
            entry: the method and the scenario.
            seed: None: for all seeds.
            parameters: what the grid sets.
            why: the reason, in one line.
            runs: how many of the experiment's runs that are.
        """
        skipped = {**names(entry), "seed": seed, "parameters": dict(parameters)}
        skipped |= {"why": why, "runs": runs}
        self.skipped.append(skipped)

    def _cells(self, entry: Entry, candidate: Candidate, seeds: Sequence[int]) -> None:
        """The runs of one method on some seeds."""
        if len(seeds) > 1:
            self._runs.train_at_once(entry, candidate, seeds)
        for seed in seeds:
            run = self._runs.train(entry, candidate, seed)
            if run in self._runs.refusals:
                why = self._runs.refusals[run]
                self._skip(entry, seed, candidate.parameters, why, runs=1)
                continue
            cell = {**names(entry), "seed": seed, "run": run}
            cell["chosen"] = dict(candidate.parameters)
            self.cells.append(cell)
        self._write()

    def _write(self) -> None:
        """Write the index anew."""
        runs = [self.results / cell["run"] for cell in self.cells]
        content = {
            **described_experiment(self.experiment, self.index, self.source),
            "cells": self.cells,
            "candidates": self.candidates,
            "skipped": self.skipped,
            "budget": self._spent(),
            "seconds": sum(self._runs.seconds.values()),
            "machine": f"{os.cpu_count()} cores, {platform.machine()}",
            "versions": versions_of(runs),
        }
        write_index(self.index, content)

    def _spent(self) -> dict[str, int] | None:
        """Rounds that halving takes, and those that it saves.

        Without it all candidates train on one seed, and all methods on the others.
        """
        if not self.budget:
            return None
        others = len(self.experiment.file.seeds) - 1
        full = sum(
            (len(entry.candidates) + others) * entry.column.rounds
            for entry in self.experiment.entries
        )
        return {"rounds": self._rounds, "full": full}

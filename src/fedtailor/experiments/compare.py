"""`compare`: run an experiment into a result directory, run by run, and go on where it was stopped.

    RESULTS/runs/<scenario>/<method>-<fingerprint>-s<seed>/    one run directory for each training
    RESULTS/<experiment>/experiment.json                       the index: what was compared, and which runs say so

A run's directory is named by a fingerprint of all its settings: experiments that share a training share its directory,
and a comparison started again finds what is done. A run of another version of fedtailor stays as it is, and is made
anew beside it, in a directory whose name ends with the version (unless `any_version`). Only the index belongs to one
experiment; it is written anew after every run (of all seeds that are trained at once) from what the run directories
hold.
"""

import hashlib
import json
import os
import platform
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from fedtailor._files import reason, replacing
from fedtailor._version import __version__
from fedtailor.algorithms import Local
from fedtailor.executors import DeviceExecutor, LockstepGroup, Settings
from fedtailor.experiments import halving
from fedtailor.experiments.experiment import Candidate, Column, Entry, Experiment
from fedtailor.federation import Federation
from fedtailor.metrics import Metric, find_metric, find_metrics
from fedtailor.protocol import Diverged, Exchanges, drive, require
from fedtailor.runs import run_exchanges
from fedtailor.runs.run import bind, executor_of
from fedtailor.runs.target_units import default_metrics
from fedtailor.storage import Damaged, DirectoryLock, Interrupted, Unusable, check, interrupts
from fedtailor.storage.manifest import settings as described
from fedtailor.storage.manifest import stored_versions
from fedtailor.storage.run_directory import (
    MANIFEST,
    METRICS,
    SUMMARY,
    RunDirectory,
    read_frame,
    read_summary,
    require_unchanged,
)
from fedtailor.trackers import Tracker, find_trackers
from fedtailor.training import AfterRound, Training

INDEX = "experiment.json"
RUNS = "runs"
ALL_FAILED = "every candidate diverged or was refused; offer smaller learning rates in its grid"

Progress = Callable[["Comparison", Entry, int, Training | None], None]
"""Called when a run begins (without a training), after each of its rounds, and for finished runs not at all: the
comparison (see `done` and `progressed`), what runs, its seed, its training."""


@dataclass
class Comparison:
    """An experiment on its way.

    Attributes:
        experiment: what is compared.
        results: the result directory.
        settings: devices and the like.
        at_once: how many seeds of a method are trained at once, as one cohort.
        source: the file that says what is compared, if there is one.
        any_version: take runs that another version of fedtailor made as if this one had made them.
        budget: whether methods and settings are halved on validation data instead of all being trained to the end.
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
        require(self.at_once >= 1, f"seeds at once is {self.at_once}; it must be 1 or more")
        self.cells: list[dict[str, Any]] = []
        self.candidates: list[dict[str, Any]] = []
        self.skipped: list[dict[str, Any]] = []
        self._refusals: dict[str, str] = {}
        self._seconds: dict[str, float] = {}
        self._shares: dict[str, float] = {}
        self._federations: dict[tuple[str, int], Federation] = {}
        self._rounds = 0

    @property
    def done(self) -> int:
        """Runs that are over, or will not be made."""
        return len(self._seconds) + sum(skipped["runs"] for skipped in self.skipped)

    @property
    def progressed(self) -> float:
        """Runs that are over, and the shares of their rounds that others have done."""
        return self.done + sum(share for name, share in list(self._shares.items()) if name not in self._seconds)

    @property
    def index(self) -> Path:
        """Where the index stands."""
        return self.results / self.experiment.name / INDEX

    def run(self) -> Path:
        """All runs, in order; the index. A run that diverges, or whose method refuses its settings, ends alone.

        Raises:
            ValueError: the index belongs to another file of the same name; data are missing, a disk is full, a
                directory cannot be written or is in use: what is finished is kept. Or no method takes its settings.
            Interrupted: Ctrl-C or SIGTERM; the last finished round is saved.
        """
        self._require_own_index()
        try:
            self.index.parent.mkdir(parents=True, exist_ok=True)
            lock = DirectoryLock(self.index.parent)
            lock.acquire()
        except OSError as error:
            raise Unusable(f"cannot use {self.index.parent}: {reason(error)}; name another directory") from None
        try:
            return self._run_all()
        finally:
            lock.release()

    def _run_all(self) -> Path:
        seeds = self.experiment.file.seeds
        chosen: dict[int, Candidate | None] = {}
        for column in self.experiment.columns:
            entries = [entry for entry in self.experiment.entries if entry.column is column]
            if self.budget:
                chosen |= self._halve(entries, seeds[0])
            else:
                chosen |= {id(entry): self._choose(entry, seeds[0]) for entry in entries}
            for start in range(0, len(seeds), self.at_once):
                for entry in entries:
                    candidate = chosen[id(entry)]
                    if candidate is not None:
                        self._cells(entry, candidate, seeds[start : start + self.at_once])
        if not self.cells and self.skipped:
            raise ValueError(f"nothing could be run: {self.skipped[0]['why']}")
        self._write()
        return self.index

    def _require_own_index(self) -> None:
        """Two files of one name, in different directories, would write the same index."""
        try:
            before = json.loads(self.index.read_text()).get("file")
        except (OSError, ValueError, AttributeError):  # there is none, or a damaged one, which is written anew
            return
        other = None if before is None else (self.index.parent / before).resolve()
        same = other is None or self.source is None or not other.exists() or other.samefile(self.source)
        require(
            same, f"{self.index.parent} holds the results of {other}; rename {self.source}, or name another directory"
        )

    def _choose(self, entry: Entry, seed: int) -> Candidate | None:
        """The candidate that is best on the clients' validation data, after the last round, on the first seed.

        Returns:
            None where every candidate diverged or was refused.
        """
        for refusal in entry.refused:
            self._skip(entry, None, refusal.parameters, refusal.why)
        if len(entry.candidates) == 1:
            return entry.candidates[0]
        runs, scores = [], []
        for candidate in entry.candidates:
            name = self._train(entry, candidate, seed)
            refused = self._refusals.get(name)
            if refused is not None:
                self._skip(entry, seed, candidate.parameters, refused)
            runs.append(name)
            scores.append(None if refused is not None else _validation_score(self.results / name))
        best = max(
            range(len(scores)), key=lambda number: scores[number] if scores[number] is not None else -float("inf")
        )
        if scores[best] is None:
            best = None
            self._skip(entry, None, {}, ALL_FAILED, runs=len(self.experiment.file.seeds) - 1)
        for number, (candidate, run, score) in enumerate(zip(entry.candidates, runs, scores, strict=True)):
            self.candidates.append({
                **_names(entry), "parameters": dict(candidate.parameters), "seed": seed,
                "run": run, "val": score, "chosen": number == best,
            })  # fmt: skip
        return None if best is None else entry.candidates[best]

    def _halve(self, entries: Sequence[Entry], seed: int) -> dict[int, Candidate | None]:
        """The candidates of all methods of a column that are left in the end (see `halving`), by the entry's id: at
        most one for each entry, trained to the end on one seed.

        A run that is stopped at a cut and goes on later is resumed from its checkpoint.
        """
        column, other_seeds = entries[0].column, len(self.experiment.file.seeds) - 1
        going = [(entry, candidate) for entry in entries for candidate in entry.candidates]
        for entry in entries:
            for refusal in entry.refused:
                self._skip(entry, None, refusal.parameters, refusal.why)
        after = halving.cuts(column.rounds, self._every(column))
        left = dict.fromkeys(map(id, entries))
        done = 0
        in_the_end = halving.ON_ALL_SEEDS if other_seeds else halving.FINALISTS
        keeps = [*halving.kept(len(entries), len(after)), in_the_end]
        for rounds, keep in zip([*after, column.rounds], keeps, strict=True):
            scores = [self._score_after(entry, candidate, seed, rounds) for entry, candidate in going]
            self._rounds += len(going) * (rounds - done)
            done = rounds
            rows, alone = [id(entry) for entry, _ in going], [isinstance(it.algorithm, Local) for _, it in going]
            last = rounds == column.rounds
            here = halving.survivors(scores, rows, alone, keep)
            for place, ((entry, candidate), score) in enumerate(zip(going, scores, strict=True)):
                if last and place in here:
                    left[id(entry)] = candidate
                if last or place not in here:
                    self._put_down(entry, candidate, seed, rounds, score, chosen=place in here)
            going = [going[place] for place in here]
        for entry in entries:
            if left[id(entry)] is None:
                tried = [it for it in self.candidates if _names(entry).items() <= it.items()]
                reached = f"{max(it['rounds'] for it in tried)} of {column.rounds} rounds"
                why = f"left out after {reached} by its validation data (--budget)"
                failed = all(it["val"] is None for it in tried)
                self._skip(entry, None, {}, ALL_FAILED if failed else why, runs=other_seeds)
        self._rounds += other_seeds * len(going) * column.rounds
        return left

    def _score_after(self, entry: Entry, candidate: Candidate, seed: int, rounds: int) -> float | None:
        """A candidate's score on validation data after some rounds; None if it diverged before, or was refused."""
        name, column = self._place(entry, candidate, seed), entry.column
        metric = self._metric(column, seed)
        whole = rounds == column.rounds
        if not whole and (found := _stored_score(self.results / name, metric, rounds)) is not None:
            return found  # stopped here before, or gone on already
        if not _has_diverged(self.results / name):
            self._train(entry, candidate, seed, rounds)
        if name in self._refusals:
            self._skip(entry, seed, candidate.parameters, self._refusals[name])
            return None
        return None if _has_diverged(self.results / name) else _stored_score(self.results / name, metric, rounds)

    def _metric(self, column: Column, seed: int) -> Metric:
        """What the runs of a column are judged by."""
        federation = self._data(column, seed)
        require(
            len(federation.val.rows) > 0,
            f"a budget is spent by validation data, and scenario {column.label!r} has none; give it some, such as "
            "val = 0.1, or leave out the budget",
        )
        model = bind(column.scenario.model, federation)
        asked = self.experiment.file.measured or default_metrics(federation)
        return find_metrics(asked, model)[0] if asked else find_metric(model.metric)

    def _put_down(
        self, entry: Entry, candidate: Candidate, seed: int, rounds: int, score: float | None, *, chosen: bool
    ) -> None:
        """Put down how far a candidate came, and what it took."""
        name = self._place(entry, candidate, seed)
        summary = read_summary(self.results / name / SUMMARY) if (self.results / name / SUMMARY).exists() else {}
        self._seconds[name] = summary.get("seconds", 0.0)
        self.candidates.append({
            **_names(entry), "parameters": dict(candidate.parameters), "seed": seed,
            "run": name, "val": score, "chosen": chosen, "rounds": rounds,
        })  # fmt: skip

    def _skip(self, entry: Entry, seed: int | None, parameters: Mapping[str, Any], why: str, *, runs: int = 0) -> None:
        """Put down what is not run and why; `runs` is how many of the experiment's runs that are."""
        self.skipped.append({
            **_names(entry), "seed": seed, "parameters": dict(parameters), "why": why, "runs": runs,
        })  # fmt: skip

    def _cells(self, entry: Entry, candidate: Candidate, seeds: Sequence[int]) -> None:
        """The runs of one method on some seeds."""
        if len(seeds) > 1:
            self._train_at_once(entry, candidate, seeds)
        for seed in seeds:
            run = self._train(entry, candidate, seed)
            if run in self._refusals:
                self._skip(entry, seed, candidate.parameters, self._refusals[run], runs=1)
                continue
            self.cells.append({
                **_names(entry), "seed": seed, "run": run, "chosen": dict(candidate.parameters),
            })  # fmt: skip
        self._write()

    def _train_at_once(self, entry: Entry, candidate: Candidate, seeds: Sequence[int]) -> None:
        """The runs that are not over, unless only one is left."""
        column, names = entry.column, {seed: self._place(entry, candidate, seed) for seed in seeds}
        left = [seed for seed in seeds if self._finished(names[seed], column) is None]
        if len(left) < 2:
            return
        federations = [self._data(column, seed) for seed in left]
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

    def _train(self, entry: Entry, candidate: Candidate, seed: int, rounds: int | None = None) -> str:
        """One run, unless its directory holds it already; where it stands in the result directory.

        Args:
            rounds: how many of the column's rounds, all by default.
        """
        name, column = self._place(entry, candidate, seed), entry.column
        summary = self._finished(name, column, rounds)
        if summary is None:
            federation = self._data(column, seed)
            model = bind(column.scenario.model, federation)
            executor = executor_of(federation, model, self.settings, self.results / name)
            drive(self._run(entry, candidate, seed, executor, rounds=rounds), executor)
            if name in self._refusals:
                return name
            summary = self._finished(name, column, rounds)
            assert summary is not None
        if rounds in (None, column.rounds):
            self._seconds[name] = summary.get("seconds", 0.0)
        return name

    def _finished(self, name: str, column: Column, rounds: int | None = None) -> dict[str, Any] | None:
        return RunDirectory(self.results / name).finished_summary(rounds or column.rounds)

    def _run(
        self,
        entry: Entry,
        candidate: Candidate,
        seed: int,
        executor: DeviceExecutor,
        stopped: threading.Event | None = None,
        rounds: int | None = None,
    ) -> Exchanges[None]:
        """One run as exchanges. One that diverges ends without an error: its directory says so, and the tables will.
        So does one whose method refuses its settings for these clients: the index says so."""
        name, column = self._place(entry, candidate, seed), entry.column
        rounds = rounds or column.rounds
        if self.progress is not None:
            self.progress(self, entry, seed, None)
        self._refusals.pop(name, None)
        try:
            yield from run_exchanges(
                candidate.algorithm, executor, rounds,
                seed=seed, participation=column.participation, evaluate_every=self._every(column), uplink=entry.uplink,
                callbacks=[AfterRound(self._forward(entry, seed, name)), *self._trackers(entry, candidate, seed)],
                directory=self.results / name, resume=True,
                checkpoint_every=max(column.rounds // 5, 1), stopped=stopped,
                metrics=self.experiment.file.measured, keep_rows=rounds == column.rounds,
                origin=column.scenario.origin(seed),
            )  # fmt: skip
        except (Diverged, Unusable) as error:
            if isinstance(error, Unusable):  # not the method's doing: nothing else could be run either
                raise
        except ValueError as error:
            self._refusals[name] = str(error)

    def _trackers(self, entry: Entry, candidate: Candidate, seed: int) -> list[Tracker]:
        chosen = "".join(f", {key} {value}" for key, value in candidate.parameters.items())
        title = f"{entry.row}{chosen} on {entry.column.label}, seed {seed}"
        place = self.results / self._place(entry, candidate, seed)
        return find_trackers(self.track, place, experiment=self.experiment.name, run=title)

    def _forward(self, entry: Entry, seed: int, name: str) -> Callable[[Training, bool], None]:
        def forward(training: Training, evaluated: bool) -> None:
            self._shares[name] = training.round / entry.column.rounds
            if self.progress is not None:
                self.progress(self, entry, seed, training)

        return forward

    def _data(self, column: Column, seed: int) -> Federation:
        """The clients of one column and seed; only the last ones stay in memory."""
        key = column.label, seed
        if key not in self._federations:
            old = [other for other in self._federations if other[0] != column.label]
            old = old or list(self._federations)[: len(self._federations) + 1 - self.at_once]
            for other in old:
                del self._federations[other]
            self._federations[key] = column.scenario.build(seed)
        return self._federations[key]

    def _every(self, column: Column) -> int:
        return self.experiment.file.evaluate_every or max(column.rounds // 20, 1)

    def _place(self, entry: Entry, candidate: Candidate, seed: int) -> str:
        """Where a run stands in the result directory: equal settings and version, equal place."""
        column = entry.column
        what = {
            "algorithm": described(candidate.algorithm), "model": described(column.scenario.model),
            "data": {**column.arguments, "file": _file(column)}, "rounds": column.rounds, "every": self._every(column),
            "participation": described(column.participation),
            **({"uplink": described(entry.uplink)} if entry.uplink else {}),
            **({"measured": measured} if (measured := self.experiment.file.measured) else {}),
        }  # fmt: skip
        fingerprint = hashlib.sha256(json.dumps(what, sort_keys=True, default=str).encode()).hexdigest()[:10]
        place = f"{RUNS}/{column.scenario.name}/{candidate.algorithm.about.name}-{fingerprint}-s{seed}"
        made = stored_versions(self.results / place / MANIFEST).get("fedtailor", __version__)
        beside = f"{place}-{__version__}"
        if made == __version__ or (self.any_version and not (self.results / beside).exists()):
            return place
        return beside

    def _relative_source(self) -> str | None:
        """Where the file is, from the index: no path of this machine stands in results that are passed on."""
        return None if self.source is None else os.path.relpath(self.source, self.index.parent)

    def _write(self) -> None:
        """The index, whole or not at all."""
        experiment, file = self.experiment, self.experiment.file
        found = {
            "name": experiment.name, "file": self._relative_source(), "size": experiment.size,
            "title": file.title, "source": file.source,
            "note": file.note, "seeds": file.seeds, "metrics": file.metrics, "figures": file.figures,
            "scenarios": {column.label: _described(column) for column in experiment.columns},
            "algorithms": experiment.rows, "published": file.published, "sweeps": _sweeps(experiment),
            "runs": experiment.runs, "cells": self.cells, "candidates": self.candidates,
            "skipped": self.skipped, "budget": self._spent(), "seconds": sum(self._seconds.values()),
            "machine": f"{os.cpu_count()} cores, {platform.machine()}", "versions": self._versions(),
        }  # fmt: skip
        text = json.dumps(found, indent=1, default=str)
        try:
            with replacing(self.index) as temporary:
                temporary.write_text(text, "utf-8")
        except OSError as error:
            raise Unusable(f"cannot write to {self.index.parent}: {reason(error)}; finished runs are kept") from None

    def _spent(self) -> dict[str, int] | None:
        """Rounds that halving takes, and those of all candidates on one seed and all methods on the others."""
        if not self.budget:
            return None
        others = len(self.experiment.file.seeds) - 1
        full = sum((len(entry.candidates) + others) * entry.column.rounds for entry in self.experiment.entries)
        return {"rounds": self._rounds, "full": full}

    def _versions(self) -> dict[str, str]:
        """The versions that made the runs of the tables, as their manifests say; several where they differ."""
        found: dict[str, set[str]] = {}
        for cell in self.cells:
            for name, version in stored_versions(self.results / cell["run"] / MANIFEST).items():
                found.setdefault(name, set()).add(version)
        return {name: ", ".join(sorted(versions)) for name, versions in found.items()}


def _file(column: Column) -> str:
    """A digest of the user's own file, where the scenario reads one: other contents are other runs."""
    path = column.arguments.get("path")
    if path is None:
        return ""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None


def _names(entry: Entry) -> dict[str, str]:
    return {"scenario": entry.column.label, "algorithm": entry.row}


def _described(column: Column) -> dict[str, Any]:
    participation = column.participation
    return {
        "use": column.scenario.name, "arguments": dict(column.arguments), "model": repr(column.scenario.model),
        "rounds": column.rounds,
        "participation": participation.fraction if participation.count is None else participation.count,
        **({"sampling": participation.sampling} if participation.sampling else {}),
    }  # fmt: skip


def _sweeps(experiment: Experiment) -> dict[str, Any]:
    """Label in the file -> the parameter that its rows vary, and the row of each value."""
    found: dict[str, Any] = {}
    for entry in experiment.entries:
        if len(entry.varied) == 1:
            ((parameter, value),) = entry.varied.items()
            sweep = found.setdefault(entry.algorithm, {"parameter": parameter, "rows": {}})
            sweep["rows"][str(value)] = entry.row
    return found


def _validation_score(path: Path) -> float | None:
    """Mean over clients, on validation data after the last round, of what the run is judged by (minus it, where lower
    is better); None if the run diverged.

    Raises:
        ValueError: the scenario has no validation data.
    """
    summary = read_summary(path / SUMMARY)
    if "diverged" in summary:
        return None
    metric = summary["metric"]
    require_unchanged(path / METRICS, summary)
    frame = read_frame(path / METRICS).filter(
        (pl.col("split") == "val") & (pl.col("metric") == metric) & ~pl.col("unseen")
    )
    require(len(frame) > 0, "a grid is chosen on validation data, and this scenario has none; remove the grid")
    last = frame.filter(pl.col("round") == frame["round"].max())["value"].mean()
    assert isinstance(last, float)
    return last if find_metric(metric).higher_is_better else -last


def _stored_score(path: Path, metric: Metric, rounds: int) -> float | None:
    """As `_validation_score`, after some of a run's rounds, whether it has ended or not; None if it was not evaluated
    then.

    Raises:
        Damaged: the directory does not hold what was written to it.
    """
    if not (path / METRICS).exists():
        return None
    (found,) = check(path)
    if not found.whole:
        raise Damaged(found.what)
    wanted = (pl.col("split") == "val") & (pl.col("metric") == metric.name) & ~pl.col("unseen")
    values = read_frame(path / METRICS).filter(wanted & (pl.col("round") == rounds))["value"]
    mean = values.mean()
    if not isinstance(mean, float):
        return None
    return mean if metric.higher_is_better else -mean


def _has_diverged(path: Path) -> bool:
    return (path / SUMMARY).exists() and "diverged" in read_summary(path / SUMMARY)

"""Reads the index of an experiment.

The index lists which algorithms ran on which scenarios, and where their runs are.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from fedtailor.protocol import check_choice, require
from fedtailor.report.measures import MEASURES
from fedtailor.report.stored import RunsByScenario, StoredBaseline, StoredRun
from fedtailor.report.units import Unit, unit_of
from fedtailor.storage.digests import has_valid_digest
from fedtailor.storage.manifest import stored_versions
from fedtailor.storage.run_files import COMPARISON_INDEX, MANIFEST


@dataclass(frozen=True)
class ScenarioUse:
    """A scenario with the settings of the experiment.

    Attributes:
        use: name of the scenario.
        arguments: parameters that differ from the scenario's defaults.
        model: description of the model.
        rounds: communication rounds.
        participation: the clients that report in a round, as a share (float) or a
            number (int).
        sampling: "uniform", or "samples" if reporters are drawn in proportion to their
            training samples.
    """

    use: str
    arguments: dict[str, Any]
    model: str
    rounds: int
    participation: int | float
    sampling: str = "uniform"


@dataclass(frozen=True)
class MethodRun:
    """One run of a table: its labels, seed, and directory relative to the results."""

    scenario: str
    algorithm: str
    seed: int
    run: str


@dataclass(frozen=True)
class BaselineRun:
    """One run of a baseline.

    Attributes:
        name: its name in options.
        title: its name in tables.
        needs_pooled_data: whether all clients' rows have to lie in one place.
        is_linear: whether it is a linear model.
        run: directory of the run, relative to the results.
    """

    scenario: str
    name: str
    title: str
    needs_pooled_data: bool
    is_linear: bool
    seed: int
    run: str


@dataclass(frozen=True)
class CandidateRun:
    """One run for the choice of hyper-parameters.

    Attributes:
        val: mean over clients of the accuracy or the negative loss on validation data;
            higher is better. None if the run diverged.
        rounds: rounds that were trained; None for all rounds.
        run: directory of the run, relative to the results.
    """

    scenario: str
    algorithm: str
    parameters: dict[str, Any]
    seed: int
    val: float | None
    chosen: bool
    rounds: int | None = None
    run: str = ""

    def rounds_of(self, total_rounds: int) -> int:
        """The rounds that were trained, given the rounds of a complete run."""
        return self.rounds or total_rounds


@dataclass(frozen=True)
class Skipped:
    """Runs that were skipped.

    Either the method rejects the settings, or all candidates diverged.

    Attributes:
        seed: the seed; None for all seeds.
        parameters: the parameters of the grid.
        why: the reason, in one line.
        runs: number of runs of the experiment that are skipped.
    """

    scenario: str
    algorithm: str
    seed: int | None
    parameters: dict[str, Any]
    why: str
    runs: int


@dataclass(frozen=True)
class RoundBudget:
    """The rounds that were trained, and the rounds of the full grid."""

    rounds: int
    full: int


@dataclass(frozen=True)
class Sweep:
    """A parameter that the experiment varies, and the row labels by its value."""

    parameter: str
    rows: dict[str, str]


@dataclass(frozen=True)
class Index:
    """The content of `experiment.json`.

    Attributes:
        name: name on the command line.
        size: "quick" or "full".
        title: what the experiment reproduces or compares.
        source: the source that it reproduces.
        note: differences from the source.
        seeds: seeds of each method in each scenario.
        metrics: names of `MEASURES`, one table for each.
        figures: names of figures.
        scenarios: label -> scenario, in the order of the columns.
        algorithms: labels, in the order of the rows.
        published: measure -> scenario -> algorithm -> figure of the source.
        sweeps: algorithm -> varied parameter.
        runs: number of runs of the complete experiment, including those that only serve
            to choose hyper-parameters.
        method_runs: the finished runs of the tables ("cells" in the file).
        candidates: the runs to choose hyper-parameters from. A chosen candidate is also
            one of them.
        skipped: runs that were skipped, with reasons.
        baselines: the finished runs of baselines.
        until_still: whether runs end when their validation loss stands still; the
            rounds of a scenario are then a limit.
        budget: rounds of successive halving, or None without halving.
        seconds: wall time so far.
        machine: description of the machine.
        versions: package -> version.
    """

    name: str
    size: str
    title: str
    source: str
    note: str
    seeds: list[int]
    metrics: list[str]
    figures: list[str]
    scenarios: dict[str, ScenarioUse]
    algorithms: list[str]
    runs: int
    method_runs: Annotated[list[MethodRun], Field(alias="cells")]
    seconds: float
    machine: str
    versions: dict[str, str]
    published: dict[str, dict[str, dict[str, str | int | float]]] = field(
        default_factory=dict
    )
    sweeps: dict[str, Sweep] = field(default_factory=dict)
    candidates: list[CandidateRun] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    baselines: list[BaselineRun] = field(default_factory=list)
    until_still: bool = False
    budget: RoundBudget | None = None


@dataclass(frozen=True)
class StoredExperiment:
    """An experiment's index with its runs.

    Attributes:
        results: the directory that the paths of runs are relative to.
        index: the content of the index.
    """

    results: Path
    index: Index

    @staticmethod
    def read(results: Path, name: str) -> "StoredExperiment":
        """Reads the experiment `name` in the directory `results`.

        Raises:
            ValueError: its index is damaged.
        """
        path = results / name / COMPARISON_INDEX
        try:
            require(path.is_file(), f"{path} is no file")
            content = path.read_bytes()
            index = TypeAdapter(Index).validate_json(content)
        except (OSError, ValidationError) as error:
            why = str(error)
            if isinstance(error, ValidationError):
                first = error.errors()[0]
                why = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
            raise ValueError(f"{path} is no index of an experiment ({why})") from None
        require(
            has_valid_digest(json.loads(content)),
            f"{path} is damaged (its digest is wrong); the same `fedtailor compare`"
            " writes it again",
        )
        # Reports are written to a directory of this name.
        is_file_name = Path(index.name).name == index.name
        require(
            is_file_name and index.name not in ("", ".", ".."),
            f"{path} has the name {index.name!r}; it must be one that a directory can"
            " have",
        )
        for metric in index.metrics:
            require(
                metric in MEASURES,
                f"{path} has the metric {metric!r}; it must be one of"
                f" {', '.join(MEASURES)}",
            )
        for one in index.method_runs:
            is_listed = (
                one.scenario in index.scenarios and one.algorithm in index.algorithms
            )
            require(
                is_listed,
                f"{path} has a run of {one.algorithm!r} on {one.scenario!r}, which it"
                " does not list",
            )
        return StoredExperiment(results, index)

    @cached_property
    def runs(self) -> RunsByScenario:
        """Finished runs: scenario -> algorithm -> runs in the order of seeds.

        Runs that diverged are omitted. An algorithm without any run has an empty list.
        """
        runs: dict[str, dict[str, list[StoredRun]]] = {
            scenario: {label: [] for label in self.index.algorithms}
            for scenario in self.index.scenarios
        }
        for listed, run in self._finished_runs:
            if not run.diverged:
                runs[listed.scenario][listed.algorithm].append(run)
        return runs

    @cached_property
    def diverged(self) -> Counter[tuple[str, str]]:
        """(scenario, algorithm) -> number of runs that diverged."""
        return Counter(
            (listed.scenario, listed.algorithm)
            for listed, run in self._finished_runs
            if run.diverged
        )

    @cached_property
    def baselines(self) -> dict[str, list[StoredBaseline]]:
        """Scenario -> results of a model that ignores the inputs, one for each seed.

        Seeds whose runs have not stored them are omitted.
        """
        baselines: dict[str, dict[int, StoredBaseline]] = {
            scenario: {} for scenario in self.index.scenarios
        }
        for listed, run in self._finished_runs:
            # The baseline depends only on the data, so any run of a seed has the same.
            baseline_by_seed = baselines[listed.scenario]
            if listed.seed in baseline_by_seed or run.diverged:
                continue
            if run.baseline is not None:
                baseline_by_seed[listed.seed] = run.baseline
        return {
            scenario: list(baseline_by_seed.values())
            for scenario, baseline_by_seed in baselines.items()
        }

    def trained_baselines(self, scenario: str) -> list["TrainedBaseline"]:
        """The baselines of a scenario, in the order of the index."""
        by_name: dict[str, list[BaselineRun]] = {}
        for listed in sorted(self.index.baselines, key=lambda listed: listed.seed):
            if listed.scenario == scenario:
                by_name.setdefault(listed.name, []).append(listed)
        order = list(dict.fromkeys(listed.name for listed in self.index.baselines))
        return [
            TrainedBaseline(
                by_name[name][0],
                [StoredRun(self.results / listed.run) for listed in by_name[name]],
            )
            for name in order
            if name in by_name
        ]

    @property
    def done(self) -> int:
        """How many of `index.runs` are finished or skipped."""
        index = self.index
        # A chosen candidate is also one of the method runs, and counts once.
        not_chosen = sum(not candidate.chosen for candidate in index.candidates)
        skipped = sum(skipped.runs for skipped in index.skipped)
        return len(index.method_runs) + not_chosen + skipped

    @cached_property
    def versions(self) -> dict[str, Counter[str]]:
        """Package -> its versions in the manifests of the runs -> number of runs."""
        versions: dict[str, Counter[str]] = {}
        for _, run in self._finished_runs:
            for name, version in stored_versions(run.path / MANIFEST).items():
                versions.setdefault(name, Counter())[version] += 1
        return versions

    def refused(self, candidate: CandidateRun) -> bool:
        """Whether a method refused the settings of a candidate or its data."""
        return any(
            (one.scenario, one.algorithm) == (candidate.scenario, candidate.algorithm)
            and one.parameters == candidate.parameters
            and one.seed in (None, candidate.seed)
            and not one.runs
            for one in self.index.skipped
        )

    def skipped(self, scenario: str, algorithm: str) -> bool:
        """Whether runs of an algorithm on a scenario were skipped."""
        names = (scenario, algorithm)
        return any(
            (entry.scenario, entry.algorithm) == names and entry.runs
            for entry in self.index.skipped
        )

    def rounds_text(self, scenario: str) -> str:
        """How long the runs of a scenario trained, such as "50 rounds"."""
        rounds = self.index.scenarios[scenario].rounds
        if self.index.until_still:
            return f"rounds until the validation loss stands still, {rounds:,} at most"
        return f"{rounds} rounds"

    def unit(self, scenario: str) -> Unit:
        """The unit of a scenario's metric."""
        units = (run.unit for runs in self.runs[scenario].values() for run in runs)
        return next(units, unit_of("accuracy"))

    @cached_property
    def _finished_runs(self) -> Sequence[tuple[MethodRun, StoredRun]]:
        by_seed = sorted(self.index.method_runs, key=lambda listed: listed.seed)
        return [(listed, StoredRun(self.results / listed.run)) for listed in by_seed]


@dataclass(frozen=True)
class TrainedBaseline:
    """A baseline with its runs, one for each seed.

    Attributes:
        about: its first entry of the index.
        runs: its runs in the order of seeds.
    """

    about: BaselineRun
    runs: Sequence[StoredRun]

    @property
    def title(self) -> str:
        """Its name in tables."""
        return self.about.title


def experiments(results: Path, names: Sequence[str] = ()) -> list[StoredExperiment]:
    """Reads all experiments of a results directory, or those with the given names.

    Raises:
        ValueError: the directory has no experiment, or none of a given name; the
            message suggests similar names.
    """
    stored_names = []
    if results.is_dir():
        stored_names = sorted(
            path.parent.name for path in results.glob(f"*/{COMPARISON_INDEX}")
        )
    require(
        bool(stored_names),
        f"there are no results in {results}: it has no EXPERIMENT/{COMPARISON_INDEX}; `fedtailor"
        " compare` makes them",
    )
    for name in names:
        check_choice(name, stored_names, "experiment", f"ls {results}")
    return [StoredExperiment.read(results, name) for name in names or stored_names]

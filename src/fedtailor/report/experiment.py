"""The index of an experiment, read back.

It says which algorithms ran on which scenarios, and where their runs are.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fedtailor.protocol import check_choice, require
from fedtailor.report.measures import MEASURES
from fedtailor.report.stored import Runs, StoredBaseline, StoredRun
from fedtailor.report.units import Unit, unit_of
from fedtailor.storage.digests import is_sealed
from fedtailor.storage.manifest import stored_versions
from fedtailor.storage.run_files import INDEX, MANIFEST


@dataclass(frozen=True)
class ScenarioUse:
    """A scenario as the experiment uses it.

    Attributes:
        use: its name.
        arguments: sizes that differ from the scenario's own.
        model: what is trained.
        rounds: communication rounds.
        participation: who reports in a round: a share (float) or a number (int) of the
            clients.
        sampling: "uniform", or "samples" where reporters are drawn in proportion to
            their training samples.
    """

    use: str
    arguments: dict[str, Any]
    model: str
    rounds: int
    participation: int | float
    sampling: str = "uniform"


@dataclass(frozen=True)
class Cell:
    """One run of a table: its labels, seed, and directory below the results."""

    scenario: str
    algorithm: str
    seed: int
    run: str


@dataclass(frozen=True)
class Candidate:
    """One run that was made to choose hyper-parameters.

    Attributes:
        val: mean over clients, on val, of the accuracy or of minus the loss: higher is
            better. None: it diverged.
        rounds: after how many rounds; None: after all.
        run: its directory below the results.
    """

    scenario: str
    algorithm: str
    parameters: dict[str, Any]
    seed: int
    val: float | None
    chosen: bool
    rounds: int | None = None
    run: str = ""

    def rounds_of(self, whole: int) -> int:
        """After how many rounds, where a whole run has `whole` of them."""
        return self.rounds or whole


@dataclass(frozen=True)
class Skipped:
    """What was not run, or not chosen.

    Either the method refuses it, or all that could be chosen from diverged.

    Attributes:
        seed: None: for all seeds.
        parameters: what the grid sets.
        why: in one line.
        runs: how many runs of the experiment there are fewer.
    """

    scenario: str
    algorithm: str
    seed: int | None
    parameters: dict[str, Any]
    why: str
    runs: int


@dataclass(frozen=True)
class Budget:
    """Rounds that were trained, and that training everything would have taken."""

    rounds: int
    full: int


@dataclass(frozen=True)
class Sweep:
    """A parameter that the experiment varies: value -> label of the row."""

    parameter: str
    rows: dict[str, str]


@dataclass(frozen=True)
class Index:
    """What `experiment.json` says.

    Attributes:
        name: on the command line.
        size: "quick" or "full".
        title, source, note: what it repeats, from where, and how it differs.
        seeds: of every cell.
        metrics: names of `MEASURES`, a table each.
        figures: names of figures.
        scenarios: by label, in the order of the columns.
        algorithms: labels, in the order of the rows.
        published: measure -> scenario -> algorithm -> the source's figure.
        sweeps: algorithm -> what is varied.
        runs: how many runs the whole experiment takes, those that only serve to choose
            included.
        cells: the runs of the tables that have ended.
        candidates: the runs that have been chosen from; a chosen one is a cell, too.
        skipped: what was not run, and why.
        limited: settings whose largest value on offer is a limit.
        budget: what halving spent, where methods and settings were halved.
        seconds: wall time so far.
        machine, versions: where and with what.
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
    cells: list[Cell]
    seconds: float
    machine: str
    versions: dict[str, str]
    published: dict[str, dict[str, dict[str, str | int | float]]] = field(
        default_factory=dict
    )
    sweeps: dict[str, Sweep] = field(default_factory=dict)
    candidates: list[Candidate] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    limited: list[str] = field(default_factory=list)
    budget: Budget | None = None


@dataclass(frozen=True)
class Experiment:
    """An experiment's index with its runs.

    Attributes:
        results: the directory that the paths of runs start from.
        index: what was run.
    """

    results: Path
    index: Index

    @staticmethod
    def read(results: Path, name: str) -> "Experiment":
        """The experiment `name` below `results`.

        Raises:
            ValueError: its index is damaged.
        """
        path = results / name / INDEX
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
            is_sealed(json.loads(content)),
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
        for cell in index.cells:
            is_listed = (
                cell.scenario in index.scenarios and cell.algorithm in index.algorithms
            )
            require(
                is_listed,
                f"{path} has a run of {cell.algorithm!r} on {cell.scenario!r}, which it"
                " does not list",
            )
        return Experiment(results, index)

    @cached_property
    def runs(self) -> Runs:
        """Finished runs: scenario -> every algorithm of the table -> runs by seed.

        An algorithm without a finished run has an empty list; runs that diverged are
        left out.
        """
        runs: dict[str, dict[str, list[StoredRun]]] = {
            scenario: {label: [] for label in self.index.algorithms}
            for scenario in self.index.scenarios
        }
        for cell, run in self._ended:
            if not run.diverged:
                runs[cell.scenario][cell.algorithm].append(run)
        return runs

    @cached_property
    def diverged(self) -> Counter[tuple[str, str]]:
        """(scenario, algorithm) -> how many runs diverged."""
        return Counter(
            (cell.scenario, cell.algorithm) for cell, run in self._ended if run.diverged
        )

    @cached_property
    def baselines(self) -> dict[str, list[StoredBaseline]]:
        """Scenario -> what a model that learns nothing reaches, one for each seed.

        Seeds whose runs do not say it are left out.
        """
        baselines: dict[str, dict[int, StoredBaseline]] = {
            scenario: {} for scenario in self.index.scenarios
        }
        for cell, run in self._ended:
            # It depends on the data only: the first run of a seed that has it will do.
            of_seeds = baselines[cell.scenario]
            if cell.seed in of_seeds or run.diverged:
                continue
            if run.baseline is not None:
                of_seeds[cell.seed] = run.baseline
        return {
            scenario: list(of_seeds.values())
            for scenario, of_seeds in baselines.items()
        }

    @property
    def done(self) -> int:
        """How many of `index.runs` have ended, or will not be made."""
        index = self.index
        # A chosen candidate is a cell, too, and counts once.
        not_chosen = sum(not candidate.chosen for candidate in index.candidates)
        skipped = sum(skipped.runs for skipped in index.skipped)
        return len(index.cells) + not_chosen + skipped

    @cached_property
    def versions(self) -> dict[str, Counter[str]]:
        """Package -> its versions, and how many runs each made.

        As the manifests of the runs say.
        """
        versions: dict[str, Counter[str]] = {}
        for _, run in self._ended:
            for name, version in stored_versions(run.path / MANIFEST).items():
                versions.setdefault(name, Counter())[version] += 1
        return versions

    def skipped(self, scenario: str, algorithm: str) -> bool:
        """Whether runs of a row are left out in a column."""
        names = (scenario, algorithm)
        return any(
            (one.scenario, one.algorithm) == names and one.runs
            for one in self.index.skipped
        )

    def unit(self, scenario: str) -> Unit:
        """How a scenario's metric is shown."""
        units = (run.unit for runs in self.runs[scenario].values() for run in runs)
        return next(units, unit_of("accuracy"))

    @cached_property
    def _ended(self) -> Sequence[tuple[Cell, StoredRun]]:
        cells = sorted(self.index.cells, key=lambda cell: cell.seed)
        return [(cell, StoredRun(self.results / cell.run)) for cell in cells]


def experiments(results: Path, names: Sequence[str] = ()) -> list[Experiment]:
    """The experiments of a results directory: all, or those of some names.

    Raises:
        ValueError: there are none, or none of such a name (near ones are suggested).
    """
    stored = []
    if results.is_dir():
        stored = sorted(path.parent.name for path in results.glob(f"*/{INDEX}"))
    require(
        bool(stored),
        f"there are no results in {results}: it has no EXPERIMENT/{INDEX}; `fedtailor"
        " compare` makes them",
    )
    for name in names:
        check_choice(name, stored, "experiment", f"ls {results}")
    return [Experiment.read(results, name) for name in names or stored]

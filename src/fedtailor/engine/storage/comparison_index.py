"""The index of a comparison: a JSON file with its settings and its runs.

It lists which algorithms ran on which scenarios, and where their runs are.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from fedtailor._base.choice import require
from fedtailor._base.digests import has_valid_digest, with_digest
from fedtailor._base.files import atomic_write, reason
from fedtailor.engine.storage.errors import Unusable
from fedtailor.protocol.plain import parse, to_json


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
    """One run of a table.

    Attributes:
        run: its directory, relative to the results.
        chosen: the values from the grid.
    """

    scenario: str
    algorithm: str
    seed: int
    run: str
    chosen: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class BaselineRun:
    """One run of a baseline.

    Attributes:
        name: its name in options.
        title: its name in tables.
        needs_pooled_data: whether all clients' rows have to lie in one place.
        is_linear: whether it is a linear model.
        is_alone: whether each client trains on its own rows only.
        run: directory of the run, relative to the results.
    """

    scenario: str
    name: str
    title: str
    needs_pooled_data: bool
    is_linear: bool
    seed: int
    run: str
    is_alone: bool = False


@dataclass(frozen=True, kw_only=True)
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
    run: str = ""
    val: float | None
    chosen: bool
    rounds: int | None = None

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


@dataclass(frozen=True, kw_only=True)
class Index:
    """The content of `experiment.json`.

    Attributes:
        name: name on the command line.
        file: path of the experiment file, relative to the index; None without one.
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
        deployable: whether only what can be trained over machines may be chosen.
        until_converged: whether runs end when their validation loss has converged; the
            rounds of a scenario are then a limit.
        budget: rounds of successive halving, or None without halving.
        seconds: wall time so far.
        core_seconds: processor time so far; None if a run did not measure it.
        machine: description of the machine.
        versions: package -> version.
    """

    name: str
    file: str | None = None
    size: str
    title: str
    source: str
    note: str
    seeds: list[int]
    metrics: list[str]
    figures: list[str]
    scenarios: dict[str, ScenarioUse]
    algorithms: list[str]
    published: dict[str, dict[str, dict[str, str | int | float]]] = field(
        default_factory=dict
    )
    sweeps: dict[str, Sweep] = field(default_factory=dict)
    until_converged: bool = False
    runs: int
    method_runs: Annotated[list[MethodRun], Field(alias="cells")]
    baselines: list[BaselineRun] = field(default_factory=list)
    deployable: bool = False
    candidates: list[CandidateRun] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    budget: RoundBudget | None = None
    seconds: float
    core_seconds: float | None = None
    machine: str
    versions: dict[str, str]


def write_index(path: Path, index: Index) -> None:
    """Write the index, atomically.

    Raises:
        Unusable: it cannot be written.
    """
    # Convert to JSON and back first, as the digest is that of the JSON values.
    content = json.loads(json.dumps(to_json(index), default=str))
    text = json.dumps(with_digest(content), indent=1)
    try:
        with atomic_write(path) as temporary:
            temporary.write_text(text, "utf-8")
    except OSError as error:
        raise Unusable(
            f"cannot write to {path.parent}: {reason(error)}; finished runs are kept"
        ) from None


def read_index(path: Path) -> Index:
    """Read the index.

    Raises:
        ValueError: it is damaged, or lists a run of what it does not compare.
    """
    try:
        require(path.is_file(), f"{path} is not a file")
        content = json.loads(path.read_bytes())
        index: Index = parse(Index, content)
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not an index of an experiment ({error})") from None
    require(
        has_valid_digest(content),
        f"{path} is damaged (its digest is wrong); the same `fedtailor compare`"
        " writes it again",
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
    return index

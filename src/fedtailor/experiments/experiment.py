"""`Experiment`: methods x scenarios x seeds x grids, read from a file.

It is checked whole before anything runs.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from fedtailor.algorithms.find import find_algorithm
from fedtailor.experiments import scenarios
from fedtailor.experiments.document import ConfigError, Document, KeyPath, read
from fedtailor.experiments.parsing import (
    RefusedSettings,
    architecture,
    check_choice_at,
    combinations,
    configure,
    flatten,
)
from fedtailor.experiments.scenario import Scenario
from fedtailor.experiments.uplink import uplink_of_tables
from fedtailor.metrics import find_metric
from fedtailor.protocol import Algorithm, Pipeline, require
from fedtailor.runs.run import MOST_ROUNDS
from fedtailor.trackers import find_tracker
from fedtailor.training import Participation, Sampling, as_participation

METRICS = (
    *("mean", "weighted", "worst", "worst10", "std"),
    *("largest10", "unseen", "best_val", "max_test"),
)
FIGURES = (
    *("accuracy-by-round", "accuracy-by-bytes", "accuracy-by-time", "histogram"),
    *("collaboration", "silhouette", "diagnostics", "fairness", "sweep"),
)

Share = Annotated[float, Field(gt=0)]
"""Who reports in a round.

A share of the seen clients (up to 1), or a number of them (from 2).
"""

Seed = Annotated[int, Field(ge=0, lt=2**32)]
"""Keys are made of a seed's last 32 bits: larger ones would repeat smaller ones."""

Rounds = Annotated[int, Field(ge=1, le=MOST_ROUNDS)]

NAME = re.compile(r"\w[^/\\]*")
"""What an experiment's name, from its file, may be.

Its directory stands below the results, and is not hidden.
"""


def _distinct(seeds: list[int]) -> list[int]:
    require(len(set(seeds)) == len(seeds), "every seed may stand there once")
    return seeds


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Scenario(_Table):
    """[scenarios.LABEL]; every other key is an argument of the scenario (its sizes)."""

    model_config = ConfigDict(extra="allow", strict=True)
    use: str | None = None
    model: str | dict[str, Any] | None = None
    rounds: Rounds | None = None
    participation: Share | None = None
    sampling: Sampling | None = None
    sgd: dict[str, Any] = {}


class _Algorithm(_Table):
    """[algorithms.LABEL]; every other key is a hyper-parameter."""

    model_config = ConfigDict(extra="allow", strict=True)
    use: str | None = None
    only: list[str] | None = None
    uplink: list[dict[str, Any]] | None = None
    vary: dict[str, Any] = {}
    grid: dict[str, Any] = {}


class _File(_Table):
    """The keys of an experiment file."""

    title: str
    source: str = ""
    note: str = ""
    rounds: Rounds | None = None
    seeds: Annotated[list[Seed], AfterValidator(_distinct)] = Field(
        [0, 1, 2], min_length=1
    )
    participation: Share | None = None
    sampling: Sampling = "uniform"
    uplink: list[dict[str, Any]] = []
    evaluate_every: Rounds | None = None
    track: list[str] = []
    measured: list[str] = []
    metrics: list[Literal[METRICS]] = Field(["mean", "worst10"], min_length=1)  # type: ignore[valid-type]
    figures: list[Literal[FIGURES]] = [  # type: ignore[valid-type]
        "accuracy-by-round",
        "accuracy-by-bytes",
        "fairness",
    ]
    sgd: dict[str, Any] = {}
    scenarios: dict[str, _Scenario] = Field(min_length=1)
    algorithms: dict[str, _Algorithm] = Field(min_length=1)
    published: dict[Literal[METRICS], dict[str, dict[str, str | int | float]]] = {}  # type: ignore[valid-type]


@dataclass(frozen=True)
class Candidate:
    """One setting of a method: one that the grid offers, or its only one.

    Attributes:
        algorithm: the method.
        parameters: what the grid sets, by dotted name; empty where there is no grid.
    """

    algorithm: Algorithm
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Refusal:
    """One setting of a grid that the method does not take, and why."""

    parameters: Mapping[str, Any]
    why: str


@dataclass(frozen=True)
class Column:
    """A scenario as an experiment uses it."""

    label: str
    scenario: Scenario
    arguments: Mapping[str, Any]
    rounds: int
    participation: Participation


@dataclass(frozen=True)
class Entry:
    """One row of the tables in one column: a method, and what the choice is from.

    Attributes:
        row: the row's label.
        algorithm: the label in the file, shared by the rows of a sweep.
        varied: what makes this row differ from the others of its sweep, by dotted name.
        refused: what the grid offers besides, and the method does not take.
        uplink: what happens to an update before it leaves a client.
    """

    row: str
    algorithm: str
    column: Column
    candidates: tuple[Candidate, ...]
    varied: Mapping[str, Any]
    refused: tuple[Refusal, ...] = ()
    uplink: Pipeline = ()


@dataclass(frozen=True)
class Experiment:
    """A comparison, resolved and checked.

    Attributes:
        name: of the file, with "-quick" for the quick size.
        size: "full" or "quick".
        file: title, source, note, seeds, metrics, figures and published figures, as the
            file gives them.
        columns: the scenarios.
        entries: every row in every column where it applies, column by column.
        limited: settings whose largest value on offer is a limit, such as a rate above
            which training diverges.
    """

    name: str
    size: Literal["full", "quick"]
    file: _File
    columns: tuple[Column, ...]
    entries: tuple[Entry, ...]
    limited: tuple[str, ...] = ()

    @property
    def rows(self) -> list[str]:
        """The labels of the rows, in the order of the file."""
        return list(dict.fromkeys(entry.row for entry in self.entries))

    @property
    def runs(self) -> int:
        """How many trainings this takes, those of the grids included."""
        # Settings are chosen on the first seed: the chosen one is not trained again.
        seeds = len(self.file.seeds)
        return sum(seeds + len(entry.candidates) - 1 for entry in self.entries)


def load(path: Path, *, quick: bool = False) -> Experiment:
    """Read and check an experiment file.

    Raises:
        ValueError: it cannot be read, or something in it is wrong: one line with file,
            line and what is allowed.
    """
    return resolve(read(path, quick=quick), path.stem, quick=quick)


def resolve(document: Document, name: str, *, quick: bool = False) -> Experiment:
    """The experiment that a document describes.

    Raises:
        ValueError: something in it is wrong, in one line.
    """
    # The directory "runs" holds the runs of all experiments.
    is_free = NAME.fullmatch(name) is not None and name != "runs"
    require(
        is_free,
        f"an experiment cannot be called {name!r}, as its file is; rename the file",
    )
    try:
        file = _validated(document.content)
        _check_names("measured", file.measured, find_metric)
        _check_names("track", file.track, find_tracker)
        columns = tuple(
            _column(label, table, file) for label, table in file.scenarios.items()
        )
        entries = tuple(entry for column in columns for entry in _entries(column, file))
        _check_published(file, entries, quick)
    except ConfigError as error:
        raise ValueError(document.explain(error)) from None
    return Experiment(
        f"{name}-quick" if quick else name,
        "quick" if quick else "full",
        file,
        columns,
        entries,
    )


def _validated(content: Mapping[str, Any]) -> _File:
    try:
        return _File.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = tuple(str(part) for part in first["loc"] if part != "[key]")
        if first["type"] == "extra_forbidden":
            known = [*_File.model_fields, "base", "quick"]
            known = [name for name in known if name != place[-1]]
            check_choice_at(place[-1], known, place, "key")
        if first["type"] == "missing":
            raise ConfigError(place, f"{place[-1]} is missing") from None
        wrong = first["msg"].lower().removeprefix("value error, ")
        raise ConfigError(
            place, f"{'.'.join(place)}: {wrong}, not {first['input']!r}"
        ) from None


def _check_names(key: str, names: Sequence[str], find: Callable[[str], object]) -> None:
    """Metrics and trackers exist.

    Whether a metric is defined for a scenario is known only with its data.
    """
    for name in names:
        try:
            find(name)
        except ValueError as error:
            raise ConfigError((key,), str(error)) from None


def _column(label: str, table: _Scenario, file: _File) -> Column:
    place = ("scenarios", label)
    name = table.use or label
    try:
        scenario = scenarios.find(name)  # also of an installed package
    except ValueError as error:
        raise ConfigError((*place, "use") if table.use else place, str(error)) from None
    arguments = table.model_extra or {}
    for key in arguments:
        check_choice_at(
            key,
            [*scenario.parameters, *_Scenario.model_fields],
            (*place, key),
            f"argument of {name}",
        )
        try:
            scenario.sized(**{key: arguments[key]})
        except ValueError as error:
            raise ConfigError((*place, key), str(error)) from None
    scenario = scenario.sized(**arguments)
    if table.model is not None:
        model = architecture(table.model, (*place, "model"), own_files=True)
        scenario = replace(scenario, model=model)
    participation = table.participation
    if participation is None:
        participation = file.participation
    if participation is None:
        participation = scenario.participation
    rounds = table.rounds or file.rounds or scenario.rounds
    try:
        reporters = as_participation(participation, table.sampling or file.sampling)
    except ValueError as error:
        raise ConfigError((*place, "participation"), str(error)) from None
    return Column(label, scenario, scenario.parameters, rounds, reporters)


def _entries(column: Column, file: _File) -> Iterator[Entry]:
    for label, table in file.algorithms.items():
        place = ("algorithms", label)
        name = table.use or label
        try:
            name = find_algorithm(name).about.name
        except ValueError as error:
            raise ConfigError(
                (*place, "use") if table.use else place, str(error)
            ) from None
        for other in table.only or ():
            check_choice_at(
                other,
                list(file.scenarios),
                (*place, "only"),
                "scenario in this experiment",
            )
        if table.only is not None and column.label not in table.only:
            continue
        if table.uplink is None:
            uplink = uplink_of_tables(file.uplink, ("uplink",))
        else:
            uplink = uplink_of_tables(table.uplink, (*place, "uplink"))
        base = configure(_start(name, column, file), table.model_extra or {}, place)
        for varied in combinations(table.vary, (*place, "vary")):
            row = configure(base, varied, (*place, "vary"))
            candidates, refused = _offered(row, table.grid, (*place, "grid"))
            if len(candidates) > 1 and column.arguments.get("val") == 0:
                raise ConfigError(
                    ("scenarios", column.label),
                    f"{label} has a grid, and grids are chosen on validation data: give"
                    f" scenario {column.label!r} some, such as val = 0.1",
                )
            flat = flatten(varied)
            parts = [label, *(f"{key} {value}" for key, value in flat.items())]
            yield Entry(
                ", ".join(parts), label, column, candidates, flat, refused, uplink
            )


def _offered(
    row: Algorithm, grid: Mapping[str, Any], place: KeyPath
) -> tuple[tuple[Candidate, ...], tuple[Refusal, ...]]:
    """What a grid offers, and what of it the method does not take.

    Raises:
        ConfigError: it takes nothing of it, or a name or a type is wrong.
    """
    candidates, refused, errors = [], [], []
    for chosen in combinations(grid, place):
        try:
            candidates.append(Candidate(configure(row, chosen, place), flatten(chosen)))
        except RefusedSettings as error:
            refused.append(Refusal(flatten(chosen), str(error)))
            errors.append(error)
    if not candidates:
        raise errors[0]
    return tuple(candidates), tuple(refused)


def _start(name: str, column: Column, file: _File) -> Algorithm:
    """The method as the scenario recommends it.

    It trains locally as [sgd] and [scenarios.LABEL.sgd] say.
    """
    start: Any = column.scenario.algorithm(name)
    if hasattr(start, "sgd"):
        start = replace(start, sgd=configure(start.sgd, file.sgd, ("sgd",)))
        settings = file.scenarios[column.label].sgd
        place = ("scenarios", column.label, "sgd")
        start = replace(start, sgd=configure(start.sgd, settings, place))
    return start


def _check_published(file: _File, entries: tuple[Entry, ...], quick: bool) -> None:
    """Published figures must have a row and a column here.

    A quick size may leave rows out.
    """
    columns = list(file.scenarios)
    rows = list(dict.fromkeys(entry.row for entry in entries))
    for metric, tables in file.published.items():
        for label, figures in tables.items():
            place = ("published", metric, label)
            check_choice_at(label, columns, place, "scenario in this experiment")
            if quick:
                continue
            for row in figures:
                check_choice_at(row, rows, (*place, row), "row in this experiment")

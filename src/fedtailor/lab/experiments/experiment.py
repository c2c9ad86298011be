"""`Experiment`: methods x scenarios x seeds x grids, read from a file and validated."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from fedtailor._base.choice import require
from fedtailor._base.documentation import see
from fedtailor._base.entry_points import named_in_file
from fedtailor._base.files import file_digest
from fedtailor.aggregation.uplink_tables import uplink_of_tables
from fedtailor.algorithms.find import find_algorithm
from fedtailor.engine.training import (
    AsynchronousServer,
    Participation,
    RoundCount,
    Sampling,
    as_participation,
)
from fedtailor.engine.training.asynchronous_tables import asynchronous_of_table
from fedtailor.lab import scenarios
from fedtailor.lab.baselines import Baseline, find_baseline
from fedtailor.lab.experiments.grid import combinations, nested
from fedtailor.lab.experiments.search import Space, space_of
from fedtailor.lab.report.drawing import FIGURES
from fedtailor.lab.results.measures import MEASURES
from fedtailor.lab.scenarios.scenario import Scenario
from fedtailor.lab.trackers import find_tracker
from fedtailor.models import Architecture, by_client
from fedtailor.models.metrics import find_metric
from fedtailor.models.plain import architecture_of
from fedtailor.models.precision import FileDType, dtype_of
from fedtailor.protocol import Algorithm, Pipeline
from fedtailor.protocol.document import Document, read_document
from fedtailor.protocol.plain import (
    ConfigError,
    KeyPath,
    RefusedSettings,
    check_choice_at,
    configured,
    flatten,
    parse,
)

MEASURE_NAMES, FIGURE_NAMES = tuple(MEASURES), tuple(FIGURES)

_Published = dict[str, dict[str, str | int | float]]
"""Scenario -> label of a method -> what a paper prints."""

Share = Annotated[float, Field(gt=0)]
"""The clients that report in a round, as a share (up to 1) or a number (from 2)."""

Seed = Annotated[int, Field(ge=0, lt=2**32)]
"""Random keys are made from the last 32 bits of a seed."""


MODEL = "model"
"""The name of a candidate's model among its parameters."""

NAME = re.compile(r"\w[^/\\]*")
"""Valid names of experiments. A name is also that of a directory."""


def _require_distinct(seeds: list[int]) -> list[int]:
    require(len(set(seeds)) == len(seeds), "give every seed once")
    return seeds


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Scenario(_Table):
    """[scenarios.LABEL]; every other key is an argument of the scenario (its sizes)."""

    model_config = ConfigDict(extra="allow", strict=True)
    use: str | None = None
    model: str | dict[str, Any] | None = None
    models: list[str | dict[str, Any]] | None = Field(None, min_length=1)
    networks: list[dict[str, Any]] | None = Field(None, min_length=1)
    rounds: RoundCount | None = None
    participation: Share | None = None
    sampling: Sampling | None = None
    sgd: dict[str, Any] = {}


class _Algorithm(_Table):
    """[algorithms.LABEL]; every other key is a hyper-parameter."""

    model_config = ConfigDict(extra="allow", strict=True)
    use: str | None = None
    only: list[str] | None = None
    uplink: list[dict[str, Any]] | None = None
    asynchronous: dict[str, Any] | None = None
    vary: dict[str, Any] = {}
    grid: dict[str, Any] = {}
    search: dict[str, Any] = {}


class _Search(_Table):
    """[search]: how the settings of methods with a table `search` are found."""

    use: Literal["optuna"]
    trials: Annotated[int, Field(ge=2, le=10_000)] = 20


class _File(_Table):
    """The keys of an experiment file."""

    title: str
    source: str = ""
    note: str = ""
    rounds: RoundCount | None = None
    until_converged: bool = False
    bracket: list[str] = []
    seeds: Annotated[list[Seed], AfterValidator(_require_distinct)] = Field(
        [0, 1, 2], min_length=1
    )
    participation: Share | None = None
    sampling: Sampling = "uniform"
    uplink: list[dict[str, Any]] = []
    asynchronous: dict[str, Any] | None = None
    precision: FileDType | None = None
    evaluate_every: RoundCount | None = None
    track: list[str] = []
    measured: list[str] = []
    baselines: list[str] = []
    deployable: bool = False
    metrics: list[Literal[MEASURE_NAMES]] = Field(  # type: ignore[valid-type]
        ["mean", "worst10"], min_length=1
    )
    figures: list[Literal[FIGURE_NAMES]] = [  # type: ignore[valid-type]
        "accuracy-by-round",
        "accuracy-by-bytes",
        "fairness",
    ]
    sgd: dict[str, Any] = {}
    search: _Search | None = None
    scenarios: dict[str, _Scenario] = Field(min_length=1)
    algorithms: dict[str, _Algorithm] = Field(min_length=1)
    published: dict[Literal[MEASURE_NAMES], _Published] = {}  # type: ignore[valid-type]


@dataclass(frozen=True)
class Candidate:
    """A method with one of the settings of a grid.

    Attributes:
        algorithm: the method.
        parameters: the values from the grid, by dotted name; empty if there is no grid.
        model: the architecture, where one is chosen; None = that of the scenario.
    """

    algorithm: Algorithm
    parameters: Mapping[str, Any] = field(default_factory=dict)
    model: Architecture | None = None


@dataclass(frozen=True)
class RefusedCandidate:
    """Settings of a grid that the method refuses, with its error message."""

    parameters: Mapping[str, Any]
    message: str


@dataclass(frozen=True)
class ComparedScenario:
    """A scenario with the settings of an experiment: a column of its tables.

    Attributes:
        models: name -> architecture, of which each method's is chosen; empty = all
            methods train the scenario's.
        code: networks of the user's files, as the experiment names them: name in
            `models`, or "" for those of the scenario -> what names one -> SHA-256 of its
            file.
    """

    label: str
    definition: Scenario
    arguments: Mapping[str, Any]
    rounds: int
    participation: Participation
    models: Mapping[str, Architecture] = field(default_factory=dict)
    code: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def code_of(self, candidate: Candidate) -> Mapping[str, str]:
        """Own code of what a candidate trains, as in `code`."""
        return self.code.get(str(candidate.parameters.get(MODEL, "")), {})

    def model_of(self, candidate: Candidate) -> Architecture:
        """What a candidate trains."""
        return self.definition.model if candidate.model is None else candidate.model


@dataclass(frozen=True)
class ComparedMethod:
    """A method in a scenario: a row of a column of the tables.

    Attributes:
        label: label of its row.
        key: label in the file, which the rows of a sweep share.
        scenario: the scenario.
        candidates: the settings from which one is chosen.
        varied: the values of the sweep's parameters in this row, by dotted name.
        refused: settings of the grid that the method refuses.
        uplink: transforms of the clients' updates.
        asynchronous: a server that does not wait for late clients; None = it waits.
        space: the settings that are searched, beginning with those of each candidate
            (one for each model); empty = the candidates are all there are.
        trials: the settings that a search tries for each candidate.
    """

    label: str
    key: str
    scenario: ComparedScenario
    candidates: tuple[Candidate, ...]
    varied: Mapping[str, Any]
    refused: tuple[RefusedCandidate, ...] = ()
    uplink: Pipeline = ()
    asynchronous: AsynchronousServer | None = None
    space: Space = field(default_factory=dict)
    trials: int = 1

    @property
    def tried(self) -> int:
        """The number of settings from which one is chosen."""
        return len(self.candidates) * self.trials


@dataclass(frozen=True)
class Experiment:
    """A validated experiment.

    Attributes:
        name: name of the file, with "-quick" for the quick size.
        size: "full" or "quick".
        file: the settings of the file, such as title, seeds, metrics and figures.
        scenarios: the scenarios.
        methods: the methods of all scenarios, sorted by scenario.
    """

    name: str
    size: Literal["full", "quick"]
    file: _File
    scenarios: tuple[ComparedScenario, ...]
    methods: tuple[ComparedMethod, ...]

    @property
    def method_labels(self) -> list[str]:
        """Labels of the rows, in the order of the file."""
        return list(dict.fromkeys(method.label for method in self.methods))

    def methods_of(self, scenario: ComparedScenario) -> list[ComparedMethod]:
        """The methods of one of the scenarios."""
        return [method for method in self.methods if method.scenario is scenario]

    @property
    def baselines(self) -> list[Baseline]:
        """What is trained beside the methods.

        If only what can be trained over machines may be chosen, others that could be are
        left out; what needs pooled rows never is chosen, and shows what these would give.
        """
        baselines = [find_baseline(name) for name in self.file.baselines]
        if not self.file.deployable:
            return baselines
        return [it for it in baselines if it.over_machines or it.needs_pooled_data]

    @property
    def runs(self) -> int:
        """Number of runs, including those of the grids."""
        # Settings are chosen on the first seed, on which the chosen one is not
        # repeated.
        seeds = len(self.file.seeds)
        return sum(seeds + method.tried - 1 for method in self.methods)


def with_setting(candidate: Candidate, setting: str, value: float) -> Candidate:
    """A candidate with another value of a setting, given by its dotted name.

    Raises:
        RefusedSettings: the method refuses the value.
    """
    return with_settings(candidate, {setting: value}, ("bracket",))


def with_settings(
    candidate: Candidate, settings: Mapping[str, Any], place: KeyPath
) -> Candidate:
    """A candidate with other values of some settings, given by their dotted names.

    Raises:
        RefusedSettings: the method refuses the values.
    """
    paths = [(tuple(name.split(".")), value) for name, value in settings.items()]
    return Candidate(
        configured(candidate.algorithm, nested(paths), place),
        {**candidate.parameters, **settings},
        candidate.model,
    )


def load_experiment(path: Path, *, quick: bool = False) -> Experiment:
    """Read and validate an experiment file.

    Raises:
        ValueError: the file cannot be read, or is invalid. The message names the line.
    """
    return resolve(read_document(path, quick=quick), path.stem, quick=quick)


def resolve(document: Document, name: str, *, quick: bool = False) -> Experiment:
    """Build and validate the experiment that a document describes.

    Raises:
        ValueError: a setting is invalid.
    """
    # The directory "runs" contains the runs of all experiments.
    is_valid = NAME.fullmatch(name) is not None and name != "runs"
    require(
        is_valid,
        f"an experiment cannot be called {name!r}, as its file is; rename the file",
    )
    try:
        file = parse(_File, document.content, also=("base", "quick"))
        _check_names("measured", file.measured, find_metric)
        _check_names("track", file.track, find_tracker)
        _check_names("baselines", file.baselines, find_baseline)
        scenarios = tuple(
            _scenario(label, table, file) for label, table in file.scenarios.items()
        )
        methods = tuple(
            method for scenario in scenarios for method in _methods(scenario, file)
        )
        _check_bracket(file, methods)
        _check_published(file, methods, quick)
    except ConfigError as error:
        raise ValueError(document.explain(error)) from None
    experiment = Experiment(
        f"{name}-quick" if quick else name,
        "quick" if quick else "full",
        file,
        scenarios,
        methods,
    )
    return in_precision(experiment, file.precision)


def in_precision(experiment: Experiment, precision: FileDType | None) -> Experiment:
    """The experiment with models of another precision; None = as they are."""
    if precision is None:
        return experiment
    dtype = dtype_of(precision)
    scenarios = {}
    for scenario in experiment.scenarios:
        models = {
            name: model.in_precision(dtype) for name, model in scenario.models.items()
        }
        definition = scenario.definition
        definition = replace(definition, model=definition.model.in_precision(dtype))
        scenarios[scenario.label] = replace(
            scenario, definition=definition, models=models
        )
    methods = []
    for method in experiment.methods:
        candidates = []
        for candidate in method.candidates:
            model = candidate.model
            if model is not None:
                model = model.in_precision(dtype)
            candidates.append(replace(candidate, model=model))
        scenario = scenarios[method.scenario.label]
        methods.append(replace(method, scenario=scenario, candidates=tuple(candidates)))
    return replace(
        experiment, scenarios=tuple(scenarios.values()), methods=tuple(methods)
    )


def _check_names(key: str, names: Sequence[str], find: Callable[[str], object]) -> None:
    """Check that the metrics, trackers or baselines with these names exist."""
    for name in names:
        try:
            find(name)
        except ValueError as error:
            raise ConfigError((key,), str(error)) from None


def _scenario(label: str, table: _Scenario, file: _File) -> ComparedScenario:
    place = ("scenarios", label)
    name = table.use or label
    try:
        scenario = scenarios.find(name)
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
        model = architecture_of(table.model, (*place, "model"), own_files=True)
        scenario = replace(scenario, model=model)
    if table.networks is not None:
        networks = _networks(table, scenario.model, (*place, "networks"))
        scenario = replace(scenario, model=networks)
    models, code = _models(table, (*place, "models"))
    code[""] = _code_of(
        value for value in (table.model, *(table.networks or ())) if value is not None
    )
    if models:
        scenario = replace(scenario, model=next(iter(models.values())))
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
    return ComparedScenario(
        label, scenario, scenario.parameters, rounds, reporters, models, code
    )


def _networks(table: _Scenario, default: Architecture, place: KeyPath) -> Architecture:
    """The networks of clients that differ: each table of `networks` is a model, with the
    names of its clients. All other clients have the scenario's model.
    """
    if table.models:
        raise ConfigError(
            place,
            "networks name single clients, and models are to choose from; give"
            " one of the two",
        )
    by_name: dict[str, Architecture] = {}
    for value in table.networks or ():
        model = dict(value)
        names = parse(list[str], model.pop("clients", []), (*place, "clients"))
        if not names:
            raise ConfigError(
                place,
                'each of networks names its clients, as in clients = ["client-00"]',
            )
        network = architecture_of(model, place, own_files=True)
        for name in names:
            if name in by_name:
                raise ConfigError(place, f"client {name!r} has two networks")
            by_name[name] = network
    try:
        return by_client(by_name, default=default)
    except ValueError as error:
        raise ConfigError(place, str(error)) from None


def _code_of(models: Iterable[str | Mapping[str, Any]]) -> dict[str, str]:
    """Models of the user's files, as an experiment names them -> SHA-256 of the file."""
    code = {}
    for value in models:
        table = {"use": value} if isinstance(value, str) else value
        file = named_in_file(str(table.get("use")))
        if file is not None:
            code[json.dumps(table, sort_keys=True, default=str)] = file_digest(file[0])
    return code


def _models(
    table: _Scenario, place: KeyPath
) -> tuple[dict[str, Architecture], dict[str, dict[str, str]]]:
    """The models to choose each method's from, and their own code, by name."""
    models: dict[str, Architecture] = {}
    code: dict[str, dict[str, str]] = {}
    for number, value in enumerate(table.models or ()):
        model = architecture_of(value, place, own_files=True)
        name = value if isinstance(value, str) else str(value.get("use"))
        if isinstance(value, Mapping):
            settings = (f"{key} {it}" for key, it in value.items() if key != "use")
            name = " ".join([name, *settings])
        if name in models:
            raise ConfigError(place, f"models names {name} twice (number {number + 1})")
        models[name], code[name] = model, _code_of([value])
    if table.models and table.model is not None:
        raise ConfigError(place, "give model, or models to choose from, not both")
    return models, code


def _methods(scenario: ComparedScenario, file: _File) -> Iterator[ComparedMethod]:
    for label, table in file.algorithms.items():
        place = ("algorithms", label)
        name = table.use or label
        try:
            name = find_algorithm(name, own_files=True).about.name
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
        if table.only is not None and scenario.label not in table.only:
            continue
        if table.uplink is None:
            uplink = uplink_of_tables(file.uplink, ("uplink",))
        else:
            uplink = uplink_of_tables(table.uplink, (*place, "uplink"))
        if table.asynchronous is None:
            asynchronous = asynchronous_of_table(file.asynchronous, ("asynchronous",))
        else:
            asynchronous = asynchronous_of_table(
                table.asynchronous, (*place, "asynchronous")
            )
        recommended = _recommended(name, scenario, file)
        base = configured(recommended, table.model_extra or {}, place)
        for varied in combinations(table.vary, (*place, "vary")):
            row = configured(base, varied, (*place, "vary"))
            candidates, refused = _candidates(row, table.grid, (*place, "grid"))
            candidates = _with_models(candidates, scenario)
            space = _space(label, table, file, row)
            if (len(candidates) > 1 or space) and scenario.arguments.get("val") == 0:
                raise ConfigError(
                    ("scenarios", scenario.label),
                    f"{label} has a grid or a search, whose settings are chosen on"
                    f" validation data: give scenario {scenario.label!r} some, such as val = 0.1"
                    f"{see('errors#a-grid-without-validation-rows')}",
                )
            flat = flatten(varied)
            parts = [label, *(f"{key} {value}" for key, value in flat.items())]
            yield ComparedMethod(
                ", ".join(parts),
                label,
                scenario,
                candidates,
                flat,
                refused,
                uplink,
                asynchronous,
                space,
                file.search.trials if file.search is not None and space else 1,
            )


def _with_models(
    candidates: tuple[Candidate, ...], scenario: ComparedScenario
) -> tuple[Candidate, ...]:
    """The candidates with each of a scenario's models, model by model."""
    if not scenario.models:
        return candidates
    return tuple(
        replace(
            candidate,
            parameters={MODEL: name, **candidate.parameters},
            model=model,
        )
        for name, model in scenario.models.items()
        for candidate in candidates
    )


def _candidates(
    row: Algorithm, grid: Mapping[str, Any], place: KeyPath
) -> tuple[tuple[Candidate, ...], tuple[RefusedCandidate, ...]]:
    """The method with each of the settings of a grid.

    Returns:
        The candidates, and the settings that the method refuses.

    Raises:
        ConfigError: the method refuses all settings, or a name or type is wrong.
    """
    candidates, refused, errors = [], [], []
    for settings in combinations(grid, place):
        parameters = flatten(settings)
        try:
            candidates.append(Candidate(configured(row, settings, place), parameters))
        except RefusedSettings as error:
            refused.append(RefusedCandidate(parameters, str(error)))
            errors.append(error)
    if not candidates:
        raise errors[0]
    return tuple(candidates), tuple(refused)


def _space(
    label: str, table: _Algorithm, file: _File, row: Algorithm
) -> dict[str, Any]:
    """The space of the search over a method's settings; empty if there is none."""
    place = ("algorithms", label, "search")
    if not table.search:
        return {}
    if file.search is None:
        raise ConfigError(
            place,
            f"{label} has a search, and the file does not say of what kind: add a table"
            ' [search] with use = "optuna" and the number of trials',
        )
    if table.grid:
        raise ConfigError(
            place, f"{label} has a grid and a search; give one of the two"
        )
    space = space_of(table.search, place)
    for name, leaf in space.items():
        # A name or type that is wrong is refused before anything is trained.
        for value in leaf if isinstance(leaf, tuple) else (leaf.low, leaf.high):
            with suppress(RefusedSettings):
                path = tuple(name.split("."))
                configured(row, nested([(path, value)]), place)
    return space


def _recommended(name: str, scenario: ComparedScenario, file: _File) -> Algorithm:
    """The scenario's method, with the settings in [sgd] and [scenarios.X.sgd]."""
    algorithm: Any = scenario.definition.algorithm(name)
    if hasattr(algorithm, "sgd"):
        sgd = configured(algorithm.sgd, file.sgd, ("sgd",))
        place = ("scenarios", scenario.label, "sgd")
        sgd = configured(sgd, file.scenarios[scenario.label].sgd, place)
        algorithm = replace(algorithm, sgd=sgd)
    return algorithm


def _check_bracket(file: _File, methods: Sequence[ComparedMethod]) -> None:
    """Check that grids have the settings that are bracketed, as numbers above 0."""
    for setting in file.bracket:
        values = [
            candidate.parameters[setting]
            for method in methods
            for candidate in method.candidates
            if setting in candidate.parameters
        ]
        if not values:
            raise ConfigError(
                ("bracket",), f"bracket names {setting!r}, which is in no grid"
            )
        for value in values:
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or value <= 0:
                raise ConfigError(
                    ("bracket",),
                    f"bracket names {setting!r}, whose grid holds {value!r}; only"
                    " numbers above 0 can be bracketed",
                )


def _check_published(
    file: _File, methods: tuple[ComparedMethod, ...], quick: bool
) -> None:
    """Check that published figures belong to methods and scenarios of the experiment.

    The quick size may have fewer rows.
    """
    scenarios = list(file.scenarios)
    rows = list(dict.fromkeys(method.label for method in methods))
    for metric, tables in file.published.items():
        for label, figures in tables.items():
            place = ("published", metric, label)
            check_choice_at(label, scenarios, place, "scenario in this experiment")
            if quick:
                continue
            for row in figures:
                check_choice_at(row, rows, (*place, row), "row in this experiment")

"""`job.toml`: what a federation trains, on which columns, and what may leave a client.

All machines have the same file.
"""

import hashlib
import ipaddress
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from fedtailor._base.choice import require
from fedtailor._base.documentation import see
from fedtailor._base.entry_points import named_in_file
from fedtailor._base.printable import shortened
from fedtailor.aggregation.uplink_tables import uplink_of_tables
from fedtailor.algorithms.find import find_algorithm
from fedtailor.data.federation.checks import MAX_SEED
from fedtailor.data.tables.delimited import MISSING_WORDS
from fedtailor.data.tables.hiding import MAX_NAME_LENGTH, MAX_NAMES
from fedtailor.data.tables.kinds import MAX_MAGNITUDE, Kind
from fedtailor.data.tables.options import Hazard
from fedtailor.data.tables.windows import Windowing
from fedtailor.engine.client.private_steps import accounted_settings, private_settings
from fedtailor.engine.training import (
    MOST_ROUNDS,
    AsynchronousServer,
    Callback,
    Privacy,
    RunSpec,
    Sampling,
    UntilScore,
    as_participation,
)
from fedtailor.engine.training.asynchronous_tables import CLOCK, asynchronous_of_table
from fedtailor.models import Architecture
from fedtailor.models.metrics import find_metric
from fedtailor.models.plain import architecture_of
from fedtailor.models.registry import find_builder
from fedtailor.models.tasks.survival import outcome_names
from fedtailor.protocol import Algorithm
from fedtailor.protocol.document import Document, read_document
from fedtailor.protocol.plain import ConfigError, check_choice_at, configured, parse
from fedtailor.remote.job.installed_code import check_code
from fedtailor.remote.wire.waits import check_wait
from fedtailor.statistics.boosting import BoostingSettings
from fedtailor.statistics.boosting.bins import MOST_BINS
from fedtailor.statistics.regression import Model

NUMBER: Kind = "number"
"""The kind of a column of numbers; the other kind is a list of categories."""

KINDS = (NUMBER, "category", "boolean", "date")
"""The kinds of columns, in addition to lists of categories and to `Scale`."""

MOST_TREES = 1000
"""The most rounds of boosting that a job can ask for."""

MAX_INTERVALS = 200
"""The largest number of intervals of time of a survival target."""

T = TypeVar("T")
SplitShare = Annotated[float, Field(ge=0, lt=1)]
Preprocessed = Literal["none", "job", "federated"]


class _Table(BaseModel):
    """A table of the job file; names and types are checked, values not converted."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True)
class Scale:
    """Numbers or dates of which models see (value - mean) / sd; a missing one is the mean.

    Attributes:
        mean: about the mean of all clients' rows, of dates in days since 1970.
        sd: about their standard deviation, of dates in days.
        kind: of the column.
    """

    mean: float
    sd: float
    kind: Kind = NUMBER

    @staticmethod
    def of(table: Any) -> "Scale":
        """Read { mean = ..., sd = ... }.

        Raises:
            ValueError: it is another table, or no table.
        """
        require(
            isinstance(table, Mapping) and set(table) == {"mean", "sd"},
            "write { mean = 50, sd = 10 } of numbers, and { mean = 2020-06-30, sd = 365 }"
            " (days) of dates",
        )
        mean, sd, kind = table["mean"], table["sd"], NUMBER
        if isinstance(mean, str):
            # A date in a document is its text.
            try:
                mean, kind = (date.fromisoformat(mean) - date(1970, 1, 1)).days, "date"
            except ValueError:
                raise ValueError(
                    f"its mean is {shortened(repr(mean))}; it must be a number, or a date"
                    " such as 2020-06-30"
                ) from None
        for name, number in {"mean": mean, "sd": sd}.items():
            require(
                type(number) in (int, float) and abs(number) <= MAX_MAGNITUDE,
                f"its {name} is {shortened(repr(number))}; it must be a number up to"
                f" {MAX_MAGNITUDE:g}",
            )
        least = 1 / MAX_MAGNITUDE
        require(sd >= least, f"its sd is {sd:g}; it must be {least:g} or more")
        return Scale(float(mean), float(sd), kind)


def _require_kind(kind: Any) -> Any:
    if isinstance(kind, dict):
        return Scale.of(kind)
    is_list = isinstance(kind, list) and all(isinstance(name, str) for name in kind)
    listed = ", ".join(f'"{choice}"' for choice in KINDS)
    require(
        is_list or (isinstance(kind, str) and kind in KINDS),
        f"a column is {listed}, a list of categories, or"
        " { mean = ..., sd = ... } of numbers",
    )
    return kind


class _Coordinator(_Table):
    address: str


Positive = Annotated[float, Field(gt=0)]


class _Data(_Table):
    target: str
    classes: list[str] | None = None
    event: str | None = None
    positive: list[str] = []
    hazard: Hazard = "discrete"
    intervals: Annotated[list[Positive], Field(max_length=MAX_INTERVALS)] = []
    time: str | None = None
    window: Annotated[int, Field(ge=1)] | None = None
    step: Annotated[int, Field(ge=1)] | None = None
    gap: Positive | None = None
    val: SplitShare = 0.1
    test: SplitShare = 0.2
    preprocessing: Preprocessed = "none"
    keep_correlated: bool = True
    scale: Annotated[Scale, BeforeValidator(Scale.of)] | None = None
    columns: dict[
        str, Annotated[Kind | list[str] | Scale, BeforeValidator(_require_kind)]
    ]


class _Training(_Table):
    rounds: Annotated[int, Field(ge=1, le=MOST_ROUNDS)]
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] = 0
    minimum: Annotated[int, Field(ge=1)] = 1
    deadline: float = 300.0
    participation: Annotated[float, Field(gt=0)] = 1.0
    sampling: Sampling = "uniform"
    metrics: list[str] = []
    asynchronous: dict[str, Any] | None = None
    until_converged: bool = False
    until_score: float | None = None


class _Boosting(_Table):
    trees: Annotated[int, Field(ge=1, le=MOST_TREES)] = 100
    leaves: Annotated[int, Field(ge=2, le=1024)] | None = 31
    depth: Annotated[int, Field(ge=1, le=30)] | None = None
    least_rows: Annotated[int, Field(ge=1)] = 20
    penalty: Annotated[float, Field(ge=0)] = 0.0
    rate: Annotated[float, Field(gt=0)] = 0.1
    bins: Annotated[int, Field(ge=2, le=MOST_BINS)] = MOST_BINS
    own_trees: bool = True


class _Regression(_Table):
    model: Model
    intercept: Literal["common", "fixed"] = "common"


@dataclass(frozen=True)
class RegressionSettings:
    """A regression that a federation may fit.

    Attributes:
        model, intercept: see `fit_regression`.
    """

    model: Model
    intercept: Literal["common", "fixed"] = "common"

    @property
    def shows_clients(self) -> bool:
        """Whether counts of each client follow from the sums.

        Beside an intercept or baseline hazard of its own, a client adds products of its
        means; one sum of these has one solution in whole numbers, for known rows.
        """
        return self.intercept == "fixed" or self.model == "cox"


@dataclass(frozen=True)
class Boosting:
    """Trees that a federation may boost, in addition to what it trains.

    Attributes:
        settings: how trees are grown, and how many at most.
        own_trees: whether each client may add trees of its own.
    """

    settings: BoostingSettings
    own_trees: bool = True


@dataclass(frozen=True)
class Schema:
    """The columns of the clients' tables, and their use.

    Attributes:
        target: column to predict.
        classes: classes of the target; None for a regression.
        columns: the input columns in order, each with its categories, or None if the
            job does not list them.
        val, test: fractions of each client's rows in these splits.
        kinds: kind of each input column.
        preprocessing: "none" if tables hold numbers and listed categories only, and no
            empty cell; "job" if the job says how cells become inputs; "federated" if that
            follows from sums that clients tell of their columns.
        scales: mean and deviation of columns of numbers or dates, the target's among
            them, by the job.
        event: of survival, the column that says whether the event was seen; `target` is
            then the column of times.
        positive: of survival, the labels of the event; () = 1, yes or true.
        hazard: of survival, the model of the hazard.
        intervals: of survival, ascending ends of intervals of time.
        windowing: how rows become windows; None = rows are the examples.
        stratified: whether rows are divided within each class, or without looking at them:
            exact sums of two splits would show how many rows of a class one client has.
    """

    target: str
    classes: tuple[str, ...] | None
    columns: Mapping[str, tuple[str, ...] | None]
    val: float = 0.1
    test: float = 0.2
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    preprocessing: Preprocessed = "none"
    scales: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    event: str | None = None
    positive: tuple[str, ...] = ()
    hazard: Hazard = "discrete"
    intervals: tuple[float, ...] = ()
    windowing: Windowing | None = None
    stratified: bool = True

    def is_scaled(self, name: str) -> bool:
        """Whether a column's numbers are scaled, or stay as they are."""
        return self.federated or name in self.scales

    @property
    def federated(self) -> bool:
        """Whether the preprocessing follows from sums that clients tell of their columns."""
        return self.preprocessing == "federated"

    @property
    def task(self) -> Literal["classification", "regression", "survival"]:
        """What is predicted."""
        if self.event is not None:
            return "survival"
        return "regression" if self.classes is None else "classification"

    @property
    def outcomes(self) -> tuple[str, ...] | None:
        """What counts say about a row's target: its class, or for survival the interval
        in which it had the event or was last seen. None for a regression.
        """
        if self.task == "survival":
            return outcome_names(self.intervals)
        return self.classes

    @property
    def used(self) -> tuple[str, ...]:
        """The names of all columns that are read."""
        others = [self.target]
        if self.event is not None:
            others.append(self.event)
        if self.windowing is not None:
            others.append(self.windowing.time)
        return (*self.columns, *others)

    @property
    def width(self) -> int:
        """Number of inputs of the model, without preprocessing.

        A column of numbers is one input, and each listed category is one input.
        """
        return sum(
            1 if categories is None else len(categories)
            for categories in self.columns.values()
        )


@dataclass(frozen=True)
class Job:
    """The content of a job file.

    Attributes:
        title: name of the federation, for people.
        host, port: address at which clients reach the coordinator.
        schema: the columns of the clients' tables.
        spec: what is run. Its seed is that of all random numbers except those that must
            stay secret; its model is bound by the plan.
        minimum: minimum number of answers in a round; where clients may be late, of those
            that are there before the first.
        deadline: seconds that a round waits for answers.
        content: the file as plain values.
        boosting: trees that may be boosted; None = none.
        regression: a regression that may be fitted; None = none.
        until_score: the training ends as soon as the mean validation score over clients
            reaches it; None = it does not.
    """

    title: str
    host: str
    port: int
    schema: Schema
    spec: RunSpec
    minimum: int
    deadline: float
    content: Mapping[str, Any] = field(repr=False)
    boosting: Boosting | None = None
    regression: RegressionSettings | None = None
    until_score: float | None = None

    @property
    def adds_rows(self) -> bool:
        """Whether rows of all clients are added up exactly behind masks, to boost trees or
        to fit a regression.

        Such a job trains nothing else, and takes numbers in their own units.
        """
        return self.boosting is not None or self.regression is not None

    def check_trains(self) -> None:
        """Check that the job trains models round by round.

        Raises:
            ValueError: it boosts trees or fits a regression.
        """
        name, command = "regression", "fit"
        if self.boosting is not None:
            name, command = "boosting", "boost"
        require(
            not self.adds_rows,
            f"a job with [{name}] trains no other models: run fedtailor federation {command},"
            f" or train by a job of its own, without [{name}]",
        )

    @property
    def callbacks(self) -> tuple[Callback, ...]:
        """What may end a run of this job early, in addition to what its spec says."""
        return () if self.until_score is None else (UntilScore(self.until_score),)

    @property
    def address(self) -> str:
        """ "host:port" of the coordinator."""
        host = f"[{self.host}]" if ":" in self.host else self.host  # IPv6
        return f"{host}:{self.port}"

    @property
    def identity(self) -> str:
        """Fingerprint of the settings that a client agrees to.

        These are data, model, method, metrics, seed and what may leave the client. The deadline,
        the minimum, the address and the number of rounds are not among them: the
        coordinator may change these without new copies at the clients, which answer at
        most as many rounds as their own copies say.
        """
        tables = ("data", "model", "method", "privacy")
        content: dict[str, Any] = {name: self.content.get(name) for name in tables}
        content["seed"] = self.spec.seed
        for name in ("boosting", "regression"):
            if name in self.content:
                content[name] = self.content[name]
        if self.spec.metrics:
            content["metrics"] = list(self.spec.metrics)
        content["order"] = list(self.schema.columns)  # as `sort_keys` sorts the columns
        text = json.dumps(content, sort_keys=True, default=str)  # dates as text
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def read_job(path: Path) -> Job:
    """Read a job file.

    Raises:
        ValueError: the file cannot be read, or a setting is missing, unknown or not
            valid; with file and line.
    """
    document = read_document(path, alone=True)
    try:
        return _job(document)
    except ConfigError as error:
        raise ValueError(document.explain(error)) from None


def split_address(address: str) -> tuple[str, int]:
    """Split "host:port" or "[IPv6 address]:port" into host and port.

    Raises:
        ValueError: the address has neither form, or stands for all addresses.
    """
    host, _, port = address.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if is_bracketed else host
    require(
        host not in ("0", "*") and not _is_unspecified(host),
        f"{host} stands for all addresses of a machine, on which a server may listen; no"
        " client can reach it: write the coordinator's name or its own address",
    )
    # Only names and IP addresses: no user before the host, no path, no blank.
    is_host = bool(re.fullmatch(r"[\w.:%-]+", host)) and is_bracketed == _is_ipv6(host)
    is_port = re.fullmatch("[0-9]{1,5}", port) and 0 < int(port) < 65536
    fits = is_host and bool(is_port)
    require(
        fits,
        f"{address!r} is not an address; write host:port, such as"
        " coordinator.example.org:9092",
    )
    return host, int(port)


def _is_ipv6(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).version == 6
    except ValueError:
        return False


def _is_unspecified(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _job(document: Document) -> Job:
    content = document.content
    needed = ("coordinator", "data", "model", "method", "training")
    tables = ("title", *needed, "code", "privacy", "boosting", "regression")
    for name in content:
        check_choice_at(name, tables, (name,), "table")
    for name in needed:
        if name not in content:
            raise ConfigError((name,), f"the table [{name}] is missing")
    for name, value in content.items():
        if name != "title" and not isinstance(value, Mapping):
            raise ConfigError((name,), f"{name} is {value!r}; it is a table")
    title = content.get("title", "federation")
    if not isinstance(title, str):
        raise ConfigError(("title",), f"title is {title!r}; it must be a text")
    coordinator = _table(_Coordinator, content, "coordinator")
    with _errors_at("coordinator", "address"):
        host, port = split_address(coordinator.address)
    training = _table(_Training, content, "training")
    with _errors_at("training", "deadline"):
        check_wait("deadline", training.deadline)
    schema = _schema(_table(_Data, content, "data"))
    spec = _spec(content, training)
    check_code(_code_of(content, spec), content.get("code", {}))
    for name in ("until_converged", "until_score"):
        if getattr(training, name) not in (None, False):
            with _errors_at("training", name):
                require(
                    spec.privacy.evaluate and schema.val > 0,
                    f"{name} looks at validation rows of the clients, which this job does"
                    " not measure: set evaluate = true in [privacy] and val in"
                    " [data], or leave it out",
                )
    with _errors_at("data", "hazard"):
        require(
            spec.privacy.sums is None or schema.hazard != "cox",
            "secure_aggregation would not hide clients: one without events changes nothing,"
            " so that a sum of models can be what another has changed by a single event; leave"
            " hazard out",
        )
        require(
            schema.hazard != "cox" or not private_settings(spec.algorithm),
            "private steps clip the gradient of each row, which Cox's likelihood has none of;"
            " leave hazard out",
        )
    with _errors_at("data", "preprocessing"):
        # Beside exact sums of all clients, what one client hides in the sums of its own
        # columns would be what the others leave.
        require(
            schema.preprocessing != "federated" or spec.privacy.sums is None,
            "behind masks (secure_aggregation) no client tells sums of its columns: write"
            ' preprocessing = "job", with lists of categories and { mean = ..., sd = ... }'
            " in [data.columns]",
        )
    boosting = _boosting(content, schema, spec)
    regression = _regression(content, schema, spec)
    adds_rows = boosting is not None or regression is not None
    if adds_rows:
        schema = replace(schema, scales={}, stratified=False)
    elif schema.preprocessing == "job":
        for name, kind in schema.kinds.items():
            if kind == "date" and name not in schema.scales:
                raise ConfigError(
                    ("data", "columns", name),
                    f"{name} is a date, of which models would see some thousand days: write"
                    " { mean = 2020-06-30, sd = 365 } (days)",
                )
    return Job(
        title=title,
        host=host,
        port=port,
        schema=schema,
        spec=spec,
        minimum=training.minimum,
        deadline=training.deadline,
        content=content,
        boosting=boosting,
        regression=regression,
        until_score=training.until_score,
    )


def _code_of(
    content: Mapping[str, Any], spec: RunSpec
) -> dict[str, Callable[..., Any]]:
    """What packages may offer and a job uses, as `check_code` takes it."""
    model = content["model"]
    uses: dict[str, Callable[..., Any]] = {
        f"the method {spec.algorithm.about.name}": type(spec.algorithm),
        f"the model {model['use']}": find_builder(model["use"]),
    }
    for name in content["training"].get("metrics", ()):
        uses[f"the metric {name}"] = type(find_metric(name))
    for transform in spec.uplink:
        uses[f"the transform {transform.name}"] = type(transform)
    return uses


def _boosting(
    content: Mapping[str, Any], schema: Schema, spec: RunSpec
) -> Boosting | None:
    """The trees that a job lets clients boost; None without [boosting].

    Raises:
        ConfigError: a setting is not valid, or the job has no sums behind masks.
    """
    if "boosting" not in content:
        return None
    table = _table(_Boosting, content, "boosting")
    if spec.privacy.sums is None:
        raise ConfigError(
            ("boosting",),
            "histograms of few rows show nearly the rows themselves, so boosting needs"
            " sums behind masks: set secure_aggregation = true in [privacy], or leave out"
            " [boosting]",
        )
    if schema.windowing is not None or schema.task == "survival":
        raise ConfigError(
            ("boosting",),
            "trees are boosted for classes or one number of a row, not for windows or"
            " times to an event; leave out [boosting]",
        )
    with _errors_at("boosting"):
        settings = BoostingSettings(
            most_leaves=table.leaves,
            most_depth=table.depth,
            least_rows=table.least_rows,
            penalty=table.penalty,
            rate=table.rate,
            trees=table.trees,
            most_bins=table.bins,
        )
    return Boosting(settings, table.own_trees)


def _regression(
    content: Mapping[str, Any], schema: Schema, spec: RunSpec
) -> RegressionSettings | None:
    """The regression that a job lets clients fit; None without [regression].

    Raises:
        ConfigError: a setting is not valid, or the job has no sums behind masks.
    """
    if "regression" not in content:
        return None
    table = _table(_Regression, content, "regression")
    is_number = schema.task == "regression"
    target, fits = {
        "linear": ("a target that is a number", is_number),
        "poisson": ("a target that is a number", is_number),
        "logistic": ("a target of two classes", len(schema.classes or ()) == 2),
        "cox": ("an event", schema.task == "survival"),
    }[table.model]
    with _errors_at("regression"):
        require(
            spec.privacy.sums is not None,
            "products of columns show nearly the rows themselves, so a regression needs"
            " sums behind masks: set secure_aggregation = true in [privacy], or leave out"
            " [regression]",
        )
        require(
            "boosting" not in content,
            "boosting and a regression add up other rows (a regression leaves out those with"
            " a missing cell), and the difference of their sums shows these: make two jobs,"
            " one with [boosting] and one with [regression]",
        )
        require(
            fits and schema.windowing is None,
            f"model {table.model} needs {target} in [data], and no windows",
        )
    return RegressionSettings(table.model, table.intercept)


def _spec(content: Mapping[str, Any], training: _Training) -> RunSpec:
    """What is run, by [model], [method], [training] and [privacy]."""
    privacy = dict(content.get("privacy", {}))
    uplink = parse(
        list[dict[str, Any]], privacy.pop("uplink", []), ("privacy", "uplink")
    )
    with _errors_at("training", "participation"):
        participation = as_participation(training.participation, training.sampling)
    with _errors_at("training", "metrics"):
        for name in training.metrics:
            find_metric(name)
    algorithm = _algorithm(content["method"])
    # Each client accounts the steps of a method by one of its settings.
    with _errors_at("method"):
        accounted_settings(method for method, _ in algorithm.phases())
    transforms = uplink_of_tables(uplink, ("privacy", "uplink"))
    with _errors_at("privacy", "uplink"):
        require(
            not any(transform.stage == "byzantine" for transform in transforms),
            "Byzantine clients are for simulations; leave them out of a job",
        )
    model = _model(content["model"])
    asynchronous = _asynchronous(training)
    with _errors_at("privacy", "secure_aggregation"):
        spec = RunSpec(
            algorithm,
            model,
            training.rounds,
            seed=training.seed,
            participation=participation,
            uplink=transforms,
            metrics=tuple(training.metrics),
            privacy=_table(Privacy, {"privacy": privacy}, "privacy", also=("uplink",)),
        )
    with _errors_at("training", "asynchronous"):
        return replace(
            spec, asynchronous=asynchronous, until_converged=training.until_converged
        )


def _asynchronous(training: _Training) -> AsynchronousServer | None:
    """How the coordinator takes answers that come late; None if it waits for them.

    Raises:
        ConfigError: a setting is unknown or has a wrong value, or is of simulations only.
    """
    place = ("training", "asynchronous")
    for name in training.asynchronous or {}:
        if name in (*CLOCK, "slowness"):
            raise ConfigError(
                (*place, name),
                f"{name} is of the simulated clock, and over machines clients take as long"
                " as they take; leave it out",
            )
    return asynchronous_of_table(training.asynchronous, place)


def _table(
    kind: type[T], content: Mapping[str, Any], name: str, also: Sequence[str] = ()
) -> T:
    """Read and check a table of the job file.

    Raises:
        ConfigError: the first problem that a person should correct.
    """
    return parse(kind, content[name], (name,), what=f"setting of [{name}]", also=also)


def _model(table: Mapping[str, Any]) -> Architecture:
    use = table.get("use", "")
    if not isinstance(use, str):
        raise ConfigError(("model", "use"), f"use is {use!r}; it must be a text")
    if use == "auto":
        # Both would have to be trained over the machines, which doubles what clients
        # send and spend, and whoever chose would see all clients' measurements of both.
        raise ConfigError(
            ("model", "use"),
            "a job trains one model: `fedtailor compare TABLE --model auto` chooses between"
            " linear and mlp on validation data; name what it chose (over machines a choice"
            " would cost each client both trainings)",
        )
    if use == "from_huggingface":
        raise ConfigError(
            ("model", "use"),
            "from_huggingface takes texts or images, and not the rows of tables; name"
            " another model",
        )
    if "start" in table and "start_digest" not in table:
        # A path alone could be that of any network on a client's machine, and methods
        # may send what clients begin with.
        raise ConfigError(
            ("model", "start"),
            'in a job the file needs start_digest = "...", so that all machines have the'
            " same one: the value of fedtailor.models.start_file(FILE, None).digest",
        )
    return architecture_of(table, ("model",))


@contextmanager
def _errors_at(*key: str) -> Iterator[None]:
    """Turn a `ValueError` into a `ConfigError` about the setting `key`."""
    try:
        yield
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(key, str(error)) from None


def _survival(data: _Data) -> tuple[float, ...]:
    """The intervals of time of survival; () for another target.

    Raises:
        ConfigError: a setting is missing, superfluous or out of order.
    """
    if data.event is None:
        for name in ("positive", "hazard", "intervals"):
            if name in data.model_fields_set:
                raise ConfigError(
                    ("data", name),
                    f"{name} is for times to an event; name the column of events with"
                    " event, or leave it out",
                )
        return ()
    for name in ("classes", "window"):
        if getattr(data, name) is not None:
            raise ConfigError(
                ("data", name),
                f"with event the target is a time: leave out {name}, or event",
            )
    # Targets are float32 numbers, and an end is compared with them.
    ends = tuple(np.array(data.intervals, np.float32).astype(float).tolist())
    is_ascending = all(low < high for low, high in pairwise(ends))
    if not ends or not is_ascending or not np.isfinite(ends).all():
        raise ConfigError(
            ("data", "intervals") if data.intervals else ("data", "event"),
            f"intervals is {data.intervals}; a survival target needs one or more ascending"
            " times at which intervals end, such as [365, 730, 1460]",
        )
    return ends


def _windowing(data: _Data) -> Windowing | None:
    """How rows become windows; None if rows are examples.

    Raises:
        ConfigError: a setting is missing or superfluous.
    """
    if data.window is None:
        for name in ("time", "step", "gap"):
            if getattr(data, name) is not None:
                raise ConfigError(
                    ("data", name),
                    f"{name} is for windows of rows; give their length as window, or"
                    f" leave {name} out",
                )
        return None
    if data.time is None or data.gap is None:
        raise ConfigError(
            ("data", "window"),
            "windows need time, the column that orders rows, and gap, the largest"
            " difference of two times within a window (in days for dates)",
        )
    return Windowing(data.window, data.step or data.window, data.time, data.gap)


def _schema(data: _Data) -> Schema:
    intervals, windowing = _survival(data), _windowing(data)
    classes = None if data.classes is None else tuple(data.classes)
    if classes is not None and not _are_distinct(classes):
        raise ConfigError(
            ("data", "classes"),
            f"classes is {data.classes}; it needs two or more, each once",
        )
    if not data.columns:
        raise ConfigError(("data", "columns"), "there are no columns; name the inputs")
    roles = {"target": data.target, "event": data.event, "time": data.time}
    names = [name for name in roles.values() if name is not None]
    for role, name in roles.items():
        if name in data.columns:
            raise ConfigError(
                ("data", "columns", str(name)),
                f"{name!r} is the {role}; it cannot be an input",
            )
        if name is not None and names.count(name) > 1:
            raise ConfigError(
                ("data", role), f"{name!r} has two roles; each column has one"
            )
    if data.val + data.test >= 1:
        raise ConfigError(
            ("data", "test"),
            f"val and test take {data.val + data.test:g} of all rows",
        )
    columns: dict[str, tuple[str, ...] | None] = {}
    kinds: dict[str, Kind] = {}
    scales: dict[str, tuple[float, float]] = {}
    for name, kind in data.columns.items():
        if isinstance(kind, list):
            if not _are_distinct(kind):
                raise ConfigError(
                    ("data", "columns", name),
                    f"{name} has the categories {kind}; it needs two or more, each"
                    " once",
                )
            missing = sorted(set(kind) & set(MISSING_WORDS))
            if missing:
                raise ConfigError(
                    ("data", "columns", name),
                    f"{name} has the category {missing[0]!r}, which stands for a missing"
                    " cell; write another word in the clients' files",
                )
            longest = max(map(len, kind))
            if len(kind) > MAX_NAMES or longest > MAX_NAME_LENGTH:
                raise ConfigError(
                    ("data", "columns", name),
                    f"{name} has {len(kind):,} categories of up to {longest:,} characters;"
                    f" it can have {MAX_NAMES:,}, of {MAX_NAME_LENGTH}",
                )
            columns[name], kinds[name] = tuple(kind), "category"
        elif isinstance(kind, Scale):
            _check_scale(data, ("data", "columns", name))
            columns[name], kinds[name] = None, kind.kind
            scales[name] = kind.mean, kind.sd
        else:
            if kind == "category" and data.preprocessing != "federated":
                raise ConfigError(
                    ("data", "columns", name),
                    f"{name} is a category, and no client tells which there are: write a"
                    f' list, {name} = ["...", "..."]',
                )
            if kind != NUMBER and data.preprocessing == "none":
                raise ConfigError(
                    ("data", "columns", name),
                    f'{name} is {kind!r}, which needs preprocessing = "job"',
                )
            columns[name], kinds[name] = None, kind
    if data.scale is not None:
        _check_scale(data, ("data", "scale"))
        is_number = data.event is None and classes is None
        if not is_number or data.scale.kind != "number":
            raise ConfigError(
                ("data", "scale"),
                "scale is of a target that is a number; leave it out",
            )
        scales[data.target] = data.scale.mean, data.scale.sd
    if not data.keep_correlated:
        raise ConfigError(
            ("data", "keep_correlated"),
            "inputs stay correlated over machines, as products of columns would tell too"
            " much of few rows; leave keep_correlated out",
        )
    return Schema(
        target=data.target,
        classes=classes,
        columns=columns,
        val=data.val,
        test=data.test,
        kinds=kinds,
        preprocessing=data.preprocessing,
        scales=scales,
        event=data.event,
        positive=tuple(data.positive),
        hazard=data.hazard,
        intervals=intervals,
        windowing=windowing,
    )


def _check_scale(data: _Data, key: tuple[str, ...]) -> None:
    """Check that the job says how numbers are scaled.

    Raises:
        ConfigError: clients do not scale them, or their sums say how.
    """
    if data.preprocessing != "job":
        raise ConfigError(
            key,
            f'mean and sd are for preprocessing = "job", and it is'
            f' "{data.preprocessing}"; leave them out, or change it',
        )


def _are_distinct(names: Sequence[str]) -> bool:
    """Whether there are at least two names, and no duplicates."""
    return len(names) >= 2 and len(set(names)) == len(names)


def _algorithm(table: Mapping[str, Any]) -> Algorithm:
    settings = dict(table)
    name = settings.pop("use", None)
    if not isinstance(name, str):
        raise ConfigError(
            ("method",),
            "the method needs a name: use = NAME; `fedtailor algorithms` lists them",
        )
    if named_in_file(name) is not None or name.endswith(".py"):
        raise ConfigError(
            ("method", "use"),
            "no machine runs a file that a job names; install the method as a package"
            f" with an entry point{see('write-an-algorithm#deploy-your-method')}",
        )
    try:
        method = find_algorithm(name)
    except ValueError as error:
        raise ConfigError(("method", "use"), str(error)) from None
    try:
        return configured(method(), settings, ("method",))
    except TypeError:
        raise ConfigError(
            ("method", "use"), f"{name} cannot be made from a file"
        ) from None

"""`job.toml`: what a federation trains, on which columns, and what may leave a client;
all machines have the same.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

import fedtailor.algorithms  # noqa: F401  (registers the methods)
from fedtailor.experiments.document import ConfigError, Document, read
from fedtailor.experiments.parsing import architecture, check_choice_at, configure
from fedtailor.experiments.uplink import uplink_of_tables
from fedtailor.federation.checks import MAX_SEED
from fedtailor.models import Architecture
from fedtailor.protocol import Algorithm, Pipeline, require
from fedtailor.remote.secure_sums import SecureSums
from fedtailor.remote.waits import check_wait
from fedtailor.runs.run import MOST_ROUNDS
from fedtailor.tables.kinds import Kind
from fedtailor.training import Participation, Sampling, as_participation

NUMBER = "number"
"""How the file says that a column holds numbers; a list of texts says which categories
it holds.
"""

KINDS = (NUMBER, "category", "boolean", "date")
"""What a column can hold where the clients agree on the preprocessing; else numbers, or
the categories in a list.
"""

T = TypeVar("T", bound=BaseModel)
Share = Annotated[float, Field(ge=0, lt=1)]


class _Table(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class _Coordinator(_Table):
    address: str


class _Data(_Table):
    target: str
    classes: list[str] | None = None
    validation: Share = 0.1
    test: Share = 0.2
    preprocessing: Literal["none", "federated"] = "none"
    decorrelate: bool = False
    columns: dict[str, Literal["number", "category", "boolean", "date"] | list[str]]


class _Training(_Table):
    rounds: Annotated[int, Field(ge=1, le=MOST_ROUNDS)]
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] = 0
    minimum: Annotated[int, Field(ge=1)] = 1
    deadline: float = 300.0
    participation: Annotated[float, Field(gt=0)] = 1.0
    sampling: Sampling = "uniform"


class _Privacy(_Table):
    evaluate: bool = True
    uplink: list[dict[str, Any]] = []
    secure_aggregation: bool = False
    sum_threshold: float = SecureSums.threshold
    sum_range: float = SecureSums.range
    probe: Literal["refused", "open"] = "refused"


@dataclass(frozen=True)
class Schema:
    """The table that every client brings.

    Attributes:
        target: column to predict.
        classes: what it can be; None for a regression.
        columns: inputs in order: the categories, or None where the job does not list
            them.
        validation, test: shares of each client's rows that do not train.
        kinds: what each input holds.
        federated: whether clients agree on the preprocessing before the first round;
            else tables are taken as they stand, numbers and listed categories without
            gaps.
        decorrelate: whether they tell sums of products of their inputs, by which these
            are decorrelated.
    """

    target: str
    classes: tuple[str, ...] | None
    columns: Mapping[str, tuple[str, ...] | None]
    validation: float = 0.1
    test: float = 0.2
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    federated: bool = False
    decorrelate: bool = False

    @property
    def width(self) -> int:
        """Inputs of the model: one for a number, one for each category (of tables taken
        as they stand).
        """
        return sum(
            1 if categories is None else len(categories)
            for categories in self.columns.values()
        )


@dataclass(frozen=True)
class Job:
    """A federation's job.

    Attributes:
        title: for people.
        host, port: where clients reach the coordinator.
        schema: the table that every client brings.
        model: what is trained.
        algorithm: how.
        rounds, seed, minimum, deadline: how long, from which random numbers, with how
            many clients at least, and how many seconds a round waits.
        participation: who reports in a round.
        evaluate: whether clients send sums of losses and of correct predictions.
        uplink: what happens to an update before it leaves a client, in this order.
        sums: how updates are added where the coordinator sees sums only; None where it
            sees each.
        content: the file as plain values.
    """

    title: str
    host: str
    port: int
    schema: Schema
    model: Architecture
    algorithm: Algorithm
    rounds: int
    seed: int
    minimum: int
    deadline: float
    participation: Participation
    evaluate: bool
    uplink: Pipeline
    sums: SecureSums | None
    content: Mapping[str, Any] = field(repr=False)

    @property
    def address(self) -> str:
        """ "host:port" of the coordinator."""
        return (
            f"[{self.host}]:{self.port}"
            if ":" in self.host
            else f"{self.host}:{self.port}"
        )

    @property
    def identity(self) -> str:
        """Fingerprint of all that a client agrees to: data, model, method, seed and
        what may leave it.

        The number of rounds, deadlines, the minimum and the address may change while
        clients go on with their copies.
        """
        agreed = {
            name: self.content.get(name)
            for name in ("data", "model", "method", "privacy")
        }
        order = list(self.schema.columns)  # which sorting would lose
        text = json.dumps(agreed | {"seed": self.seed, "order": order}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def read_job(path: Path) -> Job:
    """Read a job file.

    Raises:
        ValueError: it cannot be read, or a setting is missing, unknown or has a wrong
            value; with file and line.
    """
    document = read(path)
    try:
        return _job(document)
    except ConfigError as error:
        raise ValueError(document.explain(error)) from None


def split_address(address: str) -> tuple[str, int]:
    """Host and port of "host:port" or "[IPv6 address]:port".

    Raises:
        ValueError: it is neither.
    """
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    fits = bool(host) and port.isdecimal() and 0 < int(port) < 65536 and "/" not in host
    require(
        fits,
        f"{address!r} is no address; write host:port, such as"
        " coordinator.example.org:9092",
    )
    return host, int(port)


def _job(document: Document) -> Job:
    content = document.content
    tables = ("title", "coordinator", "data", "model", "method", "training", "privacy")
    for name in content:
        check_choice_at(name, tables, (name,), "table")
    for name in tables[1:-1]:
        if not isinstance(content.get(name), Mapping):
            raise ConfigError((name,), f"the table [{name}] is missing")
    title = content.get("title", "federation")
    if not isinstance(title, str):
        raise ConfigError(("title",), f"title is {title!r}; it must be a text")
    try:
        host, port = split_address(_table(_Coordinator, content, "coordinator").address)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(("coordinator", "address"), str(error)) from None
    training, privacy = (
        _table(_Training, content, "training"),
        _table(_Privacy, content, "privacy"),
    )
    try:
        check_wait("deadline", training.deadline)
    except ValueError as error:
        raise ConfigError(("training", "deadline"), str(error)) from None
    try:
        participation = as_participation(training.participation, training.sampling)
    except ValueError as error:
        raise ConfigError(("training", "participation"), str(error)) from None
    algorithm, uplink = (
        _algorithm(content["method"]),
        uplink_of_tables(privacy.uplink, ("privacy", "uplink")),
    )
    return Job(
        title,
        host,
        port,
        _schema(_table(_Data, content, "data")),
        architecture(content["model"], ("model",)),
        algorithm,
        training.rounds,
        training.seed,
        training.minimum,
        training.deadline,
        participation,
        privacy.evaluate,
        uplink,
        _sums(privacy, algorithm, uplink, participation),
        content,
    )


def _sums(
    privacy: _Privacy,
    algorithm: Algorithm,
    uplink: Pipeline,
    participation: Participation,
) -> SecureSums | None:
    """How updates are added, if the job asks for it and its method needs no more."""
    if not privacy.secure_aggregation:
        return None
    try:
        sums = SecureSums(
            privacy.sum_threshold, privacy.sum_range, privacy.probe == "open"
        )
        sums.check(algorithm, uplink)
        require(
            participation.sampling != "poisson",
            "secure_aggregation needs clients enough in every round, which "
            'sampling = "poisson" does not promise',
        )
    except ValueError as error:
        raise ConfigError(("privacy", "secure_aggregation"), str(error)) from None
    return sums


def _schema(data: _Data) -> Schema:
    if data.classes is not None and (
        len(data.classes) < 2 or len(set(data.classes)) < len(data.classes)
    ):
        raise ConfigError(
            ("data", "classes"),
            f"classes is {data.classes}; it needs two or more, each once",
        )
    if not data.columns:
        raise ConfigError(("data", "columns"), "there are no columns; name the inputs")
    if data.target in data.columns:
        raise ConfigError(
            ("data", "columns", data.target),
            f"{data.target!r} is the target; it cannot be an input",
        )
    if data.validation + data.test >= 1:
        raise ConfigError(
            ("data", "test"),
            f"validation and test take {data.validation + data.test:g} of all rows",
        )
    columns: dict[str, tuple[str, ...] | None] = {}
    for name, kind in data.columns.items():
        if isinstance(kind, list) and len(set(kind)) < max(2, len(kind)):
            said = f"{name} has the categories {kind}; it needs two or more, each once"
            raise ConfigError(("data", "columns", name), said)
        if isinstance(kind, str) and kind != NUMBER and data.preprocessing == "none":
            said = (
                f'{name} is {kind!r}, which needs preprocessing = "federated"; or list'
                " the categories"
            )
            raise ConfigError(("data", "columns", name), said)
        columns[name] = None if isinstance(kind, str) else tuple(kind)
    classes = None if data.classes is None else tuple(data.classes)
    kinds: dict[str, Kind] = {
        name: kind if isinstance(kind, str) else "category"
        for name, kind in data.columns.items()
    }
    federated = data.preprocessing == "federated"
    if data.decorrelate and (classes is not None or not federated):
        said = (
            "decorrelate is for regressions (no classes) with preprocessing ="
            ' "federated"; leave it out'
        )
        raise ConfigError(("data", "decorrelate"), said)
    return Schema(
        data.target,
        classes,
        columns,
        data.validation,
        data.test,
        kinds,
        federated,
        data.decorrelate,
    )


def _algorithm(given: Mapping[str, Any]) -> Algorithm:
    settings = dict(given)
    name = settings.pop("use", None)
    if not isinstance(name, str):
        raise ConfigError(
            ("method",),
            "the method needs a name: use = NAME; `fedtailor algorithms` lists them",
        )
    check_choice_at(name, sorted(Algorithm.registry), ("method", "use"), "algorithm")
    try:
        return configure(Algorithm.registry[name](), settings, ("method",))
    except TypeError:
        raise ConfigError(
            ("method", "use"), f"{name} cannot be made from a file"
        ) from None


def _table(kind: type[T], content: Mapping[str, Any], name: str) -> T:
    """A table of the file, checked; whole numbers stand for others where those are
    wanted.
    """
    try:
        return kind.model_validate_json(json.dumps(content.get(name, {}), default=str))
    except ValidationError as error:
        # a key that is misspelt is also missing under its name: say the former
        first = min(
            error.errors(include_url=False),
            key=lambda one: one["type"] != "extra_forbidden",
        )
        loc = [
            str(part)
            for part in first["loc"]
            if not str(part).startswith(("literal[", "list["))
        ]
        place = (name, *loc)
        key = loc[-1] if loc else name
        if first["type"] == "extra_forbidden":
            check_choice_at(
                key, tuple(kind.model_fields), place, f"setting of [{name}]"
            )
        if first["type"] == "missing":
            raise ConfigError((name,), f"{key} is missing in [{name}]") from None
        if kind is _Data and loc[:1] == ["columns"]:
            said = ", ".join(f'"{kind}"' for kind in KINDS)
            wrong = (
                f"{key} is {first['input']!r}; a column is {said}, or a list of"
                " categories"
            )
            raise ConfigError(place, wrong) from None
        raise ConfigError(
            place, f"{key} is {first['input']!r}; {first['msg'].lower()}"
        ) from None

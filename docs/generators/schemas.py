"""What the commands print with `--json`, as types from which JSON schemas are made.

The tests read what the commands really print by these types, which allow no other
field.
"""

from dataclasses import MISSING, fields
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, create_model

from fedtailor.data.tables.description import Description
from fedtailor.engine.runs import Summary
from fedtailor.protocol import About
from fedtailor.statistics.diagnosis.recommend import RaceEntry


class Record(BaseModel):
    """An object of JSON with these fields and no others."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Parameter(Record):
    """A hyper-parameter of a method."""

    name: str = Field(description="as on the command line, without dashes")
    default: str
    doc: str


Method = create_model(
    "Method",
    __base__=Record,
    __doc__="A method, with its default settings.",
    **{
        "travels" if field.name == "models_received" else field.name: (str, ...)
        for field in fields(About)
    },
)


class MethodInDetail(Method):
    """A method with its documentation and hyper-parameters."""

    doc: str
    parameters: list[Parameter]


class Scenario(Record):
    """Data, model and settings that belong together."""

    name: str
    clients: int | None = Field(description="null: all clients of the data set")
    model: str
    rounds: int
    participation: float | int
    data: str | None = Field(description="what must be at hand; null: nothing")
    source: str
    description: str


class ScenarioInDetail(Scenario):
    """A scenario with its documentation and parameters."""

    doc: str
    parameters: dict[str, Any] = Field(description="name -> default")


def _number(annotation: Any) -> Any:
    """The type of a number that is null where it is not finite."""
    return float | int | None if annotation in (float, float | None) else annotation


RunSummary = create_model(
    "RunSummary",
    __base__=Record,
    __doc__="A finished run in numbers (`fedtailor.engine.runs.Summary`).",
    scenario=(str, ...),
    **{
        field.name: (
            _number(field.type if isinstance(field.type, type) else Any),
            ... if field.default is MISSING else None,
        )
        for field in fields(Summary)
    },
)


class Recommended(Record):
    """A method to train first."""

    method: str
    settings: dict[str, Any] = Field(description="hyper-parameter -> starting value")
    because: str
    bytes_down: int = Field(description="in a round, a model for several counts once")
    bytes_down_unicast: int = Field(description="in a round, counted for each client")
    bytes_up: int


assert {field.name for field in fields(RaceEntry)} == set(Recommended.model_fields)


class DiagnosedClient(Record):
    """A client, as the probe sees it."""

    client: str
    samples: int
    effective_samples: float | None
    gain: float | None
    strength: float | None
    group: int


class DiagnosedPair(Record):
    """Two clients, as the probe sees them."""

    client: str
    other: str
    gradient_ratio: float | None
    gradient_p: float | None
    label_divergence: float | None = None
    label_p: float | None = None
    input_difference: float | None = None
    input_p: float | None = None


class Diagnosis(Record):
    """Who differs, who gains, and what to train."""

    federation: str
    sentences: list[str]
    cannot_tell: bool = Field(description="whether the samples are too few to tell")
    race: list[Recommended]
    probe_bytes: int
    clients: list[DiagnosedClient]
    pairs: list[DiagnosedPair]
    rests_on: dict[str, str] = Field(description="column -> what it rests on")


class PersonalModel(Record):
    """The model of one client in one run."""

    run: str = Field(description="the run's directory")
    scenario: str
    algorithm: str
    seed: int
    client: str
    unseen: bool
    train: int
    val: int
    test: int
    model: str
    metric: str
    on_val: float | None
    on_test: float | None
    higher_is_better: bool


class Finding(Record):
    """Whether files are what was written."""

    path: str
    whole: bool
    what: str


class CoordinatorStatus(Record):
    """The state of a coordinator (`fedtailor.remote.server.monitor.Status`)."""

    state: str
    title: str
    round: int
    rounds: int
    registered: int
    online: int
    asked: int
    answered: int
    warnings: int
    round_seconds: float
    started: float = Field(description="seconds since the epoch; 0 = not yet")
    last_round: float = Field(description="seconds since the epoch; 0 = not yet")
    certificate_days: int
    running: bool


class AuditedMessage(Record):
    """A message that left a client; the command prints one object a line."""

    time: str
    run: str
    round: int
    kind: str
    bytes: int
    sha256: str
    refused: str | None = None


class Number(Record):
    """A cell of a table: a mean over seeds."""

    mean: float | None
    std: float | None
    runs: int | None
    diverged: int | bool


class ReportTable(Record):
    """A table of a report; rows are objects by column."""

    title: str
    note: str
    rows: list[dict[str, str | float | int | Number | None]]


class Report(Record):
    """What `fedtailor compare --json` and `fedtailor report --format json` print."""

    experiment: str
    title: str
    facts: list[str]
    runs: int
    done: int
    tables: dict[str, ReportTable] = Field(description="name -> table")
    decision: dict[str, dict[str, Any]] = Field(
        description=(
            "scenario -> the decision: sentences, winner, gains of each client with"
            " intervals; values and gains are in the unit of the metric, so that"
            " accuracies and areas are shares from 0 to 1 (0.01 is one point), and"
            " errors have the unit of the target"
        )
    )


class TableDescription(Record):
    """What the columns of a table hold, and where its clients differ."""

    sentences: list[str]
    tables: dict[str, ReportTable] = Field(description="name -> table")
    description: Description = Field(description="all counts and sums")
    notes: list[str]


class RegressionTerm(Record):
    """A coefficient."""

    term: str
    coefficient: float
    standard_error: float
    statistic: float = Field(description="z; t where `freedom` is a number")
    p: float
    interval: list[float]


class Regression(Record):
    """A regression over all clients."""

    model: str
    intercept: str
    errors: str
    rows: int
    events: int | None
    clients: int
    level: float = Field(description="of the intervals")
    freedom: float | None = Field(description="null: the normal distribution")
    log_likelihood: float
    sigma2: float | None
    client_variance: float | None
    terms: list[RegressionTerm]
    covariance: list[list[float]]
    notes: list[str]


class Estimate(Record):
    """A number with its interval; null where it is not defined."""

    estimate: float | None
    low: float | None
    high: float | None
    p: float | None


class Contribution(Record):
    """What the part of one client in the training is worth to the others."""

    client: str
    others_lose: Estimate = Field(description="positive if the client helps them")
    shapley: Estimate | None


class Contributions(Record):
    """What each client contributes (`fedtailor.deployment.contributions`)."""

    method: str
    metric: str
    seeds: int
    trainings: int
    contributions: list[Contribution]
    sampled: bool = Field(description="whether Shapley values are from sampled orders")
    sentences: list[str]


class Bounds(Record):
    """A number with its 95 % interval; null where there are no rows."""

    estimate: float | None
    low: float | None
    high: float | None


class Attack(Record):
    """How well an attack tells training rows from test rows."""

    area: Bounds = Field(description="area under the curve; 0.5 is guessing")
    told: list[Bounds] = Field(
        description="the share of training rows told at 10 % and 1 % false accusations"
    )


class ModelAudit(Record):
    """The audit of one client's model, or of all of them together."""

    members: int
    others: int
    threshold: Attack
    ratio: Attack | None = Field(description="with shadow models")


class CanaryAudit(Record):
    """What canaries prove about private steps."""

    canaries: int
    epsilon_at_least: float
    epsilon: float | None = Field(description="as accounted")
    delta: float


class PrivacyAudit(Record):
    """Whether personal models tell which rows they were trained on."""

    rounds: int
    shadows: int
    clients: dict[str, ModelAudit]
    together: ModelAudit
    canary: CanaryAudit | None


class ClientOfFinalModels(Record):
    """The model that a client uses, and what the comparison says of its method."""

    run: str = Field(description="below `runs` of the directory")
    method: str
    value: float | None
    low: float | None
    high: float | None


class FinalModels(Record):
    """Models that were refitted on all rows."""

    directory: str = Field(description="what predict, export, card and enroll take")
    run: str = Field(description="of the method for all, which serves newcomers")
    clients: dict[str, ClientOfFinalModels]
    metric: str
    splits: int
    rows: int
    digest_of: str = Field(description="digest of the comparison's index")
    kept: int = Field(description="test rows that were not trained on")
    format: str


SCHEMAS: dict[str, Any] = {
    "fedtailor algorithms --json": list[Method],
    "fedtailor algorithms NAME --json": MethodInDetail,
    "fedtailor scenarios --json": list[Scenario],
    "fedtailor scenarios NAME --json": ScenarioInDetail,
    "fedtailor diagnose TABLE|SCENARIO --json": Diagnosis,
    "fedtailor run ALGORITHM SCENARIO --json": RunSummary,
    "fedtailor compare TABLE|EXPERIMENT --json": Report,
    "fedtailor finalize RESULTS --json": FinalModels,
    "fedtailor contributions RESULTS --json": Contributions,
    "fedtailor describe TABLE --json": TableDescription,
    "fedtailor fit TABLE --format json": Regression,
    "fedtailor audit RUN --json": PrivacyAudit,
    "fedtailor models PATH --json": list[PersonalModel],
    "fedtailor check PATH --json": list[Finding],
    "fedtailor federation status DIR --json": CoordinatorStatus,
    "fedtailor federation audit KIT --json": AuditedMessage,
}
"""Command -> the type of what it prints."""


def schema(kind: Any) -> dict[str, Any]:
    """The JSON schema of a type."""
    return TypeAdapter(kind).json_schema()


def read(command: str, printed: str) -> Any:
    """Reads what a command printed by its type.

    Raises:
        ValueError: it is something else.
    """
    return TypeAdapter(SCHEMAS[command]).validate_json(printed)

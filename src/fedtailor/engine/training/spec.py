"""`RunSpec`: what a run is, as one value."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

import fedtailor.aggregation.pipelines  # registers the transforms
import fedtailor.algorithms  # noqa: F401  (registers the methods)
from fedtailor._base.choice import require
from fedtailor.aggregation.secure_sums import SecureSums
from fedtailor.engine.training.asynchronous import AsynchronousServer
from fedtailor.engine.training.binding import (
    as_pipeline,
    describe_argument,
    require_algorithm,
    require_model,
)
from fedtailor.engine.training.participation import Participation, as_participation
from fedtailor.models import Architecture, Model
from fedtailor.models.frozen_arrays import FrozenArrays
from fedtailor.models.metrics import Metric, find_metrics
from fedtailor.models.plain import model_from_plain
from fedtailor.protocol import Algorithm, Pipeline, Transform
from fedtailor.protocol.plain import ConfigError, from_plain, to_plain

MOST_ROUNDS = 2**31 - 1
"""The largest number of rounds, as tables hold it in 32 bits."""

RoundCount = Annotated[int, Field(ge=1, le=MOST_ROUNDS)]


@dataclass(frozen=True)
class Privacy:
    """What the server sees of clients, in addition to what the transforms of the uplink leave.

    A simulation keeps to it as a federation of machines does: with secure aggregation
    its server gets the same sums.

    Attributes:
        evaluate: whether clients send sums of losses and of correct predictions, from
            which their models are measured.
        secure_aggregation: whether the server sees sums over clients only, and never one
            client's update.
        sum_threshold: the share of the clients of a sum that can unmask it.
        sum_range: the largest absolute value of a number that is added.
        probe: whether the probe of a method, which no sum hides, may be answered
            ("open").
        sum_scope: the sums of which no combination may show a client's update: those of
            all rounds ("run"), or those of each round by itself ("round").

    Raises:
        ValueError: a setting has a wrong value.

    Example:
        >>> sums = ft.Privacy(secure_aggregation=True)
        >>> model = ft.models.logistic()
        >>> ft.run(ft.FedAvg(), federation, model, rounds=1, privacy=sums).summary().rounds
        1
    """

    evaluate: bool = True
    secure_aggregation: bool = False
    sum_threshold: float = SecureSums.threshold
    sum_range: float = SecureSums.range
    probe: Literal["refused", "open"] = "refused"
    sum_scope: Literal["run", "round"] = SecureSums.scope

    has_plain_type: ClassVar[bool] = False
    __pydantic_config__: ClassVar[Any] = {
        "strict": True,
        "extra": "forbid",
        "allow_inf_nan": False,
    }

    def __post_init__(self) -> None:
        require(
            self.probe in ("refused", "open"),
            f"probe is {self.probe!r}; it must be 'refused' or 'open'",
        )
        _ = self.sums

    @property
    def sums(self) -> SecureSums | None:
        """The settings of secure aggregation; None without it."""
        if not self.secure_aggregation:
            return None
        return SecureSums(
            self.sum_threshold, self.sum_range, self.probe == "open", self.sum_scope
        )

    def check(
        self, algorithm: Algorithm, uplink: Pipeline, participation: Participation
    ) -> None:
        """Check that a run can keep to it.

        Raises:
            ValueError: the method or a transform needs more than sums, or rounds may
                have too few clients.
        """
        if self.sums is None:
            return
        self.sums.check(algorithm, uplink)
        require(
            participation.sampling != "poisson",
            "secure_aggregation needs clients enough in every round, which "
            'sampling = "poisson" does not promise',
        )


@dataclass(frozen=True)
class RunSpec:
    """All settings of a run. Equal specs on equal data give equal results.

    The options of `fedtailor run`, a row of a comparison, the sections of a job file
    and the manifest of a run directory say the same in other notations.

    Attributes:
        algorithm: the method with its hyper-parameters, or a schedule of several.
        model: what is trained; an architecture is bound to the data's inputs and
            targets.
        rounds: communication rounds, at least 1.
        seed: of everything random.
        participation: which clients report in a round; a number stands for a share of
            them (up to 1) or for so many (from 2).
        uplink: transforms of what clients send, in this order.
        downlink: transforms of what the server sends, likewise.
        metrics: what to measure in addition to the loss and the accuracy, by name or as
            a `Metric`; the run is judged by the first one.
        evaluate_every: evaluate after every n-th round (and after the last).
        evaluate_clients: evaluate so many clients, drawn once; None = all.
        privacy: what of clients the server sees.
        asynchronous: a server that does not wait for late clients; None = it waits for
            all.
        until_converged: end as soon as the mean validation loss has converged.

    Raises:
        ValueError: a setting has a wrong type or value; the message is one line.

    Example:
        >>> from fedtailor.engine.training import RunSpec
        >>> RunSpec(ft.FedAvg(), ft.models.logistic(), rounds=5).seed
        0
    """

    algorithm: Algorithm
    model: Model | Architecture
    rounds: int
    seed: int = 0
    participation: Participation = field(default_factory=Participation)
    uplink: Pipeline = ()
    downlink: Pipeline = ()
    metrics: Sequence[str | Metric] = ()
    evaluate_every: int = 1
    evaluate_clients: int | None = None
    privacy: Privacy = field(default_factory=Privacy)
    until_converged: bool = False
    asynchronous: AsynchronousServer | None = None

    def __post_init__(self) -> None:
        require_algorithm(self.algorithm)
        require_model(self.model)
        require_count("rounds", self.rounds)
        require_count("evaluate_every", self.evaluate_every)
        if self.evaluate_clients is not None:
            require_count("evaluate_clients", self.evaluate_clients)
            require(
                self.evaluate_clients > 1,
                "evaluate_clients is 1; a mean over clients needs 2 or more",
            )
        converted: dict[str, Any] = {
            "participation": as_participation(self.participation),
            "uplink": as_pipeline(self.uplink, "uplink"),
            "downlink": as_pipeline(self.downlink, "downlink"),
        }
        if isinstance(self.metrics, str) or not isinstance(self.metrics, Sequence):
            converted["metrics"] = (self.metrics,)
        for name, value in converted.items():
            object.__setattr__(self, name, value)
        require(
            isinstance(self.privacy, Privacy),
            f"privacy is {describe_argument(self.privacy)}; give fedtailor.Privacy(...)",
        )
        self.privacy.check(self.algorithm, self.uplink, self.participation)
        if self.asynchronous is None:
            return
        require(
            isinstance(self.asynchronous, AsynchronousServer),
            f"asynchronous is {describe_argument(self.asynchronous)}; give"
            " fedtailor.AsynchronousServer(...)",
        )
        self.asynchronous.check(
            self.algorithm,
            self.uplink,
            self.participation,
            hides_updates=self.privacy.secure_aggregation,
        )

    def bound(self, default_metrics: Sequence[str]) -> "RunSpec":
        """The spec of a bound model with its metrics.

        Args:
            default_metrics: of the data, used if the spec names none.

        Raises:
            ValueError: there is no such metric, or not for this model.
        """
        assert isinstance(self.model, Model)
        metrics = find_metrics(self.metrics or default_metrics, self.model)
        return replace(self, metrics=metrics)

    def to_plain(self) -> dict[str, Any]:
        """The settings as tables of TOML values, without the number of rounds, as a run
        can be continued to more of them.

        The spec must be `bound`. Settings that have their defaults in all older runs
        are left out, so that their manifests stay equal.
        """
        names = [
            metric if isinstance(metric, str) else metric.name
            for metric in self.metrics
        ]
        return {
            "run": {
                "seed": self.seed,
                "evaluate_every": self.evaluate_every,
                **(
                    {"evaluate_clients": self.evaluate_clients}
                    if self.evaluate_clients is not None
                    else {}
                ),
                "participation": to_plain(self.participation),
                **({"until_converged": True} if self.until_converged else {}),
                **({"metrics": names} if names else {}),
                **(
                    {"asynchronous": to_plain(self.asynchronous)}
                    if self.asynchronous is not None
                    else {}
                ),
            },
            "algorithm": to_plain(self.algorithm),
            **({"uplink": to_plain(self.uplink)} if self.uplink else {}),
            **({"downlink": to_plain(self.downlink)} if self.downlink else {}),
            "model": to_plain(self.model),
            **(
                {"privacy": to_plain(self.privacy)} if self.privacy != Privacy() else {}
            ),
        }

    @classmethod
    def from_plain(
        cls,
        manifest: Mapping[str, Any],
        rounds: int,
        *,
        algorithm: Algorithm | None = None,
        model: Model | Architecture | None = None,
        held: Iterable[FrozenArrays] = (),
    ) -> "RunSpec":
        """The settings of a run from its manifest; the inverse of `to_plain`.

        Args:
            manifest: of the run.
            rounds: of the run, which the manifest does not hold.
            algorithm: the method, if the manifest's is not to be used.
            model: the model, likewise.
            held: the frozen arrays stored next to the manifest.

        Raises:
            ValueError: the manifest does not determine the run.
        """
        run = manifest["run"]
        pipelines: dict[str, Pipeline] = {
            name: pipeline_of_run(manifest, name) for name in ("uplink", "downlink")
        }
        return cls(
            method_of_run(manifest) if algorithm is None else algorithm,
            model_of_run(manifest, model, held),
            rounds,
            seed=run["seed"],
            participation=from_plain(
                Participation, run["participation"], ("run", "participation")
            ),
            metrics=run.get("metrics", ()),
            evaluate_every=run["evaluate_every"],
            evaluate_clients=run.get("evaluate_clients"),
            privacy=from_plain(
                Privacy, to_plain(Privacy()) | manifest.get("privacy", {}), ("privacy",)
            ),
            until_converged=run.get("until_converged", False),
            asynchronous=(
                from_plain(
                    AsynchronousServer, run["asynchronous"], ("run", "asynchronous")
                )
                if "asynchronous" in run
                else None
            ),
            **pipelines,
        )


def method_of_run(manifest: Mapping[str, Any]) -> Algorithm:
    """The method of a run from its manifest.

    Raises:
        ValueError: it is not installed, or has settings (functions, arrays) that a
            manifest cannot hold.
    """
    table = manifest["algorithm"]
    try:
        return from_plain(Algorithm, table, ("algorithm",))
    except ConfigError as error:
        raise ValueError(
            f"the run's method {table.get('name')!r} cannot be made from its directory"
            f" ({_at(error)}{error}); pass algorithm=..."
        ) from None


def pipeline_of_run(manifest: Mapping[str, Any], name: str) -> Pipeline:
    """The transforms of a run from its manifest, those of "uplink" or "downlink".

    Raises:
        ValueError: a transform is not installed, or has settings that a manifest cannot
            hold.
    """
    try:
        return tuple(
            from_plain(Transform, table, (name, str(number)))
            for number, table in enumerate(manifest.get(name, ()))
        )
    except ConfigError as error:
        raise ValueError(
            f"a transform of the run's {name} cannot be made from its directory"
            f" ({_at(error)}{error})"
        ) from None


def model_of_run(
    manifest: Mapping[str, Any],
    given: Model | Architecture | None = None,
    held: Iterable[FrozenArrays] = (),
) -> Model:
    """The model of a run from its manifest.

    Args:
        manifest: of the run.
        given: the model, or its network, if only the user's code knows it.
        held: the frozen arrays stored next to the manifest.

    Raises:
        ValueError: its network or its loss is not one of fedtailor's.
    """
    try:
        return model_from_plain(manifest["model"], given, held)
    except ValueError as error:
        raise ValueError(
            f"{error}; pass model=... (`--model FILE.py:NAME` on the command line)"
        ) from None


def _at(error: ConfigError) -> str:
    """The key path of an error within a method or transform, for messages."""
    path = ".".join(error.place[1:-1])
    return f"{path}." if path else ""


def require_count(name: str, value: Any) -> None:
    """Refuse a value that is not a number of rounds.

    Raises:
        ValueError: the value is not an integer from 1 to the largest 32-bit integer, the
            type of rounds in tables; the message has the name.
    """
    is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    require(
        is_integer and bool(1 <= value <= MOST_ROUNDS),
        f"{name} is {value!r}; it must be a whole number, 1 to {MOST_ROUNDS}",
    )

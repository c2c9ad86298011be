"""`RunSpec`: what a run is, as one value."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from fedtailor.metrics import Metric, find_metrics
from fedtailor.models import Architecture, Model
from fedtailor.protocol import Algorithm, Pipeline, require
from fedtailor.training.binding import as_pipeline, require_algorithm, require_model
from fedtailor.training.participation import Participation, as_participation
from fedtailor.training.settings import settings

MOST_ROUNDS = 2**31 - 1
"""The largest number of rounds, as tables hold it in 32 bits."""

RoundCount = Annotated[int, Field(ge=1, le=MOST_ROUNDS)]


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
        until_still: end as soon as the mean validation loss stands still.

    Raises:
        ValueError: a setting has a wrong type or value; the message is one line.

    Example:
        >>> from fedtailor.training import RunSpec
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
    until_still: bool = False

    def __post_init__(self) -> None:
        require_algorithm(self.algorithm)
        require_model(self.model)
        require_count("rounds", self.rounds)
        require_count("evaluate_every", self.evaluate_every)
        converted: dict[str, Any] = {
            "participation": as_participation(self.participation),
            "uplink": as_pipeline(self.uplink, "uplink"),
            "downlink": as_pipeline(self.downlink, "downlink"),
        }
        if isinstance(self.metrics, str) or not isinstance(self.metrics, Sequence):
            converted["metrics"] = (self.metrics,)
        for name, value in converted.items():
            object.__setattr__(self, name, value)

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
                "participation": settings(self.participation),
                **({"until_still": True} if self.until_still else {}),
                **({"metrics": names} if names else {}),
            },
            "algorithm": settings(self.algorithm),
            **({"uplink": settings(self.uplink)} if self.uplink else {}),
            **({"downlink": settings(self.downlink)} if self.downlink else {}),
            "model": settings(self.model),
        }


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

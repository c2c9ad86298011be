"""`run`: train one algorithm on one federation, and what a finished run gives back."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtailor.accounting import Ledger
from fedtailor.engine.export import export_models
from fedtailor.engine.metrics import Metrics
from fedtailor.engine.participation import Participation
from fedtailor.engine.personal import PersonalModel, newcomer, personal_models
from fedtailor.engine.settings import Settings
from fedtailor.engine.training import Training
from fedtailor.federation import Federation
from fedtailor.models import Architecture, Model, cross_entropy, squared_error
from fedtailor.protocol import Algorithm, require

if TYPE_CHECKING:
    import polars as pl

Progress = Callable[[Training, bool], None]
"""Called after every round with the training and whether it was evaluated (a progress bar, a checkpoint, a stop)."""


@dataclass(frozen=True)
class Summary:
    """One run in numbers. Accuracies (or losses, where there are no classes) of personal models on their clients' own
    test splits after the last round: over clients, the mean, the worst, the mean of the worst tenth, the deviation.

    Attributes:
        unseen_mean: mean over clients that never took part; None where there are none.
        streams: distinct models sent down in the last round.
        models_down: distinct models sent (multicast), probe and delivery included.
        models_down_unicast: models sent if every client had to be sent its own copy.
        models_up: models (and gradients, controls) sent by clients.
        bytes_down, bytes_up: bytes of everything that was sent, multicast, without single numbers (a loss, a weight):
            `Run.ledger.totals()` counts those as scalars.
        seconds: wall time, evaluation and compilation included; of trainings that share the devices' time, a share.
        seconds_per_round: median wall time of a round without evaluation, likewise.
    """

    algorithm: str
    federation: str
    rounds: int
    seed: int
    clients: int
    metric: str
    mean: float
    worst: float
    worst10: float
    std: float
    unseen_mean: float | None
    streams: int
    models_down: int
    models_down_unicast: int
    models_up: int
    bytes_down: int
    bytes_up: int
    seconds: float
    seconds_per_round: float

    def as_dict(self) -> dict[str, Any]:
        """All fields by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __str__(self) -> str:
        width = max(len(field.name) for field in fields(self))
        lines = [f"{name:<{width}}  {_short(value)}" for name, value in self.as_dict().items()]
        return "\n".join(lines)


class Run:
    """A trained federation: personal models, measurements, traffic.

    Attributes:
        training: the final state (server, client states).
        ledger: what travelled, the final delivery included.
        metrics: evaluations by round.
        seconds: wall time; `round_seconds` [rounds] of rounds alone, evaluation not included. Of trainings that share
            the devices' time, an equal share.
    """

    def __init__(self, training: Training, seconds: float, round_seconds: list[float]) -> None:
        self.training, self.seconds, self.round_seconds = training, seconds, round_seconds
        self.ledger = Ledger.from_frame(training.ledger.frame())
        training.serve(training.seen, self.ledger)
        if len(training.unseen):
            training.serve(training.unseen, self.ledger)

    @property
    def algorithm(self) -> Algorithm:
        """The method (the last one of a schedule)."""
        return self.training.algorithm

    @property
    def federation(self) -> Federation:
        return self.training.federation

    @property
    def model(self) -> Model:
        return self.training.model

    @property
    def metrics(self) -> Metrics:
        return self.training.metrics

    def frame(self) -> "pl.DataFrame":
        """All evaluations: round, client, unseen, split, metric, value."""
        return self.metrics.frame(self.federation.names)

    @cached_property
    def _personal(self) -> dict[str, PersonalModel]:
        return {}

    def personal(self, client: int | str) -> PersonalModel:
        """The personal model of a client, by name or position in the federation.

        Raises:
            ValueError: there is no such client.
        """
        index = self.federation.client(client).index
        name = self.federation.names[index]
        if name not in self._personal:
            self._personal.update(personal_models(self.training, [index]))
        return self._personal[name]

    def personal_models(self) -> dict[str, PersonalModel]:
        """The personal models of all clients, seen and unseen, by name."""
        missing = [index for index, name in enumerate(self.federation.names) if name not in self._personal]
        self._personal.update(personal_models(self.training, missing))
        return {name: self._personal[name] for name in self.federation.names}

    def enroll(self, x: ArrayLike, y: ArrayLike, *, name: str = "newcomer", group: int | None = None) -> PersonalModel:
        """Serve a client that arrives after training: its personal model, from its examples x [n, ...], y [n].

        It goes the way of unseen clients: it answers the probe where the method has one, is sent what the method
        sends to newcomers, and fits what the method lets it fit.

        Raises:
            ValueError: the examples do not fit the federation, or the method cannot serve the client.
        """
        return newcomer(self.training, np.asarray(x), np.asarray(y), name, group)

    def export(self, directory: Path | str, clients: Iterable[int | str] | None = None) -> Path:
        """Write the personal models of all clients, or of some, into a new directory (`load_models` reads them).

        Raises:
            ValueError: the directory holds other files or cannot be written, or there is no such client.
        """
        chosen = self.personal_models().values() if clients is None else [self.personal(client) for client in clients]
        return export_models(chosen, directory)

    def summary(self) -> Summary:
        """The run in numbers."""
        training, totals = self.training, self.ledger.totals()
        metric = self.model.metric
        values = self.metrics.values(metric)
        unseen = self.metrics.values(metric, unseen=True)
        return Summary(
            algorithm=self.algorithm.about.name,
            federation=self.federation.name,
            rounds=training.round,
            seed=training.seed,
            clients=len(training.seen),
            metric=metric,
            **spread(values, higher_is_better=metric == "accuracy"),
            unseen_mean=float(unseen.mean()) if len(unseen) else None,
            streams=self.ledger.last_streams(),
            models_down=totals.models_down,
            models_down_unicast=totals.models_down_unicast,
            models_up=totals.models_up,
            bytes_down=totals.bytes_down,
            bytes_up=totals.bytes_up,
            seconds=self.seconds,
            seconds_per_round=float(np.median(self.round_seconds)) if self.round_seconds else 0.0,
        )


def run(
    algorithm: Algorithm,
    federation: Federation,
    model: Model | Architecture,
    rounds: int,
    *,
    seed: int = 0,
    participation: Participation | float | int = Participation(),  # noqa: B008 (frozen)
    evaluate_every: int = 1,
    settings: Settings = Settings(),  # noqa: B008 (frozen)
    progress: Progress | None = None,
) -> Run:
    """Train `algorithm` for all clients of `federation`.

    Args:
        algorithm: the method with its hyper-parameters.
        federation: who holds which data.
        model: a `Model`, or an architecture that is bound to the federation's inputs and classes.
        rounds: communication rounds (at least 1).
        seed: of everything random; equal seeds give equal results.
        participation: who reports in a round: a `Participation`, a share of the seen clients (up to 1) or a number of
            them (from 2; `Participation(count=1)` is a single one).
        evaluate_every: evaluate all personal models after every n-th round (and after the last).
        settings: devices, chunk size, debugging.
        progress: called after every round.

    Raises:
        ValueError: something does not fit together, in one line.
        Diverged: a model became NaN or infinite.
    """
    training = Training(
        algorithm, federation, bind(model, federation), seed=seed,
        participation=as_participation(participation), settings=settings,
    )  # fmt: skip
    return finish(training, rounds, evaluate_every, progress)


def finish(
    training: Training,
    rounds: int,
    evaluate_every: int = 1,
    progress: Progress | None = None,
    round_seconds: list[float] | None = None,
) -> Run:
    """Take a training (fresh or restored) to `rounds` rounds.

    `round_seconds` holds the wall times of earlier rounds, if any; those of the new rounds are appended.

    Raises:
        ValueError: `rounds` or `evaluate_every` is not positive, or the training is already past `rounds`.
    """
    require(rounds >= 1, f"rounds is {rounds}; it must be 1 or more")
    require(evaluate_every >= 1, f"evaluate_every is {evaluate_every}; it must be 1 or more")
    require(
        training.round <= rounds, f"the run has already done {training.round} rounds, more than the {rounds} asked for"
    )
    started, round_seconds = perf_counter(), [] if round_seconds is None else round_seconds
    while training.round < rounds:
        before = perf_counter()
        training.advance()
        round_seconds.append((perf_counter() - before) / training.sharing)
        evaluated = training.round % evaluate_every == 0 or training.round == rounds
        if evaluated:
            training.evaluate()
        if progress is not None:
            progress(training, evaluated)
    return Run(training, (perf_counter() - started) / training.sharing, round_seconds)


def bind(model: Model | Architecture, federation: Federation) -> Model:
    """The model for a federation's inputs and targets; a `Model` is returned as it is."""
    if isinstance(model, Model):
        return model
    if federation.classes is not None:
        return model.bind(federation.input_shape, federation.classes, loss=cross_entropy)
    return model.bind(federation.input_shape, int(np.prod(federation.y.shape[1:], dtype=int)), loss=squared_error)


def as_participation(value: Participation | float | int) -> Participation:
    """A `Participation` from one number, the same in Python, in files and on the command line: up to 1 it is a share
    of the seen clients (1 = all of them, written as 1 or 1.0), from 2 on it is a number of them.

    Raises:
        ValueError: it is neither.
    """
    if isinstance(value, Participation):
        return value
    if value <= 1:
        return Participation(fraction=float(value))
    whole = math.isfinite(value) and value == int(value)
    require(whole, f"participation is {value}; it must be a share of the clients (up to 1) or a number (from 2)")
    return Participation(count=int(value))


def spread(values: NDArray[np.float64], higher_is_better: bool = True) -> dict[str, float]:
    """Mean, worst, mean of the worst tenth (at least one client) and deviation over clients; NaN for no clients."""
    if not len(values):
        return dict.fromkeys(("mean", "worst", "worst10", "std"), float("nan"))
    ordered = np.sort(values) if higher_is_better else np.sort(values)[::-1]
    tenth = ordered[: max(len(values) // 10, 1)]
    return {
        "mean": float(values.mean()),
        "worst": float(ordered[0]),
        "worst10": float(tenth.mean()),
        "std": float(values.std()),
    }


def _short(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)

"""A privacy audit of a run: whether its personal models tell which rows they were trained
on, and what canaries prove about the epsilon of private steps.

An auditor attacks models that he may question as often as he likes. Members are a
client's training rows, and others its test rows, so that both are of one kind; validation
rows, which may have chosen something, are neither.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.aggregation.accounting.audit import (
    Bounds,
    area,
    epsilon_from_below,
    likelihood_ratios,
    rate_at,
)
from fedtailor.data.federation import Federation, Ragged
from fedtailor.deployment.opening import OpenedRun
from fedtailor.engine.executors import DeviceExecutor, Settings
from fedtailor.engine.runs import Run
from fedtailor.engine.runs.row_outcomes import OutcomeSplit, scores_of_splits
from fedtailor.engine.runs.run import executor_of, run_on
from fedtailor.engine.storage.json_file import read_json, write_json
from fedtailor.engine.training import Training
from fedtailor.engine.training.privacy import EXAMPLE_EPSILON, delta_of
from fedtailor.models import Model
from fedtailor.protocol import drive

AUDIT = "privacy-audit.json"
_FORMAT = "fedtailor privacy audit 1"
RATES = (0.1, 0.01)
"""The false-positive rates at which attacks are judged."""
_FEWEST_CANARIES = 10
_MIN_LOSS = 1e-7

BeforeTraining = Callable[[int, int], None]
"""Called before each training with its number, from 1, and how many there are."""


@dataclass(frozen=True)
class Attack:
    """How well an attack tells members from others.

    Attributes:
        area: the area under the curve: 0.5 is guessing, 1 tells every row.
        told: for each of `RATES` the share of members told at this false-positive rate.
    """

    area: Bounds
    told: tuple[Bounds, ...]

    @classmethod
    def of(cls, scores: NDArray[np.float64], member: NDArray[np.bool_]) -> "Attack":
        """The attack that accuses the rows of highest scores."""
        members, others = scores[member], scores[~member]
        told = tuple(rate_at(members, others, rate) for rate in RATES)
        return cls(area(members, others), told)


@dataclass(frozen=True)
class ModelAudit:
    """The audit of one client's model, or of those of all clients together.

    Attributes:
        members, others: the numbers of rows that were trained on and that were not.
        threshold: the attack by a threshold on the loss.
        ratio: the likelihood-ratio attack; None without shadow models.
    """

    members: int
    others: int
    threshold: Attack
    ratio: Attack | None = None


@dataclass(frozen=True)
class CanaryAudit:
    """What canaries prove about the private steps of a run's settings.

    Attributes:
        canaries: their number; each was trained on with probability 1/2.
        epsilon_at_least: the epsilon that they refute, with 95 % confidence.
        epsilon: the largest epsilon that the training with canaries promised; None =
            it promised none.
        delta: of the promise.
    """

    canaries: int
    epsilon_at_least: float
    epsilon: float | None
    delta: float


@dataclass(frozen=True)
class PrivacyAudit:
    """The audit of a run.

    Attributes:
        rounds: of the audited models.
        shadows: the number of shadow trainings.
        clients: of each client.
        together: of all clients' rows, each by its own client's model.
        canary: what canaries prove; None if there were none.
    """

    rounds: int
    shadows: int
    clients: Mapping[str, ModelAudit]
    together: ModelAudit
    canary: CanaryAudit | None = field(default=None)

    def as_dict(self) -> dict[str, Any]:
        """For JSON; numbers that are not defined are NaN."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "PrivacyAudit":
        """The inverse of `as_dict`; None stands for NaN.

        Raises:
            ValueError: the content is of another form.
        """
        try:
            canary = content["canary"]
            return cls(
                rounds=int(content["rounds"]),
                shadows=int(content["shadows"]),
                clients={
                    name: _model_audit(it) for name, it in content["clients"].items()
                },
                together=_model_audit(content["together"]),
                canary=None if canary is None else CanaryAudit(**canary),
            )
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"{error!r} in its content") from None


def _model_audit(content: Mapping[str, Any]) -> ModelAudit:
    ratio = content["ratio"]
    return ModelAudit(
        members=int(content["members"]),
        others=int(content["others"]),
        threshold=_attack(content["threshold"]),
        ratio=None if ratio is None else _attack(ratio),
    )


def _attack(content: Mapping[str, Any]) -> Attack:
    told = tuple(_bounds(it) for it in content["told"])
    return Attack(_bounds(content["area"]), told)


def _bounds(content: Mapping[str, Any]) -> Bounds:
    numbers = {
        name: np.nan if value is None else float(value)
        for name, value in content.items()
    }
    return Bounds(**numbers)


def write_audit(audit: PrivacyAudit, directory: Path) -> Path:
    """Write an audit into the directory of its run, where the model card finds it.

    Raises:
        ValueError: it cannot be written.
    """
    return write_json(directory / AUDIT, _FORMAT, audit.as_dict())


def read_audit(directory: Path) -> PrivacyAudit | None:
    """The audit of a run; None if there is none.

    Raises:
        ValueError: it is damaged.
    """
    path = directory / AUDIT
    if not path.exists():
        return None
    again = "audit again (`fedtailor audit`)"
    content = read_json(path, _FORMAT, again)
    try:
        return PrivacyAudit.from_dict(content)
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}; {again}") from None


# membership
# --------------------------------------------------------------------------------------


def audit_run(
    run: OpenedRun,
    *,
    shadows: int = 0,
    canaries: int = 0,
    seed: int = 0,
    settings: Settings = Settings(),  # noqa: B008 (frozen)
    progress: BeforeTraining | None = None,
) -> PrivacyAudit:
    """Audit the personal models of a run.

    Args:
        run: a finished run, whose data can be found.
        shadows: how many times to train again on other halves of the same rows, for the
            likelihood-ratio attack; 0 = only the threshold on the loss.
        canaries: how many canaries to train with, once; 0 = none.
        seed: of who is a member in shadow trainings, and of canaries.
        settings: devices and other settings of the executors.
        progress: called before each training.

    Raises:
        ValueError: the data are not found, there are no test rows, too few shadow
            models, or too few test rows for canaries.

    Example:
        >>> from fedtailor.deployment.auditing import audit_run
        >>> kept = ft.run(
        ...     ft.Local(), federation, ft.models.logistic(), rounds=1, directory="audited"
        ... )
        >>> found = audit_run(ft.open("audited", federation=federation))
        >>> 0 <= found.together.threshold.area.estimate <= 1
        True
    """
    federation = run.federation
    sizes = federation.train.sizes, federation.test.sizes
    require(
        bool((np.minimum(*sizes) > 0).any()),
        f"{run.path} has no client with training and test rows, which an attack compares",
    )
    trainer = _Trainings(run, settings, progress, shadows + (canaries > 0))
    own = _scores(run.training, run.executor, federation)
    ratios = None
    if shadows:
        ratios = _shadow_scores(trainer, federation, own, shadows, seed)
    # Of a client's rows those for training come first.
    member = [
        np.arange(len(rows)) < size
        for rows, size in zip(own, federation.train.sizes, strict=True)
    ]
    clients = {}
    for client, name in enumerate(federation.names):
        ratio = None if ratios is None else ratios[client]
        clients[name] = _audit_of(own[client], member[client], ratio)
    # Clients without others cannot be attacked, and say nothing about all.
    both = np.flatnonzero(np.minimum(*sizes) > 0)
    together = _audit_of(
        np.concatenate([own[client] for client in both]),
        np.concatenate([member[client] for client in both]),
        None if ratios is None else np.concatenate([ratios[it] for it in both]),
    )
    canary = None
    if canaries:
        canary = _audit_by_canaries(trainer, federation, canaries, seed)
    return PrivacyAudit(
        run.training.round, shadows, clients, together=together, canary=canary
    )


class _Trainings:
    """Trains a run again on changed data."""

    def __init__(
        self,
        run: OpenedRun,
        settings: Settings,
        progress: BeforeTraining | None,
        count: int,
    ) -> None:
        self.run, self.count = run, count
        self._settings, self._progress, self._done = settings, progress, 0

    def train(self, federation: Federation, seed: int) -> Run:
        """The run with other data, and another seed for what is drawn."""
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, self.count)
        run = self.run
        # Only methods of rounds have a spec; others are refused here.
        asked = run.spec
        rounds = int(run.stored.summary["asked_rounds"])
        executor = executor_of(federation, run.model, self._settings)
        # Nothing is measured in between, which takes a part of the time.
        spec = replace(
            asked,
            rounds=rounds,
            seed=seed,
            evaluate_every=rounds,
            until_converged=False,
        )
        return run_on(executor, spec)


def _scores(
    training: Training[DeviceExecutor], executor: DeviceExecutor, federation: Federation
) -> list[NDArray[np.float64]]:
    """For each client the scores of its training rows, and then of its test rows: how
    well its model predicts each of them.
    """
    splits: tuple[OutcomeSplit, ...] = ("train", "test")
    found = drive(scores_of_splits(training, executor, splits), executor)
    scores = []
    for client, name in enumerate(federation.names):
        parts = [
            _prediction_scores(
                training.model,
                *found[split][name],
                federation.y[getattr(federation, split)[client]],
            )
            for split in splits
        ]
        scores.append(np.concatenate(parts))
    return scores


def _prediction_scores(
    model: Model,
    columns: Mapping[str, NDArray[Any]],
    outputs: NDArray[Any],
    y: NDArray[Any],
) -> NDArray[np.float64]:
    """How well rows [n] are predicted: of a class the logit of its probability, else
    minus the logarithm of the loss.
    """
    if not model.classification or outputs.ndim != 2:
        loss = columns["loss"].astype(np.float64)
        return -np.log(np.maximum(loss, _MIN_LOSS))
    # log p - log(1 - p), from the outputs: of a loss near 0 nothing would be left.
    logits = outputs.astype(np.float64)
    is_true = np.arange(logits.shape[1]) == y[:, None]
    others = np.where(is_true, -np.inf, logits)
    return logits[is_true] - np.logaddexp.reduce(others, axis=1)


def _audit_of(
    scores: NDArray[np.float64],
    member: NDArray[np.bool_],
    ratio: NDArray[np.float64] | None,
) -> ModelAudit:
    return ModelAudit(
        members=int(member.sum()),
        others=int((~member).sum()),
        threshold=Attack.of(scores, member),
        ratio=None if ratio is None else Attack.of(ratio, member),
    )


def _shadow_scores(
    trainer: _Trainings,
    federation: Federation,
    own: list[NDArray[np.float64]],
    shadows: int,
    seed: int,
) -> list[NDArray[np.float64]]:
    """The likelihood ratios of each client's rows, from shadow trainings in which other
    rows of all clients are left out.
    """
    sizes = list(zip(federation.train.sizes, federation.test.sizes, strict=True))
    # Each row is left out in one of so many trainings.
    needed = max(
        2 * math.ceil((train + test) / min(train, test))
        for train, test in sizes
        if train and test
    )
    require(
        shadows >= needed,
        f"{shadows} shadow models are too few: {needed} leave each row out, and in,"
        " twice",
    )
    rng = np.random.default_rng([seed, 0xA0D17])
    inside = [
        _members(rng, int(train), int(test), shadows)
        if train and test
        else np.ones((shadows, int(train + test)), bool)
        for train, test in sizes
    ]
    pools = [
        np.concatenate([federation.train[it], federation.test[it]])
        for it in range(len(federation))
    ]
    found: list[list[NDArray[np.float64]]] = []
    for shadow in range(shadows):
        chosen = [rows[shadow] for rows in inside]
        changed = replace(
            federation,
            train=Ragged.of([pool[it] for pool, it in zip(pools, chosen, strict=True)]),
            test=Ragged.of([pool[~it] for pool, it in zip(pools, chosen, strict=True)]),
        )
        trained = trainer.train(changed, seed + shadow + 1)
        scores = _scores(trained.training, trained.executor, changed)
        # back into the order of the pool
        found.append(
            [_in_pool(values, it) for values, it in zip(scores, chosen, strict=True)]
        )
    ratios = []
    for client, (train, test) in enumerate(sizes):
        if not train or not test:
            ratios.append(np.zeros(int(train + test)))
            continue
        shadow_scores = np.stack([scores[client] for scores in found])
        ratios.append(likelihood_ratios(own[client], shadow_scores, inside[client]))
    return ratios


def _members(
    rng: np.random.Generator, train: int, test: int, shadows: int
) -> NDArray[np.bool_]:
    """[shadows, rows] which rows a client trains on in each shadow training: as many as
    in its own, and each row is left out about as often as any other.
    """
    total = train + test
    inside = np.ones((shadows, total), bool)
    order = np.concatenate(
        [rng.permutation(total) for _ in range(math.ceil(shadows * test / total) + 1)]
    )
    # Parts of one permutation after another; a part that lies across two of them may
    # name a row twice, and takes the next one in its place.
    position = 0
    for shadow in range(shadows):
        left_out: list[int] = []
        while len(left_out) < test:
            if position == len(order):
                order = np.concatenate([order, rng.permutation(total)])
            row = int(order[position])
            position += 1
            if row not in left_out:
                left_out.append(row)
        inside[shadow, left_out] = False
    return inside


def _in_pool(
    values: NDArray[np.float64], inside: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Scores of the rows inside and then of those outside, in the order of the pool."""
    scores = np.empty(len(values))
    scores[inside] = values[: inside.sum()]
    scores[~inside] = values[inside.sum() :]
    return scores


# canaries
# --------------------------------------------------------------------------------------


def _audit_by_canaries(
    trainer: _Trainings, federation: Federation, canaries: int, seed: int
) -> CanaryAudit:
    """Train once with canaries: test rows of clients that train, with wrong labels, each
    of which is a training row with probability 1/2.
    """
    require(
        federation.classes is not None and federation.y.ndim == 1,
        "canaries are rows with wrong labels, and need classes",
    )
    require(
        canaries >= _FEWEST_CANARIES,
        f"{canaries} canaries prove nothing; take {_FEWEST_CANARIES} or more",
    )
    trains = ~federation.unseen
    owners = np.repeat(np.arange(len(federation)), federation.test.sizes)
    candidates = federation.test.rows[trains[owners]]
    owners = owners[trains[owners]]
    require(
        len(candidates) >= canaries,
        f"{canaries} canaries are more than the {len(candidates)} test rows of clients"
        " that train, which they are made of",
    )
    rng = np.random.default_rng([seed, 0xCA9A21])
    chosen = np.sort(rng.permutation(len(candidates))[:canaries])
    rows, owners = candidates[chosen], owners[chosen]
    assert federation.classes is not None
    classes = int(federation.classes)
    wrong = (federation.y[rows] + rng.integers(1, classes, canaries)) % classes
    member = rng.random(canaries) < 0.5
    # The canaries are new rows, after all others.
    numbers = len(federation.y) + np.arange(canaries)
    changed = replace(
        federation,
        x=np.concatenate([federation.x, federation.x[rows]]),
        y=np.concatenate([federation.y, wrong.astype(federation.y.dtype)]),
        rows=None,
        train=_with_rows(federation.train, owners[member], numbers[member]),
        test=_with_rows(
            Ragged.empty(len(federation)), owners[~member], numbers[~member]
        ),
        val=Ragged.empty(len(federation)),
    )
    trained = trainer.train(changed, seed)
    scores = _scores(trained.training, trained.executor, changed)
    at: dict[int, float] = {}
    for client, values in enumerate(scores):
        of_client = np.concatenate([changed.train[client], changed.test[client]])
        at |= dict(zip(of_client.tolist(), values.tolist(), strict=True))
    account = trained.training.privacy
    promised = {} if account is None else account.largest(trained.training.round)
    delta = 0.0
    if account is not None and account.sgd is not None:
        delta = delta_of(account.sgd)
    return CanaryAudit(
        canaries=canaries,
        epsilon_at_least=epsilon_from_below(
            [at[number] for number in numbers.tolist()], member, delta=delta
        ),
        epsilon=promised.get(EXAMPLE_EPSILON),
        delta=delta,
    )


def _with_rows(
    split: Ragged, owners: NDArray[np.int64], rows: NDArray[np.int64]
) -> Ragged:
    """A split with more rows of some clients."""
    clients = len(split.sizes)
    return Ragged.of(
        [
            np.concatenate([split[client], rows[owners == client]])
            for client in range(clients)
        ]
    )


# in words
# --------------------------------------------------------------------------------------


def lines_of(audit: PrivacyAudit) -> list[str]:
    """The audit as lines of a table, for a terminal."""
    width = max(len("all together"), *(len(name) for name in audit.clients))
    head = f"{'client':<{width}}  trained  others  by the loss"
    lines = [
        "area under the curve of an attack that tells training rows from test rows"
        " (0.5: guessing), with 95 % intervals",
        head + ("           by shadow models" if audit.shadows else ""),
    ]
    for name, model in (*audit.clients.items(), ("all together", audit.together)):
        cells = [_text(model.threshold.area)]
        if model.ratio is not None:
            cells.append(_text(model.ratio.area))
        numbers = f"{model.members:>7}  {model.others:>6}"
        lines.append(f"{name:<{width}}  {numbers}  {'  '.join(cells)}")
    for number, rate in enumerate(RATES):
        threshold = audit.together.threshold.told[number]
        line = (
            f"told at {100 * rate:g} % false accusations, all together:"
            f" {_text(threshold)} by the loss"
        )
        if audit.together.ratio is not None:
            line += f", {_text(audit.together.ratio.told[number])} by shadow models"
        lines.append(line)
    if audit.canary is not None:
        lines.append(canary_text(audit.canary))
    return lines


def card_lines(audit: PrivacyAudit, client: str) -> list[str]:
    """What a model card says about one client's model, as Markdown."""
    model = audit.clients.get(client)
    if model is None or np.isnan(model.threshold.area.estimate):
        return ["Not audited: this client has no training rows, or no test rows."]
    lines = [
        f"An attack that has this model tells its {model.members:,} training rows from"
        f" {model.others:,} test rows so well (95 % intervals; an area of 0.5 is"
        " guessing, 1 tells every row):",
        "",
        "| attack | area under the curve |"
        + "".join(f" told at {100 * rate:g} % false accusations |" for rate in RATES),
        "| --- | ---: |" + " ---: |" * len(RATES),
    ]
    attacks = [("threshold on the loss", model.threshold)]
    if model.ratio is not None:
        attacks.append(
            (f"likelihood ratio, {audit.shadows} shadow models", model.ratio)
        )
    for name, attack in attacks:
        cells = [attack.area, *attack.told]
        lines.append(f"| {name} | {' | '.join(map(_text, cells))} |")
    if audit.canary is not None:
        lines += ["", canary_text(audit.canary)]
    return lines


def canary_text(canary: CanaryAudit) -> str:
    """What canaries prove, as a sentence."""
    promise = "these settings promise none"
    if canary.epsilon is not None:
        promise = (
            f"the accounted epsilon of this training is {canary.epsilon:.2f} at delta"
            f" {canary.delta:g}"
        )
    return (
        f"{canary.canaries} canaries: epsilon is at least"
        f" {canary.epsilon_at_least:.2f} (95 % confidence); {promise}."
    )


def _text(bounds: Bounds) -> str:
    if np.isnan(bounds.estimate):
        return "not defined"
    return f"{bounds.estimate:.2f} ({bounds.low:.2f}, {bounds.high:.2f})"

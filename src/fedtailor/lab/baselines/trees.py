"""Boosted trees that can be handed over: each client's own, and personal ones from what all
clients share. How they are grown is chosen on validation rows.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import median
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.lab.baselines.baseline import (
    Baseline,
    KeptModels,
    Problem,
    require_one_target,
)
from fedtailor.models import Model
from fedtailor.statistics.boosting import (
    BoostedModel,
    BoostingSettings,
    GroupedRows,
    GroupedTrees,
    agree_on_bins,
    as_vectors,
    bins_of_values,
    boost_groups,
    own_after,
)

MOST_ALONE = 1000
"""The most clients for each of which trees are boosted."""
_BASE = BoostingSettings(
    trees=200, patience=15, most_leaves=None, most_depth=4, least_rows=20, most_bins=64
)
"""How trees are grown, but for what is chosen."""
_WITHOUT_VALIDATION = 50
"""Rounds where no validation rows choose them."""
_DEPTHS, _LEAST_ROWS = (2, 4), (3, 20)
"""Splits above a leaf, and rows in a leaf, to choose from."""

Choices = Mapping[str, Any]
"""What one training chose: `depth`, `least_rows`, `rounds`, and more of personal trees."""


@dataclass(frozen=True)
class GrownTrees:
    """Trees of all clients, which predict.

    Attributes:
        models: those of each client.
        newcomer: those of a client that did not train; None = there are none.
        chosen: what was chosen on validation rows.
    """

    models: Sequence[BoostedModel]
    newcomer: BoostedModel | None
    chosen: Choices

    def __call__(self, client: int, x: NDArray[np.float64]) -> NDArray[np.float64]:
        return self.models[client].outputs(x)


class ChosenTrees(Baseline):
    """Base of both: keeps its models, and refits them with what was chosen."""

    keeps_models: ClassVar[bool] = True
    needs_pooled_data: ClassVar[bool] = False

    def __init__(self, chosen: Choices | None = None) -> None:
        self._chosen = chosen

    def keep(self, fitted: GrownTrees, model: Model) -> KeptModels:
        others = [] if fitted.newcomer is None else [fitted.newcomer]
        network, vectors = as_vectors([*fitted.models, *others], model)
        count = len(fitted.models)
        shared = vectors[count] if others else None
        return KeptModels(network, vectors[:count], shared, fitted.chosen)

    def with_choices(self, chosen: Sequence[Choices]) -> "ChosenTrees":
        """What most trainings chose, and the median of their numbers of rounds."""

        def kind(one: Choices) -> tuple[tuple[str, Any], ...]:
            return tuple((key, one[key]) for key in one if "rounds" not in key)

        usual, _ = Counter(map(kind, chosen)).most_common(1)[0]
        alike = [one for one in chosen if kind(one) == usual]
        rounds = {
            key: round(median(one[key] for one in alike))
            for key in alike[0]
            if key.endswith("rounds")
        }
        return type(self)({**dict(usual), **rounds})


class TreesAlone(ChosenTrees):
    """Each client boosts trees on its own rows."""

    name: ClassVar[str] = "trees-alone"
    title: ClassVar[str] = "boosted trees, alone"
    is_alone: ClassVar[bool] = True
    over_machines: ClassVar[bool] = True
    about: ClassVar[str] = (
        "Each client boosts trees on its own rows, and nothing is sent. Their depth, the"
        " rows in a leaf and the number of trees are the same for all clients, chosen by"
        " the loss on all validation rows."
    )

    def fit(self, problem: Problem) -> GrownTrees:
        _require_few_clients(problem)
        rows = grouped(problem)
        ends = [bins_of_values(x, _BASE.most_bins) for x in problem.x]

        def grown(settings: BoostingSettings) -> GroupedTrees:
            return boost_groups(rows, ends, settings, by_client=True)

        if self._chosen is None:
            choices, found = _best(grown, rows)
        else:
            choices, found = self._chosen, grown(_exactly(self._chosen))
        models = [found.model(client) for client in range(rows.clients)]
        return GrownTrees(models, None, choices)


class TreesPersonal(ChosenTrees):
    """Trees of all clients together, in which a split may send some clients to the left;
    then each client's own trees. Whether splits may use the client is chosen, and
    there may be no own trees.
    """

    name: ClassVar[str] = "trees-personal"
    title: ClassVar[str] = "boosted trees, personal"
    about: ClassVar[str] = (
        "Trees are boosted on sums over clients of gradients and curvatures by input and"
        " bin. If clients are an input, a split may send some clients to the left, for"
        " which the sums of each client are needed: these are not hidden by secure"
        " aggregation, and are not asked for over machines. Then each client boosts trees"
        " of its own. Each client keeps the trees as they are for itself."
    )

    def fit(self, problem: Problem) -> GrownTrees:
        _require_few_clients(problem)
        rows = grouped(problem)
        # What clients find out together by counting their rows below candidates.
        x = np.concatenate(problem.x)
        sorted_x = np.sort(x, axis=0)

        def counts(candidates: NDArray[np.float64]) -> NDArray[np.float64]:
            columns = zip(sorted_x.T, candidates, strict=True)
            found = [np.searchsorted(*both, side="right") for both in columns]
            return np.array(found, np.float64).reshape(candidates.shape)

        ends = [agree_on_bins(counts, len(x), x.shape[1], _BASE.most_bins)]

        def grown(settings: BoostingSettings, *, asks_client: bool) -> GroupedTrees:
            return boost_groups(rows, ends, settings, asks_client=asks_client)

        if self._chosen is None:
            choices, shared = _best(grown, rows, asks_client=(False, True))
            own = own_after(rows, shared, _with(choices))
            if rows.trains.all():
                # Nothing tells how many would help.
                own = replace(own, rounds=())
            choices = {**choices, "own_rounds": len(own.rounds)}
        else:
            choices, settings = self._chosen, _exactly(self._chosen)
            shared = grown(settings, asks_client=choices["asks_client"])
            shared = replace(shared, rounds=shared.rounds[: choices["rounds"]])
            number = choices["own_rounds"]
            own = own_after(rows, shared, replace(settings, trees=max(number, 1)))
            own = replace(own, rounds=own.rounds[:number])
        newcomer, models = shared.model(0), []
        for client in range(rows.clients):
            asks = choices["asks_client"]
            first = shared.model(0, client) if asks else newcomer
            then = own.model(client)
            both = (*first.trees, *then.trees)
            models.append(replace(first, trees=both, own=len(then.trees)))
        return GrownTrees(models, newcomer, choices)


def grouped(problem: Problem) -> GroupedRows:
    """The rows of all clients in one place: in a simulation sums over clients are sums
    over these.
    """
    parts, weights = [], None
    if problem.weights:
        weights = np.concatenate([*problem.weights, *problem.val_weights])
    for x, y in ((problem.x, problem.y), (problem.val_x, problem.val_y)):
        sizes = np.array([len(it) for it in x], np.int64)
        client = np.repeat(np.arange(len(x)), sizes)
        targets = [np.asarray(it).reshape(-1) for it in y]
        parts.append((x, targets, client))
    clients = np.concatenate([client for _, _, client in parts]).astype(np.int64)
    return GroupedRows(
        np.concatenate([np.asarray(it, np.float64) for x, _, _ in parts for it in x]),
        np.concatenate([it for _, y, _ in parts for it in y]),
        clients,
        np.arange(len(clients)) < len(parts[0][2]),
        problem.classes,
        len(problem),
        weights,
    )


def _best(
    grown: Callable[..., GroupedTrees], rows: GroupedRows, **options: Sequence[Any]
) -> tuple[dict[str, Any], GroupedTrees]:
    """The settings, and further options, of least loss on the validation rows."""
    if rows.trains.all():
        choices = {"depth": _BASE.most_depth, "least_rows": _BASE.least_rows}
        choices |= {name: values[0] for name, values in options.items()}
        settings = _exactly({**choices, "rounds": _WITHOUT_VALIDATION})
        found = grown(settings, **{name: choices[name] for name in options})
        return {**choices, "rounds": len(found.rounds)}, found
    best: tuple[dict[str, Any], GroupedTrees] | None = None
    for depth, least, *others in product(_DEPTHS, _LEAST_ROWS, *options.values()):
        choices = {"depth": depth, "least_rows": least}
        given = dict(zip(options, others, strict=True))
        found = grown(_with(choices), **given)
        if best is None or min(found.losses) < min(best[1].losses):
            best = {**choices, **given, "rounds": len(found.rounds)}, found
    assert best is not None
    return best


def _with(choices: Choices) -> BoostingSettings:
    return replace(_BASE, most_depth=choices["depth"], least_rows=choices["least_rows"])


def _exactly(choices: Choices) -> BoostingSettings:
    """Settings of as many rounds as were chosen."""
    return replace(_with(choices), trees=max(choices["rounds"], 1), chooses=False)


def _require_few_clients(problem: Problem) -> None:
    require_one_target(problem)
    require(
        len(problem) <= MOST_ALONE,
        f"trees for each of {len(problem):,} clients take too long; at most"
        f" {MOST_ALONE:,} are compared",
    )

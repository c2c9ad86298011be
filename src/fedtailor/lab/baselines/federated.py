"""Baselines that need no pooled rows: mixed models, and federated boosting."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
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
from fedtailor.lab.baselines.linear_models import Coefficients, kept_linear
from fedtailor.models import Model
from fedtailor.models.tasks import Task
from fedtailor.statistics.boosting import (
    BoostedModel,
    BoostingRows,
    BoostingSettings,
    OwnTrees,
    as_vectors,
    boost,
    boost_alone,
    boost_chosen,
)
from fedtailor.statistics.mixed import ClientMoments, MixedModel, fit_mixed_model

_DEPENDENT = 1e-8
"""An input follows from others if they leave so small a share of its squares."""

_PATIENCE = 20
"""Rounds for which a lower validation loss is waited for."""
_MOST_OWN = 200
"""The most clients that try trees of their own."""


class MixedEffects(Baseline):
    """A linear mixed model: intercept and slopes differ at random, each with its own
    variance (REML).
    """

    name: ClassVar[str] = "mixed"
    title: ClassVar[str] = "mixed model"
    needs_pooled_data: ClassVar[bool] = False
    is_linear: ClassVar[bool] = True
    keeps_models: ClassVar[bool] = True
    about: ClassVar[str] = (
        "A linear model whose coefficients differ between clients at random, by restricted"
        " maximum likelihood from sums of squares and products of each client. A newcomer"
        " has the mean of all."
    )

    def applies(self, task: Task) -> bool:
        return super().applies(task) and not task.predicts_classes

    def fit(self, problem: Problem) -> "MixedModels":
        require_one_target(problem)
        kept = independent_inputs(problem.x)
        moments = [
            ClientMoments.of(x[:, kept], y, problem.weights_of(client))
            for client, (x, y) in enumerate(zip(problem.x, problem.y, strict=True))
        ]
        model = fit_mixed_model(moments, "diagonal")
        return MixedModels(problem.x[0].shape[1], kept, model, len(problem))

    def keep(self, fitted: "MixedModels", model: Model) -> KeptModels:
        clients = [fitted.coefficients(one) for one in range(fitted.clients)]
        return kept_linear(clients, fitted.coefficients(None), model, {})

    def with_choices(self, chosen: Sequence[Mapping[str, Any]]) -> "MixedEffects":
        return self


@dataclass(frozen=True)
class MixedModels:
    """A mixed model, which predicts.

    Attributes:
        inputs: the number of inputs.
        kept: the inputs that do not follow from others.
        model: the model of these.
        clients: the number of clients.
    """

    inputs: int
    kept: Sequence[int]
    model: MixedModel
    clients: int

    def __call__(self, client: int, x: NDArray[np.float64]) -> NDArray[np.float64]:
        return self.model.predict(x[:, self.kept], client)

    def coefficients(self, client: int | None) -> Coefficients:
        """Those of a client; None = one that did not train has the fixed effects."""
        added, *slopes = self.model.coefficients(client)
        weights = np.zeros((self.inputs, 1))
        weights[self.kept, 0] = slopes
        return weights, np.array([added])


def independent_inputs(clients: Sequence[NDArray[np.float64]]) -> list[int]:
    """The inputs that do not follow from a constant and those before them.

    Indicators of all categories add up to a constant, for example, and fixed effects of
    all of them are not determined. It follows from sums of products over clients.

    Args:
        clients: the inputs [n, d] of each.
    """
    products = 0.0
    for x in clients:
        rows = np.column_stack([np.ones(len(x)), np.asarray(x, np.float64)])
        products = products + rows.T @ rows
    products = np.asarray(products)
    kept = [0]  # the constant
    for column in range(1, len(products)):
        own, size = products[kept, column], products[column, column]
        left = size - own @ np.linalg.solve(products[np.ix_(kept, kept)], own)
        if left > _DEPENDENT * size:
            kept.append(column)
    return [column - 1 for column in kept[1:]]


@dataclass(frozen=True)
class BoostedClients:
    """Boosted trees of clients, which predict.

    Attributes:
        shared: the trees of all clients together.
        models: those of each client.
        names: the clients' names.
    """

    shared: BoostedModel
    models: Sequence[BoostedModel]
    names: Sequence[str]

    def __call__(self, client: int, x: NDArray[np.float64]) -> NDArray[np.float64]:
        return self.models[client].outputs(x)


class TreesFederated(Baseline):
    """Trees boosted on sums of histograms over clients, and then a client's own where
    its validation rows say so.

    Args:
        rounds: rounds of shared trees; None = as many as validation rows say.
        own: client -> its own trees, if `rounds` is given; clients that are not listed
            have none.
    """

    name: ClassVar[str] = "trees-federated"
    title: ClassVar[str] = "boosted trees, federated"
    needs_pooled_data: ClassVar[bool] = False
    by_default: ClassVar[bool] = False  # trees-personal are quicker
    over_machines: ClassVar[bool] = True
    keeps_models: ClassVar[bool] = True
    about: ClassVar[str] = (
        "Trees are boosted on sums over clients: of rows, targets, and of gradients and"
        " curvatures by input and bin. A client may add trees of its own, or take"
        " its own only; these are grown where its rows are."
    )

    def __init__(
        self, rounds: int | None = None, own: Mapping[str, OwnTrees] | None = None
    ) -> None:
        self._rounds, self._own = rounds, own or {}

    def fit(self, problem: Problem) -> BoostedClients:
        require_one_target(problem)
        require(
            not problem.weights,
            "trees over machines take no weights of rows; boost trees-personal",
        )
        clients = []
        for place, (x, y) in enumerate(zip(problem.x, problem.y, strict=True)):
            validation = (None, None)
            if problem.val_x:
                validation = problem.val_x[place], problem.val_y[place]
            clients.append(BoostingRows(x, y, problem.classes, *validation))
        settings = BoostingSettings(patience=_PATIENCE)
        if self._rounds is not None:
            return self._refit(problem, clients, settings)
        shared = _shared_trees(problem, settings)
        models: list[BoostedModel] = [replace(shared, own=0)] * len(clients)
        if len(clients) <= _MOST_OWN:
            models = [boost_alone(rows, shared, settings) for rows in clients]
        return BoostedClients(replace(shared, own=0), models, problem.names)

    def _refit(
        self,
        problem: Problem,
        clients: Sequence[BoostingRows],
        settings: BoostingSettings,
    ) -> BoostedClients:
        """Boost as many trees as were chosen before."""
        assert self._rounds is not None
        settings = replace(settings, trees=max(self._rounds, 1), chooses=False)
        shared = _shared_trees(problem, settings)
        # At least one round is boosted, and none may have been chosen.
        shared = replace(shared, trees=shared.trees[: self._rounds], own=0)
        models = [
            boost_chosen(rows, shared, settings, self._own.get(name, OwnTrees()))
            for name, rows in zip(problem.names, clients, strict=True)
        ]
        return BoostedClients(shared, models, problem.names)

    def keep(self, fitted: BoostedClients, model: Model) -> KeptModels:
        network, vectors = as_vectors([*fitted.models, fitted.shared], model)
        own = {
            name: asdict(OwnTrees.of(found, fitted.shared))
            for name, found in zip(fitted.names, fitted.models, strict=True)
        }
        chosen = {"rounds": len(fitted.shared.trees), "own": own}
        return KeptModels(network, vectors[:-1], vectors[-1], chosen)

    def with_choices(self, chosen: Sequence[Mapping[str, Any]]) -> "TreesFederated":
        rounds = round(median(one["rounds"] for one in chosen))
        own = {}
        for name in dict.fromkeys(name for one in chosen for name in one["own"]):
            found = [
                OwnTrees(**one["own"][name]) for one in chosen if name in one["own"]
            ]
            own[name] = _usual(found)
        return TreesFederated(rounds, own)


def _shared_trees(problem: Problem, settings: BoostingSettings) -> BoostedModel:
    """The trees of all clients together: in one process the sums over clients are sums
    over all rows.
    """
    validation = (None, None)
    if problem.val_x:
        validation = np.concatenate(problem.val_x), np.concatenate(problem.val_y)
    x, y = np.concatenate(problem.x), np.concatenate(problem.y)
    pooled = BoostingRows(x, y, problem.classes, *validation)
    return boost(pooled.answer, x.shape[1], problem.classes, settings)


def _usual(choices: Sequence[OwnTrees]) -> OwnTrees:
    """Trees of a client's own, if it chose some in more than half of all trainings: of
    the kind and the number that it mostly chose.
    """
    some = [one for one in choices if one.rounds]
    if 2 * len(some) <= len(choices):
        return OwnTrees()
    follows = 2 * sum(one.after_shared for one in some) >= len(some)
    numbers = [one.rounds for one in some if one.after_shared == follows]
    return OwnTrees(max(round(median(numbers)), 1), follows)

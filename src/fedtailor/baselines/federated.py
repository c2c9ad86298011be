"""Baselines that need no pooled rows: mixed models, and federated boosting."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtailor.baselines.baseline import Baseline, Predict, Problem
from fedtailor.boosting import (
    BoostedModel,
    BoostingRows,
    BoostingSettings,
    boost,
    boost_alone,
)
from fedtailor.boosting.boost import sum_over
from fedtailor.mixed import ClientMoments, fit_mixed_model
from fedtailor.protocol import require
from fedtailor.tasks import Task

_DEPENDENT = 1e-8
"""An input follows from others if so small a share of its squares is left beside them."""

_MOST_OWN = 200
"""The most clients that try trees of their own."""


def require_one_target(problem: Problem) -> None:
    """Require a class or one number for each row.

    Raises:
        ValueError: the targets are several, such as a time and an event.
    """
    require(
        all(np.ndim(y) == 1 or np.shape(y)[1:] == (1,) for y in problem.y),
        "it takes a class or one number for each row",
    )


class MixedEffects(Baseline):
    """A linear mixed model: intercept and slopes differ at random, each with its own
    variance (REML).
    """

    name: ClassVar[str] = "mixed"
    title: ClassVar[str] = "mixed model"
    needs_pooled_data: ClassVar[bool] = False
    is_linear: ClassVar[bool] = True

    def applies(self, task: Task) -> bool:
        return super().applies(task) and not task.predicts_classes

    def fit(self, problem: Problem) -> Predict:
        require_one_target(problem)
        kept = independent_inputs(problem.x)
        moments = [
            ClientMoments.of(x[:, kept], y)
            for x, y in zip(problem.x, problem.y, strict=True)
        ]
        model = fit_mixed_model(moments, "diagonal")
        return lambda client, inputs: model.predict(inputs[:, kept], client)


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


class TreesFederated(Baseline):
    """Trees boosted on sums of histograms over clients, and then a client's own where
    its validation rows say so.
    """

    name: ClassVar[str] = "trees-federated"
    title: ClassVar[str] = "boosted trees, federated"
    needs_pooled_data: ClassVar[bool] = False
    by_default: ClassVar[bool] = False  # many times slower than scikit-learn's

    def fit(self, problem: Problem) -> Predict:
        require_one_target(problem)
        clients = []
        for place, (x, y) in enumerate(zip(problem.x, problem.y, strict=True)):
            validation = (None, None)
            if problem.val_x:
                validation = problem.val_x[place], problem.val_y[place]
            clients.append(BoostingRows(x, y, problem.classes, *validation))
        inputs = problem.x[0].shape[1]
        settings = BoostingSettings()
        shared = boost(sum_over(clients), inputs, problem.classes, settings)
        models: list[BoostedModel] = [replace(shared, own=0)] * len(clients)
        if len(clients) <= _MOST_OWN:
            models = [boost_alone(rows, shared, settings) for rows in clients]

        def predict(client: int, x: NDArray[np.float64]) -> NDArray[np.float64]:
            return models[client].outputs(x)

        return predict

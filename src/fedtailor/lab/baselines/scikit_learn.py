"""Gradient-boosted trees and linear models of scikit-learn, with its default settings.

scikit-learn is imported when a baseline is trained: that takes a second.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.lab.baselines.baseline import Baseline, Predict, Problem

_SMALLEST = 1e-7
"""The least probability of a class; a logarithm of 0 would make single rows infinite."""
_EARLY_STOPPING = 10_000
"""Rows above which scikit-learn's boosting holds some out to end early."""
_MOST_CATEGORIES = 255
"""The most categories of a column of scikit-learn's boosting."""
_MOST_ALONE = 1000
"""The most clients for which trees are boosted one by one."""

Estimate = Callable[[NDArray[Any], NDArray[Any]], Any]
"""Trains an estimator of scikit-learn on inputs [n, d] and targets [n]."""


class TreesAlone(Baseline):
    """Each client boosts trees on its own rows."""

    name: ClassVar[str] = "trees-alone"
    title: ClassVar[str] = "boosted trees, alone"
    needs_pooled_data: ClassVar[bool] = False

    def fit(self, problem: Problem) -> Predict:
        require(
            len(problem) <= _MOST_ALONE,
            f"trees for each of {len(problem):,} clients take too long; at most"
            f" {_MOST_ALONE:,} are compared",
        )
        return _alone(problem, _boosting(problem))


class TreesPooled(Baseline):
    """Trees are boosted on the rows of all clients together."""

    name: ClassVar[str] = "trees-pooled"
    title: ClassVar[str] = "boosted trees, pooled"
    needs_pooled_data: ClassVar[bool] = True

    def fit(self, problem: Problem) -> Predict:
        return _pooled(problem, _boosting(problem))


class TreesPooledClient(Baseline):
    """Trees are boosted on the rows of all clients together; the client is an input."""

    name: ClassVar[str] = "trees-pooled-client"
    title: ClassVar[str] = "boosted trees, pooled, client as an input"
    needs_pooled_data: ClassVar[bool] = True

    def fit(self, problem: Problem) -> Predict:
        require(
            len(problem) <= _MOST_CATEGORIES,
            f"{len(problem)} clients are more categories than the"
            f" {_MOST_CATEGORIES} of scikit-learn's boosted trees",
        )
        width = problem.x[0].shape[1]
        numbered = [_with_client(x, client) for client, x in enumerate(problem.x)]
        x, y = np.concatenate(numbered), np.concatenate(problem.y)
        predict = _outputs(problem, _boosting(problem, categories=[width]), x, y)
        return lambda client, inputs: predict(_with_client(inputs, client))


class LinearAlone(Baseline):
    """Each client fits logistic or ridge regression to its own rows."""

    name: ClassVar[str] = "linear-alone"
    title: ClassVar[str] = "regression, alone"
    needs_pooled_data: ClassVar[bool] = False
    is_linear: ClassVar[bool] = True

    def title_for(self, classes: int | None) -> str:
        return f"{_linear_title(classes)}, alone"

    def fit(self, problem: Problem) -> Predict:
        return _alone(problem, _linear(problem))


class LinearPooled(Baseline):
    """Logistic or ridge regression is fitted to the rows of all clients together."""

    name: ClassVar[str] = "linear-pooled"
    title: ClassVar[str] = "regression, pooled"
    needs_pooled_data: ClassVar[bool] = True
    is_linear: ClassVar[bool] = True

    def title_for(self, classes: int | None) -> str:
        return f"{_linear_title(classes)}, pooled"

    def fit(self, problem: Problem) -> Predict:
        return _pooled(problem, _linear(problem))


def _linear_title(classes: int | None) -> str:
    return "ridge regression" if classes is None else "logistic regression"


def _boosting(problem: Problem, categories: list[int] | None = None) -> Estimate:
    """Boosted trees with scikit-learn's default settings.

    Args:
        problem: what is predicted.
        categories: positions of inputs whose values are categories.
    """
    from sklearn.ensemble import (
        HistGradientBoostingClassifier,
        HistGradientBoostingRegressor,
    )

    def train(x: NDArray[Any], y: NDArray[Any]) -> Any:
        settings: dict[str, Any] = {
            "random_state": problem.seed,
            "categorical_features": categories,
            "early_stopping": len(x) > _EARLY_STOPPING,
        }
        if problem.classes is None:
            return HistGradientBoostingRegressor(**settings).fit(x, y)
        # Rows that are held out to end early must be of every class.
        if np.unique(y, return_counts=True)[1].min() < 2:
            settings["early_stopping"] = False
        return HistGradientBoostingClassifier(**settings).fit(x, y)

    return train


def _linear(problem: Problem) -> Estimate:
    """Logistic or ridge regression with scikit-learn's default penalties."""
    from sklearn.linear_model import LogisticRegression, Ridge

    def train(x: NDArray[Any], y: NDArray[Any]) -> Any:
        if problem.classes is None:
            return Ridge().fit(x, y)
        return LogisticRegression(max_iter=1000).fit(x, y)

    return train


def _alone(problem: Problem, estimate: Estimate) -> Predict:
    """Trains one estimator for each client."""
    by_client = [
        _outputs(problem, estimate, x, y)
        for x, y in zip(problem.x, problem.y, strict=True)
    ]
    return lambda client, inputs: by_client[client](inputs)


def _pooled(problem: Problem, estimate: Estimate) -> Predict:
    """Trains one estimator on the rows of all clients."""
    x, y = np.concatenate(problem.x), np.concatenate(problem.y)
    predict = _outputs(problem, estimate, x, y)
    return lambda client, inputs: predict(inputs)


def _outputs(
    problem: Problem, estimate: Estimate, x: NDArray[Any], y: NDArray[Any]
) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """Trains an estimator, and returns the function from inputs to its outputs."""
    present = np.unique(y)
    # Boosting is quick on few rows only if threads do not wait for each other.
    if problem.classes is not None and len(present) == 1:
        return lambda inputs: _log_probabilities(
            np.ones((len(inputs), 1)), present, problem.classes
        )
    with _quietly(len(x)):
        estimator = estimate(x, y)

    def predict(inputs: NDArray[Any]) -> NDArray[Any]:
        if not len(inputs):
            return np.zeros((0, problem.classes) if problem.classes else 0)
        with _quietly(len(inputs)):
            if problem.classes is None:
                return np.asarray(estimator.predict(inputs), np.float64)
            found = estimator.predict_proba(inputs)
        return _log_probabilities(found, estimator.classes_, problem.classes)

    return predict


def _log_probabilities(
    found: NDArray[Any], present: NDArray[Any], classes: int | None
) -> NDArray[np.float64]:
    """Logarithms of probabilities, also of classes that no training row had."""
    assert classes is not None
    probabilities = np.zeros((len(found), classes))
    probabilities[:, present.astype(int)] = found
    probabilities = np.maximum(probabilities, _SMALLEST)
    return np.log(probabilities / probabilities.sum(axis=1, keepdims=True))


def _with_client(x: NDArray[Any], client: int) -> NDArray[Any]:
    """Inputs with the client's number as one more column."""
    return np.column_stack([x, np.full(len(x), client)])


@contextmanager
def _quietly(rows: int) -> Iterator[None]:
    """A context without warnings of an estimator that has not quite converged, and with
    one thread where few rows would keep several waiting for each other.
    """
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    with (
        warnings.catch_warnings(),
        threadpool_limits(1 if rows < _EARLY_STOPPING else None),
    ):
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield

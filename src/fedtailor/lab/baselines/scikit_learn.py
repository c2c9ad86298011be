"""Gradient-boosted trees of pooled rows and linear models, of scikit-learn with its
default settings.

scikit-learn is imported when a baseline is trained: that takes a second.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from fedtailor._base.choice import require
from fedtailor.lab.baselines.baseline import Baseline, KeptModels, Predict, Problem
from fedtailor.lab.baselines.linear_models import Coefficients, kept_linear
from fedtailor.models import Model

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

_SMALLEST = 1e-7
"""The least probability of a class; a logarithm of 0 would make single rows infinite."""
_EARLY_STOPPING = 10_000
"""Rows above which scikit-learn's boosting holds some out to end early."""
_MOST_CATEGORIES = 255
"""The most categories of a column of scikit-learn's boosting."""
Estimate = Callable[[NDArray[Any], NDArray[Any], NDArray[Any] | None], Any]
"""Trains an estimator of scikit-learn on inputs [n, d], targets [n] and weights [n] of rows
(None = all count the same)."""


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
        estimate = _boosting(problem, categories=[width])
        predict = _outputs(problem, estimate, x, y, _all_weights(problem))
        return lambda client, inputs: predict(_with_client(inputs, client))


class LinearAlone(Baseline):
    """Each client fits logistic or ridge regression to its own rows."""

    name: ClassVar[str] = "linear-alone"
    title: ClassVar[str] = "regression, alone"
    needs_pooled_data: ClassVar[bool] = False
    is_linear: ClassVar[bool] = True

    keeps_models: ClassVar[bool] = True
    is_alone: ClassVar[bool] = True
    over_machines: ClassVar[bool] = True
    about: ClassVar[str] = (
        "Each client fits ridge or logistic regression, with scikit-learn's default"
        " penalty, to its own rows. Nothing is sent."
    )

    def title_for(self, classes: int | None) -> str:
        return f"{_linear_title(classes)}, alone"

    def fit(self, problem: Problem) -> "LinearModels":
        found = []
        for client, (x, y) in enumerate(zip(problem.x, problem.y, strict=True)):
            weights = problem.weights_of(client)
            found.append(_coefficients(problem, x, y, weights))
        return LinearModels(problem.classes, found)

    def keep(self, fitted: "LinearModels", model: Model) -> KeptModels:
        return kept_linear(fitted.coefficients, None, model, {})

    def with_choices(self, chosen: Sequence[Mapping[str, Any]]) -> "LinearAlone":
        return self


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

    def train(x: NDArray[Any], y: NDArray[Any], weights: NDArray[Any] | None) -> Any:
        settings: dict[str, Any] = {
            "random_state": problem.seed,
            "categorical_features": categories,
            "early_stopping": len(x) > _EARLY_STOPPING,
        }
        if problem.classes is None:
            return HistGradientBoostingRegressor(**settings).fit(
                x, y, sample_weight=weights
            )
        # Rows that are held out to end early must be of every class.
        if np.unique(y, return_counts=True)[1].min() < 2:
            settings["early_stopping"] = False
        return HistGradientBoostingClassifier(**settings).fit(
            x, y, sample_weight=weights
        )

    return train


def _linear(problem: Problem) -> Estimate:
    """Logistic or ridge regression with scikit-learn's default penalties."""
    from sklearn.linear_model import LogisticRegression, Ridge

    def train(x: NDArray[Any], y: NDArray[Any], weights: NDArray[Any] | None) -> Any:
        if problem.classes is None:
            return Ridge().fit(x, y, sample_weight=weights)
        return LogisticRegression(max_iter=1000).fit(x, y, sample_weight=weights)

    return train


@dataclass(frozen=True)
class LinearModels:
    """Linear models of clients, which predict.

    Attributes:
        classes: the number of classes; None for numbers.
        coefficients: of each client.
    """

    classes: int | None
    coefficients: Sequence[Coefficients]

    def __call__(self, client: int, x: NDArray[Any]) -> NDArray[np.float64]:
        weights, added = self.coefficients[client]
        outputs = x @ weights + added
        return outputs[:, 0] if self.classes is None else log_softmax(outputs, axis=1)


def _coefficients(
    problem: Problem,
    x: NDArray[Any],
    y: NDArray[Any],
    weights: NDArray[Any] | None,
) -> Coefficients:
    """Fits regression to one client's rows."""
    inputs, classes = x.shape[1], problem.classes
    matrix = np.zeros((inputs, classes or 1))
    if classes is None:
        with _quietly(len(x)):
            fitted = _linear(problem)(x, y, weights)
        matrix[:, 0] = fitted.coef_.reshape(-1)
        return matrix, np.reshape(fitted.intercept_, 1)
    # A class that no row has is as good as impossible.
    present = np.unique(y).astype(int)
    added = np.full(classes, np.log(_SMALLEST))
    added[present] = 0.0
    if len(present) == 1:
        return matrix, added
    with _quietly(len(x)):
        fitted = _linear(problem)(x, y, weights)
    # Of two classes there is the logit of the second.
    its = present[-1:] if len(present) == 2 else present
    matrix[:, its] = fitted.coef_.T
    added[its] = fitted.intercept_
    return matrix, added


def _pooled(problem: Problem, estimate: Estimate) -> Predict:
    """Trains one estimator on the rows of all clients."""
    x, y = np.concatenate(problem.x), np.concatenate(problem.y)
    predict = _outputs(problem, estimate, x, y, _all_weights(problem))
    return lambda client, inputs: predict(inputs)


def _all_weights(problem: Problem) -> NDArray[Any] | None:
    """The weights of the rows of all clients; None = all count the same."""
    return np.concatenate(problem.weights) if problem.weights else None


def _outputs(
    problem: Problem,
    estimate: Estimate,
    x: NDArray[Any],
    y: NDArray[Any],
    weights: NDArray[Any] | None,
) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """Trains an estimator, and returns the function from inputs to its outputs."""
    present = np.unique(y)
    # Boosting is quick on few rows only if threads do not wait for each other.
    if problem.classes is not None and len(present) == 1:
        return lambda inputs: _log_probabilities(
            np.ones((len(inputs), 1)), present, problem.classes
        )
    with _quietly(len(x)):
        estimator = estimate(x, y, weights)

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


@cache
def _thread_pools() -> "ThreadpoolController":
    """The thread pools of the libraries that are loaded. To find them takes 20 ms, which
    is long beside a prediction for one client.
    """
    import sklearn.ensemble  # noqa: F401 (its libraries are among them)
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


@contextmanager
def _quietly(rows: int) -> Iterator[None]:
    """A context without warnings of an estimator that has not quite converged, and with
    one thread where few rows would keep several waiting for each other.
    """
    from sklearn.exceptions import ConvergenceWarning

    with (
        warnings.catch_warnings(),
        _thread_pools().limit(limits=1 if rows < _EARLY_STOPPING else None),
    ):
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield

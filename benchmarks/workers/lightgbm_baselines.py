"""LightGBM beside the candidates of a comparison: a baseline that is registered on import.

    python lightgbm_baselines.py compare TABLE ... --baselines lightgbm-alone ...

is the command line with these baselines.
"""

from typing import Any, ClassVar

import numpy as np
from lightgbm import LGBMClassifier, LGBMRegressor

from fedtailor.cli import main
from fedtailor.lab.baselines.baseline import Baseline, Predict, Problem

_SMALLEST = 1e-7
"""The least probability of a class."""


def fitted(
    problem: Problem, x: np.ndarray, y: np.ndarray, categories: list[int]
) -> Any:
    """The function from inputs to outputs of LightGBM with its default settings."""
    classes = problem.classes
    if len(np.unique(y)) == 1:  # LightGBM takes neither one row nor one class
        if classes is None:
            return lambda inputs: np.full(len(inputs), float(y[0]))
        only = np.where(np.arange(classes) == y[0], 0.0, np.log(_SMALLEST))
        return lambda inputs: np.tile(only, (len(inputs), 1))
    kind = LGBMRegressor if classes is None else LGBMClassifier
    model = kind(random_state=problem.seed, n_jobs=1, verbose=-1)
    model.fit(x, y, categorical_feature=categories)

    def predict(inputs: np.ndarray) -> np.ndarray:
        if classes is None:
            return model.predict(inputs) if len(inputs) else np.zeros(0)
        found = np.full((len(inputs), classes), _SMALLEST)
        if not len(inputs):
            return found
        found[:, model.classes_.astype(int)] = model.predict_proba(inputs)
        return np.log(np.maximum(found, _SMALLEST))

    return predict


class LightGBMAlone(Baseline):
    """Trees of each client's own rows."""

    name: ClassVar[str] = "lightgbm-alone"
    title: ClassVar[str] = "LightGBM, alone"
    needs_pooled_data: ClassVar[bool] = True  # so that it is no candidate

    def fit(self, problem: Problem) -> Predict:
        models = [
            fitted(problem, x, y, []) for x, y in zip(problem.x, problem.y, strict=True)
        ]
        return lambda client, inputs: models[client](inputs)


class LightGBMPooledClient(Baseline):
    """Trees of all clients' rows; the client is an input."""

    name: ClassVar[str] = "lightgbm-pooled-client"
    title: ClassVar[str] = "LightGBM, pooled, client as an input"
    needs_pooled_data: ClassVar[bool] = True

    def fit(self, problem: Problem) -> Predict:
        def numbered(client: int, x: np.ndarray) -> np.ndarray:
            return np.column_stack([x, np.full(len(x), client)])

        x = np.concatenate([numbered(*it) for it in enumerate(problem.x)])
        predict = fitted(problem, x, np.concatenate(problem.y), [x.shape[1] - 1])
        return lambda client, inputs: predict(numbered(client, inputs))


if __name__ == "__main__":
    raise SystemExit(main())

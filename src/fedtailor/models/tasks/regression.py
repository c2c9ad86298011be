"""Numbers: one or more targets for each example."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped
from numpy.typing import NDArray

from fedtailor.models.tasks.task import LossFunction, Task, one_for_each, register


def squared_error(
    outputs: Float[Array, "b ..."], y: Shaped[Array, "b ..."]
) -> Float[Array, " b"]:
    """|outputs - y|^2 summed over an example's targets (no factor 1/2). Targets [b] match
    outputs [b, 1].

    Raises:
        ValueError: an example's outputs and targets differ in number.

    Example:
        >>> import jax.numpy as jnp
        >>> outputs, y = jnp.array([[1.0], [3.0]]), jnp.array([1.0, 1.0])
        >>> ft.models.squared_error(outputs, y).tolist()
        [0.0, 4.0]
    """
    _require_match(outputs, y)
    targets = y.reshape(outputs.shape).astype(outputs.dtype)
    return jnp.square(outputs - targets).reshape(len(outputs), -1).sum(-1)


register("squared_error", squared_error)


@dataclass(frozen=True)
class Regression(Task):
    """A loss over predicted targets: outputs and targets [b, ...] of as many entries.

    A model with a function as its loss has this task, so that it is rarely written out.

    Attributes:
        function: (outputs [b, ...], targets [b, ...]) -> [b].
    """

    function: LossFunction = squared_error

    name: ClassVar[str] = "regression"
    metrics_of_tables: ClassVar[tuple[str, ...]] = ("rmse", "mae")

    def __call__(
        self, outputs: Float[Array, "b ..."], y: Shaped[Array, "b ..."]
    ) -> Float[Array, " b"]:
        return one_for_each(self.function(outputs, y), len(outputs))

    def row_scores(
        self, outputs: Float[Array, "b ..."], y: Shaped[Array, "b ..."]
    ) -> dict[str, Shaped[Array, "b ..."]]:
        """`squared_error` [b] float32, summed over targets, and `prediction` and `target`
        [b] (or [b, targets]) float32.
        """
        predicted, target = predictions_and_targets(outputs, y)
        squared_error = jnp.square(predicted - target).sum(axis=-1)
        columns = {"squared_error": squared_error.astype(jnp.float32)}
        for name, values in (("prediction", predicted), ("target", target)):
            single = values[:, 0] if values.shape[1] == 1 else values
            columns[name] = single.astype(jnp.float32)
        return columns

    def in_units(
        self, scores: Mapping[str, NDArray[Any]], shift: float, scale: float
    ) -> dict[str, NDArray[Any]]:
        return {
            **scores,
            "squared_error": scores["squared_error"] * scale**2,
            "prediction": scores["prediction"] * scale + shift,
            "target": scores["target"] * scale + shift,
        }

    def baseline(
        self,
        y_train: Shaped[np.ndarray, "n ..."],
        y_test: Shaped[np.ndarray, "t ..."],
        outputs: int,
    ) -> dict[str, float]:
        values = regression_baseline(y_train, y_test)
        # The metric "loss" is the loss that the model is trained with.
        if self.function != squared_error:
            del values["loss"]
        return values

    def describe(self, outputs: int) -> str:
        return "a regression"


def predictions_and_targets(
    outputs: Float[Array, "b ..."], y: Shaped[Array, "b ..."]
) -> tuple[Float[Array, "b targets"], Float[Array, "b targets"]]:
    """Both as [b, targets], in the precision of the outputs.

    Raises:
        ValueError: an example's outputs and targets differ in number.
    """
    _require_match(outputs, y)
    predictions = outputs.reshape(len(outputs), -1)
    targets = y.astype(outputs.dtype)
    return predictions, targets.reshape(len(outputs), -1)


def _require_match(outputs: Float[Array, "b ..."], y: Shaped[Array, "b ..."]) -> None:
    """Refuse outputs and targets of examples that differ in number."""
    if outputs.size != y.size:
        raise ValueError(
            f"outputs {outputs.shape} do not match targets {y.shape}; bind the model"
            " with matching outputs"
        )


def regression_baseline(
    y_train: Shaped[np.ndarray, "n ..."], y_test: Shaped[np.ndarray, "t ..."]
) -> dict[str, float]:
    """The metrics of a regression that predicts the mean of one client's training targets
    for every input.

    Returns:
        name -> `Metric.result` of such a model, where `loss` is `squared_error`. All are
        NaN without training or test samples. `r2` is 0 or less, or NaN if a test target
        is constant.
    """
    if not len(y_train) or not len(y_test):
        return dict.fromkeys(("rmse", "mae", "r2", "loss"), float("nan"))
    targets = np.asarray(y_test, np.float64).reshape(len(y_test), -1)
    train_targets = np.asarray(y_train, np.float64).reshape(len(y_train), -1)
    errors = targets - train_targets.mean(axis=0)
    mean_squared_errors = np.square(errors).mean(axis=0)
    variances = targets.var(axis=0)
    has_variance = bool((variances > 0).all())
    return {
        "rmse": float(np.sqrt(mean_squared_errors).mean()),
        "mae": float(np.abs(errors).mean()),
        "r2": float((1 - mean_squared_errors / variances).mean())
        if has_variance
        else float("nan"),
        "loss": float(mean_squared_errors.sum()),
    }

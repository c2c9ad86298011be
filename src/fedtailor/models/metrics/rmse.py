"""The root of the mean squared error."""

import math
from typing import ClassVar, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped
from numpy.typing import NDArray

from fedtailor.models import Model
from fedtailor.models.metrics.metric import Metric, Statistic, mean
from fedtailor.models.tasks import Regression
from fedtailor.models.tasks.regression import predictions_and_targets


class RMSE(Metric):
    """Root of the mean squared error, in the target's unit; for several targets, the mean
    over targets. NaN without samples.

    As `sklearn.metrics.root_mean_squared_error`.

    Example:
        >>> from fedtailor.models.metrics import RMSE
        >>> metric = RMSE()
        >>> metric.name, metric.higher_is_better
        ('rmse', False)
    """

    name: ClassVar[str] = "rmse"
    title: ClassVar[str] = "RMSE"
    unit: ClassVar[Literal["%", "", "target"]] = "target"
    higher_is_better: ClassVar[bool] = False
    tasks = (Regression,)

    def limits(self) -> tuple[float, float]:
        return 0.0, math.inf

    def statistic(
        self,
        model: Model,
        outputs: Float[Array, "b ..."],
        y: Shaped[Array, "b ..."],
        weight: Float[Array, " b"],
    ) -> dict[str, Array]:
        predicted, target = predictions_and_targets(outputs, y)
        squares = jnp.square(predicted - target) * weight[:, None]
        return {"squares": squares.sum(axis=0), "count": weight.sum()}

    def result(self, statistic: Statistic) -> float:
        return float(np.sqrt(mean(statistic, "squares")).mean())

    def values_of_clients(self, statistic: Statistic) -> dict[str, NDArray[np.float64]]:
        return {self.name: np.sqrt(mean(statistic, "squares")).mean(axis=1)}

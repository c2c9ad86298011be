"""The mean absolute error."""

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


class MAE(Metric):
    """Mean absolute error, in the target's unit; for several targets, the mean over
    targets. NaN without samples.

    As `sklearn.metrics.mean_absolute_error`.

    Example:
        >>> from fedtailor.models.metrics import MAE
        >>> metric = MAE()
        >>> metric.name, metric.higher_is_better
        ('mae', False)
    """

    name: ClassVar[str] = "mae"
    title: ClassVar[str] = "MAE"
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
        distances = jnp.abs(predicted - target) * weight[:, None]
        return {"distances": distances.sum(axis=0), "count": weight.sum()}

    def result(self, statistic: Statistic) -> float:
        return float(mean(statistic, "distances").mean())

    def values_of_clients(self, statistic: Statistic) -> dict[str, NDArray[np.float64]]:
        return {self.name: mean(statistic, "distances").mean(axis=1)}

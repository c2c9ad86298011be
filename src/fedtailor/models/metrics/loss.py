"""The mean of the loss that training minimises."""

from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped
from numpy.typing import NDArray

from fedtailor.models import Model
from fedtailor.models.metrics.metric import Metric, Statistic, mean
from fedtailor.models.tasks import Task


class Loss(Metric):
    """Mean of the model's own loss over samples, without penalties; NaN without
    samples.

    Example:
        >>> from fedtailor.models.metrics import Loss
        >>> metric = Loss()
        >>> metric.name, metric.higher_is_better
        ('loss', False)
    """

    name: ClassVar[str] = "loss"
    title: ClassVar[str] = "Loss"
    higher_is_better: ClassVar[bool] = False
    tasks = (Task,)

    def statistic(
        self,
        model: Model,
        outputs: Float[Array, "b ..."],
        y: Shaped[Array, "b ..."],
        weight: Float[Array, " b"],
    ) -> dict[str, Array]:
        return {
            "loss": jnp.vdot(model.losses(outputs, y, weight), weight),
            "count": weight.sum(),
        }

    def result(self, statistic: Statistic) -> float:
        return float(mean(statistic, "loss"))

    def values_of_clients(self, statistic: Statistic) -> dict[str, NDArray[np.float64]]:
        return {self.name: mean(statistic, "loss")}

"""The negative log-likelihood of the labels."""

import math
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from fedtailor.models import Model
from fedtailor.models.metrics.metric import Metric, Statistic, mean
from fedtailor.models.tasks import Classification, cross_entropy


class LogLoss(Metric):
    """Mean of -log p(label) in nats, independent of the loss that the model was trained
    with; NaN without samples.

    As `sklearn.metrics.log_loss`, but infinite if a label has probability 0.

    Example:
        >>> from fedtailor.models.metrics import LogLoss
        >>> metric = LogLoss()
        >>> metric.name, metric.higher_is_better
        ('log_loss', False)
    """

    name: ClassVar[str] = "log_loss"
    title: ClassVar[str] = "Log loss"
    higher_is_better: ClassVar[bool] = False
    tasks = (Classification,)

    def limits(self) -> tuple[float, float]:
        return 0.0, math.inf

    def statistic(
        self,
        model: Model,
        outputs: Float[Array, "b ..."],
        y: Shaped[Array, "b ..."],
        weight: Float[Array, " b"],
    ) -> dict[str, Array]:
        return {
            "loss": jnp.vdot(cross_entropy(outputs, y), weight),
            "count": weight.sum(),
        }

    def result(self, statistic: Statistic) -> float:
        return float(mean(statistic, "loss"))

"""Perplexity: the number of equally likely symbols that would be as hard to predict."""

import math
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from fedtailor.models import Model
from fedtailor.models.metrics.metric import Metric, Statistic, mean
from fedtailor.models.tasks import Classification, TokenCrossEntropy, cross_entropy


class Perplexity(Metric):
    """exp of the mean of -log p over tokens (not over sequences), or over the labels of a
    classification. NaN without tokens or labels.

    Example:
        >>> from fedtailor.models.metrics import Perplexity
        >>> metric = Perplexity()
        >>> metric.name, metric.higher_is_better
        ('perplexity', False)
    """

    name: ClassVar[str] = "perplexity"
    title: ClassVar[str] = "Perplexity"
    higher_is_better: ClassVar[bool] = False
    tasks = (TokenCrossEntropy, Classification)

    def limits(self) -> tuple[float, float]:
        return 0.0, math.inf

    def statistic(
        self,
        model: Model,
        outputs: Float[Array, "b ..."],
        y: Shaped[Array, "b ..."],
        weight: Float[Array, " b"],
    ) -> dict[str, Array]:
        losses = cross_entropy.function(outputs, y)
        weights = model.task.weights(y, weight)
        # Padding may have an infinite loss, and 0 times infinity is NaN.
        return {
            "loss": jnp.where(weights > 0, losses * weights, 0).sum(),
            "count": weights.sum(),
        }

    def result(self, statistic: Statistic) -> float:
        with np.errstate(over="ignore"):
            return float(np.exp(mean(statistic, "loss")))

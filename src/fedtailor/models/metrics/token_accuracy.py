"""The share of tokens that are predicted correctly."""

from typing import ClassVar, Literal

import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from fedtailor.models import Model
from fedtailor.models.metrics.metric import Metric, Statistic, mean
from fedtailor.models.tasks import TokenCrossEntropy


class TokenAccuracy(Metric):
    """Share of tokens predicted correctly, without padding; NaN without tokens.

    Example:
        >>> from fedtailor.models.metrics import TokenAccuracy
        >>> metric = TokenAccuracy()
        >>> metric.name, metric.higher_is_better
        ('token_accuracy', True)
    """

    name: ClassVar[str] = "token_accuracy"
    title: ClassVar[str] = "Accuracy per token"
    unit: ClassVar[Literal["%", "", "target"]] = "%"
    higher_is_better: ClassVar[bool] = True
    tasks = (TokenCrossEntropy,)

    def statistic(
        self,
        model: Model,
        outputs: Float[Array, "b ..."],
        y: Shaped[Array, "b ..."],
        weight: Float[Array, " b"],
    ) -> dict[str, Array]:
        weights = model.task.weights(y, weight)
        correct = jnp.argmax(outputs, axis=-1) == y
        return {"correct": (correct * weights).sum(), "count": weights.sum()}

    def result(self, statistic: Statistic) -> float:
        return float(mean(statistic, "correct"))

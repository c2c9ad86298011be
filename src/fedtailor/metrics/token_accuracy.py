"""The share of tokens that are predicted correctly."""

from typing import ClassVar, Literal

import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from fedtailor.metrics.metric import Metric, Statistic, is_sequence, mean
from fedtailor.metrics.tokens import token_weights
from fedtailor.models import Model


class TokenAccuracy(Metric):
    """Share of tokens predicted correctly, without padding; NaN without tokens."""

    name: ClassVar[str] = "token_accuracy"
    title: ClassVar[str] = "Accuracy per token"
    unit: ClassVar[Literal["%", "", "target"]] = "%"
    higher_is_better: ClassVar[bool] = True

    def applies(self, model: Model) -> bool:
        return is_sequence(model)

    def statistic(
        self,
        model: Model,
        outputs: Float[Array, "b ..."],
        y: Shaped[Array, "b ..."],
        weight: Float[Array, " b"],
    ) -> dict[str, Array]:
        weights = token_weights(model, y, weight)
        correct = jnp.argmax(outputs, axis=-1) == y
        return {"correct": (correct * weights).sum(), "count": weights.sum()}

    def result(self, statistic: Statistic) -> float:
        return float(mean(statistic, "correct"))

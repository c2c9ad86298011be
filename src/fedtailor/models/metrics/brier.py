"""The squared distance of predicted probabilities from the labels."""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from fedtailor.models import Model
from fedtailor.models.metrics.metric import Metric, Statistic, mean, one_hot
from fedtailor.models.tasks import Classification


class Brier(Metric):
    """Mean of sum_k (p_k - 1[y = k])^2 (Brier 1950), in [0, 2]; NaN without samples.

    For two classes it is half of this, (p_1 - y)^2 in [0, 1], as usual and as in
    `sklearn.metrics.brier_score_loss`.

    Example:
        >>> from fedtailor.models.metrics import Brier
        >>> metric = Brier()
        >>> metric.name, metric.higher_is_better
        ('brier', False)
    """

    name: ClassVar[str] = "brier"
    title: ClassVar[str] = "Brier score"
    higher_is_better: ClassVar[bool] = False
    tasks = (Classification,)

    def limits(self) -> tuple[float, float]:
        return 0.0, 2.0

    def statistic(
        self,
        model: Model,
        outputs: Float[Array, "b ..."],
        y: Shaped[Array, "b ..."],
        weight: Float[Array, " b"],
    ) -> dict[str, Array]:
        probabilities = jnp.exp(model.log_probabilities(outputs))
        labels = one_hot(y, model.outputs, weight)
        squares = jnp.square(probabilities - labels).sum(axis=-1)
        if model.outputs == 2:
            squares = squares / 2
        return {"squares": jnp.vdot(squares, weight), "count": weight.sum()}

    def result(self, statistic: Statistic) -> float:
        return float(mean(statistic, "squares"))

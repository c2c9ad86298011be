"""The share of samples whose highest score is the label's."""

from typing import ClassVar, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped
from numpy.typing import NDArray

from fedtailor.models import Model
from fedtailor.models.metrics.metric import Metric, Statistic, mean
from fedtailor.models.tasks import Classification


class Accuracy(Metric):
    """Share of samples that are classified correctly; NaN without samples.

    The prediction is the class with the highest score, the first one on ties.

    Example:
        >>> from fedtailor.models.metrics import Accuracy
        >>> metric = Accuracy()
        >>> metric.name, metric.higher_is_better
        ('accuracy', True)
    """

    name: ClassVar[str] = "accuracy"
    title: ClassVar[str] = "Accuracy"
    unit: ClassVar[Literal["%", "", "target"]] = "%"
    higher_is_better: ClassVar[bool] = True
    tasks = (Classification,)

    def statistic(
        self,
        model: Model,
        outputs: Float[Array, "b ..."],
        y: Shaped[Array, "b ..."],
        weight: Float[Array, " b"],
    ) -> dict[str, Array]:
        correct = model.correct(outputs, y).astype(weight.dtype)
        return {"correct": jnp.vdot(correct, weight), "count": weight.sum()}

    def result(self, statistic: Statistic) -> float:
        return float(mean(statistic, "correct"))

    def values_of_clients(self, statistic: Statistic) -> dict[str, NDArray[np.float64]]:
        return {self.name: mean(statistic, "correct")}

"""The confusion matrix: how often each class is predicted for each label."""

import math
from typing import ClassVar, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped
from numpy.typing import NDArray

from fedtailor.models import Model
from fedtailor.models.metrics.metric import Metric, Statistic, one_hot
from fedtailor.models.tasks import Classification


class Confusion(Metric):
    """Counts of (label, predicted class), as `sklearn.metrics.confusion_matrix`.

    `result` is the share of samples off the diagonal; NaN without samples. Every client
    sends classes^2 numbers.

    Example:
        >>> from fedtailor.models.metrics import Confusion
        >>> metric = Confusion()
        >>> metric.name, metric.higher_is_better
        ('confusion', False)
    """

    name: ClassVar[str] = "confusion"
    title: ClassVar[str] = "Confusion (share of errors)"
    unit: ClassVar[Literal["%", "", "target"]] = "%"
    higher_is_better: ClassVar[bool] = False
    tasks = (Classification,)

    def limits(self) -> tuple[float, float]:
        return 0.0, math.inf  # of counts

    def statistic(
        self,
        model: Model,
        outputs: Float[Array, "b ..."],
        y: Shaped[Array, "b ..."],
        weight: Float[Array, " b"],
    ) -> dict[str, Array]:
        predictions = one_hot(jnp.argmax(outputs, axis=-1), model.outputs, weight)
        labels = one_hot(y, model.outputs, weight) * weight[:, None]
        # [classes, classes]: how many samples have this label and that prediction
        return {"counts": labels.T @ predictions}

    def result(self, statistic: Statistic) -> float:
        counts = np.asarray(statistic["counts"], np.float64)
        total = counts.sum()
        return float(1 - np.trace(counts) / total) if total > 0 else float("nan")

    def matrix(self, statistic: Statistic) -> NDArray[np.int64]:
        """Samples [classes, classes]: rows are labels, columns predictions."""
        return np.rint(np.asarray(statistic["counts"])).astype(np.int64)

    def values(self, statistic: Statistic) -> dict[str, float]:
        """The share of errors, and the count of each cell that is not empty, as
        `confusion[label,predicted]`.
        """
        matrix = self.matrix(statistic)
        values = {self.name: self.result(statistic)}
        for label, predicted in np.argwhere(matrix > 0):
            count = matrix[label, predicted]
            values[f"{self.name}[{label},{predicted}]"] = float(count)
        return values

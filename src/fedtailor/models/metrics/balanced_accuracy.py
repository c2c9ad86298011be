"""Accuracy with equal weights for all classes."""

from typing import ClassVar, Literal

import numpy as np
from jaxtyping import Array, Float, Shaped

from fedtailor.models import Model
from fedtailor.models.metrics.classes import class_counts
from fedtailor.models.metrics.metric import Metric, Statistic, in_double
from fedtailor.models.tasks import Classification


class BalancedAccuracy(Metric):
    """Mean recall over the classes that have samples; NaN without samples.

    As `sklearn.metrics.balanced_accuracy_score`.

    Example:
        >>> from fedtailor.models.metrics import BalancedAccuracy
        >>> metric = BalancedAccuracy()
        >>> metric.name, metric.higher_is_better
        ('balanced_accuracy', True)
    """

    name: ClassVar[str] = "balanced_accuracy"
    title: ClassVar[str] = "Balanced accuracy"
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
        counts = class_counts(model, outputs, y, weight)
        return {"labelled": counts["labelled"], "hits": counts["hits"]}

    def result(self, statistic: Statistic) -> float:
        labelled, hits = in_double(statistic, "labelled", "hits")
        is_present = labelled > 0
        if not is_present.any():
            return float("nan")
        return float(np.mean(hits[is_present] / labelled[is_present]))

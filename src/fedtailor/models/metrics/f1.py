"""The harmonic mean of precision and recall."""

from typing import ClassVar, Literal

import numpy as np
from jaxtyping import Array, Float, Shaped

from fedtailor.models import Model
from fedtailor.models.metrics.classes import class_counts
from fedtailor.models.metrics.metric import Metric, Statistic, in_double
from fedtailor.models.tasks import Classification


class F1Macro(Metric):
    """Mean of F1 = 2 hits / (labelled + predicted) over the classes that are the label or
    the prediction of a sample; NaN without samples.

    As `sklearn.metrics.f1_score(average="macro")`.

    Example:
        >>> from fedtailor.models.metrics import F1Macro
        >>> metric = F1Macro()
        >>> metric.name, metric.higher_is_better
        ('f1_macro', True)
    """

    name: ClassVar[str] = "f1_macro"
    title: ClassVar[str] = "F1 (macro)"
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
        return {
            "hits": counts["hits"],
            "either": counts["labelled"] + counts["predicted"],
        }

    def result(self, statistic: Statistic) -> float:
        hits, total = in_double(statistic, "hits", "either")
        is_present = total > 0
        if not is_present.any():
            return float("nan")
        return float(np.mean(2 * hits[is_present] / total[is_present]))

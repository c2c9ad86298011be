"""The share of the targets' variance that a regression explains."""

import math
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from fedtailor.models import Model
from fedtailor.models.metrics.metric import Metric, Statistic, in_double
from fedtailor.models.tasks import Regression
from fedtailor.models.tasks.regression import predictions_and_targets


class R2(Metric):
    """Coefficient of determination, 1 - sum (y - f)^2 / sum (y - mean y)^2; with
    several targets, the mean over targets.

    As `sklearn.metrics.r2_score`, but NaN if a target is constant or there are fewer
    than two samples. The sum of squares about the mean is the difference of two sums,
    which in single precision has an error of about 1e-7 of the first one. Targets whose
    variance is less than 0.0003 of their mean square therefore count as constant:
    standardise such targets.

    Example:
        >>> from fedtailor.models.metrics import R2
        >>> metric = R2()
        >>> metric.name, metric.higher_is_better
        ('r2', True)
    """

    name: ClassVar[str] = "r2"
    title: ClassVar[str] = "R2"
    higher_is_better: ClassVar[bool] = True
    tasks = (Regression,)

    def limits(self) -> tuple[float, float]:
        return -math.inf, 1.0

    def statistic(
        self,
        model: Model,
        outputs: Float[Array, "b ..."],
        y: Shaped[Array, "b ..."],
        weight: Float[Array, " b"],
    ) -> dict[str, Array]:
        predicted, target = predictions_and_targets(outputs, y)
        weights = weight[:, None]
        return {
            "residual_squares": (jnp.square(predicted - target) * weights).sum(axis=0),
            "targets": (target * weights).sum(axis=0),
            "target_squares": (jnp.square(target) * weights).sum(axis=0),
            "count": weight.sum(),
        }

    def result(self, statistic: Statistic) -> float:
        count = float(np.asarray(statistic["count"], np.float64))
        if count < 2:
            return float("nan")
        residual, total, squares = in_double(
            statistic, "residual_squares", "targets", "target_squares"
        )
        # sum (y - mean y)^2 = sum y^2 - (sum y)^2 / n. A difference in less than half of
        # the digits may be a rounding error.
        deviation = squares - total**2 / count
        precision = np.finfo(np.asarray(statistic["target_squares"]).dtype).eps
        if not (deviation > np.sqrt(precision) * squares).all():
            return float("nan")
        return float((1 - residual / deviation).mean())

"""Expected calibration error: the distance of confidence from accuracy."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from fedtailor._base.choice import require_one_or_more
from fedtailor.models import Model
from fedtailor.models.metrics.metric import (
    Metric,
    Statistic,
    in_double,
    one_hot,
)
from fedtailor.models.tasks import Classification


@dataclass(frozen=True)
class CalibrationError(Metric):
    """Expected calibration error (Guo et al. 2017): mean over samples of |accuracy -
    confidence| of their bin.

    Confidence is the probability of the predicted class. The bins are equally wide,
    (k/bins, (k + 1)/bins]. NaN without samples. It is biased upwards if bins hold few
    samples.

    Attributes:
        bins: number of bins.

    Example:
        >>> from fedtailor.models.metrics import CalibrationError
        >>> metric = CalibrationError()
        >>> metric.name, metric.higher_is_better
        ('calibration_error', False)
    """

    name: ClassVar[str] = "calibration_error"
    title: ClassVar[str] = "Calibration error"
    unit: ClassVar[Literal["%", "", "target"]] = "%"
    higher_is_better: ClassVar[bool] = False
    tasks = (Classification,)

    bins: int = 15

    def __post_init__(self) -> None:
        require_one_or_more("bins", self.bins)

    def statistic(
        self,
        model: Model,
        outputs: Float[Array, "b ..."],
        y: Shaped[Array, "b ..."],
        weight: Float[Array, " b"],
    ) -> dict[str, Array]:
        confidence = jnp.exp(model.log_probabilities(outputs).max(axis=-1))
        # A confidence of exactly k / bins belongs to the lower of its two bins, and one
        # of 0 to the first bin.
        number = jnp.ceil(confidence * self.bins).astype(jnp.int32)
        index = jnp.clip(number - 1, 0, self.bins - 1)
        in_bin = one_hot(index, self.bins, weight)
        correct = model.correct(outputs, y).astype(weight.dtype)
        # A sum of products, as some accelerators would round the confidences to fewer
        # digits in a matrix product.
        return {
            "count": weight @ in_bin,
            "correct": (correct * weight) @ in_bin,
            "confidence": ((confidence * weight)[:, None] * in_bin).sum(axis=0),
        }

    def result(self, statistic: Statistic) -> float:
        count, correct, confidence = in_double(
            statistic, "count", "correct", "confidence"
        )
        if count.sum() == 0:
            return float("nan")
        # (count / total) |correct / count - confidence / count|, summed over bins, is
        # |correct - confidence| / total.
        return float(np.abs(correct - confidence).sum() / count.sum())

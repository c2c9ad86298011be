"""Brier's score of predicted survival, over time."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped
from numpy.typing import NDArray

from fedtailor.models import Model
from fedtailor.models.metrics.metric import Metric, Statistic, mean
from fedtailor.models.tasks import DiscreteTime
from fedtailor.models.tasks.times import integrated_brier


class IntegratedBrier(Metric):
    """The squared error of the predicted share without the event, averaged over time from
    the end of the first interval to that of the last (Graf et al. 1999).

    Rows weigh 1 / G(t), with G(t), the share of training rows that are not censored at
    their event, or at the time of the score for who lives longer. Ends of intervals at
    which no training row is under observation are left out; a client's mean is over its
    rows. With one end it is the score at that time.

    Example:
        >>> from fedtailor.models.metrics import IntegratedBrier
        >>> metric = IntegratedBrier()
        >>> metric.name, metric.higher_is_better
        ('integrated_brier', False)
    """

    name: ClassVar[str] = "integrated_brier"
    title: ClassVar[str] = "integrated Brier score"
    higher_is_better: ClassVar[bool] = False
    tasks = (DiscreteTime,)

    def applies(self, model: Model) -> bool:
        return super().applies(model) and len(_kept(model)) > 0

    def statistic(
        self,
        model: Model,
        outputs: Float[Array, "b ..."],
        y: Shaped[Array, "b ..."],
        weight: Float[Array, " b"],
    ) -> dict[str, Array]:
        task = model.task
        assert isinstance(task, DiscreteTime)
        kept = _kept(model)
        survival = jnp.exp(-jnp.cumsum(jax.nn.softplus(outputs), axis=1))[:, kept]
        ends = jnp.asarray(task.ends, outputs.dtype)[kept]
        time, event = y[:, :1].astype(outputs.dtype), y[:, 1:] > 0
        share = task.uncensored(y[:, 0].astype(outputs.dtype))[:, None]
        weight_had = jnp.where(share > 0, 1 / jnp.where(share > 0, share, 1), 0)
        had = (time <= ends) & event
        scores = jnp.where(had, survival**2 * weight_had, 0)
        scores += jnp.where(time > ends, (1 - survival) ** 2 / task.uncensored(ends), 0)
        # The server needs the ends as well, and gets them as means, too.
        return {
            "scores": weight @ scores,
            "ends": ends * weight.sum(),
            "count": weight.sum(),
        }

    def result(self, statistic: Statistic) -> float:
        scores, ends = mean(statistic, "scores"), mean(statistic, "ends")
        if len(ends) < 2 or not np.isfinite(scores).all():
            return float(scores.mean())
        return integrated_brier(ends, scores)


def _kept(model: Model) -> Int[NDArray, " kept"]:
    """The ends of intervals at which some training rows are under observation."""
    task = model.task
    if not isinstance(task, DiscreteTime) or task.censoring is None:
        return np.zeros(0, np.int64)
    place = np.searchsorted(task.grid, task.ends, side="left")
    shares = np.array(task.censoring)[np.minimum(place, len(task.censoring) - 1)]
    return np.flatnonzero(shares > 0)

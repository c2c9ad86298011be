"""Harrell's C-index, from histograms of times and risks."""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped
from numpy.typing import NDArray

from fedtailor.models import Model
from fedtailor.models.metrics.metric import Metric, Statistic, in_double
from fedtailor.models.tasks import Survival

BINS = 512
"""Bins of risks."""

LINEAR_RANGE, MAX_RISK = 0.01, 30.0
"""Bins are equally wide for risks up to the first, 3 % wide beyond it, up to the second."""


class CIndex(Metric):
    """The share of comparable pairs in which who had the event first had the higher risk
    (Harrell et al. 1982); ties in risk count half. NaN without a comparable pair.

    Times are told apart by the grid of the task, whose times come from the training rows,
    and risks by bins 3 % wide, so that the statistic is a sum: pairs within one interval
    of the grid are left out, and pairs within one bin of risk are ties. Decisions are made
    by the exact C-index of the test rows (`fedtailor.models.tasks.times.harrell`).

    Example:
        >>> from fedtailor.models.metrics import CIndex
        >>> metric = CIndex()
        >>> metric.name, metric.higher_is_better
        ('c_index', True)
    """

    name: ClassVar[str] = "c_index"
    title: ClassVar[str] = "C-index"
    higher_is_better: ClassVar[bool] = True
    tasks = (Survival,)

    def limits(self) -> tuple[float, float]:
        return (0.0, 1.0)

    def statistic(
        self,
        model: Model,
        outputs: Float[Array, "b ..."],
        y: Shaped[Array, "b ..."],
        weight: Float[Array, " b"],
    ) -> dict[str, Array]:
        task = model.task
        assert isinstance(task, Survival)
        return concordance_histograms(task, outputs, y, weight, weight)

    def condense(self, statistic: Mapping[str, Array]) -> Mapping[str, Array]:
        ranked, pairs = _pairs(statistic["events"], statistic["all"], jnp)
        return {"ranked": ranked, "pairs": pairs}

    def result(self, statistic: Statistic) -> float:
        return float(_share(statistic))

    def values_of_clients(self, statistic: Statistic) -> dict[str, NDArray[np.float64]]:
        return {self.name: _share(statistic)}


class UnoCIndex(CIndex):
    """Uno's C-index (Uno et al. 2011): as `CIndex`, but a pair weighs 1 / G(t)^2 with G(t),
    the share of training rows that are not censored at the time t of its event, so that
    it does not depend on who is censored. Pairs whose event is later than all training
    rows under observation are left out.

    Example:
        >>> from fedtailor.models.metrics import UnoCIndex
        >>> metric = UnoCIndex()
        >>> metric.name, metric.higher_is_better
        ('uno', True)
    """

    name: ClassVar[str] = "uno"
    title: ClassVar[str] = "Uno's C-index"

    def applies(self, model: Model) -> bool:
        task = model.task
        return super().applies(model) and getattr(task, "censoring", None) is not None

    def statistic(
        self,
        model: Model,
        outputs: Float[Array, "b ..."],
        y: Shaped[Array, "b ..."],
        weight: Float[Array, " b"],
    ) -> dict[str, Array]:
        task = model.task
        assert isinstance(task, Survival)
        share = task.uncensored(y[:, 0].astype(weight.dtype))
        of_event = jnp.where(share > 0, weight / jnp.where(share > 0, share, 1) ** 2, 0)
        return concordance_histograms(task, outputs, y, weight, of_event)


def concordance_histograms(
    task: Survival,
    outputs: Float[Array, "b ..."],
    y: Shaped[Array, "b ..."],
    weight: Float[Array, " b"],
    weight_of_event: Float[Array, " b"],
) -> dict[str, Array]:
    """Histograms [times, risks] of all rows, and of those with the event (traced).

    Args:
        task: has the risks, and the grid of times.
        outputs, y: of the model, and the targets.
        weight: 1 for a row, 0 for padding.
        weight_of_event: the weight of the pairs in which a row has the event.
    """
    risk = task.risk(outputs)
    grid = jnp.asarray(task.grid, outputs.dtype)
    time_bin = jnp.searchsorted(grid, y[:, 0], side="left")
    furthest = np.arcsinh(MAX_RISK / LINEAR_RANGE)
    place = (jnp.arcsinh(risk / LINEAR_RANGE) / furthest + 1) / 2 * BINS
    risk_bin = jnp.clip(jnp.nan_to_num(place), 0, BINS - 1).astype(jnp.int32)
    # NaN risks make the result NaN, so that a model that diverged is not chance.
    weight = jnp.where(jnp.isnan(risk), jnp.nan, weight)
    events = weight_of_event * (y[:, 1] > 0)
    empty = jnp.zeros((len(task.grid) + 1, BINS), weight.dtype)
    at = empty.at[time_bin, risk_bin]
    return {"all": at.add(weight), "events": at.add(events)}


def _pairs(events: Any, rows: Any, numpy: Any) -> tuple[Any, Any]:
    """The comparable pairs that are ranked rightly (ties half), and all of them.

    Args:
        events, rows: [..., times, risks] events, and all rows.
        numpy: the module of the arrays, `numpy` or `jax.numpy`.
    """
    # Rows of later times, by risk.
    later = numpy.flip(numpy.cumsum(numpy.flip(rows, -2), axis=-2), -2) - rows
    lower = numpy.cumsum(later, axis=-1) - later / 2
    ranked = (events * lower).sum(axis=(-2, -1))
    pairs = (events.sum(-1) * later.sum(-1)).sum(-1)
    return ranked, pairs


def _share(statistic: Statistic) -> NDArray[np.float64]:
    if "pairs" in statistic:
        ranked, pairs = in_double(statistic, "ranked", "pairs")
    else:
        events, rows = in_double(statistic, "events", "all")
        ranked, pairs = _pairs(events, rows, np)
    undefined = np.full(np.shape(pairs), np.nan)
    return np.divide(ranked, pairs, out=undefined, where=pairs != 0)

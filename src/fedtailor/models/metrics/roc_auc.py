"""The area under the receiver operating characteristic, from histograms of scores."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped
from numpy.typing import NDArray

from fedtailor.models import Model
from fedtailor.models.metrics.metric import (
    Metric,
    Statistic,
    in_double,
    one_hot,
)
from fedtailor.models.tasks import Classification

BINS = 1 << 14
"""The number of bins of the histogram for two classes. With more classes, twice as many
bins are divided among the classes.
"""
MIN_BINS = 512
"""The smallest number of bins for each class, with any number of classes."""
LINEAR_RANGE = 0.01
"""Bins are equally wide for log-odds up to this absolute value. Beyond it, their width is a
fixed fraction of the log-odds.
"""
MAX_LOG_ODDS = 1000.0
"""Log-odds beyond this absolute value are in the first or the last bin."""


class ROCAUC(Metric):
    """The probability that a sample of a class has a higher score than a sample of another
    class (ties count half).

    For two classes, the score is that of the second class. For more classes, the result
    is the mean over classes of one against the rest. Classes that no sample has, or that
    all samples have, are left out. The result is NaN if no class is left, as for a client
    whose test samples are all of one class. Otherwise it is as
    `sklearn.metrics.roc_auc_score(multi_class="ovr", average="macro")`.

    Samples are sorted into bins by their log-odds (0.15 % wide for two classes), so that
    the statistic is a sum. Two samples in the same bin count as a tie. The error of the
    area is therefore at most half the share of pairs (one of the class, one of the
    others) that are in the same bin, which `error_bound` computes. For scores that have
    a density of any scale from 0.01 to 100, the bound is below 0.001, and the error
    itself is much smaller, as errors of both signs cancel.

    Example:
        >>> from fedtailor.models.metrics import ROCAUC
        >>> metric = ROCAUC()
        >>> metric.name, metric.higher_is_better
        ('roc_auc', True)
    """

    name: ClassVar[str] = "roc_auc"
    title: ClassVar[str] = "ROC AUC"
    unit: ClassVar[Literal["%", "", "target"]] = "%"
    higher_is_better: ClassVar[bool] = True
    tasks = (Classification,)

    def applies(self, model: Model) -> bool:
        return super().applies(model) and model.outputs >= 2

    def statistic(
        self,
        model: Model,
        outputs: Float[Array, "b ..."],
        y: Shaped[Array, "b ..."],
        weight: Float[Array, " b"],
    ) -> dict[str, Array]:
        # Log-odds relative to those of chance, so that the typical scores of a model
        # lie around 0, where bins are narrow.
        odds = _log_odds(model.log_probabilities(outputs)) + math.log(model.outputs - 1)
        is_class = one_hot(y, model.outputs, weight)
        if model.outputs == 2:
            # One score is enough, as the log-odds of the first class are the negated ones
            # of the second.
            odds = odds[:, 1:]
            is_class = is_class[:, 1:]
        scores = odds.shape[1]
        bins = BINS if scores == 1 else max(2 * BINS // scores, MIN_BINS)
        # NaN scores make the area NaN, so that a model that has diverged does not look
        # like chance.
        weights = jnp.where(jnp.isnan(odds), jnp.nan, weight[:, None])
        score = jnp.broadcast_to(jnp.arange(scores), odds.shape)
        histogram = jnp.zeros((scores, bins), weight.dtype).at[score, _bin(odds, bins)]
        return {
            "of_class": histogram.add(weights * is_class),
            "of_others": histogram.add(weights * (1 - is_class)),
        }

    def condense(self, statistic: Mapping[str, Array]) -> Mapping[str, Array]:
        # Send two numbers for each class instead of two histograms of 64 KB.
        ordered, pairs = _pairs(statistic["of_class"], statistic["of_others"], jnp)
        return {"ordered": ordered, "pairs": pairs}

    def result(self, statistic: Statistic) -> float:
        return float(_mean_area(statistic))

    def values_of_clients(self, statistic: Statistic) -> dict[str, NDArray[np.float64]]:
        return {self.name: _mean_area(statistic)}

    def error_bound(self, statistic: Statistic) -> float:
        """An upper bound on the error of `result`; NaN if that is undefined.

        Args:
            statistic: the histograms of `statistic`, not condensed.
        """
        positives, negatives = _histograms(statistic)
        pairs = positives.sum(axis=1) * negatives.sum(axis=1)
        in_one_bin = (positives * negatives).sum(axis=1)
        is_defined = pairs != 0
        tie_shares = in_one_bin[is_defined] / pairs[is_defined]
        # A tie counts as one half, and the exact value of the pair is 0 or 1.
        return float(tie_shares.mean() / 2) if len(tie_shares) else float("nan")


def _log_odds(
    log_probabilities: Float[Array, "b classes"],
) -> Float[Array, "b classes"]:
    """log p - log(1 - p), accurate for probabilities near 0 and near 1."""
    classes = jnp.arange(log_probabilities.shape[-1])
    is_top = jnp.argmax(log_probabilities, axis=-1)[:, None] == classes
    # 1 - p loses all digits for a p near 1. Only the largest p can be near 1, and there
    # 1 - p is computed as the sum of the other probabilities.
    without_top = jnp.where(is_top, -jnp.inf, log_probabilities)
    top_complement = jax.nn.logsumexp(without_top, axis=-1)[:, None]
    # -1 is a placeholder for the largest one, whose result the last `where` does not use.
    not_top = jnp.where(is_top, -1.0, log_probabilities)
    complement = jnp.log1p(-jnp.exp(not_top))
    return log_probabilities - jnp.where(is_top, top_complement, complement)


def _bin(odds: Float[Array, "b scores"], bins: int) -> Int[Array, "b scores"]:
    """The bin of each score, by its inverse hyperbolic sine.

    Returns:
        0 to bins - 1. Bins are equally wide near 0; far from 0 their width is in
        proportion to the score (see `LINEAR_RANGE`).
    """
    max_arcsinh = math.asinh(MAX_LOG_ODDS / LINEAR_RANGE)
    position = (jnp.arcsinh(odds / LINEAR_RANGE) / max_arcsinh + 1) / 2 * bins
    return jnp.clip(jnp.nan_to_num(position), 0, bins - 1).astype(jnp.int32)


def _pairs(of_class: Any, of_others: Any, numpy: Any) -> tuple[Any, Any]:
    """Count the pairs of a sample of the class and one of the other classes.

    Args:
        of_class, of_others: [..., scores, bins] samples by score and bin.
        numpy: the module of the arrays, `numpy` or `jax.numpy`.

    Returns:
        The number of pairs [..., scores] in which the sample of the class has the higher
        score (ties count half), and the number of all pairs [..., scores].
    """
    # For each bin, the others in lower bins and half of those in the same bin.
    lower = numpy.cumsum(of_others, axis=-1) - of_others / 2
    ordered = (of_class * lower).sum(axis=-1)
    pairs = of_class.sum(axis=-1) * of_others.sum(axis=-1)
    return ordered, pairs


def _mean_area(statistic: Statistic) -> NDArray[np.float64]:
    """The mean over scores [...] of the areas below their curves; NaN if no score has a
    pair.
    """
    # The statistic is either condensed or still holds the histograms.
    if "pairs" in statistic:
        ordered, pairs = in_double(statistic, "ordered", "pairs")
    else:
        ordered, pairs = _pairs(*_histograms(statistic), np)
    # NaN is not 0, so that the area of a model that has diverged stays NaN.
    is_defined = pairs != 0
    areas = np.divide(ordered, pairs, out=np.zeros_like(pairs), where=is_defined)
    count = is_defined.sum(axis=-1)
    undefined = np.full(count.shape, np.nan)
    return np.divide(areas.sum(axis=-1), count, out=undefined, where=count > 0)


def _histograms(
    statistic: Statistic,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Samples by score and bin, of the class and of the others."""
    of_class, of_others = in_double(statistic, "of_class", "of_others")
    return of_class, of_others

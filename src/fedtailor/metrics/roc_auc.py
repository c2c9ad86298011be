"""The area under the receiver operating characteristic, from histograms of scores."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped
from numpy.typing import NDArray

from fedtailor.metrics.metric import (
    Metric,
    Statistic,
    in_double,
    is_classification,
    one_hot,
)
from fedtailor.models import Model

BINS = 1 << 14
"""Bins of the histogram of two classes. With more classes, twice as many bins are
divided among the classes.
"""
LEAST_BINS = 512
"""The fewest bins of a class, however many classes there are."""
FINEST = 0.01
"""Bins are equally wide for log-odds up to this size; beyond it, their width is a fixed
fraction of the log-odds.
"""
LARGEST = 1000.0
"""Log-odds beyond this are in the first or the last bin."""


class ROCAUC(Metric):
    """Probability that a sample of a class scores higher than one of another class
    (ties count half).

    Of two classes, the second one's score; of more, the mean over classes of one
    against the rest. Classes that no sample has, or all samples have, are left out; NaN
    where nothing is left, as for a client whose test samples are all of one class.
    Otherwise as `sklearn.metrics.roc_auc_score(multi_class="ovr", average="macro")`.

    Samples are sorted into bins by their log-odds (0.15 % wide for two classes), so
    that the statistic is a sum. Two samples in one bin count as a tie: the area is
    wrong by at most half the share of pairs (one of the class, one of the others) that
    share a bin, which `error_bound` computes. Of scores with a density, of any scale
    from 0.01 to 100, that is below 0.001; the error itself, whose signs cancel, is much
    smaller.
    """

    name: ClassVar[str] = "roc_auc"
    title: ClassVar[str] = "ROC AUC"
    unit: ClassVar[Literal["%", "", "target"]] = "%"
    higher_is_better: ClassVar[bool] = True

    def applies(self, model: Model) -> bool:
        return is_classification(model) and model.outputs >= 2

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
            # One score is enough: the log-odds of the first class are those of the
            # second, negated.
            odds = odds[:, 1:]
            is_class = is_class[:, 1:]
        scores = odds.shape[1]
        bins = BINS if scores == 1 else max(2 * BINS // scores, LEAST_BINS)
        # A model that has diverged must not look like chance: NaN scores make the area
        # NaN.
        weights = jnp.where(jnp.isnan(odds), jnp.nan, weight[:, None])
        score = jnp.broadcast_to(jnp.arange(scores), odds.shape)
        histogram = jnp.zeros((scores, bins), weight.dtype).at[score, _bin(odds, bins)]
        return {
            "of_class": histogram.add(weights * is_class),
            "of_others": histogram.add(weights * (1 - is_class)),
        }

    def condense(self, statistic: Mapping[str, Array]) -> Mapping[str, Array]:
        # Two numbers for each class instead of two histograms of 64 KB each.
        ordered, pairs = _pairs(statistic["of_class"], statistic["of_others"], jnp)
        return {"ordered": ordered, "pairs": pairs}

    def result(self, statistic: Statistic) -> float:
        return float(_mean_area(statistic))

    def values_of_clients(self, statistic: Statistic) -> dict[str, NDArray[np.float64]]:
        return {self.name: _mean_area(statistic)}

    def error_bound(self, statistic: Statistic) -> float:
        """An upper bound on how far `result` is from the exact area, which sorting the
        scores would give; NaN where it is undefined.

        Args:
            statistic: the histograms that `statistic` gives (not condensed).
        """
        positives, negatives = _histograms(statistic)
        pairs = positives.sum(axis=1) * negatives.sum(axis=1)
        in_one_bin = (positives * negatives).sum(axis=1)
        defined = pairs != 0
        tied = in_one_bin[defined] / pairs[defined]
        # A pair in one bin counts a half, where its exact value is 0 or 1.
        return float(tied.mean() / 2) if len(tied) else float("nan")


def _log_odds(
    log_probabilities: Float[Array, "b classes"],
) -> Float[Array, "b classes"]:
    """log p - log(1 - p), accurate for probabilities near 0 and near 1."""
    classes = jnp.arange(log_probabilities.shape[-1])
    is_top = jnp.argmax(log_probabilities, axis=-1)[:, None] == classes
    # 1 - p loses all digits for a p near 1. Only the largest p can be near 1, and there
    # 1 - p is computed as the sum of the other probabilities.
    others_of_top = jnp.where(is_top, -jnp.inf, log_probabilities)
    rest_of_top = jax.nn.logsumexp(others_of_top, axis=-1)[:, None]
    # -1 is a placeholder for the largest, which the last `where` does not use.
    below_top = jnp.where(is_top, -1.0, log_probabilities)
    rest_of_others = jnp.log1p(-jnp.exp(below_top))
    return log_probabilities - jnp.where(is_top, rest_of_top, rest_of_others)


def _bin(odds: Float[Array, "b scores"], bins: int) -> Int[Array, "b scores"]:
    """The bin of each score, by its inverse hyperbolic sine.

    Returns:
        0 to bins - 1: near 0 bins are equally wide, and far from it in proportion to
        the score (see `FINEST`).
    """
    largest = math.asinh(LARGEST / FINEST)
    position = (jnp.arcsinh(odds / FINEST) / largest + 1) / 2 * bins
    return jnp.clip(jnp.nan_to_num(position), 0, bins - 1).astype(jnp.int32)


def _pairs(of_class: Any, of_others: Any, numpy: Any) -> tuple[Any, Any]:
    """Pairs of a sample of the class and one of the others: those in the right order
    (ties count half), and all.

    Args:
        of_class, of_others: [..., scores, bins] samples by score and bin.
        numpy: the module of the arrays, `numpy` or `jax.numpy`.

    Returns:
        [..., scores] each.
    """
    # For each bin, the others in lower bins and half of those in the same bin.
    below = numpy.cumsum(of_others, axis=-1) - of_others / 2
    ordered = (of_class * below).sum(axis=-1)
    pairs = of_class.sum(axis=-1) * of_others.sum(axis=-1)
    return ordered, pairs


def _mean_area(statistic: Statistic) -> NDArray[np.float64]:
    """The mean over scores [...] of the areas below their curves; NaN where no score
    has a pair.
    """
    # The statistic is either condensed or still holds the histograms.
    if "pairs" in statistic:
        ordered, pairs = in_double(statistic, "ordered", "pairs")
    else:
        ordered, pairs = _pairs(*_histograms(statistic), np)
    defined = pairs != 0  # NaN is not 0: a model that has diverged stays NaN
    areas = np.divide(ordered, pairs, out=np.zeros_like(pairs), where=defined)
    count = defined.sum(axis=-1)
    undefined = np.full(count.shape, np.nan)
    return np.divide(areas.sum(axis=-1), count, out=undefined, where=count > 0)


def _histograms(
    statistic: Statistic,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Samples by score and bin, of the class and of the others."""
    of_class, of_others = in_double(statistic, "of_class", "of_others")
    return of_class, of_others

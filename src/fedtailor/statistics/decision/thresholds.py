"""Thresholds of two classes: chosen on some rows, measured on others."""

import re
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike, NDArray

from fedtailor._base.choice import require
from fedtailor.statistics.decision.intervals import Interval, wilson_interval

_ROUNDING = 1e-12
"""Shares that differ by less are equal: they are sums of weights."""


@dataclass(frozen=True)
class ThresholdRule:
    """What a threshold is chosen for.

    Attributes:
        kind: "f1", the threshold with the highest F1; "specificity", the lowest one that
            classifies this share of the negative rows as negative; "sensitivity", the
            highest one that classifies this share of the positive rows as positive.
        share: the share; NaN for F1.
    """

    kind: Literal["f1", "specificity", "sensitivity"]
    share: float = np.nan

    @classmethod
    def of(cls, text: str) -> "ThresholdRule":
        """Read "f1", "specificity=0.9" or "sensitivity=0.9".

        Raises:
            ValueError: the text is something else.
        """
        if text == "f1":
            return cls("f1")
        found = re.fullmatch(r"(specificity|sensitivity)=(0?\.\d+)", text)
        require(
            found is not None and float(found[2]) > 0,
            f"threshold is {text!r}; say f1, specificity=0.9 or sensitivity=0.9, with a"
            " share above 0 and below 1",
        )
        assert found is not None
        kind = "specificity" if found[1] == "specificity" else "sensitivity"
        return cls(kind, float(found[2]))


@dataclass(frozen=True)
class ThresholdMeasures:
    """How well a threshold separates rows of two classes.

    Attributes:
        sensitivity: the share of the positive rows that are classified as positive.
        specificity: the share of the negative rows that are classified as negative.
        f1: 2 TP / (2 TP + FP + FN).
        positives, negatives: numbers of rows.
    """

    sensitivity: Interval
    specificity: Interval
    f1: Interval
    positives: int
    negatives: int


def choose_threshold(
    scores: ArrayLike,
    is_positive: ArrayLike,
    rule: ThresholdRule,
    weights: ArrayLike | None = None,
) -> float:
    """The threshold that a rule chooses on rows: a row whose score is at least as high is
    classified as positive.

    It lies halfway between two neighbouring scores, so that rounding moves no row to the
    other side. Of thresholds with the same F1 the highest is chosen.

    Args:
        scores: [n] higher ones for the positive class.
        is_positive: [n] whether the row belongs to the positive class.
        rule: what to choose for.
        weights: [n] what each row counts, 0 or more; None = 1.

    Returns:
        The threshold: -inf if all rows are to be positive, inf if none is.

    Raises:
        ValueError: one of the classes has no row that counts.

    Example:
        >>> from fedtailor.statistics.decision.thresholds import ThresholdRule, choose_threshold
        >>> truth = [False, False, True, True]
        >>> choose_threshold([0.0, 2.0, 1.0, 3.0], truth, ThresholdRule("specificity", 0.9))
        2.5
    """
    values, positive, weight = _rows(scores, is_positive, weights)
    places, index = np.unique(values, return_inverse=True)
    # Threshold j classifies what is below places[j] as negative; the last one everything.
    below = [
        np.concatenate(
            [[0.0], np.cumsum(np.bincount(index, weight * rows, len(places)))]
        )
        for rows in (positive, ~positive)
    ]
    (fn, tn), (p, n) = below, (below[0][-1], below[1][-1])
    require(
        p > 0 and n > 0,
        "the rows for a threshold are all of one class; it needs rows of both",
    )
    if rule.kind == "specificity":
        chosen = np.flatnonzero(tn / n >= rule.share - _ROUNDING)[0]
    elif rule.kind == "sensitivity":
        chosen = np.flatnonzero(1 - fn / p >= rule.share - _ROUNDING)[-1]
    else:
        tp, fp = p - fn, n - tn
        f1 = 2 * tp / (2 * tp + fp + fn)
        chosen = np.flatnonzero(f1 >= f1.max() - _ROUNDING)[-1]
    ends = np.concatenate([[-np.inf], places, [np.inf]])
    if chosen in (0, len(places)):
        return float(ends[0] if chosen == 0 else ends[-1])
    return float((ends[chosen] + ends[chosen + 1]) / 2)


def measure_threshold(
    is_predicted: ArrayLike, is_positive: ArrayLike, weights: ArrayLike | None = None
) -> ThresholdMeasures:
    """Sensitivity, specificity and F1 of classified rows, with 95 % intervals.

    Intervals are Wilson's (1927). F1 is 2 J / (1 + J), where J is the share TP / (TP + FP
    + FN) of the rows that are positive or classified as positive, so its interval is that
    of J on its own scale. With weights, as many rows as have the same variance count:
    (sum w)^2 / sum w^2.

    Args:
        is_predicted: [n] whether the row is classified as positive.
        is_positive: [n] whether it belongs to the positive class.
        weights: [n] what each row counts; None = 1.

    Returns:
        NaN where there is no row.
    """
    predicted, positive, weight = _rows(is_predicted, is_positive, weights)
    hit = predicted.astype(bool)
    union = _share(hit & positive, hit | positive, weight)
    f1, low, high = (
        2 * share / (1 + share) for share in (union.estimate, union.low, union.high)
    )
    return ThresholdMeasures(
        _share(hit, positive, weight),
        _share(~hit, ~positive, weight),
        Interval(f1, low, high, np.nan),
        int(positive.sum()),
        int((~positive).sum()),
    )


def _rows(
    scores: ArrayLike, is_positive: ArrayLike, weights: ArrayLike | None
) -> tuple[Float[NDArray, " n"], Bool[NDArray, " n"], Float[NDArray, " n"]]:
    values = np.asarray(scores, np.float64)
    weight = np.ones(len(values)) if weights is None else np.asarray(weights)
    return values, np.asarray(is_positive, bool), weight.astype(np.float64)


def _share(
    part: Bool[NDArray, " n"], of: Bool[NDArray, " n"], weight: Float[NDArray, " n"]
) -> Interval:
    """The weighted share of some rows that are part, with Wilson's interval."""
    total, squares = weight[of].sum(), np.square(weight[of]).sum()
    if total == 0:
        return Interval(np.nan, np.nan, np.nan, np.nan)
    share = float(weight[of & part].sum() / total)
    return wilson_interval(share, float(total**2 / squares), 0.95)

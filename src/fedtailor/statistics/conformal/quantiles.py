"""Quantiles of conformity scores: of a client's own, and of the sum of histograms.

A score says how badly a prediction fits a row: 1 - p(true class), or |y - prediction|.
With n scores of rows that are exchangeable with a new one, the new score is at most the
ceil((n + 1) c)-th smallest with probability at least c (Vovk et al. 2005), and, without
ties, with probability ceil((n + 1) c) / (n + 1), which is at most c + 1 / (n + 1).
"""

import math

import numpy as np
from jaxtyping import Int
from numpy.typing import ArrayLike, NDArray

from fedtailor._base.choice import require

BINS = 1024
"""Bins of a histogram of scores that clients add up."""


def require_coverage(coverage: float) -> None:
    """Require 0 < coverage < 1.

    Raises:
        ValueError: it is another number.
    """
    require(
        0 < coverage < 1,
        f"coverage is {coverage}; it must be above 0 and below 1, such as 0.9",
    )


def conformal_rank(rows: int, coverage: float) -> int:
    """ceil((n + 1) c): which of n scores in ascending order is the threshold.

    It is n + 1, which no score has, if n rows are too few for this coverage.
    """
    require_coverage(coverage)
    # 0.9 * 10 is 9.000000000000002 on some machines, and nobody means 10.
    return math.ceil(round((rows + 1) * coverage, 9))


def covered_share(rows: int, coverage: float) -> float:
    """The probability with which a new row is covered, for scores without ties: at least
    c, and less than c + 1 / (n + 1).
    """
    return min(conformal_rank(rows, coverage) / (rows + 1), 1.0)


def quantile_of_scores(scores: ArrayLike, coverage: float) -> float:
    """The threshold of a client's own scores [n]; infinite if they are too few. A score
    that is NaN, of a model that diverged, is as bad as an infinite one.
    """
    values = np.sort(np.nan_to_num(scores, nan=np.inf, posinf=np.inf))
    rank = conformal_rank(len(values), coverage)
    return float(values[rank - 1]) if rank <= len(values) else math.inf


def score_counts(scores: ArrayLike) -> Int[np.ndarray, " bins"]:
    """The histogram of scores r >= 0 that clients may add up.

    Bins are equally wide in r / (1 + r), so that no client has to tell a largest score.
    Scores that are NaN or infinite are in the last one.
    """
    values = np.asarray(scores, np.float64)
    ends = np.ones_like(values)
    np.divide(values, 1 + values, out=ends, where=np.isfinite(values))
    place = np.floor(ends * BINS).astype(np.int64)
    return np.bincount(np.clip(place, 0, BINS - 1), minlength=BINS)


def quantile_of_counts(counts: Int[NDArray, " bins"], coverage: float) -> float:
    """The threshold by a sum of histograms: the upper end of the bin that holds the
    quantile, so that the coverage is not lower than by the scores themselves.

    Infinite if there are too few rows, or in the last bin, which has no upper end.
    """
    total = int(counts.sum())
    rank = conformal_rank(total, coverage)
    if rank > total:
        return math.inf
    upper = int(np.searchsorted(np.cumsum(counts), rank)) + 1
    return math.inf if upper == BINS else upper / (BINS - upper)


def scores_of_classes(losses: ArrayLike) -> NDArray[np.float64]:
    """1 - p(true class) of rows, from their logarithmic losses."""
    return -np.expm1(-np.asarray(losses, np.float64))

"""What an attack tells of training data: the numbers of a privacy audit, with intervals.

Scores say how much a row looks like one that was trained on; those of members are to be
higher than those of others. `area` and `rate_at` sum up an attack. `likelihood_ratios`
makes better scores of several trainings, and `epsilon_from_below` what canaries prove
about differential privacy.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike, NDArray

from fedtailor._base.choice import require

CONFIDENCE = 0.95

_SHARES = (0.1, 0.25, 0.5, 1.0)
"""The shares of the canaries that `epsilon_from_below` guesses about."""

_MIN_VARIANCE = 1e-12


@dataclass(frozen=True)
class Bounds:
    """A number with its interval of `CONFIDENCE`; NaN where there are no rows.

    Example:
        >>> from fedtailor.aggregation.accounting.audit import Bounds
        >>> Bounds(0.6, 0.5, 0.7).estimate
        0.6
    """

    estimate: float
    low: float
    high: float


_UNKNOWN = Bounds(np.nan, np.nan, np.nan)


def area(members: ArrayLike, others: ArrayLike) -> Bounds:
    """The area under the curve: the probability that a member's score is above another
    row's, where ties count half. 0.5 is guessing, and 1 tells every member.

    The interval is the fifth of Newcombe (2006), which holds for few rows and near 1: the
    values theta with (theta - estimate)^2 <= z^2 V(theta), where

        V = theta (1 - theta) / (m n) [1 + (N - 1) ((1 - theta)/(2 - theta) + theta/(1 + theta))]

    for m members, n others and N = (m + n) / 2.

    Args:
        members: scores [m] of rows that were trained on.
        others: scores [n] of rows that were not.

    Example:
        >>> from fedtailor.aggregation.accounting.audit import area
        >>> area([0.9, 0.8], [0.1, 0.85]).estimate
        0.75
    """
    from scipy import optimize, special, stats

    members, others = np.asarray(members, float), np.asarray(others, float)
    m, n = len(members), len(others)
    if not m or not n:
        return _UNKNOWN
    ranks = stats.rankdata(np.concatenate([members, others]))
    estimate = float((ranks[:m].sum() - m * (m + 1) / 2) / (m * n))
    z = special.ndtri(0.5 + CONFIDENCE / 2)
    mean_rows = (m + n) / 2

    def beyond(theta: float) -> float:
        spread = (1 - theta) / (2 - theta) + theta / (1 + theta)
        variance = theta * (1 - theta) / (m * n) * (1 + (mean_rows - 1) * spread)
        return (theta - estimate) ** 2 - z**2 * variance

    # `beyond` is below 0 at the estimate, and above it at 0 and 1. An estimate of 0 or 1
    # is itself a root, which is not the limit on the other side.
    inner = float(np.clip(estimate, 1e-9, 1 - 1e-9))
    low = (
        0.0
        if estimate == 0
        else optimize.root_scalar(beyond, bracket=(0.0, inner)).root
    )
    high = (
        1.0
        if estimate == 1
        else optimize.root_scalar(beyond, bracket=(inner, 1.0)).root
    )
    return Bounds(estimate, float(low), float(high))


def rate_at(members: ArrayLike, others: ArrayLike, fpr: float) -> Bounds:
    """The share of members that an attack tells if it may accuse a share `fpr` of the
    others falsely.

    The interval allows for both: order statistics of the others' scores that lie on both
    sides of the true threshold, and Clopper and Pearson's limits of the members' shares
    above them, each with half of the error. It holds for any distribution, and is wide
    for few rows: of fewer than about 4 / fpr others it reaches down to 0.

    Args:
        members: scores [m] of rows that were trained on.
        others: scores [n] of rows that were not.
        fpr: the false-positive rate.

    Example:
        >>> from fedtailor.aggregation.accounting.audit import rate_at
        >>> rate_at([3.0, 4.0], [1.0, 2.0], 0.1).estimate
        1.0
    """
    from scipy import stats

    members, others = np.asarray(members, float), np.asarray(others, float)
    m, n = len(members), len(others)
    if not m or not n:
        return _UNKNOWN
    descending = np.sort(others)[::-1]
    error = (1 - CONFIDENCE) / 4

    def threshold(accused: int) -> float:
        """The score of the first of the others that is not accused."""
        return -np.inf if accused >= n else float(descending[accused])

    def told(above: float) -> int:
        return int((members > above).sum())

    estimate = told(threshold(int(fpr * n))) / m
    # The number of others above the true threshold is binomial.
    fewest = int(stats.binom.ppf(error, n, fpr))
    most = int(stats.binom.ppf(1 - error, n, fpr))
    surely = told(np.inf if fewest == 0 else threshold(fewest - 1))
    at_most = told(threshold(most))
    low = 0.0 if surely == 0 else stats.beta.ppf(error, surely, m - surely + 1)
    high = 1.0 if at_most == m else stats.beta.ppf(1 - error, at_most + 1, m - at_most)
    return Bounds(estimate, float(min(low, estimate)), float(max(high, estimate)))


def likelihood_ratios(
    own: Float[np.ndarray, " rows"],
    shadows: Float[np.ndarray, "models rows"],
    inside: Bool[np.ndarray, "models rows"],
) -> Float[np.ndarray, " rows"]:
    """The scores of the likelihood-ratio attack (LiRA, Carlini et al. 2022), from few
    shadow models.

        log N(own; mean_in, var_in) - log N(own; mean_out, var_out)

    A row's means are over the shadow models that were trained with it, and without it. As
    the paper recommends for few models, the variances are common to all rows.

    Args:
        own: the score of each row by the audited model, such as the logit of the
            probability of its true class.
        shadows: its scores by the shadow models.
        inside: whether each shadow model was trained with the row.

    Raises:
        ValueError: a row is in all of the shadow models, or in none.

    Example:
        >>> from fedtailor.aggregation.accounting.audit import likelihood_ratios
        >>> shadows = np.array([[2.0, 0.0], [1.0, 1.0], [0.0, 3.0], [0.5, 2.0]])
        >>> inside = np.array([[True, False], [True, False], [False, True], [False, True]])
        >>> likelihood_ratios(np.array([1.6, 0.6]), shadows, inside).round(2)
        array([ 2.24, -4.33])
    """
    own, shadows = np.asarray(own, float), np.asarray(shadows, float)
    mean_in, var_in = _of_group(shadows, inside)
    mean_out, var_out = _of_group(shadows, ~inside)
    return _log_density(own, mean_in, var_in) - _log_density(own, mean_out, var_out)


def _of_group(
    shadows: NDArray[np.float64], chosen: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], float]:
    """The mean of each row over some of the models, and the common variance."""
    count = chosen.sum(axis=0)
    require(
        bool((count > 0).all()),
        "each row needs a shadow model that was trained with it, and one without it:"
        " train more shadow models",
    )
    means = np.where(chosen, shadows, 0.0).sum(axis=0) / count
    residuals = np.where(chosen, shadows - means, 0.0)
    freedom = max(int(count.sum()) - len(count), 1)
    return means, max(float((residuals**2).sum()) / freedom, _MIN_VARIANCE)


def _log_density(
    value: NDArray[np.float64], mean: NDArray[np.float64], variance: float
) -> NDArray[np.float64]:
    return -0.5 * np.log(2 * np.pi * variance) - (value - mean) ** 2 / (2 * variance)


def epsilon_from_below(
    scores: ArrayLike, members: ArrayLike, *, delta: float = 0.0
) -> float:
    """The largest epsilon that one training with canaries refutes, with `CONFIDENCE`
    (Steinke, Nasr and Jagielski 2023, theorem 5.2).

    Each canary was trained on with probability 1/2, independently. The auditor guesses
    that those of the highest scores were, that those of the lowest were not, and says
    nothing about the others. If training is (epsilon, delta)-private, the number of
    right guesses of r is, but for delta, at most binomial with e^epsilon / (1 + e^epsilon).
    The numbers of guesses are fixed shares of the canaries, and the bound is the best of
    them, each at its part of the level.

    Args:
        scores: [m] of the canaries.
        members: [m] whether each was trained on.
        delta: of the promise.

    Returns:
        epsilon, 0 or more. The training is not (epsilon', delta)-private for any epsilon'
        below it, unless an event of probability 1 - `CONFIDENCE` has happened.

    Example:
        >>> from fedtailor.aggregation.accounting.audit import epsilon_from_below
        >>> members = np.arange(100) < 50
        >>> round(epsilon_from_below(-np.arange(100.0), members), 2)
        3.11
    """
    scores, members = np.asarray(scores, float), np.asarray(members, bool)
    m = len(scores)
    level = (1 - CONFIDENCE) / len(_SHARES)
    # Canaries of equal scores are no evidence: they are put in an order that knows
    # nothing of membership.
    order = np.lexsort((np.random.default_rng(0).permutation(m), scores))
    best = 0.0
    for share in _SHARES:
        half = int(share * m / 2)
        if half == 0:
            continue
        right = int(members[order[-half:]].sum() + (~members[order[:half]]).sum())
        best = max(best, _refuted(2 * half, right, m, level, delta))
    return best


def _refuted(guesses: int, right: int, m: int, level: float, delta: float) -> float:
    """The largest epsilon under which so many right guesses are less probable than
    `level`.
    """
    from scipy import optimize

    def excess(epsilon: float) -> float:
        return level - _probability(guesses, right, m, epsilon, delta)

    if excess(0.0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0 and high < 64:
        high *= 2
    return (
        high
        if excess(high) > 0
        else float(optimize.root_scalar(excess, bracket=(0.0, high)).root)
    )


def _probability(
    guesses: int, right: int, m: int, epsilon: float, delta: float
) -> float:
    """The bound of theorem 5.2 on the probability of `right` or more right guesses.

    beta + 2 m delta max_i (P[right - i <= W < right] / i),    W ~ Bin(guesses, p)
    """
    from scipy import stats

    p = 1 / (1 + np.exp(-epsilon))
    beta = float(stats.binom.sf(right - 1, guesses, p))
    if delta == 0 or right == 0:
        return min(beta, 1.0)
    i = np.arange(1, right + 1)
    below = stats.binom.sf(right - i - 1, guesses, p) - beta
    return min(beta + 2 * m * delta * float((below / i).max()), 1.0)

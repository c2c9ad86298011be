"""Bracketing of a setting: a grid is extended until its best value lies inside.

A grid of two learning rates has its best one at an edge, always. The rates beyond that
edge are tried as well, each as far from its neighbour as the values of the grid are
from each other, until the best rate has neighbours on both sides.
"""

import math
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from fedtailor.lab.experiments.experiment import Candidate

MAX_EXTENSIONS = 4
"""The most values that are added to one grid."""
TOLERANCE = 1e-3
"""Values whose mean scores differ by less than this share are equally good."""
CONFIDENCE = 0.95
"""Values are told apart if an interval of this level around their mean difference over
clients excludes 0.
"""

Scores = Mapping[float, NDArray[np.float64] | None]
"""Value of the setting -> the validation scores [clients], higher is better; None if it
failed. The first value is the one that is expected to be good.
"""


def best_value(scores: Scores) -> float | None:
    """The best value of a setting, as far as validation data tell values apart.

    A learning rate that stops short of the optimum, or never comes to rest, may be ahead
    on a few validation rows by chance. So the first value stays the best unless another
    one has a higher mean over clients by more than chance explains (Student's interval
    of the clients' differences) and by more than 0.1 %. Then it is the one nearest to
    the first value that is not told apart from the one with the highest mean.

    Returns:
        The value; None if all of them failed.
    """
    known = {value: score for value, score in scores.items() if score is not None}
    if not known:
        return None
    top = max(known.values(), key=lambda score: score.mean())
    first = next(iter(scores))
    nearest = sorted(known, key=lambda value: abs(math.log(value / first)))
    return next(value for value in nearest if not _is_better(top, known[value]))


def _is_better(top: NDArray[np.float64], score: NDArray[np.float64]) -> bool:
    """Whether the first scores [clients] are higher by more than chance explains."""
    # SciPy is imported late, as it takes long.
    from scipy import stats

    differences = top - score
    clients = len(differences)
    if differences.mean() <= TOLERANCE * abs(top.mean()) or clients < 2:
        return False
    error = float(differences.std(ddof=1)) / math.sqrt(clients)
    quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, clients - 1))
    return bool(differences.mean() > quantile * error)


def is_ahead(
    top: NDArray[np.float64] | None, score: NDArray[np.float64] | None
) -> bool:
    """Whether the first scores [clients] are higher by more than a standard error of
    their mean difference. None: the scores of a client are not known.
    """
    if top is None or score is None or len(top) != len(score) or len(top) < 2:
        return False
    differences = top - score
    error = float(differences.std(ddof=1)) / math.sqrt(len(differences))
    return bool(differences.mean() > error)


def next_value(scores: Scores) -> float | None:
    """The value to try next.

    Args:
        scores: two values or more, above 0. A value that failed is a neighbour like any
            other, as learning rates fail by being too large.

    Returns:
        A value beyond the edge at which the best one stands; None if it has neighbours
        on both sides. If all values failed, it is a smaller one.
    """
    values = sorted(scores)
    if len(values) < 2 or values[0] <= 0:
        return None
    best = best_value(scores)
    if best is None or best == values[0]:
        return _rounded(values[0] * values[0] / values[1])
    if best == values[-1]:
        return _rounded(values[-1] * values[-1] / values[-2])
    return None


def line_through(
    centre: Candidate, candidates: Iterable[Candidate], setting: str
) -> dict[float, Candidate]:
    """The candidates that differ from one of them in a single setting.

    Args:
        centre: that candidate.
        candidates: all candidates.
        setting: dotted name of the setting, whose values are numbers.

    Returns:
        The setting's value -> candidate.
    """
    others = _without(centre, setting)
    return {
        float(one.parameters[setting]): one
        for one in candidates
        if setting in one.parameters and _without(one, setting) == others
    }


def _without(candidate: Candidate, setting: str) -> dict[str, object]:
    parameters = candidate.parameters.items()
    return {name: value for name, value in parameters if name != setting}


def _rounded(value: float) -> float:
    """The value with two digits, as it is shown."""
    return float(f"{value:.1e}")

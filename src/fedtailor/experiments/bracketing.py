"""Bracketing of a setting: a grid is extended until its best value lies inside.

A grid of two learning rates has its best one at an edge, always. The rates beyond that
edge are tried as well, each as far from its neighbour as the values of the grid are
from each other, until the best rate has neighbours on both sides.
"""

from collections.abc import Mapping, Sequence

from fedtailor.experiments.experiment import Candidate

MAX_EXTENSIONS = 4
"""The most values that are added to one grid."""
TOLERANCE = 1e-3
"""Values whose scores differ by less than this share are equally good."""


def best_value(scores: Mapping[float, float | None]) -> float | None:
    """The largest of the best values of a setting.

    Trained to the optimum, several learning rates are equally good up to rounding; the
    largest one has made most progress.

    Args:
        scores: value -> validation score, higher is better; None if it failed.

    Returns:
        The value; None if all of them failed.
    """
    known = {value: score for value, score in scores.items() if score is not None}
    if not known:
        return None
    top = max(known.values())
    return max(
        value for value, score in known.items() if score >= top - TOLERANCE * abs(top)
    )


def next_value(scores: Mapping[float, float | None]) -> float | None:
    """The value to try next.

    Args:
        scores: see `best_value`; two values or more, above 0. A value that failed is a
            neighbour like any other, as learning rates fail by being too large.

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
    centre: Candidate,
    scored: Sequence[tuple[Candidate, float | None]],
    setting: str,
) -> dict[float, tuple[Candidate, float | None]]:
    """The candidates that differ from one of them in a single setting.

    Args:
        centre: that candidate.
        scored: all candidates with their scores.
        setting: dotted name of the setting, whose values are numbers.

    Returns:
        The setting's value -> candidate and score.
    """
    others = _without(centre, setting)
    return {
        float(one.parameters[setting]): (one, score)
        for one, score in scored
        if setting in one.parameters and _without(one, setting) == others
    }


def _without(candidate: Candidate, setting: str) -> dict[str, object]:
    parameters = candidate.parameters.items()
    return {name: value for name, value in parameters if name != setting}


def _rounded(value: float) -> float:
    """The value with two digits, as it is shown."""
    return float(f"{value:.1e}")

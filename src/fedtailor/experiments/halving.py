"""Successive halving: candidates are compared on validation data early, and only the
better ones go on.

K. Jamieson and A. Talwalkar, "Non-stochastic best arm identification and hyperparameter
optimization", AISTATS 2016. Here the candidates are all settings of all methods.
Settings of one method differ early, and methods late: the first cut leaves every method
its best setting, and only the later ones leave methods out. A method that is left out
still takes part in the decision, as it was then (`fedtailor.decision.best_method`). So
methods are left out all at once, and late, when their order is nearly that of the end.
"""

from collections.abc import Sequence
from math import floor

SHARES = (1 / 12, 3 / 8)
"""Of the rounds, after which candidates are cut. Of six methods with two settings each,
as a table of one's own is compared, this takes 12 (1/12) + 6 (3/8 - 1/12) + 2 (1 - 3/8)
= 4 whole runs of 12."""
FINALISTS = 2
"""How many methods are trained to the end, and on every seed: training alone, and the
one that is held against it.
"""


def cuts(rounds: int, every: int) -> list[int]:
    """After how many rounds candidates are compared: ascending, below `rounds`, and
    always after an evaluation.

    So a candidate that goes on leaves the same measurements as one that was never
    stopped.

    Args:
        rounds: of a whole run.
        every: rounds between two evaluations.
    """
    found = {max(floor(share * rounds / every), 1) * every for share in SHARES}
    return sorted(after for after in found if after < rounds)


def kept(methods: int, cuts: int) -> list[int]:
    """How many go on after each cut: one of each method, then in equal ratios down to
    `FINALISTS` (6: 6, 2).
    """
    least = min(FINALISTS, methods)
    powers = [cut / (cuts - 1) for cut in range(cuts)] if cuts > 1 else [1.0] * cuts
    # a little more than the quotient, which rounding may leave just below a whole
    # number
    return [
        max(floor(methods * (least / methods) ** power + 1e-9), least)
        for power in powers
    ]


def survivors(
    scores: Sequence[float | None],
    rows: Sequence[int],
    alone: Sequence[bool],
    keep: int,
) -> list[int]:
    """The places of the candidates that go on, ascending.

    The best setting of each of the best methods, and with them that of the method that
    trains every client alone, which takes the last place if need be: gains are measured
    against it.

    Args:
        scores: on validation data, higher is better; None for a candidate that diverged
            or was refused.
        rows: which row of the tables (a method) each is a setting of.
        alone: whether it trains every client alone.
        keep: how many.
    """
    ranked = sorted(
        (place for place, score in enumerate(scores) if score is not None),
        key=lambda it: -_of(scores, it),
    )
    first = {
        rows[place]: place for place in reversed(ranked)
    }  # the best one is put down last
    ranked = [place for place in ranked if first[rows[place]] == place]
    going = ranked[:keep]
    base = next((place for place in ranked if alone[place]), None)
    if base is not None and base not in going:
        going = [*going[: keep - 1], base]
    return sorted(going)


def _of(scores: Sequence[float | None], place: int) -> float:
    score = scores[place]
    assert score is not None
    return score

"""Successive halving: candidates are compared on validation data early, and only the better ones go on.

K. Jamieson and A. Talwalkar, "Non-stochastic best arm identification and hyperparameter optimization", AISTATS 2016.
Here the candidates are all settings of all methods; the number of rounds doubles from cut to cut.
"""

from collections.abc import Sequence
from math import floor

SHARES = (1 / 8, 1 / 4, 1 / 2)
"""Of the rounds, after which candidates are cut."""
FINALISTS = 2
"""How many methods are trained to the end."""


def cuts(rounds: int, every: int) -> list[int]:
    """After how many rounds candidates are compared: ascending, below `rounds`, and always after an evaluation.

    So a candidate that goes on leaves the same measurements as one that was never stopped.

    Args:
        rounds: of a whole run.
        every: rounds between two evaluations.
    """
    found = {max(floor(share * rounds / every), 1) * every for share in SHARES}
    return sorted(after for after in found if after < rounds)


def kept(candidates: int, cuts: int) -> list[int]:
    """How many go on after each cut: in equal ratios from all candidates down to `FINALISTS` (12: 6, 3, 2)."""
    least = min(FINALISTS, candidates)
    ratio = least / candidates
    # a little more than the quotient, which rounding may leave just below a whole number
    return [max(floor(candidates * ratio ** (cut / cuts) + 1e-9), least) for cut in range(1, cuts + 1)]


def survivors(
    scores: Sequence[float | None], rows: Sequence[int], alone: Sequence[bool], keep: int, *, one_a_row: bool = False
) -> list[int]:
    """The places of the candidates that go on, ascending.

    The best ones, and with them the best setting of the method that trains every client alone, which takes the last
    place if need be: gains are measured against it.

    Args:
        scores: on validation data, higher is better; None for a candidate that diverged or was refused.
        rows: which row of the tables (a method) each is a setting of.
        alone: whether it trains every client alone.
        keep: how many.
        one_a_row: whether only the best setting of a row goes on.
    """
    ranked = sorted((place for place, score in enumerate(scores) if score is not None), key=lambda it: -_of(scores, it))
    if one_a_row:
        first = {rows[place]: place for place in reversed(ranked)}  # the best one is put down last
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

"""Successive halving: candidates are compared early, and only the better ones go on.

They are compared on validation data. K. Jamieson and A. Talwalkar, "Non-stochastic best
arm identification and hyperparameter optimization", AISTATS 2016. Here the candidates
are all settings of all methods. Settings of one method differ early, and methods late:
the first cut leaves every method its best setting, and only the later ones leave
methods out. A method that is left out still takes part in the decision, as it was then
(`fedtailor.decision.best_method`). So methods are left out all at once, and late, when
their order is nearly that of the end.
"""

from collections.abc import Sequence
from math import floor

SHARES = (1 / 12, 3 / 8)
"""Of the rounds, after which candidates are cut.

Of six methods with two settings each, as a table of one's own is compared, this takes
12 (1/12) + 6 (3/8 - 1/12) + 2 (1 - 3/8) = 4 whole runs of 12.
"""
FINALISTS = 2
"""How many methods are trained to the end, and on every seed.

They are training alone, and the one that is held against it.
"""


def cuts(rounds: int, every: int) -> list[int]:
    """After how many rounds candidates are compared: ascending, below `rounds`.

    It is always after an evaluation: so a candidate that goes on leaves the same
    measurements as one that was never stopped.

    Args:
        rounds: of a whole run.
        every: rounds between two evaluations.
    """
    after_evaluations = {
        max(floor(share * rounds / every), 1) * every for share in SHARES
    }
    return sorted(cut for cut in after_evaluations if cut < rounds)


def kept(methods: int, cuts: int) -> list[int]:
    """How many methods go on after each cut, with their best setting.

    After the first cut all do, then they become fewer in equal ratios, down to
    `FINALISTS`: of 6 methods after 2 cuts 6 and 2.
    """
    least = min(FINALISTS, methods)
    # A single cut is the last one.
    powers = [cut / (cuts - 1) for cut in range(cuts)] if cuts > 1 else [1.0] * cuts
    counts = []
    for power in powers:
        # A little more than the quotient, which rounding may leave just below a whole
        # number.
        count = floor(methods * (least / methods) ** power + 1e-9)
        counts.append(max(count, least))
    return counts


def survivors(
    scores: Sequence[float | None],
    methods: Sequence[int],
    is_local: Sequence[bool],
    keep: int,
) -> list[int]:
    """Which candidates go on: the best setting of each of the best methods.

    The method that trains every client alone is always among them, in the last place if
    need be: gains are measured against it.

    Args:
        scores: on validation data, higher is better; None for a candidate that diverged
            or was refused.
        methods: the method that each candidate is a setting of, as a number.
        is_local: whether it trains every client alone.
        keep: how many go on.

    Returns:
        Their positions, ascending.
    """
    scored = [
        (score, position) for position, score in enumerate(scores) if score is not None
    ]
    # Ties go to the candidate that was listed first.
    scored.sort(key=lambda pair: (-pair[0], pair[1]))

    best_of_method: dict[int, int] = {}
    for _, position in scored:
        best_of_method.setdefault(methods[position], position)
    ranked = list(best_of_method.values())

    chosen = ranked[:keep]
    local = next((position for position in ranked if is_local[position]), None)
    if local is not None and local not in chosen:
        chosen = [*chosen[: keep - 1], local]
    return sorted(chosen)

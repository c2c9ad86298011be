"""Successive halving: compare candidates early, and continue to train only the best
ones.

K. Jamieson and A. Talwalkar, "Non-stochastic best arm identification and hyperparameter
optimization", AISTATS 2016. The candidates are all settings of all methods, and they
are compared on validation data. Settings of one method differ early, and methods differ
late. So the first cut keeps the best setting of every method, and only later cuts
eliminate methods. An eliminated method still takes part in the decision, with its
results at that time (`fedtailor.statistics.decision.best_method`). So methods are eliminated late,
when their order is nearly the final one.
"""

from collections.abc import Sequence
from math import floor

SHARES = (1 / 12, 3 / 8)
"""The cuts, as shares of the rounds.

For six methods with two settings each, the training takes 12 (1/12) + 6 (3/8 - 1/12) +
2 (1 - 3/8) = 4 full runs instead of 12.
"""
FINALISTS = 2
"""The number of methods that are trained to the end, on every seed: local training, and
the method that is compared with it.
"""


def cut_rounds(rounds: int, every: int) -> list[int]:
    """The rounds after which candidates are compared: ascending, and below `rounds`.

    There is an evaluation after each of these rounds. So a run that is stopped there
    and resumed has the same measurements as one that is not stopped.

    Args:
        rounds: number of rounds of a full run.
        every: number of rounds between two evaluations.
    """
    evaluated = {max(floor(share * rounds / every), 1) * every for share in SHARES}
    return sorted(cut for cut in evaluated if cut < rounds)


def methods_after_cuts(methods: int, cuts: int) -> list[int]:
    """The number of methods that remain after each cut.

    All methods remain after the first cut. Then their number decreases by equal ratios
    down to `FINALISTS`. For example, 6 methods and 2 cuts give 6 and 2.
    """
    last = min(FINALISTS, methods)
    # A single cut is the last one.
    powers = [cut / (cuts - 1) for cut in range(cuts)] if cuts > 1 else [1.0] * cuts
    # 1e-9: a rounding error may leave the product just below an integer.
    return [
        max(floor(methods * (last / methods) ** power + 1e-9), last) for power in powers
    ]


def select(
    scores: Sequence[float | None],
    methods: Sequence[int],
    is_local: Sequence[bool],
    keep: int,
) -> list[int]:
    """Select the best setting of each of the best methods.

    Local training is always selected, if necessary instead of the worst selected
    method, as other methods are compared with it.

    Args:
        scores: validation score of each candidate, higher is better; None if it
            diverged or was refused.
        methods: a number for the method of each candidate.
        is_local: whether each candidate is local training.
        keep: number of candidates to select.

    Returns:
        Indices of the selected candidates, ascending.
    """
    scored = [(score, index) for index, score in enumerate(scores) if score is not None]
    # Of equal scores, the first candidate is the best.
    scored.sort(key=lambda pair: (-pair[0], pair[1]))

    best_of_method: dict[int, int] = {}
    for _, index in scored:
        best_of_method.setdefault(methods[index], index)
    ranked = list(best_of_method.values())

    selected = ranked[:keep]
    local = next((index for index in ranked if is_local[index]), None)
    if local is not None and local not in selected:
        selected = [*selected[: keep - 1], local]
    return sorted(selected)

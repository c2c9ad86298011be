"""What each client gives: Shapley values, and the mean gain of the others."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import polars as pl
from jaxtyping import Float
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.statistics.decision.gains import find_score, holm, paired_rows
from fedtailor.statistics.decision.intervals import Interval, student_interval
from fedtailor.statistics.decision.paired import PairedRows, variance_over_seeds
from fedtailor.statistics.decision.row_scores import Score

MOST_EXACT = 8
"""The most clients whose Shapley values are computed from all coalitions."""


@dataclass(frozen=True)
class Hurt:
    """How many clients a method leaves worse off, and its mean gain.

    Attributes:
        method: the method.
        base: what it is compared with, such as the shared model.
        clients: number of clients that were compared.
        worse: of how many the gain is negative.
        shown: of how many its interval is below 0 after correction for all of them.
        mean_gain: the mean gain.

    Example:
        >>> from fedtailor.statistics.decision import Hurt
        >>> Hurt("fedavg", "local", clients=10, worse=2, shown=1, mean_gain=-0.1).worse
        2
    """

    method: str
    base: str
    clients: int
    worse: int
    shown: int
    mean_gain: float


def hurt_clients(gains: pl.DataFrame, method: str, base: str) -> Hurt:
    """Count the clients that a method hurts (Wu et al. 2022, Motley).

    Args:
        gains: what `client_gains` returned for this base.
        method: the method.
        base: the base of the gains; for the price of personalization, a shared model.

    Raises:
        ValueError: there are no gains by this method.

    Example:
        >>> from fedtailor.statistics.decision import client_gains, hurt_clients
        >>> hurt_clients(client_gains(rows), "fedavg", "local").worse
        0
    """
    of_method = gains.filter(pl.col("method") == method)
    require(len(of_method) > 0, f"there are no gains by {method!r}")
    p = holm(of_method["p"].to_numpy())
    is_worse = of_method["gain"].to_numpy() < 0
    mean_gain = of_method["gain"].mean()
    assert isinstance(mean_gain, float)
    return Hurt(
        method,
        base,
        len(of_method),
        int(is_worse.sum()),
        int((is_worse & (p < 0.05)).sum()),
        mean_gain,
    )


Coalition = frozenset[int]
Worth = Callable[[Coalition], Float[NDArray, " draws"]]
"""The worth of a coalition, in several draws (of seeds, of test rows)."""


def coalitions(players: int) -> list[Coalition]:
    """All coalitions, the empty one first, small ones before large ones."""
    return [
        frozenset(members)
        for size in range(players + 1)
        for members in combinations(range(players), size)
    ]


def shapley_values(players: int, worth: Worth) -> Float[NDArray, "players draws"]:
    """Shapley values from the worth of all coalitions (Shapley 1953).

        phi_i = sum_S |S|! (m - |S| - 1)! / m! (v(S + i) - v(S))

    They add up to v(all) - v(nobody). Each coalition's worth is asked for once.

    Example:
        >>> from fedtailor.statistics.decision import shapley_values
        >>> worth = lambda players: np.array([1.0 if 0 in players else 0.0])
        >>> shapley_values(2, worth)
        array([[1.],
               [0.]])
    """
    worths = {members: np.asarray(worth(members)) for members in coalitions(players)}
    values = np.zeros((players, *worths[frozenset()].shape))
    for members, value in worths.items():
        size = len(members)
        if size == players:
            continue
        weight = 1 / (players * math.comb(players - 1, size))
        for player in set(range(players)) - members:
            values[player] += weight * (worths[members | {player}] - value)
    return values


def sampled_shapley_values(
    players: int, worth: Worth, permutations: int, seed: int
) -> Float[NDArray, "permutations players"]:
    """What each player adds in random orders, whose mean is its Shapley value.

    Orders come in pairs, the second the reverse of the first (Mitchell et al. 2022),
    and an entry is the mean of a pair, so that entries are independent. Coalitions that
    occur again are not asked for again.

    Args:
        players: their number, m.
        worth: of coalitions; draws are averaged.
        permutations: the number of orders, an even one.
        seed: of the orders.

    Example:
        >>> from fedtailor.statistics.decision import sampled_shapley_values
        >>> worth = lambda players: np.array([1.0 if 0 in players else 0.0])
        >>> sampled_shapley_values(2, worth, permutations=4, seed=0).mean(axis=0)
        array([1., 0.])
    """
    require(
        permutations >= 4 and permutations % 2 == 0,
        f"{permutations} permutations; an even number of 4 or more is needed",
    )
    rng = np.random.default_rng(seed)
    known: dict[Coalition, float] = {}

    def worth_of(members: Coalition) -> float:
        if members not in known:
            known[members] = float(np.mean(worth(members)))
        return known[members]

    found = np.zeros((permutations // 2, players))
    for pair in found:
        order = rng.permutation(players)
        for direction in (order, order[::-1]):
            members: Coalition = frozenset()
            for player in direction.tolist():
                larger = members | {player}
                pair[player] += (worth_of(larger) - worth_of(members)) / 2
                members = larger
    return found


def mean_interval(
    values: Float[NDArray, " n"], confidence: float = 0.95, *, of: float = np.inf
) -> Interval:
    """Student's interval of the mean of independent values.

    Args:
        values: the values.
        confidence: the confidence level, in (0, 1).
        of: the size of the population of which they were drawn without replacement, whose
            mean is estimated. If all of it was drawn, its mean is known.

    Example:
        >>> from fedtailor.statistics.decision import mean_interval
        >>> found = mean_interval(np.array([1.0, 2.0, 3.0]))
        >>> round(found.low, 3), round(found.high, 3), round(found.p, 3)
        (-0.484, 4.484, 0.074)
    """
    count = len(values)
    variance = float(values.var(ddof=1)) / count if count > 1 else np.inf
    variance *= 1 - count / of
    return student_interval(
        float(values.mean()), [(variance, max(count - 1, 1))], confidence
    )


def mean_gains(
    rows: pl.DataFrame,
    base: str,
    metric: str | Score,
    *,
    confidence: float = 0.95,
    clients: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, Interval]:
    """The mean over clients of the gain by each method over a base.

    The clients are these, not a sample of others: the interval contains what other test
    rows of theirs might give and, with three seeds or more, what other seeds might.

    Args:
        rows: as for `client_gains`.
        base: the method to compare with.
        metric: as for `client_gains`.
        confidence: confidence level of the intervals.
        clients: of each method the clients that count; all by default.

    Returns:
        Method -> mean gain; a positive one means better.

    Example:
        >>> from fedtailor.statistics.decision import mean_gains
        >>> mean_gains(rows, "local", "accuracy")["fedavg"].estimate > 0
        True
    """
    score = find_score(metric)
    found = {}
    for method, pairs in paired_rows(rows, base, score).items():
        chosen = None if clients is None else clients[method]
        kept = {
            name: pair
            for name, pair in pairs.items()
            if chosen is None or name in chosen
        }
        found[method] = _mean_gain(kept, score, confidence)
    return found


def _mean_gain(
    pairs: Mapping[str, PairedRows], score: Score, confidence: float
) -> Interval:
    """The mean over the clients of one method."""
    count = len(pairs)
    if not count:
        return Interval(np.nan, np.nan, np.nan, np.nan)
    clients = list(pairs.values())
    # The mean is over gains in the metric itself: on the scale of differences a client
    # with small errors would outvote one with large errors. Variances are carried to
    # the metric by the slope at each client's difference.
    gains, slopes = np.empty(count), np.empty(count)
    for index, pair in enumerate(clients):
        value = float(pair.base_values.mean())
        gains[index] = score.gain(pair.center, value)
        slopes[index] = score.gain_slope(pair.center, value)
    by_seeds = variance_over_seeds(clients, slopes)
    by_client = [
        slope**2 * pair.row_variance if pair.degrees > 0 else np.inf
        for pair, slope in zip(clients, slopes, strict=True)
    ]
    parts = [
        (variance / count**2, pair.degrees)
        for variance, pair in zip(by_client, clients, strict=True)
    ]
    by_rows = sum(variance for variance, _ in parts)
    # Satterthwaite's degrees of freedom of a sum of variances.
    squares = sum(variance**2 / max(degrees, 1) for variance, degrees in parts)
    degrees = by_rows**2 / squares if 0 < squares < np.inf else 1
    # What seeds add is what the mean over clients varies by from seed to seed, luck that
    # all clients share included. A part of it is rows that another training answers
    # otherwise, which rows have determined as well: it counts once, and is taken from
    # them, as they have more degrees of freedom.
    components: list[tuple[float, int]] = []
    if by_seeds is not None:
        counted = sum(
            slope**2 * pair.between_seeds / len(pair.seeds)
            for slope, pair in zip(slopes, clients, strict=True)
        )
        by_rows -= min(counted / count**2, by_seeds[0], by_rows)
        components.append(by_seeds)
    components.append((by_rows, max(int(degrees), 1)))
    return student_interval(float(gains.mean()), components, confidence)

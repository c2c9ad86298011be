"""The best method over all clients, if these data can show one."""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedtailor.decision.gains import _require_columns, holm
from fedtailor.decision.intervals import LEAST_SEEDS, two_way_interval

NO_DIFFERENCE = "no difference that these data can show"


@dataclass(frozen=True)
class Winner:
    """The result of a comparison of methods over clients and seeds.

    Attributes:
        winner: the method that is better than every other one, or None.
        leader: the method with the best mean, which need not be shown to be best.
        unbeaten: methods that no other is shown to be better than, best mean first.
        means: method -> mean over clients and seeds after its last round, best first;
            methods that were left out last.
        pairs: one line for each pair: `method`, `other`, `difference` (of their metric;
            positive where `method` is the better one), its interval `low`, `high` (of
            this pair alone), `p`, `p_holm` (over all pairs).
        clients, seeds: how many there were.
        alpha: level of the tests.
    """

    winner: str | None
    leader: str
    unbeaten: tuple[str, ...]
    means: dict[str, float]
    pairs: pl.DataFrame
    clients: int
    seeds: int
    alpha: float = 0.05

    def verdict(self, method: str, other: str) -> str:
        """How a method compares with another one: "better", "worse" or "cannot tell"."""
        for pair in self.pairs.iter_rows(named=True):
            first, second = pair["method"], pair["other"]
            if {first, second} == {method, other} and pair["p_holm"] < self.alpha:
                first_is_better = pair["difference"] > 0
                return "better" if first_is_better == (first == method) else "worse"
        return "cannot tell"

    def sentence(self) -> str:
        """The decision in a sentence."""
        seeds = f"{self.seeds} seed{'s' if self.seeds > 1 else ''}"
        if self.seeds < LEAST_SEEDS:
            seeds += ", too few to speak of other seeds"
        over = f"over {self.clients} clients and {seeds}"
        if self.winner is not None:
            return f"{self.winner} is better than every other method, {over}."
        if len(self.unbeaten) == len(self.means):
            return (
                f"{NO_DIFFERENCE.capitalize()}, {over}; {self.leader} has the best"
                " mean."
            )
        return (
            f"No single winner, {over}: nothing is shown to be better than"
            f" {', '.join(self.unbeaten)}."
        )


def best_method(
    values: pl.DataFrame,
    *,
    higher_is_better: bool,
    alpha: float = 0.05,
    left_out: Collection[str] = (),
) -> Winner:
    """The method whose mean over clients is best, tested.

    For every pair of methods: is the expected difference of their metric, of a client
    and a seed drawn like the ones at hand, 0? `two_way_interval` says how: by Student's
    t on clients and seeds as clusters, not on client-seed pairs as if they were
    independent. A method wins if it is better than each other one at level alpha after
    Holm's correction over all pairs, so the chance of naming any false order among them
    is at most alpha; choosing the leader by the same test data is covered, since no
    pair is left out. Clients count the same, whatever their size, and are taken as a
    sample of clients: from a handful of them little can follow.

    A method that was left out early is compared with each other one as both were then:
    after the last round in which both were measured, so that nobody gains by having
    been trained for longer. What is said of it holds for that round. No pair is
    missing, and Holm's correction stays the same.

    Args:
        values: a line for each method, seed and client: columns `method`, `seed`,
            `client`, `value` (test data). Where methods were left out early, a line for
            each round, too, in the column `round`.
        higher_is_better: direction of the metric.
        alpha: level of the test.
        left_out: methods that were left out early, or on the other seeds. None of them
            is the leader: their means are those of fewer rounds or seeds.

    Returns:
        The winner, if there is one, and the tests of all pairs.

    Raises:
        ValueError: a column is missing, or there is no method, or a cell stands there
            twice, or two methods were never measured after the same round.
    """
    _require_values(values)
    if "round" not in values.columns:
        values = values.with_columns(round=pl.lit(0))
    methods = values["method"].unique(maintain_order=True).to_list()
    sign = 1.0 if higher_is_better else -1.0
    tables = _tables(values)
    # the rounds after which each method was measured, and its mean after the last one
    rounds: dict[str, set[int]] = {}
    means: dict[str, float] = {}
    for name in methods:
        rounds[name] = {after for after in tables if name in tables[after]}
        means[name] = _mean_over_clients(tables[max(rounds[name])][name])

    def rank(name: str) -> tuple[bool, bool, float]:
        # Methods without a mean come last, and before them those that were left out.
        return np.isnan(means[name]), name in left_out, -sign * means[name]

    best_first = sorted(methods, key=rank)
    # Every pair is compared after the last round in which both were measured.
    lines = []
    for one, other in combinations(best_first, 2):
        common_rounds = rounds[one] & rounds[other]
        if not common_rounds:
            raise ValueError(
                f"{one} and {other} were never measured after the same round; give one"
                " to compare them by"
            )
        table = tables[max(common_rounds)]
        interval = two_way_interval(sign * (table[one] - table[other]), 1 - alpha)
        lines.append(
            (one, other, interval.estimate, interval.low, interval.high, interval.p)
        )
    names = {"method": pl.String, "other": pl.String}
    numbers = dict.fromkeys(("difference", "low", "high", "p"), pl.Float64)
    pairs = pl.DataFrame(lines, schema=names | numbers, orient="row")
    p_holm = holm(pairs["p"].to_numpy())
    pairs = pairs.with_columns(p_holm=pl.Series(p_holm, dtype=pl.Float64))
    # Count how many others each method is shown to be better than.
    wins: Counter[str] = Counter()
    beaten: set[str] = set()
    for pair in pairs.filter(pl.col("p_holm") < alpha).iter_rows(named=True):
        better, worse = pair["method"], pair["other"]
        if pair["difference"] <= 0:
            better, worse = worse, better
        wins[better] += 1
        beaten.add(worse)
    others = len(methods) - 1
    beats_all = [name for name in best_first if others > 0 and wins[name] == others]
    measured = values.filter(
        pl.col("value").is_not_nan() & pl.col("value").is_not_null()
    )
    return Winner(
        winner=beats_all[0] if beats_all else None,
        leader=best_first[0],
        unbeaten=tuple(name for name in best_first if name not in beaten),
        means={name: means[name] for name in best_first},
        pairs=pairs,
        clients=measured["client"].n_unique(),
        seeds=measured["seed"].n_unique(),
        alpha=alpha,
    )


def _tables(values: pl.DataFrame) -> dict[int, dict[str, NDArray[np.float64]]]:
    """The values [seeds, clients] of every method: {round: {method: values}}."""
    tables = {}
    for (after,), part in values.group_by(["round"]):
        methods, table = dense_values(part)
        tables[after] = dict(zip(methods, table, strict=True))
    return tables


def dense_values(values: pl.DataFrame) -> tuple[list[str], NDArray[np.float64]]:
    """A table of values as an array.

    Args:
        values: a line for each method, seed and client: columns `method`, `seed`,
            `client`, `value`.

    Returns:
        The methods in the order of appearance, and their values [methods, seeds,
        clients] (seeds and clients sorted); NaN where there is none.

    Raises:
        ValueError: as `best_method`.
    """
    _require_values(values)
    methods = values["method"].unique(maintain_order=True).to_list()
    index = {method: number for number, method in enumerate(methods)}
    method = values["method"].replace_strict(index, return_dtype=pl.Int64).to_numpy()
    seeds, seed = np.unique(values["seed"].to_numpy(), return_inverse=True)
    clients, client = np.unique(values["client"].to_numpy(), return_inverse=True)
    shape = len(methods), len(seeds), len(clients)
    cell = np.ravel_multi_index((method, seed, client), shape)
    if len(np.unique(cell)) < len(cell):
        raise ValueError(
            "a method has two values for one client and seed; give the value after one"
            " round only"
        )
    table = np.full(shape, np.nan)
    table.ravel()[cell] = values["value"].cast(pl.Float64).to_numpy()
    return methods, table


def _require_values(values: pl.DataFrame) -> None:
    _require_columns(values, ("method", "seed", "client", "value"))
    if not len(values):
        raise ValueError(
            "there are no values to compare; give a line for each method, seed and"
            " client"
        )


def _mean_over_clients(values: NDArray[np.float64]) -> float:
    """The mean over clients of each one's mean over seeds; NaN without any value.

    Args:
        values: [seeds, clients], NaN where a client was not measured in a seed.
    """
    is_known = ~np.isnan(values)
    if not is_known.any():
        return np.nan
    seeds = is_known.any(axis=1)
    clients = is_known.any(axis=0)
    return float(np.nanmean(np.nanmean(values[seeds][:, clients], axis=0)))

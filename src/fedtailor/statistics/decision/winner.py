"""Tests which method is best over all clients."""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedtailor.statistics.decision.frames import Frame
from fedtailor.statistics.decision.gains import (
    dense_array,
    holm,
    require_columns,
    shrink,
)
from fedtailor.statistics.decision.intervals import (
    MIN_SEEDS,
    two_way_interval,
    two_way_variance,
)

NO_DIFFERENCE = "no difference that these data can show"


@dataclass(frozen=True)
class Winner:
    """The result of a comparison of methods over clients and seeds.

    Attributes:
        winner: `ahead`; None with fewer than `MIN_SEEDS` seeds, as what all clients owe to
            one seed (a lucky training or split) cannot be told from what they owe to
            the method.
        leader: the method with the best mean, significant or not.
        unbeaten: methods that no other method is significantly better than, in the
            order of their means.
        means: method -> mean over clients and seeds after its last round, best first.
            Methods that were left out early come last.
        pairs: one row for each pair of methods, with the columns `method`, `other`,
            `difference` (positive if `method` is better), `low` and `high` (the ends of
            the interval, for this pair alone), `p`, and `p_holm` (adjusted for all
            pairs).
        clients: number of clients.
        seeds: number of seeds.
        ahead: the method that is significantly better than every other one with these
            seeds, however few, or None.
        expected: mean that the leader should be expected to have on new test rows: the
            best of several means is too good by its choice (see `shrink`). NaN if there
            is nothing to tell it by.
        alpha: significance level of the tests.

    Example:
        >>> from fedtailor.statistics.decision import best_method
        >>> best_method(values, higher_is_better=True).means["fedavg"]
        0.81
    """

    winner: str | None
    leader: str
    unbeaten: tuple[str, ...]
    means: dict[str, float]
    pairs: Frame
    clients: int
    seeds: int
    ahead: str | None = None
    expected: float = np.nan
    alpha: float = 0.05

    def verdict(self, method: str, other: str) -> str:
        """Whether a method is "better" or "worse" than another, or "cannot tell"."""
        for pair in self.pairs.iter_rows(named=True):
            first, second = pair["method"], pair["other"]
            if {first, second} == {method, other} and pair["p_holm"] < self.alpha:
                first_is_better = pair["difference"] > 0
                return "better" if first_is_better == (first == method) else "worse"
        return "cannot tell"

    def beside(self, base: str) -> dict[str, str]:
        """Whether each other method is "better" or "worse" than one, or "cannot tell".

        Holm's correction is over these comparisons only: they answer one question
        (does sharing help?), which the pairs of the other methods have no part in.

        Args:
            base: the method that the others are compared with.
        """
        pairs = self.pairs.filter(
            (pl.col("method") == base) | (pl.col("other") == base)
        )
        p_holm = holm(pairs["p"].to_numpy())
        verdicts = dict.fromkeys((it for it in self.means if it != base), "cannot tell")
        for pair, p in zip(pairs.iter_rows(named=True), p_holm, strict=True):
            if p < self.alpha:
                base_is_better = (pair["difference"] > 0) == (pair["method"] == base)
                method = pair["other"] if pair["method"] == base else pair["method"]
                verdicts[method] = "worse" if base_is_better else "better"
        return verdicts

    def conclusion(self) -> str:
        """States the decision in one sentence."""
        seeds = f"{self.seeds} seed{'s' if self.seeds > 1 else ''}"
        if self.seeds < MIN_SEEDS:
            seeds += ", too few to speak of other seeds"
        over = f"over {self.clients} clients and {seeds}"
        if self.winner is not None:
            return f"{self.winner} is better than every other method, {over}."
        if self.ahead is not None and self.seeds < MIN_SEEDS:
            return (
                f"Open, {over}: {self.ahead} is better than every other method there;"
                f" {MIN_SEEDS} seeds tell whether it is elsewhere."
            )
        if len(self.unbeaten) == len(self.means):
            return (
                f"{NO_DIFFERENCE.capitalize()}, {over}; {self.leader} has the best"
                " mean."
            )
        first, *others = self.unbeaten
        if not others:
            return f"No single winner, {over}: no method is shown to be better than {first}."
        return f"No single winner, {over}: {', '.join(self.unbeaten)} cannot be told apart."


def best_method(
    values: pl.DataFrame,
    *,
    higher_is_better: bool,
    alpha: float = 0.05,
    left_out: Collection[str] = (),
) -> Winner:
    """Compares all pairs of methods over clients and seeds, and tests which is best.

    For each pair the null hypothesis is that the expected difference of their metric is
    0, for a client and a seed drawn from the same distribution as these. The test uses
    clients and seeds as crossed clusters (see `two_way_interval`), not client-seed
    pairs as if they were independent.

    A method wins if it is better than each other one at level alpha after Holm's
    correction over all pairs. The probability of any wrongly ordered pair is then at
    most alpha. Selecting the leader on the same test data is covered by the correction,
    since all pairs are tested. All clients have equal weight and count as a random
    sample of clients, so a handful of them rarely gives a significant result. With fewer
    than `MIN_SEEDS` seeds nothing wins.

    A method that was left out early is compared after the last round in which both
    methods of a pair were measured, so that no method profits from longer training.
    The result then holds for that round. All pairs are tested, so Holm's correction
    stays the same.

    Args:
        values: test values, one row for each method, seed and client, with the columns
            `method`, `seed`, `client` and `value`. If methods were left out early,
            there is one row for each round, too, and a column `round`.
        higher_is_better: direction of the metric.
        alpha: significance level.
        left_out: methods that were left out early, or not run on all seeds. None of
            them becomes the leader, because their means are over fewer rounds or seeds.

    Returns:
        The winner, or None if there is none, and the tests of all pairs.

    Raises:
        ValueError: a column is missing, there is no method, a value occurs twice, or
            two methods were never measured after the same round.

    Example:
        >>> from fedtailor.statistics.decision import best_method
        >>> winner = best_method(values, higher_is_better=True)
        >>> winner.leader
        'fedavg'
    """
    _require_values(values)
    if "round" not in values.columns:
        values = values.with_columns(round=pl.lit(0))
    methods = values["method"].unique(maintain_order=True).to_list()
    sign = 1.0 if higher_is_better else -1.0
    tables = _values_by_round(values)
    # The rounds after which each method was measured, and its mean after the last one.
    rounds: dict[str, set[int]] = {}
    means: dict[str, float] = {}
    for name in methods:
        rounds[name] = {
            round_number for round_number in tables if name in tables[round_number]
        }
        means[name] = _mean_over_clients(tables[max(rounds[name])][name])

    def sort_key(name: str) -> tuple[bool, bool, float]:
        # Methods that were left out come after the others, those without a mean last.
        return np.isnan(means[name]), name in left_out, -sign * means[name]

    ranking = sorted(methods, key=sort_key)
    # Compare each pair after the last round in which both methods were measured.
    records = []
    for first, other in combinations(ranking, 2):
        common_rounds = rounds[first] & rounds[other]
        if not common_rounds:
            raise ValueError(
                f"{first} and {other} were never measured after the same round; give"
                " one to compare them by"
            )
        table = tables[max(common_rounds)]
        interval = two_way_interval(sign * (table[first] - table[other]), 1 - alpha)
        records.append(
            (first, other, interval.estimate, interval.low, interval.high, interval.p)
        )
    name_columns = {"method": pl.String, "other": pl.String}
    test_columns = dict.fromkeys(("difference", "low", "high", "p"), pl.Float64)
    pairs = pl.DataFrame(records, schema=name_columns | test_columns, orient="row")
    p_holm = holm(pairs["p"].to_numpy())
    pairs = pairs.with_columns(p_holm=pl.Series(p_holm, dtype=pl.Float64))
    # Count how many other methods each method is significantly better than.
    wins: Counter[str] = Counter()
    beaten: set[str] = set()
    for pair in pairs.filter(pl.col("p_holm") < alpha).iter_rows(named=True):
        better, worse = pair["method"], pair["other"]
        if pair["difference"] <= 0:
            better, worse = worse, better
        wins[better] += 1
        beaten.add(worse)
    others = len(methods) - 1
    ahead = [name for name in ranking if others > 0 and wins[name] == others]
    # Two methods cannot both be better than all others.
    best = ahead[0] if ahead else None
    finite = values.filter(pl.col("value").is_not_nan() & pl.col("value").is_not_null())
    seeds = finite["seed"].n_unique()
    return Winner(
        winner=best if seeds >= MIN_SEEDS else None,
        ahead=best,
        leader=ranking[0],
        unbeaten=tuple(name for name in ranking if name not in beaten),
        means={name: means[name] for name in ranking},
        pairs=pairs,
        clients=finite["client"].n_unique(),
        seeds=seeds,
        expected=_expected_of_leader(
            [
                tables[max(rounds[name])][name]
                for name in ranking
                if name not in left_out
            ]
        ),
        alpha=alpha,
    )


def _expected_of_leader(tables: list[NDArray[np.float64]]) -> float:
    """The first method's mean, shrunk towards the mean of all methods.

    What all methods have in common (an easy client, a lucky split) is no reason to
    shrink: only the deviations from the methods' mean, and their variances over clients
    and seeds, count.

    Args:
        tables: of each method the values [seeds, clients], NaN where it has none.
    """
    values = np.array(tables)
    complete = np.isfinite(values).all(axis=0)
    if len(values) < 2 or not complete.any():
        return np.nan
    values = np.where(complete, values, np.nan)
    deviations = values - values.mean(axis=0)
    estimates = np.array([_mean_over_clients(table) for table in deviations])
    variances = np.array([two_way_variance(table) for table in deviations])
    if not np.isfinite(variances).all():
        return np.nan
    change = shrink(estimates, variances)[0] - estimates[0]
    return _mean_over_clients(tables[0]) + float(change)


def _values_by_round(values: pl.DataFrame) -> dict[int, dict[str, NDArray[np.float64]]]:
    """Groups the values by round: {round: {method: values [seeds, clients]}}."""
    tables = {}
    for (round_number,), round_values in values.group_by(["round"]):
        methods, table = dense_values(round_values)
        tables[round_number] = dict(zip(methods, table, strict=True))
    return tables


def dense_values(values: pl.DataFrame) -> tuple[list[str], NDArray[np.float64]]:
    """Converts a table of values to an array.

    Args:
        values: one row for each method, seed and client, with the columns `method`,
            `seed`, `client` and `value`.

    Returns:
        The methods in the order of appearance, and their values [methods, seeds,
        clients] with seeds and clients sorted, NaN where the table has no value.

    Raises:
        ValueError: a column is missing, there is no row, or a value occurs twice.
    """
    _require_values(values)
    methods = values["method"].unique(maintain_order=True).to_list()
    table, _ = dense_array(
        values,
        methods,
        "client",
        "value",
        "a method has two values for one client and seed; give the value after one"
        " round only",
    )
    return methods, table


def _require_values(values: pl.DataFrame) -> None:
    require_columns(values, ("method", "seed", "client", "value"))
    if not len(values):
        raise ValueError(
            "there are no values to compare; give a line for each method, seed and"
            " client"
        )


def _mean_over_clients(values: NDArray[np.float64]) -> float:
    """The mean over clients of their means over seeds; NaN without any value.

    Args:
        values: [seeds, clients], NaN where a client was not measured in a seed.
    """
    is_measured = ~np.isnan(values)
    if not is_measured.any():
        return np.nan
    seeds = is_measured.any(axis=1)
    clients = is_measured.any(axis=0)
    return float(np.nanmean(np.nanmean(values[seeds][:, clients], axis=0)))

"""Which clients' columns differ from all others', by the counts of a description."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add

import numpy as np
from jaxtyping import Int64
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.data.tables.description import CountNoise, Description, is_exact
from fedtailor.statistics.decision import holm

LEVEL = 0.05
"""Error probability of all sentences "this client differs" of a description together."""

MIN_EXPECTED = 5.0
"""Cells with fewer expected rows are put together before a chi-squared test."""


@dataclass(frozen=True)
class Drift:
    """How one client's column differs from that of all others together.

    Attributes:
        client, column: of which it is.
        moved: share of the client's rows that would have to be of another bin or
            category for its shares to be those of the others (total variation).
        by_chance: how much of that is expected if the rows of both came from one place.
        p: p-value of the chi-squared test that they do.
        differs: whether they do not, with an error probability of `LEVEL` for all
            sentences of the description together (Holm).
        here, there: mean of the client's numbers and of the others'; NaN for categories.
        missing_here, missing_there: shares of missing cells.
    """

    client: str
    column: str
    moved: float
    by_chance: float
    p: float
    differs: bool
    here: float
    there: float
    missing_here: float
    missing_there: float


def drifts(description: Description) -> list[Drift]:
    """How each client's columns differ from the others', the largest excess first.

    Raises:
        ValueError: there is one client only.
    """
    require(
        len(description.clients) > 1,
        "there is one client only, and nothing to compare it with",
    )
    entries = []
    for client in description.clients:
        others = [name for name in description.clients if name != client]
        for column in description.kinds:
            entry = _drift(description, client, others, column)
            if entry is not None:
                entries.append(entry)
    corrected = holm(np.array([entry.p for entry in entries]))
    judged = [
        replace(entry, differs=bool(p < LEVEL))
        for entry, p in zip(entries, corrected, strict=True)
    ]
    return sorted(
        judged, key=lambda entry: (not entry.differs, entry.by_chance - entry.moved)
    )


def _drift(
    description: Description, client: str, others: Sequence[str], column: str
) -> Drift | None:
    """The comparison of one column; None if a side has no rows."""
    cells = _bins if column in description.edges else _categories
    table, slack = cells(description, column, client, others)
    kept = table.sum(0) > 0
    table, slack = table[:, kept], slack[:, kept]
    rows = table.sum(1)
    if not rows.all():
        return None
    shares = table / rows[:, None]
    pooled = table.sum(0) / rows.sum()
    # E |difference| of two shares of one place is sqrt(2 / pi) of its deviation.
    deviation = np.sqrt(pooled * (1 - pooled) * (1 / rows).sum())
    sums = [description.sums[client][column]]
    sums.append(reduce(add, (description.sums[name][column] for name in others)))
    has_mean = description.kinds[column] != "category"
    means = [part.mean if has_mean and part.count else math.nan for part in sums]
    missing = [part.missing / (part.count + part.missing) for part in sums]
    return Drift(
        client,
        column,
        moved=float(np.abs(shares[0] - shares[1]).sum() / 2),
        by_chance=float(math.sqrt(2 / math.pi) * deviation.sum() / 2),
        p=chi_squared_p(table, slack, description.noise),
        differs=False,
        here=means[0],
        there=means[1],
        missing_here=missing[0],
        missing_there=missing[1],
    )


CellCounts = tuple[Int64[NDArray, "2 cells"], Int64[NDArray, "2 cells"]]
"""Rows of the client and of the others in each cell; and how many rows at most each count
may be off, as counts of few rows are hidden.
"""


def _bins(
    description: Description, column: str, client: str, others: Sequence[str]
) -> CellCounts:
    """The cells of a column of numbers: bins between edges that are exact at the client,
    and missing.
    """
    # Of numbers that few rows share bins have nine rows (`histogram_of`); 1 = exact.
    least = 2 * description.least - 1
    histograms = [description.histogram(column, [name]) for name in (client, *others)]
    own, rest = histograms[0], histograms[1:]
    edges = [edge for edge in range(len(own) - 1) if is_exact(own, edge, least)]
    starts = [0, *(edge + 1 for edge in edges)]
    counts = np.add.reduceat([own, np.sum(rest, 0)], starts, axis=1)
    inexact = [
        2
        * (least - 1)
        * sum(not is_exact(histogram, edge, least) for histogram in rest)
        for edge in edges
    ]
    slack = np.zeros_like(counts)
    slack[1] = np.add([0, *inexact], [*inexact, 0])
    missing, missing_slack = _missing(description, column, client, others)
    middle = int(np.searchsorted(starts, len(own) // 2, side="right")) - 1
    slack[:, middle] += missing_slack
    return (
        np.concatenate([counts, missing[:, None]], axis=1),
        np.concatenate([slack, missing_slack[:, None]], axis=1),
    )


def _categories(
    description: Description, column: str, client: str, others: Sequence[str]
) -> CellCounts:
    """The cells of any other column: categories, "other" and missing."""
    least = description.least
    parts = [description.categories(column, [name]) for name in (client, *others)]
    names = sorted({name for part in parts for name in part})
    counts = np.array([[part.get(name, 0) for name in names] for part in parts])
    # What is hidden is in the largest cell, or among others.
    hidden = (counts == 0) & (counts.sum(0) > 0)
    slack = np.where(hidden, least - 1, 0)
    largest = counts.argmax(1)
    slack[np.arange(len(counts)), largest] = (least - 1) * hidden.any(1)
    pairs = [np.stack([it[0], it[1:].sum(0)]) for it in (counts, slack)]
    return pairs[0], pairs[1]


def _missing(
    description: Description, column: str, client: str, others: Sequence[str]
) -> tuple[Int64[NDArray, " 2"], Int64[NDArray, " 2"]]:
    """Missing cells of both sides, and how many more there may be."""
    missing = np.array(
        [description.sums[name][column].missing for name in (client, *others)]
    )
    slack = np.where(missing == 0, description.least - 1, 0)
    return (
        np.array([missing[0], missing[1:].sum()]),
        np.array([slack[0], slack[1:].sum()]),
    )


def chi_squared_p(
    table: Int64[NDArray, "2 cells"],
    slack: Int64[NDArray, "2 cells"] | None = None,
    noise: CountNoise | None = None,
) -> float:
    """The p-value of the test that two rows of counts have the same shares.

    The statistic is the usual one, sum (p - q)^2 / (pooled share (1 / n + 1 / m)), whose
    variance grows by the square of what each share may be off, and by that of noise.
    Cells with few expected rows are put together, as the test needs `MIN_EXPECTED`.

    Args:
        table: rows of each cell on both sides.
        slack: how many rows at most each count may be off; None = all are exact.
        noise: noise on the counts of one side.

    Returns:
        The p-value; 1 if one cell is left.
    """
    from scipy import stats

    slack = np.zeros_like(table) if slack is None else slack
    rows = table.sum(1)
    order = np.argsort(-table.sum(0), kind="stable")
    table, slack = table[:, order], slack[:, order]
    # The smallest cells, which are the last ones, are put together until they are enough.
    expected = table.sum(0) * rows.min() / rows.sum()
    enough = int((expected >= MIN_EXPECTED).sum())
    if enough < len(expected):
        enough -= int(expected[enough:].sum() < MIN_EXPECTED)
        starts = list(range(max(enough, 0) + 1))
        table = np.add.reduceat(table, starts, axis=1)
        slack = np.add.reduceat(slack, starts, axis=1)
    if table.shape[1] < 2:
        return 1.0
    pooled = table.sum(0) / rows.sum()
    off = slack if noise is None else np.hypot(slack, noise.deviation)
    variance = pooled * (1 / rows).sum() + ((off / rows[:, None]) ** 2).sum(0)
    differences = table[0] / rows[0] - table[1] / rows[1]
    statistic = float((differences**2 / variance).sum())
    return float(stats.chi2.sf(statistic, table.shape[1] - 1))

"""A description of clients' tables, from counts and sums: no row of them is needed.

Each client sends `ColumnSums` of its columns. From their total follow the edges of one
histogram for each column of numbers, which all clients then count. Quantiles are read
from the histograms. What is compared between clients are shares of rows: in a bin, of a
category, missing.

A client of a federation of machines sends no count of fewer than `MIN_ROWS` rows: such a
bin is added to one nearer to the middle; what `sums` does with categories and missing
cells is like it. It sends nothing of two columns together. Of a table on one's own machine
nothing is hidden, and there are correlations.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Annotated

import numpy as np
import polars as pl
from jaxtyping import Int64
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from fedtailor._base.groups import MIN_ROWS
from fedtailor.data.tables.hiding import MAX_NAMES, shown, without_few_others
from fedtailor.data.tables.kinds import Kind
from fedtailor.data.tables.sums import ColumnSums, Count

BINS = 20
"""Number of bins of a histogram. The first and the last one have no outer edge."""

STEP = 0.25
"""Width of a bin in standard deviations, so that the inner edges lie within 2.25."""

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)

MAX_CORRELATED = 100
"""Of more columns there are no correlations."""

_ROUNDING = 1e-12
"""A smaller share of a sum of squares is rounding."""


class ClientCounts(BaseModel):
    """What a client counts once the edges are known.

    Attributes:
        histograms: rows in each bin, of columns of numbers and dates; and of a target of
            classes the rows of each class.
    """

    model_config = ConfigDict(
        strict=True, extra="forbid", allow_inf_nan=False, frozen=True
    )

    histograms: Annotated[
        dict[
            str, Annotated[tuple[Count, ...], Field(strict=False, max_length=MAX_NAMES)]
        ],
        Field(max_length=10_000),
    ]


class CountNoise(BaseModel):
    """Noise that every client has added to its counts.

    Attributes:
        epsilon, delta: what one row of a client changes, at most.
        deviation: standard deviation of the noise on a count.
    """

    model_config = ConfigDict(
        strict=True, extra="forbid", allow_inf_nan=False, frozen=True
    )

    epsilon: Annotated[float, Field(gt=0)]
    delta: Annotated[float, Field(gt=0, lt=1)]
    deviation: Annotated[float, Field(ge=0)]


@dataclass(frozen=True)
class Correlation:
    """The correlation of two columns over the rows of all clients.

    Attributes:
        first, second: the columns.
        r: Pearson's correlation. Missing cells count as the client's mean.
        low, high: 95 % interval (Fisher's transformation).
    """

    first: str
    second: str
    r: float
    low: float
    high: float


class Description(BaseModel):
    """Counts and sums of the tables of several clients.

    Attributes:
        kinds: kind of each column.
        rows: number of rows of each client.
        sums: client -> column -> its sums.
        edges: inner edges of the histogram of each column of numbers or dates.
        counts: client -> histograms.
        least: counts of fewer rows are hidden; 1 = none.
        noise: the noise on all counts; None without.
        quantiles: `QUANTILES` of each column of numbers or dates, from its cells; none
            where only counts are known.
        correlations: of each two columns that are not categories, the strongest first;
            none where counts are hidden.
    """

    model_config = ConfigDict(
        strict=True, extra="forbid", allow_inf_nan=False, frozen=True
    )

    kinds: dict[str, Kind]
    rows: dict[str, int]
    sums: dict[str, dict[str, ColumnSums]]
    edges: dict[str, Annotated[tuple[float, ...], Field(strict=False)]]
    counts: dict[str, ClientCounts]
    least: int = MIN_ROWS
    noise: CountNoise | None = None
    quantiles: dict[str, Annotated[tuple[float, ...], Field(strict=False)]] = Field(
        default_factory=dict
    )
    correlations: Annotated[tuple[Correlation, ...], Field(strict=False)] = ()

    @property
    def clients(self) -> tuple[str, ...]:
        """Names of the clients."""
        return tuple(self.rows)

    def total(self, column: str) -> ColumnSums:
        """The sums of a column over all clients."""
        return reduce(add, (self.sums[client][column] for client in self.clients))

    def histogram(
        self, column: str, clients: Sequence[str] | None = None
    ) -> Int64[NDArray, " bins"]:
        """Rows in each bin, over some clients (all by default)."""
        chosen = self.clients if clients is None else clients
        parts = [self.counts[client].histograms[column] for client in chosen]
        return np.sum(np.array(parts, np.int64), axis=0)

    def categories(self, column: str, clients: Sequence[str]) -> dict[str, int]:
        """Rows of some clients by their category, "other" or "missing"."""
        sums = reduce(add, (self.sums[client][column] for client in clients))
        counts = {"missing": sums.missing}
        if self.kinds[column] == "boolean":
            yes = round(sums.mean * sums.count)
            return counts | {"= yes": yes, "= no": sums.count - yes}
        named = {f"= {name}": rows for name, rows in sums.categories.items()}
        return counts | named | {"other": sums.rare}


def edges_of(sums: ColumnSums, kind: Kind) -> tuple[float, ...] | None:
    """The inner edges of a column's histogram; None for categories and booleans.

    They follow from mean and deviation over all clients, as the smallest and the largest
    number are those of single rows.
    """
    if kind not in ("number", "date") or not sums.count:
        return None
    steps = STEP * (np.arange(1, BINS) - BINS / 2)
    return tuple((sums.mean + sums.deviation * steps).tolist())


def even_edges(low: float, high: float) -> tuple[float, ...]:
    """Inner edges of bins of one width, for a range that was named beforehand."""
    return tuple(np.linspace(low, high, BINS + 1)[1:-1].tolist())


def histogram_of(
    values: pl.Series, edges: Sequence[float], least: int = MIN_ROWS
) -> tuple[int, ...]:
    """Rows in each bin.

    Args:
        values: numbers or dates, with null for missing ones.
        edges: the inner edges.
        least: the least rows of a group (see `hiding.shown`, and `without_few`).
    """
    numbers = shown(values, "number", least).drop_nulls().to_numpy()
    bins = np.searchsorted(edges, numbers, side="right")
    counts = np.bincount(bins, minlength=len(edges) + 1)
    _, rows = np.unique(numbers, return_counts=True)
    if (rows < least).any():
        # Eight of the rows are the outermost numbers of all, each of which counts twice.
        # Of fewer than nine in a bin it could follow how few are in the next.
        least = 2 * least - 1
    return tuple(without_few(counts, least).tolist())


def without_few(
    counts: Int64[NDArray, " bins"], least: int = MIN_ROWS
) -> Int64[NDArray, " bins"]:
    """Counts in order, of which none below `least` is shown, nor follows, not even 0.

    From both ends rows are carried towards the middle bin until they are enough. What is
    left there counts in the filled bin that is nearest to the middle, unless it is rows
    of several bins of which no part follows (2 least - 1). So does nothing at all: where a
    bin showed by its place that nobody is between two others, it is counted with the next.
    The other rows on the outer side of a bin that is shown, with the bin, are counted
    exactly (`is_exact`).
    """
    if least == 1:
        return counts
    shown, middle = np.zeros_like(counts), len(counts) // 2
    left = int(counts[middle])
    if counts.sum() < 2 * least - 1:
        # Eight rows of which neither side has enough to be shown are four and four, if the
        # middle bin is known to be empty.
        shown[middle] = counts.sum()
        return shown
    for side in (range(middle), range(len(counts) - 1, middle, -1)):
        held = 0
        for place in side:
            held += int(counts[place])
            if held >= least:
                shown[place], held = held, 0
        left += held
    if left >= 2 * least - 1:
        shown[middle] = left
        return shown
    for place in _from_the_middle(shown):
        left += int(shown[place])
        shown[place] = 0
        if left > least:
            shown[place] = left
            return shown
    shown[middle] = left
    return shown


def _from_the_middle(shown: Int64[NDArray, " bins"]) -> list[int]:
    """The filled bins, the nearest to the middle first."""
    filled = np.flatnonzero(shown).tolist()
    return sorted(filled, key=lambda place: (abs(place - len(shown) // 2), place))


def is_exact(shown: Int64[NDArray, " bins"], edge: int, least: int) -> bool:
    """Whether all rows below an edge are shown below it (see `without_few`).

    If not, at most 2 (least - 1) rows are on the other side.

    Args:
        shown: what `without_few` returns.
        edge: the edge between the bins `edge` and `edge + 1`.
        least: counts of fewer rows are hidden.
    """
    middle = len(shown) // 2
    outer = edge if edge < middle else edge + 1
    is_nearest = not shown[middle] and outer in _from_the_middle(shown)[:1]
    return least == 1 or (bool(shown[outer]) and not is_nearest)


def class_counts_of(
    codes: NDArray[np.integer], classes: int, least: int = MIN_ROWS
) -> tuple[int, ...]:
    """Rows of each class; those of classes of fewer rows count as the first other.

    See `hiding.shown`. If there is no other, all rows count as the first class.
    """
    counts = np.bincount(codes, minlength=classes)
    named = np.flatnonzero(counts >= least).tolist()
    cells = without_few_others(pl.Series(codes), named, least).fill_null(0)
    return tuple(np.bincount(cells.to_numpy(), minlength=classes).tolist())


def describe_columns(
    columns: Mapping[str, pl.Series],
    kinds: Mapping[str, Kind],
    owners: Mapping[str, NDArray[np.integer]],
    least: int = 1,
) -> Description:
    """Describe the columns of one table, whose rows belong to several clients.

    With `least` of `MIN_ROWS` the result is the same as if each client had sent its
    sums.

    Args:
        columns: parsed cells, with null for missing ones.
        kinds: kind of each column.
        owners: client -> its rows.
        least: counts of fewer rows are hidden; 1 = none.
    """
    sums = {
        client: {
            name: ColumnSums.of(values[rows], kinds[name], least=least)
            for name, values in columns.items()
        }
        for client, rows in owners.items()
    }
    pooled = {
        name: reduce(add, (of_client[name] for of_client in sums.values()))
        for name in columns
    }
    edges = all_edges(kinds, pooled)
    counts = {}
    for client, rows in owners.items():
        histograms = {
            name: histogram_of(columns[name][rows], inner, least)
            for name, inner in edges.items()
        }
        counts[client] = ClientCounts(histograms=histograms)
    is_own = least == 1
    return Description(
        kinds=dict(kinds),
        rows={client: len(rows) for client, rows in owners.items()},
        sums=sums,
        edges=edges,
        counts=counts,
        least=least,
        quantiles={name: _quantiles(columns[name]) for name in edges} if is_own else {},
        correlations=_correlations(columns, kinds, owners, pooled) if is_own else (),
    )


def _quantiles(values: pl.Series) -> tuple[float, ...]:
    """`QUANTILES` of the cells that are not missing."""
    present = values.drop_nulls().to_numpy()
    return tuple(np.quantile(present, QUANTILES).tolist())


def all_edges(
    kinds: Mapping[str, Kind], pooled: Mapping[str, ColumnSums]
) -> dict[str, tuple[float, ...]]:
    """The inner edges of every column that has a histogram."""
    edges = {}
    for name, kind in kinds.items():
        inner = edges_of(pooled[name], kind)
        if inner is not None:
            edges[name] = inner
    return edges


def quantile(
    edges: Sequence[float], counts: Int64[NDArray, " bins"], level: float
) -> tuple[float, str]:
    """A quantile that is read from a histogram.

    Within a bin rows are taken as spread evenly.

    Returns:
        The quantile, and "" or, where it lies in a bin without an outer edge, "<" or
        ">": it is below or above the number.
    """
    total = counts.sum()
    if not total:
        return math.nan, ""
    below = np.cumsum(counts)
    place = int(np.searchsorted(below, level * total))
    place = min(place, len(counts) - 1)
    if place == 0:
        return float(edges[0]), "<"
    if place == len(counts) - 1:
        return float(edges[-1]), ">"
    inside = (level * total - below[place - 1]) / counts[place]
    low, high = edges[place - 1], edges[place]
    return float(low + inside * (high - low)), ""


def _correlations(
    columns: Mapping[str, pl.Series],
    kinds: Mapping[str, Kind],
    owners: Mapping[str, NDArray[np.integer]],
    pooled: Mapping[str, ColumnSums],
) -> tuple[Correlation, ...]:
    """All correlations, the strongest first; none of one column, or of too many."""
    names = [
        name
        for name, kind in kinds.items()
        if kind != "category" and pooled[name].squares > 0
    ]
    size = len(names)
    if not 1 < size <= MAX_CORRELATED:
        return ()
    rows, products = np.zeros((size, size)), np.zeros((size, size))
    sums, squares = np.zeros((size, size)), np.zeros((size, size))
    for of_client in owners.values():
        x, has_cells = np.zeros((len(of_client), size)), np.zeros(size)
        for place, name in enumerate(names):
            cells = columns[name][of_client] - pooled[name].mean
            if cells.null_count() < len(cells):
                filled = cells.fill_null(strategy="mean").to_numpy()
                x[:, place], has_cells[place] = filled / pooled[name].deviation, 1
        # [i, j]: of column i, over the clients that have cells of column j, too.
        rows += len(x) * np.outer(has_cells, has_cells)
        sums += np.outer(x.sum(axis=0), has_cells)
        squares += np.outer(np.square(x).sum(axis=0), has_cells)
        products += x.T @ x
    result = []
    for i, first in enumerate(names):
        for j, second in enumerate(names[:i]):
            count = int(rows[i, j])
            if not count:
                continue
            places = ((i, j), (j, i))
            variances = [squares[at] - sums[at] ** 2 / count for at in places]
            # Of equal cells rounding leaves some variance.
            if any(
                variance <= _ROUNDING * squares[at]
                for variance, at in zip(variances, places, strict=True)
            ):
                continue
            shared = products[i, j] - sums[i, j] * sums[j, i] / count
            r = float(np.clip(shared / math.sqrt(math.prod(variances)), -1, 1))
            low, high = _fisher_interval(r, count)
            result.append(Correlation(second, first, r, low, high))
    return tuple(sorted(result, key=lambda entry: -abs(entry.r)))


def _fisher_interval(r: float, rows: int) -> tuple[float, float]:
    if rows <= 3 or abs(r) >= 1:
        return (-1.0, 1.0) if rows <= 3 else (r, r)
    center, half = math.atanh(r), 1.959964 / math.sqrt(rows - 3)
    return math.tanh(center - half), math.tanh(center + half)

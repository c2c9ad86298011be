"""What of a client's table may be counted: the table without its small groups.

`shown` turns a column into one in which no group of fewer than `MIN_ROWS` rows is left.
Everything that a client says about its columns is computed from such columns, and from
nothing else. So no answer can tell a table from the one that is shown, which has no gap,
no category and no deviating value of a few rows.

Of columns together, sums of products say more: `multipliable` finds the columns whose
products lead to no group of few rows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Bool, Float, Int64
from numpy.typing import NDArray

from fedtailor.data.tables.encoding import MIN_ROWS
from fedtailor.data.tables.kinds import Kind

MAX_NAMES, MAX_NAME_LENGTH = 1000, 200
"""The largest number of categories of a column that a client sends, and of characters of
one's name.
"""

RARE = "\0rare"
"""Stands for all categories that are not named."""

_ISOLATED = 0.9
"""From this share of a combination's squared length on one row and three others it counts
as one of these rows alone; 1 would be exactly so.
"""

_EXACT = 0.99
"""The same where a group is the weight: the sum over its rows says nothing of what is nearly
so, as no square of the combination is sent with this weight.
"""

_FAR = 10
"""Rows are far from all others from this number of the others' standard deviations."""

_RARE_NUMBERS = 8
"""So many numbers that few rows share can hide each other. Five whole numbers follow from
count, mean and squares now and then, even among many frequent ones.
"""

_ALTERNATIVES = 1e6
"""Numbers that few rows share hide each other if there are so many columns of such numbers
for each count, mean and squares.
"""

_MANY_ROWS = 1000
"""So many rows with rare numbers, which have a quarter as many numbers or more, always have
as many columns beside them.
"""

_FINE = 1e-3
"""Of the standard deviation: with a smaller unit numbers are as good as any."""

_UNIT = 1e-11
"""Of the largest number: a smaller difference is rounding."""

_MASKS = 3
"""For so many of the most frequent numbers of a column, and its ends, rows with another
number are looked at.
"""

_MOST_GROUPS = 50
"""A column of more categories is not multiplied, as this would take too long to check."""

_MOST_NARROW = 100
"""Products of more numbers and answers are not sent (`MAX_DECORRELATED_INPUTS`)."""

_MOST_LEVELS = 22
"""A histogram of 20 bins, the mean and the squares say how often so many of the most frequent
numbers of a column occur.
"""

_MOST_WORK = 1e12
"""Of rows, squared inputs and masks; of more, the columns of most groups are not multiplied.
That is about a minute.
"""

_MOST_NEAR = 12
"""Where more rows than that are possible besides one, their sets are not examined one
by one: a combination counts as theirs.
"""

_DRAWS, _SAMPLE = 48, 100
"""Lines through so many pairs of rows are tried, on so many rows first. A line with half of
all rows is missed once in a million.
"""

_ON_LINE = 1e-9
"""Of the largest number: so near to a line a row is on it, but for rounding."""

_MOST_UNITED, _MOST_UNIONS = 6, 400
"""Unions of categories are looked at in columns of so many groups, up to so many unions."""

_PART = 40
"""Rows of which a curve is a curve of all rows but four, if it is one of any."""

_CLEARLY = 1e-12
"""No direction vanishes if all squared sizes are a larger share of the largest one."""

_DEPENDENT = 1e-13
"""Directions of a smaller share of the largest variance are rounding."""


def shown(values: pl.Series, kind: Kind, least: int = MIN_ROWS) -> pl.Series:
    """A column of the same length in which no group of fewer than `least` rows is left.

    * If fewer cells than that are filled, none is.
    * A few gaps are filled by cells that the column has: the most frequent category, or
      yes or no; of numbers and dates those nearest to the mean, each once. (The mean
      itself would be a number with the count of the other cells in its digits.)
    * Numbers that fewer than `least` rows share become the nearest one that as many do, if
      there are too few such numbers, or too few others that they could be (whole numbers
      of a small range): they, and how many rows have each of them, would follow from mean,
      squares and histogram. For this all numbers are rounded to steps in which at least
      half of the rows share one. If one alone is left of several, the column is empty.
    * Rows of a rare category become `RARE`, and if these are few, the most frequent
      category.
    * If a few rows are so far from all others that mean and squares are nearly theirs,
      they become the nearest number of another row.

    Args:
        values: the cells, with null for missing ones.
        kind: kind of the column.
        least: the least rows of a group; 1 = all is shown, except that categories beyond
            `MAX_NAMES` are `RARE`.
    """
    if len(values) - values.null_count() < least:
        return values.clear(len(values))
    if kind == "category":
        return _shown_categories(values, least)
    if kind == "boolean":
        return _shown_booleans(values, least)
    return _shown_numbers(values, least)


def counts_of(values: pl.Series) -> tuple[NDArray[Any], Int64[NDArray, " values"]]:
    """The values that are not missing, the most frequent first, and the rows of each."""
    if values.dtype == pl.String:
        counts = values.drop_nulls().rename("value").value_counts(name="rows")
        in_order = counts.sort("rows", "value", descending=[True, False])
        distinct, rows = in_order["value"].to_numpy(), in_order["rows"].to_numpy()
        return distinct, rows.astype(np.int64)
    distinct, rows = np.unique(values.drop_nulls().to_numpy(), return_counts=True)
    order = np.argsort(-rows, kind="stable")
    return distinct[order], rows[order].astype(np.int64)


def _shown_categories(values: pl.Series, least: int) -> pl.Series:
    names, rows = counts_of(values)
    is_named = (rows >= least) & (np.arange(len(rows)) < MAX_NAMES)
    if least > 1:
        is_named &= [len(name) <= MAX_NAME_LENGTH for name in names]
    largest = names[int(is_named.argmax())] if is_named.any() else RARE
    gaps = values.null_count()
    if not is_named.all():
        is_few = rows[~is_named].sum() < least
        others = pl.Series(names[~is_named], dtype=pl.String)
        is_other = values.is_in(others.implode()).fill_null(False)
        values = values.set(is_other, largest if is_few else RARE)
    return values.fill_null(largest) if 0 < gaps < least else values


def _shown_booleans(values: pl.Series, least: int) -> pl.Series:
    answers, rows = counts_of(values)
    if rows[0] < least:
        return values.clear(len(values))
    if 0 < values.null_count() < least:
        values = values.fill_null(answers[0])
    if len(rows) > 1 and rows[1] < least:
        values = values.set(values.is_not_null(), answers[0])
    return values


def _shown_numbers(values: pl.Series, least: int) -> pl.Series:
    if least == 1:
        return values
    if 0 < values.null_count() < least:
        present = np.sort(values.drop_nulls().to_numpy())
        distance = np.abs(present - present.mean())
        gaps = values.is_null().arg_true()
        fill = present[np.argsort(distance, kind="stable")[: len(gaps)]]
        values = values.clone().scatter(gaps, pl.Series(fill, dtype=values.dtype))
    while True:
        changed = _without_far(_without_rare(values, least), least)
        if changed.equals(values):
            return values
        values = changed


def _without_rare(values: pl.Series, least: int) -> pl.Series:
    """Numbers without those that few rows share, unless these hide each other."""
    numbers, rows = counts_of(values)
    is_shared = rows >= least
    if is_shared.all() or _hide_each_other(numbers, rows, least):
        return values
    present = values.drop_nulls().to_numpy()
    coarse = _coarse(present, least)
    distinct, rows = np.unique(coarse, return_counts=True)
    shared = distinct[rows >= least]
    if len(shared) == 1 and coarse is not present:
        return values.clear(len(values))
    few = np.flatnonzero(~np.isin(coarse, shared))
    coarse = coarse.copy()
    coarse[few] = shared[np.abs(coarse[few][:, None] - shared).argmin(axis=1)]
    places = values.is_not_null().arg_true()
    return values.clone().scatter(places, pl.Series(coarse, dtype=values.dtype))


def _coarse(numbers: NDArray[Any], least: int) -> NDArray[Any]:
    """Numbers rounded to steps in which half of the rows share theirs with enough others.

    The steps are of the unit of the numbers, from the one nearest to the mean; or, if it is
    so small that a number would be in their digits, from the mean itself.
    """
    unit, start = _unit_of(np.unique(numbers)), float(numbers.mean())
    if unit < _FINE * numbers.std():
        unit = float(numbers.std()) / 64
    else:
        start = numbers[0] + np.rint((start - numbers[0]) / unit) * unit
    units = np.rint((numbers - start) / unit)
    step, coarse = 1, numbers
    while True:
        _, place, rows = np.unique(coarse, return_inverse=True, return_counts=True)
        if 2 * np.count_nonzero(rows[place] >= least) >= len(numbers):
            return coarse
        step *= 2
        coarse = start + np.rint(units / step) * step * unit


def _hide_each_other(
    numbers: NDArray[Any], rows: Int64[NDArray, " values"], least: int
) -> bool:
    """Whether many columns have the same sums, for numbers that few rows share.

    Numbers are known to be multiples of a unit. Even if all about the order of the rows is
    known but which number each of `least` rows has in their part of the range, there are

        C(least L / n + least - 1, least) ** (n / least)

    columns of n rows in a range of L units, with about n^2 L^3 sums and squares. The range is
    twice that of the middle half, as a single number can be anywhere. Where rows share
    numbers, there are fewer numbers than units, such as powers of two: among L numbers
    about n^2 / 2 L pairs of rows share one.
    """
    rare, rows = numbers[rows < least], rows[rows < least]
    count = int(rows.sum())
    if len(rare) < max(least, _RARE_NUMBERS):
        return False
    if count >= _MANY_ROWS:
        return True
    low, high = np.quantile(np.repeat(rare, rows), [0.25, 0.75])
    levels = 2 * float(high - low) / _unit_of(numbers)
    if count > len(rare):
        levels = min(levels, count**2 / (2 * (count - len(rare))))
    levels = max(levels, 1.0)
    each = least * levels / count
    columns = math.lgamma(each + least) - math.lgamma(each) - math.lgamma(least + 1)
    sums = 2 * math.log(count) + 3 * math.log(levels)
    return columns * count / least >= sums + math.log(_ALTERNATIVES)


def _unit_of(numbers: NDArray[Any]) -> float:
    """The largest unit of which all differences of numbers are multiples."""
    largest = float(np.abs(numbers).max())
    steps = np.unique(np.diff(np.sort(numbers / largest)))
    # Two results of a calculation can be one number, but for its last digit.
    steps = steps[steps > _UNIT]
    if not len(steps):
        return _UNIT * largest
    unit, span = float(steps[0]), float(steps.sum())
    for step in steps.tolist():
        while step > _UNIT:
            unit, step = step, abs(math.remainder(unit, step))
        if unit < 1e-6 * span:  # these are as good as any numbers
            break
    return unit * largest


def _without_far(values: pl.Series, least: int) -> pl.Series:
    """Numbers without a few that have nearly all of the squared deviations."""
    numbers = values.drop_nulls().to_numpy()
    if not len(numbers):
        return values
    deviations = numbers - np.median(numbers)
    order = np.argsort(-np.abs(deviations), kind="stable")
    unit = float(np.abs(deviations[order[0]]))
    if not 0 < unit < np.inf:
        return values
    scaled = deviations / unit  # so that no square overflows
    squares = len(scaled) * scaled.var()
    for few in range(1, min(least, (len(numbers) + 1) // 2)):
        far, others = order[:few], order[few:]
        rest = scaled[others]
        distance = np.abs(scaled[far] - rest.mean()).min()
        is_far = distance >= _FAR * rest.std()
        if is_far and len(rest) * rest.var() <= (1 - _ISOLATED) * squares:
            low, high = numbers[others].min(), numbers[others].max()
            places = np.flatnonzero(values.is_not_null().to_numpy())[far]
            nearest = pl.Series(np.clip(numbers[far], low, high), dtype=values.dtype)
            return values.clone().scatter(places, nearest)
    return values


@dataclass(frozen=True)
class _Column:
    """What the products of a column with others can tell.

    Attributes:
        inputs: [rows, k] its inputs: where cells are missing, yes and no, categories, or
            its numbers, with the mean where they are missing. With k = 0 it is not
            multiplied.
        groups: [rows] the group of each row: its category, yes or no, or whether its cell
            is missing, which is a group of its own.
        others: of numbers, masks of the rows whose cell is there, and is not a certain
            number that many rows share.
        present: of numbers, the mask of the rows whose cell is there; None for groups.
    """

    inputs: Float[NDArray, "rows k"]
    groups: Int64[NDArray, " rows"]
    others: tuple[Bool[NDArray, " rows"], ...] = ()
    present: Bool[NDArray, " rows"] | None = None

    @property
    def of_groups(self) -> list[Bool[NDArray, " rows"]]:
        """The mask of the rows of each group."""
        return [self.groups == group for group in np.unique(self.groups)]

    @property
    def masks(self) -> list[Bool[NDArray, " rows"]]:
        """Of each weight that it can be, the rows in which this is not 0."""
        present = () if self.present is None else (self.present,)
        return [*present, *self.of_groups, *self.others]

    @property
    def least_rows(self) -> int:
        """The rows of its smallest mask."""
        return min(int(mask.sum()) for mask in self.masks)

    @staticmethod
    def of(values: pl.Series, kind: Kind) -> "_Column":
        """The column of some cells (`shown`)."""
        distinct, rows = counts_of(values)
        missing = values.is_null().to_numpy()
        if kind == "category" or len(distinct) <= 2:
            groups = np.full(len(values), len(distinct), np.int64)
            for group, value in enumerate(distinct):
                groups[(values == value).fill_null(False).to_numpy()] = group
            count = len(distinct) + 1 if len(distinct) <= _MOST_GROUPS else 0
            return _Column((groups[:, None] == np.arange(count)).astype(float), groups)
        mean = float(values.mean() or 0.0)  # type: ignore[arg-type]
        numbers = values.fill_null(mean).to_numpy().astype(np.float64)
        is_shared = rows >= MIN_ROWS
        frequent = distinct[:_MASKS][is_shared[:_MASKS]]
        ends = [
            it for it in (distinct.min(), distinct.max()) if it in distinct[is_shared]
        ]
        others = tuple(
            (values != value).fill_null(False).to_numpy()
            for value in np.unique([*frequent, *ends])
        )
        inputs = np.stack([missing, numbers], axis=1).astype(np.float64)
        return _Column(inputs, missing.astype(np.int64), others, ~missing)


def multipliable(
    cells: Sequence[pl.Series], kinds: Sequence[Kind], last: int = 0
) -> list[bool]:
    """The columns whose products with each other lead to no group of few rows.

    A sum of products with an input is a sum over rows, weighted by this input. Where cells
    are missing they have the mean of the others, in whose digits it stands how many rows
    of a group have one. So it must not be that

    1. groups of two columns meet in 1 to 4 rows, missing cells among them: their product
       counts these rows; or that two numbers are both others than a frequent one in as few
       rows: it is a sum over these;
    2. a combination of all inputs has weights on 1 to 4 of the rows of a mask, and on no
       others of it: with the weight that is not 0 in the mask, it gives a sum over these
       rows. Masks are all rows; each category, yes, no, and the gaps of a column; the rows
       in which a number is there, or is not a frequent one; those off a line on which half
       of the rows lie, of two inputs (two numbers that are mostly the same); and what one
       such group leaves of another that holds it, or two that do not meet leave of all;
    3. three groups, such as three columns of yes and no, agree in 1 to 4 rows, in which all
       of them are or none is: these are counted by the products of each two; nor all but
       one of them. Several categories of a column are a group, too;
    4. a combination of the inputs of two columns, their squares and products, and of how
       many rows have each frequent number, is 0 in all rows but 1 to 4, such as of two
       numbers whose difference is 0 or 1 in all others, of a number and its square, or of a
       score and an answer that is yes from 5 on: it is a sum over these. Nor of three
       numbers or answers, of which one is the product of two others.

    What stands against it is taken out until nothing does. Which columns are kept depends
    on nothing but these cells, whatever becomes of them: two answers about the same columns
    keep the same ones, so that they tell no more together.

    Args:
        cells: the cells of each column, as they are shown.
        kinds: the kinds of the columns.
        last: the number of columns at the end that take no part in what is kept of
            those before.
    """
    columns = [_Column.of(it, kind) for it, kind in zip(cells, kinds, strict=True)]
    kept = _kept(columns, list(range(len(columns) - last)))
    for place in range(len(columns) - last, len(columns)):
        together = [*kept, place]
        if _kept(columns, together) == together:
            kept = together
    return [place in kept for place in range(len(columns))]


def _kept(columns: Sequence[_Column], places: Sequence[int]) -> list[int]:
    """The places of the columns that may be multiplied with each other."""
    kept = _without_most_work(columns, _without_small_meetings(columns, places))
    if not kept:
        return []
    rows = len(columns[0].groups)
    owners = np.repeat(kept, [columns[it].inputs.shape[1] for it in kept])
    x = np.concatenate([columns[it].inputs for it in kept], axis=1)
    numbers = [it for it in kept if columns[it].present is not None]
    is_number = np.isin(owners, numbers) & ((x != 0) & (x != 1)).any(axis=0)
    on_lines, of_lines = _off_lines(x, owners, is_number)
    groups = [((place,), mask) for place in kept for mask in columns[place].of_groups]
    unions = _unions(columns, kept)
    for together in (
        *_agreeing_in_few([*groups, *unions, *of_lines]),
        *_on_curves_but_few(columns, kept),
    ):
        if together <= set(kept):
            kept.remove(min(together, key=lambda it: columns[it].least_rows))
    masks = [((), np.ones(rows, np.bool_))]
    masks += [((place,), mask) for place in kept for mask in columns[place].masks]
    masks += [*on_lines, *_differences([*groups, *of_lines])]
    # With fewer inputs no combination is new, so that each mask is looked at once.
    clear = set[bytes]()
    for of_mask, mask in masks:
        while set(of_mask) <= set(kept) and mask.tobytes() not in clear:
            inputs = np.flatnonzero(np.isin(owners, kept))
            is_group = any(columns[it].present is not mask for it in of_mask)
            weights = _isolated(x[mask][:, inputs], _EXACT if is_group else _ISOLATED)
            if weights is None:
                clear.add(mask.tobytes())
                break
            # Without any of these columns it would not follow; the rarest one goes.
            heaviest = int(owners[inputs[np.abs(weights).argmax()]])
            kept.remove(
                min((*of_mask, heaviest), key=lambda it: columns[it].least_rows)
            )
    return kept


_Mask = tuple[tuple[int, ...], Bool[NDArray, " rows"]]
"""Rows, and the places of the columns whose combination has them."""


def _differences(groups: Sequence[_Mask]) -> list[_Mask]:
    """What groups leave of others that hold them, or of all rows."""
    together = np.array([mask for _, mask in groups], np.float64)
    together = together @ together.T
    sizes = together.diagonal()
    found = []
    for i, j in np.argwhere((together == 0) | (together == sizes)):
        (own, one), (others, other) = groups[i], groups[j]
        # Of one column, all others of its groups are what is left, which are masks.
        if own != others:
            is_within = together[i, j] == sizes[j] > 0
            left = one & ~other if is_within else ~(one | other)
            if left.any():
                found.append((tuple({*own, *others}), left))
    return found


def _unions(columns: Sequence[_Column], places: Sequence[int]) -> list[_Mask]:
    """The rows of two or more groups of a column, but for those that are all others of
    another one.
    """
    found = list[_Mask]()
    for place in sorted(places, key=lambda it: len(columns[it].of_groups)):
        masks = columns[place].of_groups
        if not 3 < len(masks) <= _MOST_UNITED:
            continue
        for size in range(2, len(masks) // 2 + 1):
            for united in combinations(masks, size):
                if 2 * size < len(masks) or united[0] is masks[0]:
                    found.append(((place,), np.any(united, axis=0)))
    return found[:_MOST_UNIONS]


def _on_curves_but_few(
    columns: Sequence[_Column], places: Sequence[int]
) -> list[set[int]]:
    """The columns of each number and one or two others of which a combination of what is
    sent together is 0 in all rows but 1 to 4: on a line, two lines or another curve of the
    second degree. Of two columns it may be another one for each number that many rows share.
    """
    found = list[set[int]]()
    factors = {it: _Factor.of(columns[it]) for it in places}
    narrow = [it for it in places if factors[it].x.shape[1] <= 2]
    # Of more columns no products are sent.
    triples = combinations(narrow if len(narrow) <= _MOST_NARROW else (), 3)
    rng = np.random.default_rng(0)
    sample = rng.permutation(len(columns[0].groups))[: MIN_ROWS * _PART]
    sample = sample[: len(sample) // MIN_ROWS * MIN_ROWS]
    for of in (*combinations(places, 2), *triples):
        if all(columns[it].present is None for it in of):
            continue
        if any(it <= set(of) for it in found):
            continue
        these = [factors[it] for it in of]
        numbers = [it for it in of if columns[it].present is not None]
        are_levels = all(factors[it].are_levels for it in numbers)
        if len(of) > 2 or (len(numbers) > 1 and not are_levels):
            these = [replace(it, beside=it.beside[:, :1]) for it in these]
        part = _terms(these, sample)
        # Mostly there is no such curve in any of five parts.
        parts = part.reshape(-1, MIN_ROWS, part.shape[1]).swapaxes(0, 1)
        if len(sample) >= MIN_ROWS * part.shape[1]:
            squares = np.linalg.eigvalsh(parts.swapaxes(1, 2) @ parts)
            if (squares[:, 0] > _CLEARLY * squares[:, -1]).all():
                continue
        together = these[0].codes
        for it in these[1:]:
            together = together * (it.codes.max() + 1) + it.codes
            together = np.unique(together, return_inverse=True)[1].astype(np.int64)
        _, first, rows = np.unique(together, return_index=True, return_counts=True)
        terms, is_few = _terms(these, first), rows < MIN_ROWS
        # It is 0 wherever five rows are the same.
        left = terms[is_few] @ _rank(terms[~is_few])[1]
        if _vanishes_but_for_few(np.repeat(left, rows[is_few], axis=0)):
            found.append(set(of))
    return found


@dataclass(frozen=True)
class _Factor:
    """What a client sends of a column in products with another one, and beside them.

    Attributes:
        x: [rows, k] inputs that do not follow from others, as deviations between -1 and 1.
        beside: [rows, m] squares of a number, and whether it is one that many rows share,
            as histograms count these.
        codes: [rows] of rows with the same cell, the same number.
        are_levels: whether half of the rows or more have a number that is in `beside`.
    """

    x: Float[NDArray, "rows k"]
    beside: Float[NDArray, "rows m"]
    codes: Int64[NDArray, " rows"]
    are_levels: bool = False

    @staticmethod
    def of(column: _Column) -> "_Factor":
        """What a client sends of a column."""
        x = column.inputs if column.present is not None else column.inputs[:, 1:]
        deviations = x - x.mean(axis=0)
        size = np.abs(deviations).max(axis=0, initial=0)
        x = deviations[:, size > 0] / size[size > 0]
        if column.present is None:
            return _Factor(x, x[:, :0], column.groups)
        # Two results of a calculation can be one number, but for its last digit.
        numbers = np.where(column.present, np.rint(x[:, -1] / _ON_LINE), np.inf)
        _, codes, rows = np.unique(numbers, return_inverse=True, return_counts=True)
        often = np.argsort(-rows, kind="stable")[:_MOST_LEVELS]
        is_level = codes[:, None] == often[rows[often] >= MIN_ROWS]
        beside = np.hstack([x[:, -1:] ** 2, is_level.astype(float)])
        are_levels = bool(2 * is_level.sum() >= column.present.sum())
        return _Factor(x, beside, codes.astype(np.int64), are_levels)


def _terms(
    factors: Sequence[_Factor], rows: Int64[NDArray, " some"]
) -> Float[NDArray, "some terms"]:
    """Of some rows, what a client sends the sums of: a combination of it is a curve."""
    terms = [np.ones((len(rows), 1))]
    for place, one in enumerate(factors):
        x = one.x[rows]
        terms += [x, one.beside[rows]]
        for other in factors[:place]:
            products = x[:, :, None] * other.x[rows][:, None]
            terms.append(products.reshape(len(rows), -1))
    return np.hstack(terms)


def _rank(
    terms: Float[NDArray, "rows terms"],
) -> tuple[bool, Float[NDArray, "terms vanishing"]]:
    """Whether no combination of terms vanishes, and all that do."""
    rows, count = terms.shape
    _, sizes, directions = np.linalg.svd(terms, full_matrices=rows < count)
    rank = int((sizes > _ON_LINE * sizes.max(initial=0)).sum())
    return rank == count, directions[rank:].T


def _vanishes_but_for_few(terms: Float[NDArray, "rows terms"]) -> bool:
    """Whether a combination of terms is 0 in all rows but 1 to 4.

    Of five parts of the rows in which one is not 0, there is one in which it always is. So
    it is one of the combinations that vanish in this part, which are fewer.
    """
    off = np.abs(terms).max(axis=1, initial=0) > 10 * _ON_LINE
    if not off.any():
        return False
    if off.sum() < MIN_ROWS:
        return True
    if terms.shape[1] == 1:
        return False
    # A quarter of its square or more is on one row, whose leverage is as much.
    basis, sizes, _ = np.linalg.svd(terms[off], full_matrices=False)
    leverage = (basis[:, sizes > _ON_LINE * sizes[0]] ** 2).sum(axis=1)
    if leverage.max() < 0.9 / (MIN_ROWS - 1):
        return False
    rows = np.random.default_rng(0).permutation(np.flatnonzero(off))
    for start in range(MIN_ROWS):
        is_full, vanishing = _rank(terms[rows[start::MIN_ROWS][:_PART]])
        if not is_full and _vanishes_but_for_few(terms @ vanishing):
            return True
    return False


def _agreeing_in_few(groups: Sequence[_Mask]) -> list[set[int]]:
    """The columns of each three groups that agree in 1 to 4 rows: all three are or none is,
    or one is and the others are not, or the other way round.
    """
    if not groups:
        return []
    masks = np.array([mask for _, mask in groups], np.float64)
    owners = [frozenset(own) for own, _ in groups]
    together = masks @ masks.T
    sizes, rows = together.diagonal(), masks.shape[1]
    found = dict[frozenset[int], None]()  # in order
    for i, own in enumerate(together):
        of_two = own[:, None] + own
        same = rows - sizes[i] - sizes[:, None] - sizes + of_two + together
        apart = sizes[i] - of_two + together
        is_few = ((same > 0) & (same < MIN_ROWS)) | ((apart > 0) & (apart < MIN_ROWS))
        for j, k in np.argwhere(np.triu(is_few, 1)):
            found[owners[i] | owners[j] | owners[k]] = None
    return [set(it) for it in found]


def _off_lines(
    x: Float[NDArray, "rows inputs"],
    owners: Int64[NDArray, " inputs"],
    is_number: Bool[NDArray, " inputs"],
) -> tuple[list[_Mask], list[_Mask]]:
    """Rows off a line on which half of the rows or more lie, of a number and another input.

    A combination of the two is 0 on the line. Sums of squares say so, and if it has one
    other value only, such as a number of visits that is one more in a few rows.

    Returns:
        The masks of all such rows; and the groups, of which there are two of each
        combination with two values.
    """
    rows = len(x)
    rng = np.random.default_rng(0)
    one, other = rng.integers(0, rows, (2, _DRAWS))
    sample = rng.permutation(rows)[:_SAMPLE]
    masks, groups = list[_Mask](), list[_Mask]()
    for i in np.flatnonzero(is_number):
        for j in range(x.shape[1]):
            if owners[i] == owners[j] or (is_number[j] and j > i):
                continue
            rise, run = (x[one, it] - x[other, it] for it in (i, j))
            is_line = (rise != 0) & (run != 0)
            if not is_line.any():
                continue
            slopes = rise[is_line] / run[is_line]
            starts = x[one[is_line], i] - slopes * x[one[is_line], j]
            near = _ON_LINE * max(np.abs(x[:, i]).max(), np.abs(starts).max())
            off = x[sample, i] - starts[:, None] - slopes[:, None] * x[sample, j]
            best = int((np.abs(off) <= near).sum(axis=1).argmax())
            off = x[:, i] - starts[best] - slopes[best] * x[:, j]
            is_off = np.abs(off) > near
            if 2 * is_off.sum() > rows or not is_off.any():
                continue
            columns = int(owners[i]), int(owners[j])
            masks.append((columns, is_off))
            if np.ptp(off[is_off]) <= near:
                groups += [(columns, is_off), (columns, ~is_off)]
    return masks + groups, groups


def _without_most_work(columns: Sequence[_Column], places: list[int]) -> list[int]:
    """The places without those of the most masks, if all would take too long."""
    places = list(places)
    counts = {it: len(columns[it].masks) for it in places}
    while places:
        inputs = sum(columns[it].inputs.shape[1] for it in places)
        masks = sum(counts[it] for it in places)
        if max(len(columns[0].groups), masks) * inputs**2 * masks <= _MOST_WORK:
            break
        places.remove(max(places, key=lambda it: counts[it]))
    return places


def _without_small_meetings(
    columns: Sequence[_Column], places: Sequence[int]
) -> list[int]:
    """The places without those that meet others in few rows, the worst first."""
    size = len(columns)
    small = np.zeros((size, size), np.bool_)
    for place, i in enumerate(places):
        for j in places[:place]:
            small[i, j] = _meet_in_few(columns[i].groups, columns[j].groups)
    owners = [it for it in places for _ in columns[it].others]
    if owners:
        masks = [mask for it in places for mask in columns[it].others]
        shared = np.array(masks, np.float64)
        meetings = shared @ shared.T
        for i, j in np.argwhere((meetings > 0) & (meetings < MIN_ROWS)):
            small[owners[i], owners[j]] = owners[i] != owners[j]
    small |= small.T
    kept = [it for it in places if columns[it].inputs.shape[1]]
    left = [it for it in range(size) if it not in kept]
    small[left], small[:, left] = False, False
    while small.any():
        worst = int(small.sum(axis=0).argmax())
        small[worst], small[:, worst] = False, False
        kept.remove(worst)
    return kept


def _meet_in_few(one: Int64[NDArray, " rows"], other: Int64[NDArray, " rows"]) -> bool:
    counts = np.bincount(one * (other.max(initial=0) + 1) + other)
    return bool(((counts > 0) & (counts < MIN_ROWS)).any())


def _isolated(
    x: Float[NDArray, "rows inputs"], share: float
) -> Float[NDArray, " inputs"] | None:
    """Weights of a combination of inputs and 1 that has 1 to 4 rows (by this share of its
    squared length); None if there is none.

    With H the projection onto all combinations, one that vanishes outside of a set S of
    rows is v with v_r = sum of H_rs v_s over S. For the row r of largest |v_r| this needs
    H_rr + sum of |H_rs| >= 1 over the others in S, and H_rr >= 1 / 4. No set of up to four
    rows is left out by looking at each such row with all others that are in such a sum. The
    largest eigenvalue of the part of H of a set is the largest share on it.
    """
    others = MIN_ROWS - 2
    centered = x - x.mean(axis=0, dtype=np.float64) if len(x) else x
    lengths = np.sqrt((centered**2).sum(axis=0))
    is_rounding = lengths <= 1e-12 * np.abs(x).max(axis=0, initial=0) * len(x)
    unit = np.where(is_rounding, 0.0, centered) / np.where(is_rounding, 1.0, lengths)
    if len(x) < MIN_ROWS:
        return lengths if x.shape[1] else None
    variances, vectors = np.linalg.eigh(unit.T @ unit)
    is_real = variances > _DEPENDENT * variances[-1:]
    if not is_real.any():
        return None
    to_basis = vectors[:, is_real] / np.sqrt(variances[is_real])
    longest = (unit**2).sum(axis=1).max() / variances[is_real].min()
    if (others + 1) * (longest + 1 / len(x)) < share:
        return None  # a bound of what follows, which takes less time
    basis = unit @ to_basis
    leverage = (basis**2).sum(axis=1) + 1 / len(x)
    for row in np.flatnonzero(leverage >= share / (others + 1)):
        shared = np.abs(basis @ basis[row] + 1 / len(x))
        shared[row] = 0
        largest = np.partition(shared, -others)[-others:]
        needed = share - leverage[row]
        if largest.sum() < needed:
            continue
        # Of the sets with this row, those with enough of its projection.
        near = np.flatnonzero(shared >= needed - (largest.sum() - largest.min()))
        near = near[near != row]
        if len(near) <= _MOST_NEAR:
            near = np.union1d(near, np.argsort(-shared, kind="stable")[:others])
            sets = np.array([(row, *it) for it in combinations(near, others)])
            blocks = np.einsum("sik,sjk->sij", basis[sets], basis[sets]) + 1 / len(x)
            if np.linalg.eigvalsh(blocks)[:, -1].max() < share:
                continue
        return (to_basis @ basis[row]) * unit[row]
    return None

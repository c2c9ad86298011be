"""What of a client's table may be counted: the table without its small groups.

`shown` turns a column into one in which no group of fewer than `MIN_ROWS` rows is left.
Everything that a client says about its columns is computed from such columns, one by one,
and from nothing else. So no answer can tell a table from the one that is shown, which has
no gap, no category and no deviating value of a few rows.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Int64
from numpy.typing import NDArray

from fedtailor.data.tables.encoding import MIN_ROWS
from fedtailor.data.tables.kinds import Kind

MAX_NAMES, MAX_NAME_LENGTH = 1000, 200
"""The largest number of categories of a column that a client sends, and of characters of
one's name.
"""

RARE = "\0rare"
"""Stands for all categories that are not named."""

_FAR = 10
"""Rows are far from all others from this number of the others' standard deviations."""

_NEARLY_ALL = 0.9
"""From this share of a column's squared deviations on, few rows have nearly all of them."""

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

_FINER = 4
"""So many times as fine as others are numbers whose digits tell them from these."""

_LAST_DIGIT = 2.0**-49
"""Of a number: results of a calculation differ by less from a number of few decimals."""

_MOST_DECIMALS = 9
"""Numbers with more decimals are as good as any."""

_BY_CHANCE = 0.1
"""Others have a unit if they have it by chance less often than this."""

_SAMPLES, _SAMPLE = 200, 5
"""So many samples of so many numbers are looked at for the unit of all but a few."""


def shown(
    values: pl.Series,
    kind: Kind,
    least: int = MIN_ROWS,
    listed: Sequence[str] = (),
) -> pl.Series:
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
    * Rows of a rare category become `RARE`, and if these are few, or as many as such
      categories can nearly have, the most frequent category. If there is none, the column
      is empty.
    * If a few rows have more digits than all others (39.407 among whole numbers), they lose
      them: what sums have beyond the others' unit would be of these rows alone.
    * If a few rows are so far from all others that mean and squares are nearly theirs,
      they become the nearest number of another row.

    Args:
        values: the cells, with null for missing ones.
        kind: kind of the column.
        least: the least rows of a group; 1 = all is shown, except that categories beyond
            `MAX_NAMES` are `RARE`.
        listed: names that the receiver knows, of categories that may have rows or none.
    """
    if len(values) - values.null_count() < least:
        return values.clear(len(values))
    if kind == "category":
        return _shown_categories(values, least, listed)
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


def _shown_categories(
    values: pl.Series, least: int, listed: Sequence[str]
) -> pl.Series:
    names, rows = counts_of(values)
    empty = len(set(listed).difference(names.tolist()))
    is_named = (rows >= least) & (np.arange(len(rows)) < MAX_NAMES)
    if least > 1:
        is_named &= [len(name) <= MAX_NAME_LENGTH for name in names]
    largest = names[int(is_named.argmax())] if is_named.any() else RARE
    gaps = values.null_count()
    if not is_named.any() and _tells_of_few(rows, empty, least):
        return values.clear(len(values))
    if not is_named.all():
        is_few = _tells_of_few(rows[~is_named], empty, least)
        others = pl.Series(names[~is_named], dtype=pl.String)
        is_other = values.is_in(others.implode()).fill_null(False)
        values = values.set(is_other, largest if is_few else RARE)
    return values.fill_null(largest) if 0 < gaps < least else values


def _tells_of_few(rows: Int64[NDArray, " names"], empty: int, least: int) -> bool:
    """Whether the rows of unnamed categories together say something about one of them.

    They do if they are few, or so many that each category must have some: four of each of
    two, if these are eight. So may `empty` further ones, as far as anybody knows.
    """
    most = (least - 1) * (len(rows) + empty - 1)
    return rows.sum() < least or (rows.max() < least and rows.sum() > most)


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
    # Before gaps are filled: with fillers, few rows of a number would be as many as it takes.
    values = _without_small_groups(values, least)
    if not 0 < values.null_count() < least:
        return values
    present = np.sort(values.drop_nulls().to_numpy())
    distance = np.abs(present - present.mean())
    gaps = values.is_null().arg_true()
    fill = present[np.argsort(distance, kind="stable")[: len(gaps)]]
    values = values.clone().scatter(gaps, pl.Series(fill, dtype=values.dtype))
    return _without_small_groups(values, least)


def _without_small_groups(values: pl.Series, least: int) -> pl.Series:
    """Numbers without finer, rare and far ones."""
    while True:
        changed = _without_rare(_without_finer(values, least), least)
        changed = _without_far(changed, least)
        if changed.equals(values):
            return values
        values = changed


def _without_finer(values: pl.Series, least: int) -> pl.Series:
    """Numbers of which a few have no more digits than all others.

    They have no more decimals than enough rows have. Where the others have another unit,
    such as thirds, it is that of some of them: of many small samples of the distinct
    numbers, some have none of the few.
    """
    present = values.drop_nulls().to_numpy()
    if not len(present):
        return values
    numbers, decimals = _without_decimals(present, least)
    distinct = np.unique(numbers)
    if len(distinct) == 1 and np.count_nonzero(present == distinct[0]) < least:
        return values.clear(len(values))
    if len(distinct) <= _SAMPLE:
        return _with_numbers(values, present, numbers)
    step = 10 * _UNIT * float(np.abs(distinct).max())
    finest, coarsest = _unit_of(distinct), 1e-6 * float(np.ptp(distinct))
    changed = numbers
    random = np.random.default_rng(0)  # the same answer for the same column
    for _ in range(_SAMPLES):
        sample = distinct[random.integers(len(distinct), size=_SAMPLE)]
        unit = _unit_of(sample)
        if decimals <= _MOST_DECIMALS:
            unit = float(np.round(unit, decimals))
        if unit < _FINER * finest or unit <= coarsest:
            continue
        rounded = _multiples(numbers, sample[0], unit)
        is_finer = np.abs(numbers - rounded) > step
        if not 0 < np.count_nonzero(is_finer) < least:
            continue
        # By chance all but some `few` of n numbers, beside those of the sample, are
        # multiples of r with a probability of r^(few - n) for each choice of these.
        few = len(np.unique(numbers[is_finer]))
        rest = len(distinct) - len(np.unique(sample)) - few
        chance = math.log(math.comb(len(distinct), few))
        chance -= rest * math.log(unit / finest)
        if chance < math.log(_BY_CHANCE):
            coarsest, changed = unit, np.where(is_finer, rounded, numbers)
    return _with_numbers(values, present, changed)


def _with_numbers(
    values: pl.Series, present: NDArray[Any], changed: NDArray[Any]
) -> pl.Series:
    """A column with other numbers where it has some."""
    if changed is present:
        return values
    places = values.is_not_null().arg_true()
    return values.clone().scatter(places, pl.Series(changed, dtype=values.dtype))


def _without_decimals(numbers: NDArray[Any], least: int) -> tuple[NDArray[Any], int]:
    """Numbers with no more decimals than `least` rows have or exceed, and how many these
    are.
    """
    decimals = np.full(len(numbers), _MOST_DECIMALS + 1)
    for places in range(_MOST_DECIMALS, -1, -1):
        with np.errstate(over="ignore", invalid="ignore"):  # of numbers beyond 1e299
            scaled = numbers * 10.0**places
            away = np.abs(scaled - np.rint(scaled))
        decimals[away <= _LAST_DIGIT * np.abs(scaled)] = places
    most = int(np.sort(decimals)[-min(least, len(decimals))])
    is_finer = decimals > most
    if not is_finer.any():
        return numbers, most
    return np.where(is_finer, np.round(numbers, most), numbers), most


def _multiples(
    numbers: NDArray[np.float64], start: float, unit: float
) -> NDArray[np.float64]:
    """Numbers rounded to whole units from a start."""
    return start + np.rint((numbers - start) / unit) * unit


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
    return _with_numbers(values, present, coarse)


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
        if is_far and len(rest) * rest.var() <= (1 - _NEARLY_ALL) * squares:
            low, high = numbers[others].min(), numbers[others].max()
            places = np.flatnonzero(values.is_not_null().to_numpy())[far]
            nearest = pl.Series(np.clip(numbers[far], low, high), dtype=values.dtype)
            return values.clone().scatter(places, nearest)
    return values

"""What of a client's table may be counted: the table without its small groups.

`shown` turns a column into one in which no group of fewer than `MIN_ROWS` rows is left.
Everything that a client says about its columns is computed from such columns, one by one,
and from nothing else. So no answer can tell a table from the one that is shown, which has
no gap, no category and no deviating value of a few rows.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import NormalDist
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Int64
from numpy.typing import NDArray

from fedtailor._base.groups import MIN_ROWS
from fedtailor.data.tables.kinds import Kind

MAX_NAMES, MAX_NAME_LENGTH = 1000, 200
"""The largest number of categories of a column that a client sends, and of characters of
one's name.
"""

RARE = "\0rare"
"""Stands for all categories that are not named."""

_FAR, _APART = 5, 1.5
"""Few rows are far from this number of the others' standard deviations on, if the next row
is nearer by this factor: else more rows are far.
"""

_RARE_NUMBERS = 9
"""So many numbers that few rows share can hide each other, beside the outermost ones. Five
whole numbers follow from count, mean and squares now and then, even among many frequent ones.
And of eight, four can be far from the other four.
"""

_ALTERNATIVES = 1e6
"""Numbers that few rows share hide each other if there are so many columns of such numbers
for each count, mean and squares.
"""

_MANY_ROWS = 1000
"""So many rows with rare numbers, which have a quarter as many numbers or more, always have
as many columns beside them.
"""

_SHORT_LIST = 32
"""So few numbers are a list that somebody may know, such as doses."""

_UNIT = 1e-11
"""Of the largest number: a smaller difference is rounding."""

_SAMPLES, _SAMPLE = 200, 5
"""So many samples of so many numbers are looked at for the unit of all but a few rows."""


def shown(
    values: pl.Series,
    kind: Kind,
    least: int = MIN_ROWS,
    listed: Sequence[str] = (),
) -> pl.Series:
    """A column of the same length in which no group of fewer than `least` rows is left.

    * If fewer cells than that are filled, none is; nor if fewer than 2 `least` - 1 are,
      with a few gaps: eight rows of two values of which none is shown are four and four.
    * A few gaps are filled by cells that the column has: the first of its categories, no
      or yes; of numbers and dates those nearest to the mean, each once, or the smallest
      if `least` rows or more share each number.
    * Numbers that fewer than `least` rows share become the nearest one that as many do, if
      there are too few such numbers, or too few others that they could be (whole numbers
      of a small range): they, and how many rows have each of them, would follow from mean,
      squares and histogram. If these are more than half of the rows, or more than a few
      beside a single other number, the column is empty.
    * If `least` rows or more share each number, exactly `least` count as the number below.
    * Rows of a rare category become `RARE`, and if these are few, or as many as such
      categories can nearly have, the first of the others. If there is no other, or they
      are not few and there is one other, the column is empty.
    * Of numbers that fewer than `least` rows share, the `least` - 1 smallest cells become
      the next smallest ones, and the largest the next largest. If a few are far from all
      others even then, or a few numbers are, the numbers count as too few.

    Args:
        values: the cells, with null for missing ones.
        kind: kind of the column.
        least: the least rows of a group; 1 = all is shown, except that categories beyond
            `MAX_NAMES` are `RARE`.
        listed: names that the receiver knows, of categories that may have rows or none.
    """
    gaps = values.null_count()
    filled, few_gaps = len(values) - gaps, gaps if gaps < least else 0
    if filled < least or (least > 1 and filled + few_gaps < 2 * least - 1):
        return values.clear(len(values))
    if kind == "category":
        return _shown_categories(values, least, listed)
    if kind == "boolean":
        return _shown_booleans(values, least)
    return _shown_numbers(values, least)


def mean_and_squares(cells: pl.Series, least: int = MIN_ROWS) -> tuple[float, float]:
    """Mean of what is shown, and sum of its squared deviations, without few rows' digits.

    Among ages the 407 of 39.407 would be the fraction of the exact sum. Where fewer than
    `least` rows share a number, the sum is rounded to a multiple of about the standard
    deviation of these rows' numbers, and the sum of squares accordingly: a difference of
    one row between two numbers that can be told apart. Of n such rows the mean changes by
    at most 1 / n standard deviations. The squares of these rows are larger by a factor
    that gives a normal distribution back what it lost with its outermost rows (see
    `_lost_with_outermost`).

    Args:
        cells: numbers, as `shown` returns them, without missing ones.
        least: see `shown`; 1 = nothing is rounded.
    """
    # Sorted, as of another order of the rows the last digit can be another one; scaled, so
    # that of numbers beyond 1e154 only the squares are infinite.
    scale = math.frexp(float(cells.abs().max() or 0.0))[1]  # type: ignore[arg-type]
    numbers = np.ldexp(np.sort(cells.to_numpy()), -scale)
    mean = float(numbers.mean())
    squares = float(((numbers - mean) ** 2).sum())
    rare = numbers[:0]
    if least > 1:
        distinct, rows = np.unique(numbers, return_counts=True)
        rare = np.repeat(distinct, np.where(rows < least, rows, 0))
    if len(rare):
        step = _power_of_two(float(rare.std()))
        apart = _power_of_two(float(np.sqrt(((rare - mean) ** 2).mean())))
        mean = float(np.rint(mean * len(numbers) / step) * step / len(numbers))
        squares += _lost_with_outermost(len(rare), least) * float(rare.var())
        squares = float(np.rint(squares / (step * apart)) * step * apart)
    with np.errstate(over="ignore"):
        # 0 is added to -0, which would say on which side of 0 the sum is.
        return float(np.ldexp(mean + 0.0, scale)), float(np.ldexp(squares, 2 * scale))


def _lost_with_outermost(rows: int, least: int) -> float:
    """What squares of rows that few share lose, as the outermost became the next ones.

    Returns:
        In squares of the deviation of what is left, if the rows have a normal distribution.
        Expected squares of its order statistics are Blom's (1958), and their variances
        those of quantiles.
    """
    few, normal, squares = least - 1, NormalDist(), []
    if rows < 5 * few:
        return 0.0
    for place in range(2 * few):
        below = (place + 0.625) / (rows + 0.25)
        score = normal.inv_cdf(below)
        variance = below * (1 - below) / (rows * normal.pdf(score) ** 2)
        squares.append(score**2 + variance)
    lost = 1 + 2 * (sum(squares[:few]) - sum(squares[few:]))
    return rows * lost / (rows - lost)


def _power_of_two(number: float) -> float:
    """The next power of two from a number on."""
    mantissa, exponent = math.frexp(number)
    return math.ldexp(1.0, exponent - (mantissa == 0.5))


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
    is_named = (rows >= least) & (np.arange(len(rows)) < MAX_NAMES)
    if least > 1:
        is_named &= [len(name) <= MAX_NAME_LENGTH for name in names]
    named, others = sorted(names[is_named].tolist()), names[~is_named]
    empty, few = len(set(listed).difference(names.tolist())), rows[~is_named]
    tells = bool(len(few)) and _tells_of_few(few, empty, least)
    if not named or (len(named) == 1 and tells and few.sum() >= least):
        # Of one by itself it would follow that each of the others has nearly `least`.
        return values.clear(len(values))
    if len(few) and not tells:
        rare = pl.Series(others, dtype=pl.String)
        values = values.set(values.is_in(rare.implode()).fill_null(False), RARE)
        named.append(RARE)
    return without_few_others(values, named, least)


def _shown_booleans(values: pl.Series, least: int) -> pl.Series:
    answers, rows = counts_of(values)
    return without_few_others(values, sorted(answers[rows >= least].tolist()), least)


def without_few_others(
    values: pl.Series, named: Sequence[Any], least: int = MIN_ROWS
) -> pl.Series:
    """A column in which other rows than those of some values are rows of the first of these.

    So are gaps, if they are few. The first value does not depend on the rows. Of the most
    frequent one as many rows as of another would show that none was added to it. So would
    exactly `least` rows of the first: they count as the second, too, unless this is the
    last, of no name: that no other is left says that the one before had `least`.

    Args:
        values: the cells, with null for missing ones.
        named: values of `least` rows or more each, in an order that is not of the rows.
        least: see `shown`.

    Returns:
        The column; without a cell if there is no such value.
    """
    if least == 1:
        return values
    are_few_gaps = values.null_count() < least
    for place, first in enumerate(named):
        cells = pl.Series(named[place:], dtype=values.dtype)
        takes = (values == first) | ~values.is_in(cells.implode())
        takes = takes.fill_null(are_few_gaps)
        is_alone = first == RARE and place > 0
        if takes.sum() > least and not is_alone:
            return values.clone().set(takes, first)
    return values.clear(len(values))


def _tells_of_few(rows: Int64[NDArray, " names"], empty: int, least: int) -> bool:
    """Whether the rows of unnamed categories together say something about one of them.

    They do if they are few, or so many that each category must have some, those that `empty`
    counts among them, as far as anybody knows. So they do to a reader who knows that these
    cannot have any, if all others have as many as they can: eight rows are four of each of two.
    """
    most, total = least - 1, int(rows.sum())
    is_each = total >= most * (len(rows) + empty - 1) or total == most * len(rows)
    return total < least or (int(rows.max()) < least and is_each)


def _shown_numbers(values: pl.Series, least: int) -> pl.Series:
    if least == 1:
        return values
    values = _without_rare(values, least)
    _, rows = counts_of(values)
    return _without_exactly_few(values, least) if (rows >= least).all() else values


def _without_exactly_few(values: pl.Series, least: int) -> pl.Series:
    """Shared numbers, each of more than `least` rows; few gaps are the smallest number.

    Exactly `least` rows would show that no rare one became their number, nor a gap. So
    they count as the number below.
    """
    numbers = sorted(counts_of(values)[0].tolist())
    values = without_few_others(values, numbers, least)
    numbers, rows = counts_of(values)
    shared = dict(sorted(zip(numbers.tolist(), rows.tolist(), strict=True)))
    moved = {}
    for below, number in reversed(list(pairwise(shared))):
        if shared[number] == least:
            moved[number] = below
            shared[below] += least
    return values.replace(moved) if moved else values


def _without_rare(values: pl.Series, least: int) -> pl.Series:
    """Numbers without those that few rows share, unless these hide each other. A few gaps are
    then filled by the cells nearest to the mean.

    Args:
        values: the cells, with null for missing ones.
        least: see `shown`.
    """
    # Before gaps are filled: with fillers, few rows of a number would be as many as it takes.
    numbers, rows = counts_of(values)
    is_shared = rows >= least
    if is_shared.all():
        return values
    inside, inner = _without_outermost(values, least)
    if len(inner):
        fill = _fill_of(inside, least)
        filled = int(np.count_nonzero(~np.isin(fill, numbers[is_shared])))
        if _hide_each_other(inner, numbers[is_shared], least, filled):
            gaps = inside.is_null().arg_true()
            cells = pl.Series(fill, dtype=inside.dtype)
            return inside.clone().scatter(gaps, cells) if len(fill) else inside
    present = values.drop_nulls().to_numpy().copy()
    few = np.flatnonzero(~np.isin(present, numbers[is_shared]))
    most = len(present) // 2 if np.count_nonzero(is_shared) > 1 else least - 1
    if len(few) > most or not is_shared.any():
        return values.clear(len(values))
    nearest = np.sort(numbers[is_shared])
    # A cell between two becomes the lower one.
    middles = nearest[:-1] / 2 + nearest[1:] / 2
    present[few] = nearest[np.searchsorted(middles, present[few])]
    return _with_numbers(values, present)


def _fill_of(values: pl.Series, least: int) -> NDArray[Any]:
    """The cells nearest to the mean, one for each gap, if gaps are few."""
    present = values.drop_nulls().to_numpy()
    gaps = values.null_count()
    if not 0 < gaps < least:
        return present[:0]
    present = np.sort(present)
    distance = np.abs(present - present.mean())
    return present[np.argsort(distance, kind="stable")[:gaps]]


def _hide_each_other(
    inner: NDArray[Any], shared: NDArray[Any], least: int, gaps: int
) -> bool:
    """Whether many columns have the same sums, for numbers that few rows share.

    Numbers, but those of a few rows, are known to be multiples of a unit. Even if all about
    the order of the rows is known but which number each of `least` rows has in their part
    of the range, there are

        C(least L / n + least - 1, least) ** (n / least)

    columns of n rows in a range of L units, with about n^2 L^3 sums and squares. The range is
    twice that of the middle half, as a single number can be anywhere. Where rows share
    numbers, there are fewer numbers than units, such as powers of two: among L numbers
    about n^2 / 2 L pairs of rows share one. Of a short list each number has nearly as many
    rows as it can have, so that this is too large (`_levels_of`).

    The answer can be seen, and must not say how many rows are hidden otherwise. So it is
    that of a column in which none is: the outermost cells count as rows, and gaps that are
    filled by such numbers. (Not as numbers, nor other gaps: they would say how many gaps
    there are to who knows all numbers that there can be, such as doses, or that all other
    rows have one number.) And it is that of a column in which as many as can be are: there
    are as few rows.

    Args:
        inner: the cells whose numbers few rows share, without the outermost.
        shared: the numbers that more rows share.
        least: see `shown`.
        gaps: how many gaps will be filled by numbers that few rows share.
    """
    numbers, rows = np.unique(inner, return_counts=True)
    count = len(inner) + 2 * (least - 1) + gaps
    if count < _RARE_NUMBERS + 3 * (least - 1):
        return False
    if count >= _MANY_ROWS:
        return True
    # Quartiles of the cells with the outermost, as many of these as there are at each end.
    lower = max(len(inner) / 4 - (least - 1) / 2, 0) / len(inner)
    low, high = np.quantile(inner, [lower, 1 - lower])
    every = np.concatenate([numbers, shared])
    every_rows = np.concatenate([rows, np.full(len(shared), least)])
    levels = 2 * float(high - low) / _unit_of_most(every, every_rows, least)
    listed, repeated = _levels_of(len(inner), len(numbers)), len(inner) - len(numbers)
    if listed + len(shared) < _SHORT_LIST:
        levels = min(levels, listed)
    elif repeated:
        levels = min(levels, count**2 / (2 * repeated))
    levels, count = max(levels, 1.0), count - (least - 1)
    each = least * levels / count
    columns = math.lgamma(each + least) - math.lgamma(each) - math.lgamma(least + 1)
    sums = 2 * math.log(count) + 3 * math.log(levels)
    return columns * count / least >= sums + math.log(_ALTERNATIVES)


def _levels_of(rows: int, distinct: int) -> float:
    """How many numbers there are if some rows, drawn among them, have so many distinct ones.

    Of L equally likely numbers n rows have L (1 - exp(-n / L)); where all rows differ, L is
    as large as can be told, n^2.
    """
    low, high = float(distinct), float(rows) ** 2
    for _ in range(50):
        levels = (low + high) / 2
        if -levels * math.expm1(-rows / levels) < distinct:
            low = levels
        else:
            high = levels
    return high


def _unit_of_most(
    numbers: NDArray[Any], rows: Int64[NDArray, " values"], least: int
) -> float:
    """The largest unit of which differences are multiples, but those of a few rows.

    Of many small samples of the numbers, some have none of these rows.
    """
    step = 10 * _UNIT * float(np.abs(numbers).max())
    unit = _unit_of(numbers)
    random = np.random.default_rng(0)  # the same answer for the same column
    for _ in range(_SAMPLES):
        sample = numbers[random.integers(len(numbers), size=_SAMPLE)]
        found = _unit_of(sample)
        if found <= unit:
            continue
        multiples = sample[0] + np.rint((numbers - sample[0]) / found) * found
        if rows[np.abs(numbers - multiples) > step].sum() < least:
            unit = found
    return unit


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


def _without_outermost(values: pl.Series, least: int) -> tuple[pl.Series, NDArray[Any]]:
    """Numbers without the few smallest and the few largest ones that few rows share.

    They would follow: of one that is far, sum and squares are much larger, and of a known
    one, such as 999 for "not measured", so does how many rows have it. They become the
    numbers that are outermost without them, each another one, which stays rare if it can.
    So no answer depends on how far they are, nor on a decision that would show it.

    Args:
        values, least: see `_without_rare`.

    Returns:
        The column, and those of its cells that few rows share and that were not changed,
        in ascending order. There is none if there are too few, or few rows, or rows of
        few numbers, are far from all others without the outermost ones, too.
    """
    numbers, few = values.drop_nulls().to_numpy(), least - 1
    _, which, rows = np.unique(numbers, return_inverse=True, return_counts=True)
    rare = np.flatnonzero(rows[which] < least)
    in_order = rare[np.argsort(numbers[rare], kind="stable")]
    inner = in_order[few : len(rare) - few]
    distinct, times = np.unique(numbers[inner], return_counts=True)
    if len(distinct) < _RARE_NUMBERS or _few_are_far(numbers[inner], least):
        return values, numbers[:0]
    # A number that is taken at both ends must stay rare, too.
    free = distinct[times < few]
    if len(free) < 2 * few:
        free = distinct[times < few - 1]
    if len(free) < few:
        free = distinct
    changed = numbers.copy()
    changed[in_order[:few]] = free[:few]
    changed[in_order[len(rare) - few :]] = free[-few:]
    return _with_numbers(values, changed), numbers[inner]


def _few_are_far(numbers: NDArray[Any], least: int) -> bool:
    """Whether fewer than 2 `least` - 1 numbers, of whatever rows, are far from all others.

    Of few known codes, how many rows there are can show that each has one.
    """
    # So that no square overflows.
    cells = numbers / max(float(np.abs(numbers).max()), 1e-300)
    order = np.argsort(-np.abs(cells - np.median(cells)), kind="stable")
    for few in range(1, len(cells) - least + 1):
        far, rest = order[:few], cells[order[few:]]
        if len(np.unique(cells[far])) >= 2 * least - 1:
            break
        nearest = np.abs(cells[far] - rest.mean()).min()
        next_one = np.abs(rest - rest.mean()).max()
        # The deviation of a small sample can be small by chance.
        least_far = _FAR * (1 + 8 / len(rest)) * rest.std()
        if nearest >= max(least_far, _APART * next_one):
            return True
    return False


def _with_numbers(values: pl.Series, numbers: NDArray[Any]) -> pl.Series:
    """A column with other numbers where it has some."""
    places = values.is_not_null().arg_true()
    return values.clone().scatter(places, pl.Series(numbers, dtype=values.dtype))

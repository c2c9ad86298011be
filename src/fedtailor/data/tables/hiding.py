"""What of a client's table may be counted: the table without its small groups.

`shown` turns a column into one in which no group of fewer than `MIN_ROWS` rows is left.
Everything that a client says about its columns is computed from such columns, and from
nothing else. So no answer can tell a table from the one that is shown, which has no gap,
no category and no deviating value of a few rows.

Of columns together, sums of products say more: `multipliable` finds the inputs whose
products lead to no group of few rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
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

_DEPENDENT = 1e-13
"""Directions of a smaller share of the largest variance are rounding."""


def shown(values: pl.Series, kind: Kind, least: int = MIN_ROWS) -> pl.Series:
    """A column of the same length in which no group of fewer than `least` rows is left.

    * If fewer cells than that are filled, none is.
    * A few gaps are filled by cells that the column has: the most frequent category, or
      yes or no; of numbers and dates those nearest to the mean, each once. (The mean
      itself would be a number with the count of the other cells in its digits.)
    * Numbers of a few rows, where all other rows share theirs with `least` or more, become
      the nearest number that many rows share. Rows of a rare category become `RARE`, and
      if these are few, the most frequent category.

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
    if 0 < values.null_count() < least:
        present = np.sort(values.drop_nulls().to_numpy())
        distance = np.abs(present - present.mean())
        gaps = values.is_null().arg_true()
        fill = present[np.argsort(distance, kind="stable")[: len(gaps)]]
        values = values.clone().scatter(gaps, pl.Series(fill, dtype=values.dtype))
    numbers, rows = counts_of(values)
    is_shared = rows >= least
    if not is_shared.any() or not 0 < rows[~is_shared].sum() < least:
        return values
    shared = np.sort(numbers[is_shared])
    others = pl.Series(numbers[~is_shared], dtype=values.dtype)
    few = values.is_in(others.implode()).arg_true()
    nearest = np.abs(values[few].to_numpy()[:, None] - shared).argmin(axis=1)
    return values.clone().scatter(few, pl.Series(shared[nearest], dtype=values.dtype))


@dataclass(frozen=True)
class Inputs:
    """Inputs that belong together: their products are sent, or none of them.

    Attributes:
        places: which inputs these are.
        groups: [rows] the group of each row, or -1, if the inputs have no other values
            than those of two groups: yes and no, a category, whether a cell is missing.
        is_shared: whether all values are those of many rows, so that the inputs may be
            known.
        varying: [rows] of numbers, where they vary: masks of the rows whose cell is there,
            and of those in which it is not the most frequent one.
    """

    places: slice
    groups: Int64[NDArray, " rows"] | None = None
    is_shared: bool = True
    varying: tuple[Bool[NDArray, " rows"], ...] = ()


def inputs_of(values: pl.Series, kind: Kind, places: slice) -> Inputs:
    """The inputs of a column's cells (`shown`)."""
    distinct, rows = counts_of(values)
    if kind == "category" or len(distinct) <= 2:
        groups = np.full(len(values), -1, np.int64)
        for group, value in enumerate(distinct):
            groups[(values == value).fill_null(False).to_numpy()] = group
        return Inputs(places, groups=groups)
    masks = [values.is_not_null().to_numpy()]
    if rows[0] >= MIN_ROWS:
        masks.append((values != distinct[0]).fill_null(False).to_numpy())
    is_shared = bool((rows >= MIN_ROWS).all())
    return Inputs(places, is_shared=is_shared, varying=tuple(masks))


def indicator_of(values: pl.Series, place: int) -> Inputs:
    """The input that says where cells are missing."""
    missing = values.is_null().to_numpy()
    return Inputs(slice(place, place + 1), groups=missing.astype(np.int64))


def multipliable(
    x: Float[NDArray, "rows inputs"], parts: Sequence[Inputs]
) -> Bool[NDArray, " inputs"]:
    """The inputs whose products with each other lead to no group of few rows.

    A sum of products with an input is a sum over rows, weighted by this input. So it must
    not be that

    1. two inputs of groups meet in 1 to 4 rows: their product counts these rows;
    2. a combination of inputs that may be known (`Inputs.is_shared`) has weights on 1 to 4
       of the rows in which a number varies, and on no others: it gives the sum over these
       rows;
    3. nor a combination of any inputs, on 1 to 4 of the rows where a number is present.

    What stands against it is taken out until nothing does.

    Args:
        x: the inputs of the rows, where missing cells have the mean of the others.
        parts: the inputs, by what they are of.
    """
    kept = _without_small_meetings(parts)
    while True:
        found = _isolating(x, [parts[place] for place in kept])
        if found is None:
            break
        del kept[found]
    result = np.zeros(x.shape[1], np.bool_)
    for place in kept:
        result[parts[place].places] = True
    return result


def _without_small_meetings(parts: Sequence[Inputs]) -> list[int]:
    """The parts without those that meet others in few rows, the worst first."""
    small = np.zeros((len(parts), len(parts)), np.bool_)
    for i, one in enumerate(parts):
        for j, other in enumerate(parts[:i]):
            if one.groups is not None and other.groups is not None:
                small[i, j] = small[j, i] = _meet_in_few(one.groups, other.groups)
    kept = list(range(len(parts)))
    while small.any():
        worst = int(small.sum(axis=0).argmax())
        small[worst], small[:, worst] = False, False
        kept.remove(worst)
    return kept


def _meet_in_few(one: Int64[NDArray, " rows"], other: Int64[NDArray, " rows"]) -> bool:
    both = (one >= 0) & (other >= 0)
    pairs = one[both] * (other.max(initial=0) + 1) + other[both]
    counts = np.bincount(pairs) if len(pairs) else np.zeros(0, np.int64)
    return bool(((counts > 0) & (counts < MIN_ROWS)).any())


def _isolating(x: Float[NDArray, "rows inputs"], parts: Sequence[Inputs]) -> int | None:
    """The place of a part that has to be taken out; None if there is none."""
    if not parts:
        return None
    shared = [x[:, part.places] for part in parts if part.is_shared]
    known = np.concatenate([x[:, :0], *shared], axis=1)
    for place, part in enumerate(parts):
        for rows in part.varying:
            if _isolated(known[rows]) is not None:
                return place
    owners = np.concatenate(
        [
            np.full(part.places.stop - part.places.start, i)
            for i, part in enumerate(parts)
        ]
    )
    every = np.concatenate([x[:, part.places] for part in parts], axis=1)
    masks = [
        np.ones(len(x), np.bool_),
        *(part.varying[0] for part in parts if part.varying),
    ]
    for rows in {mask.tobytes(): mask for mask in masks}.values():
        weights = _isolated(every[rows])
        if weights is not None:
            return int(owners[np.abs(weights).argmax()])
    return None


def _isolated(x: Float[NDArray, "rows inputs"]) -> Float[NDArray, " inputs"] | None:
    """Weights of a combination of inputs and 1 that has 1 to 4 rows; None if there is none.

    With H the projection onto all combinations, one that vanishes outside of a set S of
    rows is v with v_r = sum of H_rs v_s over S. For the row r of largest |v_r| this needs
    H_rr + sum of |H_rs| >= 1 over the others in S, and H_rr >= 1 / 4. No set of up to four
    rows is left out by looking at each such row with the three largest |H_rs|.
    """
    others = MIN_ROWS - 2
    centered = x - x.mean(axis=0, dtype=np.float64) if len(x) else x
    lengths = np.sqrt((centered**2).sum(axis=0))
    unit = centered / np.where(lengths > 0, lengths, 1.0)
    if len(x) < MIN_ROWS:
        return lengths if x.shape[1] else None
    variances, vectors = np.linalg.eigh(unit.T @ unit)
    is_real = variances > _DEPENDENT * variances[-1:]
    if not is_real.any():
        return None
    to_basis = vectors[:, is_real] / np.sqrt(variances[is_real])
    basis = unit @ to_basis
    leverage = (basis**2).sum(axis=1) + 1 / len(x)
    for row in np.flatnonzero(leverage >= _ISOLATED / (others + 1)):
        shared = np.abs(basis @ basis[row] + 1 / len(x))
        shared[row] = 0
        if leverage[row] + np.partition(shared, -others)[-others:].sum() >= _ISOLATED:
            return (to_basis @ basis[row]) * unit[row]
    return None

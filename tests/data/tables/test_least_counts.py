"""No count of fewer rows than `MIN_ROWS` is in the sums of a column, nor a difference
from which it follows.
"""

import tracemalloc
from collections import defaultdict
from itertools import combinations, combinations_with_replacement, product

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtailor._base.groups import MIN_ROWS
from fedtailor.data.tables.description import (
    class_counts_of,
    histogram_of,
    without_few,
)
from fedtailor.data.tables.hiding import RARE, counts_of, shown
from fedtailor.data.tables.sums import ColumnSums


def none_but(rows, *values):
    """A column of missing cells, but for some values at its beginning."""
    return pl.Series([*values, *[None] * (rows - len(values))], dtype=pl.Float64)


def without_outermost(cells):
    """Different numbers in ascending order; of these the four at each end are the next."""
    inner = np.sort(cells)[MIN_ROWS - 1 : 1 - MIN_ROWS]
    return np.sort(np.r_[inner[: MIN_ROWS - 1], inner, inner[1 - MIN_ROWS :]])


@pytest.mark.parametrize("kind", ["number", "boolean", "date"])
@pytest.mark.parametrize("few", [0, 1, 2, 3, 4, 5, 8])
def test_a_column_with_few_values_is_one_without_values(kind, few):
    """VA's `ca` has one value or two: mean and squares would tell them. Of eight values two
    numbers of which none is told have four each.
    """
    told = ColumnSums.of(none_but(60, *([0.0, 1.0, 1.0, 0.0] * 2)[:few]), kind)
    assert told == ColumnSums(count=0, missing=60)


@pytest.mark.parametrize("few", range(1, MIN_ROWS))
def test_few_missing_cells_are_filled_by_cells_near_the_mean(few):
    """The mean itself would have the number of the other cells in its digits."""
    values = np.random.default_rng(0).normal(size=40)
    inside = without_outermost(values)
    nearest = inside[np.argsort(np.abs(inside - inside.mean()), kind="stable")]
    told = ColumnSums.of(pl.Series([*values, *[None] * few]), "number")
    filled = [*values, *nearest[:few]]
    assert told.count == 40 + few and told.missing == 0
    assert told == ColumnSums.of(pl.Series(filled), "number")


@pytest.mark.parametrize("few", range(1, MIN_ROWS))
def test_few_rows_of_a_number_stay_few_where_gaps_are_filled(few):
    """The mean lies at this number, so that gaps are filled by its cells."""
    cells = [0.0] * 20 + [10.0] * 20 + [5.0] * few + [None] * (MIN_ROWS - 1)
    found = shown(pl.Series(cells), "number").drop_nulls().to_numpy()
    assert set(found) <= {0.0, 10.0}


@pytest.mark.parametrize("few", range(1, MIN_ROWS))
def test_few_rows_with_another_value_are_counted_to_the_others(few):
    """Their number and their value would follow from mean and squares."""
    for kind, other in (("number", 731.5), ("boolean", 1.0)):
        told = ColumnSums.of(pl.Series([0.0] * 30 + [other] * few), kind)
        assert told == ColumnSums(count=30 + few)
    many = ColumnSums.of(pl.Series([0.0] * 30 + [1.0] * MIN_ROWS), "boolean")
    assert many.mean * many.count == pytest.approx(MIN_ROWS)


def test_yes_and_no_of_few_rows_each_are_not_told():
    both = pl.Series([1.0] * 4 + [0.0] * 3)
    assert ColumnSums.of(both, "boolean") == ColumnSums(missing=7)


@pytest.mark.parametrize("agreed", [None, ("low", "high", "Ms Jones")])
def test_few_rows_of_a_category_count_as_the_first_other(agreed):
    cells = ["low"] * 20 + ["high"] * 9 + ["Ms Jones"] * 1 + [None] * 2
    told = ColumnSums.of(pl.Series(cells), "category", agreed)
    listed = {} if agreed is None else {"Ms Jones": 0}
    assert told == ColumnSums(count=32, categories={"low": 20, "high": 12, **listed})
    # Many rare categories are so together, beside one that is told.
    names = [f"{number}" for number in range(12)]
    told = ColumnSums.of(pl.Series(names + ["a"] * 12), "category", agreed)
    assert told.rare == 12 and told.count == 24 and told.categories["a"] == 12
    told = ColumnSums.of(pl.Series(names), "category", agreed)
    assert told.count == 0 and told.missing == 12


def test_rare_categories_that_must_have_rows_are_not_counted_together():
    """Eight rows of two rare categories are four of each."""
    for rare in ({"b": 4, "c": 4}, {"b": 4, "c": 3}, {"b": 4, "c": 4, "d": 4}):
        few = [name for name, rows in rare.items() for _ in range(rows)]
        cells = [*["a"] * 20, *["z"] * 9, *few]
        told = ColumnSums.of(pl.Series(cells), "category")
        assert told.rare == 0 and told.categories["a"] == 20 + len(few)
        # Beside one category, or none, they would be all that is not told.
        for others in (["a"] * 20, [None] * 9):
            column = pl.Series([*others, *few], dtype=pl.String)
            told = ColumnSums.of(column, "category")
            assert told.count == 0 and told.missing == len(column)
    cells = ["a"] * 20 + ["b"] * 3 + ["c"] * 2 + ["d"] * 2
    assert ColumnSums.of(pl.Series(cells), "category").rare == 7


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_no_listed_category_follows_to_have_rows_or_none(count):
    """Whatever is told of rare categories of a list, each may have no row, or four."""
    names = [f"n{number}" for number in range(count)]
    agreed = ("common", *names)
    tables = {}
    # A few rows of the common one and else gaps, or no or 30 gaps and else common rows.
    rest = [(times, None) for times in range(MIN_ROWS)] + [
        (0, "common"),
        (30, "common"),
    ]
    for rare, (times, filler) in product(product(range(MIN_ROWS), repeat=count), rest):
        cells = ["common" if filler is None else None] * times
        for name, rows in zip(names, rare, strict=True):
            cells += [name] * rows
        cells += [filler] * (80 - len(cells))
        told = ColumnSums.of(pl.Series(cells, dtype=pl.String), "category", agreed)
        present = [cells.count(name) for name in names]
        tables.setdefault(told.model_dump_json(), []).append(present)
    assert len(tables) >= 3
    for alike in tables.values():
        assert np.min(alike, axis=0).max() == 0
        assert np.max(alike, axis=0).min() == MIN_ROWS - 1


def few_tables(groups, most=15):
    """Rows of each group, of all tables of `MIN_ROWS` to so many rows."""
    for rows in product(range(most + 1), repeat=groups):
        if MIN_ROWS <= sum(rows) <= most:
            yield rows


def pinned(tables):
    """What is told though a count below five follows from it.

    Args:
        tables: pairs of what is told of a table, and its true counts.
    """
    alike = {}
    for told, counts in tables:
        alike.setdefault(told, []).append(counts)
    return [
        (told, same[0])
        for told, same in alike.items()
        if (np.ptp(same, axis=0) == 0)[np.min(same, axis=0) < MIN_ROWS].any()
    ]


@pytest.mark.parametrize("listed", [True, False])
def test_no_count_of_few_rows_follows_from_counts_of_categories(listed):
    """Before, that there is none: of the largest category, to which few rows are counted,
    exactly five were shown, or as many as of another.
    """
    names, tables = ("a", "b", "c"), []
    for *rows, gaps in few_tables(4):
        cells = [
            name for name, of_it in zip(names, rows, strict=True) for _ in range(of_it)
        ]
        column = pl.Series(cells + [None] * gaps, dtype=pl.String)
        told = ColumnSums.of(column, "category", names if listed else None)
        tables.append(((len(column), told.model_dump_json()), [*rows, gaps]))
    assert pinned(tables) == []


def test_rare_categories_by_themselves_say_nothing():
    """Before, three or more of five rows together showed that another had five, and no
    cell was missing.
    """
    names, tables = "abcd", []
    for *rows, gaps in few_tables(5, 11):
        if sum(rows) + gaps < 10:
            continue
        cells = [
            name for name, of_it in zip(names, rows, strict=True) for _ in range(of_it)
        ]
        column = pl.Series(cells + [None] * gaps, dtype=pl.String)
        told = ColumnSums.of(column, "category")
        tables.append(((len(column), told.model_dump_json()), [*rows, gaps]))
    assert pinned(tables) == []


def test_no_count_of_few_rows_follows_from_bins():
    """Before, twice the rows of the outermost numbers were counted: beside a bin of three of
    these, one of five rows had four.
    """
    cells, bins = np.sort(np.random.default_rng(0).normal(size=21)), 5
    column, tables = pl.Series(cells), []
    numbers = shown(column, "number").to_numpy()
    for places in combinations_with_replacement(range(22), bins - 1):
        inner = np.array(places)
        edges = np.append(cells, np.inf)[inner]
        of_bins = np.searchsorted(edges, numbers, side="right")
        told = without_few(np.bincount(of_bins, minlength=bins), 2 * MIN_ROWS - 1)
        true = np.diff([0, *places, 21])
        ends = np.append(0, np.cumsum(true))
        between = [ends[j] - ends[i] for i, j in combinations(range(bins + 1), 2)]
        tables.append((tuple(told.tolist()), between[: bins - 1] + between[bins:]))
    assert pinned(tables) == []
    whole = histogram_of(column, (0.0,))
    assert sum(whole) == 21 and len(tables) == 12650


@pytest.mark.parametrize(
    "rows",
    [
        (4, 4, 1),
        (4, 3, 2),
        (4, 4, 4),
        (1, 4, 4),
        (2, 3, 4),
        (1, 1, 1, 1, 2, 3),
        (2, 1, 1, 3) * 2,
    ],
)
def test_few_far_codes_count_as_no_numbers(rows):
    """Four of these rows are hidden; of the others, how many have which code followed."""
    ages = np.random.default_rng(1).normal(70, 10, 200).round(1)
    codes = np.repeat(np.linspace(888, 999, len(rows)), rows)
    column = pl.Series(np.append(ages, codes))
    assert shown(column, "number").null_count() == len(column)


def test_rare_numbers_take_no_memory_of_all_pairs():
    shared = np.repeat(np.arange(4000.0), 5)
    column = pl.Series(
        np.concatenate([shared, np.arange(4000) + 0.4, [1e6] * 4, [2e6] * 4])
    )
    tracemalloc.start()
    cells = shown(column, "number")
    assert tracemalloc.get_traced_memory()[1] < 20e6
    tracemalloc.stop()
    assert set(cells.to_list()) <= set(shared.tolist())


@pytest.mark.parametrize("numbers", [(0.0, 1.0, 2.0), (0.0, 1.0, 10.0)])
def test_no_count_of_few_rows_follows_from_few_numbers(numbers):
    """Before, exactly five rows of one showed that no other was near, nor a gap filled."""
    tables = []
    for *rows, gaps in few_tables(4, 10):
        cells = [
            value
            for value, of_it in zip(numbers, rows, strict=True)
            for _ in range(of_it)
        ]
        column = pl.Series(cells + [None] * gaps, dtype=pl.Float64)
        told = ColumnSums.of(column, "number").model_dump_json()
        distinct, counts = counts_of(shown(column, "number"))
        bins = tuple(sorted(zip(distinct.tolist(), counts.tolist(), strict=True)))
        tables.append(((len(column), told, bins), [*rows, gaps]))
    assert pinned(tables) == []


def test_no_count_of_few_rows_follows_from_yes_and_no():
    tables = []
    for no, yes, gaps in few_tables(3):
        column = pl.Series([0.0] * no + [1.0] * yes + [None] * gaps, dtype=pl.Float64)
        told = ColumnSums.of(column, "boolean")
        tables.append(((len(column), told.model_dump_json()), [no, yes, gaps]))
    assert pinned(tables) == []


def test_no_count_of_few_rows_follows_from_counts_of_classes():
    tables = []
    for rows in few_tables(3):
        codes = np.repeat(np.arange(3), rows)
        tables.append(((len(codes), class_counts_of(codes, 3)), rows))
    assert pinned(tables) == []


def with_fine_cells(others, rng):
    """Numbers of a unit, the unit, and the rows that are no multiples of it."""
    cells, unit, few = 3.0 * rng.integers(0, 100, 60), 3.0, 1
    if others == "few rows":
        cells, unit = 30.0 * rng.permutation(12), 30.0
    if others == "ages":
        cells, unit, few = rng.integers(20, 95, 300) + 0.0, 1.0, 4
    if others == "pounds":
        cells, unit = 0.45359237 * rng.integers(100, 300, 80), 0.45359237
    if others == "wide range":
        cells, unit = rng.integers(0, 5_000_000, 400) + 0.0, 1.0
    if others == "nearly all 0":
        cells, unit = np.r_[np.zeros(5000), 100.0 * rng.permutation(40)], 100.0
    if others == "far from nearly all":
        cells, unit = np.r_[np.zeros(5000), 1e5 + 100.0 * rng.permutation(40)], 100.0
    if others == "sentinel":
        cells, unit = rng.integers(0, 1000, 400) + 0.0, 1.0
        cells[-20:] = 9_999_999
    return cells, unit, few


@pytest.mark.parametrize(
    "others",
    [
        *("threes", "few rows", "ages", "pounds", "wide range", "sentinel"),
        *("nearly all 0", "far from nearly all"),
    ],
)
@pytest.mark.parametrize("kind", ["number", "date"])
def test_no_digit_of_few_rows_is_in_the_sums(others, kind):
    """Among ages 39.407 is the fraction of their sum, and its square that of the squares."""
    rng = np.random.default_rng(0)
    cells, unit, few = with_fine_cells(others, rng)
    middle = np.argsort(np.abs(cells - np.median(cells[-40:])), kind="stable")[0]
    places = np.arange(middle, middle + few) % len(cells)
    told, exact = set(), set()
    for remainder in range(1, 30):
        changed = cells.copy()
        changed[places] += np.linspace(0.5, 1, few) * remainder / 30 * unit
        found = ColumnSums.of(pl.Series(changed), kind)
        told.add((found.mean, found.squares))
        exact.add((changed.mean(), changed.var()))
    assert len(exact) == 29 and len(told) <= 4


@pytest.mark.parametrize("unit", [2, 3, 5])
def test_no_remainder_of_one_row_is_in_the_sums(unit):
    """Before, it was where the others are multiples of 2 or 3."""
    alike = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        cells = unit * rng.integers(0, 100, 60) / 1
        told = set()
        for remainder in range(unit):
            cells[7] = unit * 50 + remainder
            found = ColumnSums.of(pl.Series(cells), "number")
            told.add((found.mean, found.squares))
        assert len(told) < 3
        alike += len(told) == 1
    assert alike >= 15


def test_no_number_is_told_of_a_few_that_two_rows_share_each():
    """Before, they were rounded, to steps that said that no finer ones had five rows."""
    few = [10.0, 11, 12, 13, 14, 30, 31, 32, 33, 34]
    assert shown(pl.Series([*few, *few]), "number").null_count() == 20


@pytest.mark.parametrize("values", [(1.0, 2, 99), (0.0, 1, 9), (2.0, 3, 5, 20)])
@pytest.mark.parametrize("gaps", [False, True])
def test_no_count_of_few_rows_follows_from_a_few_known_values(values, gaps):
    """All tables of so many rows of known values: before, the choice of steps said in some
    that two groups have four rows each.
    """
    alike = defaultdict(list)
    known = [*values, None] if gaps else [*values]
    for rows in range(8, 16 if len(known) > 3 else 19):
        for ends in combinations(range(rows + len(known) - 1), len(known) - 1):
            counts = np.diff([-1, *ends, rows + len(known) - 1]) - 1
            cells = [
                value
                for value, times in zip(known, counts.tolist(), strict=True)
                for _ in range(times)
            ]
            told = ColumnSums.of(pl.Series(cells, dtype=pl.Float64), "number")
            alike[rows, told.model_dump_json()].append(counts)
    for told, tables in alike.items():
        same = np.min(tables, axis=0) == np.max(tables, axis=0)
        assert not (same & (tables[0] > 0) & (tables[0] < MIN_ROWS)).any(), told


@pytest.mark.parametrize("rows", [*range(9, 22)])
def test_how_many_cells_are_missing_does_not_follow_from_what_is_hidden(rows):
    """Before, numbers of 18 rows were told as they are, or rounded if four are missing."""
    cells = np.random.default_rng(rows).normal(70, 10, rows).tolist()
    told = set()
    for gaps in range(MIN_ROWS):
        column = pl.Series([*cells[gaps:], *[None] * gaps], dtype=pl.Float64)
        told.add(shown(column, "number").null_count())
    assert len(told) == 1


@pytest.mark.parametrize("few", [1, 2, 4])
@pytest.mark.parametrize("rows", [30, 100, 1000])
def test_the_outermost_rows_become_the_next_ones(rows, few):
    """Before, the cell of one was read to a percent: sum and squares less those of bins.
    Later, far ones became others, but not those of up to five standard deviations.
    """
    cells = np.random.default_rng(rows).uniform(40, 60, rows)
    for distance in (1.01, 2, 4, 8, 1e3, 1e300):
        column = np.r_[cells, 60 * distance * (1 + np.arange(few) / 100)]
        found = shown(pl.Series(column), "number").to_numpy()
        np.testing.assert_array_equal(np.sort(found), without_outermost(column))
        assert found.max() <= cells.max()
    # Beside a sentinel that many rows have.
    found = shown(pl.Series(np.r_[column, np.full(40, -99.0)]), "number").to_numpy()
    assert found[: rows + few].max() <= cells.max()


def test_how_many_rows_have_a_known_code_does_not_follow():
    """Of 25 cholesterols, 0 = not measured, it did for 93 %: each moved sum and squares."""
    found = np.zeros((MIN_ROWS, 100, 2))
    for few, seed in product(range(MIN_ROWS), range(100)):
        rng = np.random.default_rng([few, seed])
        cells = rng.normal(rng.normal(245, 8), rng.uniform(45, 55), 25).round()
        cells[:few] = 0
        told = ColumnSums.of(pl.Series(cells), "number")
        found[few, seed] = told.mean, told.deviation
    found /= found.std(axis=(0, 1))
    # Guess by the nearest mean of half of the tables; 20 % are right by chance.
    nearest = np.abs(found[:, 50:, None] - found[:, :50].mean(axis=1)).sum(axis=-1)
    right = nearest.argmin(axis=-1) == np.arange(MIN_ROWS)[:, None]
    assert right.mean() < 0.45


@pytest.mark.parametrize("few", [1, 2, 4])
@pytest.mark.parametrize("nearest", [1, 2, 3, 4])
def test_far_rows_make_no_number_one_of_five_rows(few, nearest):
    """Not even the nearest, which some rows have already."""
    cells = np.random.default_rng(0).normal(50, 8, 100).round(3)
    column = np.r_[cells, [cells.max() + 1] * nearest, 900.0 + np.arange(few)]
    found = shown(pl.Series(column), "number")
    assert found.max() <= cells.max() + 1
    assert counts_of(found)[1].max() < MIN_ROWS


@pytest.mark.parametrize("groups", [6, 15, 50])
@pytest.mark.parametrize("shared", [0, 7])
def test_a_far_row_hides_among_numbers_of_four_rows_each(groups, shared):
    """Before, none of them could take it, so that it stayed: 99.8 % of the squares."""
    rng = np.random.default_rng(groups)
    usual = np.repeat(np.round(rng.lognormal(6, 0.5, groups), 2), 4)
    cells = np.r_[usual, np.full(shared, 300.0), 876543.21]
    found = shown(pl.Series(cells), "number").drop_nulls()
    assert found.is_empty() or found.max() <= usual.max()


@pytest.mark.parametrize(("nearer", "farther"), [(4, 1), (3, 2), (2, 3), (1, 4)])
def test_far_rows_do_not_hide_among_rows_that_are_far_too(nearer, farther):
    """Before, the farther became the nearer ones' numbers: five rows, which stayed."""
    rng = np.random.default_rng(0)
    usual = rng.lognormal(6, 0.5, 100).round(2)
    far = np.r_[1e5 * rng.uniform(1, 2, nearer), 1e7 * rng.uniform(1, 2, farther)]
    found = shown(pl.Series(np.r_[usual, far]), "number").drop_nulls()
    assert found.is_empty() or found.max() <= usual.max()


@pytest.mark.parametrize("factor", [2.5, 3, 5, 8])
@pytest.mark.parametrize("rows", [17, 25, 33, 40])
def test_no_column_shrinks_to_a_few_cells(factor, rows):
    """Of a range of many sizes, before, row by row was far from those that were left, and
    became one of a few numbers, which were told exactly.
    """
    found = shown(pl.Series(factor ** np.arange(rows)), "number").drop_nulls()
    assert found.is_empty() or counts_of(found)[1].max() < MIN_ROWS


def test_four_of_eight_cells_do_not_stay_as_far_ones():
    rng = np.random.default_rng(0)
    cells = np.r_[rng.lognormal(6, 0.5, 4), 1e6 * rng.uniform(1, 2, 4)].round(2)
    assert shown(pl.Series(cells), "number").drop_nulls().n_unique() <= 1


def test_many_far_rows_stay():
    """Of a long tail no sum is one of few rows."""
    cells = np.random.default_rng(0).lognormal(6, 0.5, 1000)
    told = ColumnSums.of(pl.Series(cells), "number")
    assert told.mean == pytest.approx(cells.mean(), rel=0.01)
    assert told.deviation == pytest.approx(cells.std(), rel=0.05)


def test_a_wrong_cell_empties_no_column():
    """Before, steps were so wide that all others were one number."""
    ages = np.random.default_rng(0).permutation(np.arange(20, 80))[:40] + 0.0
    usual = ColumnSums.of(pl.Series(ages), "number")
    told = ColumnSums.of(pl.Series(np.r_[ages[1:], ages[0] * 1e4]), "number")
    assert told.count == usual.count == 40
    assert abs(told.mean - usual.mean) < usual.deviation / 4
    assert told.deviation == pytest.approx(usual.deviation, rel=0.2)


def test_sums_of_numbers_that_six_rows_share_are_exact():
    rng = np.random.default_rng(0)
    ages = np.repeat(rng.integers(20, 95, 100), 6) + 0.0
    told = ColumnSums.of(pl.Series(ages), "number")
    assert told.mean == pytest.approx(ages.mean(), rel=1e-14)
    assert told.squares == pytest.approx(ages.var() * len(ages), rel=1e-13)


@pytest.mark.parametrize("rows", [25, 30, 300, 900])
@pytest.mark.parametrize("shift", [0.0, 1e4])
def test_rounded_sums_are_near(rows, shift):
    """Their difference is one of one row, more or less, whatever the numbers are."""
    cells = np.random.default_rng(rows).normal(shift, 3, rows)
    inside = without_outermost(cells)
    told = ColumnSums.of(pl.Series(cells), "number")
    assert abs(told.mean - inside.mean()) <= inside.std() / rows
    # By simulation, of 20,000 normal samples.
    factor = {25: 2.603, 30: 2.143, 300: 1.068, 900: 1.022}[rows]
    expected = factor * rows * inside.var()
    assert abs(told.squares - expected) <= 2 * inside.var() + 0.01 * expected


@pytest.mark.parametrize("rows", [25, 60, 300])
def test_deviations_of_normal_numbers_are_right_on_average(rows):
    ratios = []
    for seed in range(100):
        cells = np.random.default_rng(seed).normal(7, 2, rows)
        ratios.append(ColumnSums.of(pl.Series(cells), "number").squares / rows / 4)
    assert np.mean(ratios) == pytest.approx(1, abs=3 * np.std(ratios) / 10 + 0.02)


CELLS = {
    "number": st.one_of(st.none(), st.sampled_from([0.0, 1.0, 2.5])),
    "boolean": st.one_of(st.none(), st.sampled_from([0.0, 1.0])),
    "category": st.one_of(st.none(), st.sampled_from(["a", "b", "c", "d"])),
}


@given(st.data(), st.sampled_from(sorted(CELLS)), st.booleans())
def test_every_count_is_zero_or_large_enough(data, kind, lists):
    cells = data.draw(st.lists(CELLS[kind], min_size=1, max_size=40))
    dtype = pl.String if kind == "category" else pl.Float64
    agreed = ("a", "b", "z") if lists and kind == "category" else None
    told = ColumnSums.of(pl.Series(cells, dtype=dtype), kind, agreed)
    counts = [told.count, told.missing, told.rare, *told.categories.values()]
    if kind == "boolean":
        ones = told.mean * told.count
        assert ones == pytest.approx(round(ones), abs=1e-9)
        counts += [round(ones), told.count - round(ones)]
    assert told.count + told.missing == len(cells)  # nothing follows by subtraction
    assert all(
        number == 0 or number >= MIN_ROWS or number == len(cells) for number in counts
    )
    if kind == "category":
        assert told.count == told.rare + sum(told.categories.values())


@given(st.data(), st.sampled_from(["number", "boolean", "category"]))
def test_what_is_shown_has_no_small_group_and_is_shown_as_it_is(data, kind):
    """So no answer tells a table from the one that is shown."""
    cells = data.draw(st.lists(CELLS[kind], min_size=1, max_size=40))
    dtype = pl.String if kind == "category" else pl.Float64
    values = pl.Series(cells, dtype=dtype)
    found = shown(values, kind)
    assert len(found) == len(values)
    assert RARE in found.to_list() or found.equals(shown(found, kind))
    missing = found.null_count()
    assert missing in (0, len(values)) or MIN_ROWS <= missing <= len(values) - MIN_ROWS
    _, rows = counts_of(found)
    few = rows[rows < MIN_ROWS]
    if kind == "number":  # many numbers may be those of a row each, or none
        assert few.sum() == 0 or few.sum() >= MIN_ROWS
    elif len(values) >= MIN_ROWS:
        assert not len(few)
    assert shown(values, kind, 1).equals(values)


@pytest.mark.parametrize("count", [11, 12, 14])
@pytest.mark.parametrize("rows", [24, 30, 40])
def test_rare_numbers_of_a_short_list_are_not_told(count, rows):
    """Of eleven doses they were told if and only if four cells were missing, or a code had up
    to four rows; and of 40 rows counts of single doses followed.
    """
    doses = [2.5, 5, 10, 12.5, 20, 25, 40, 50, 75, 100, 150, 200, 250, 300][:count]
    for draw in range(5):
        cells = np.random.default_rng(draw).permutation(np.repeat(doses, 4))[:rows]
        for few in range(MIN_ROWS):
            for hidden in ([None] * few, [9999.0] * few):
                column = pl.Series([*cells[few:], *hidden], dtype=pl.Float64)
                assert (counts_of(shown(column, "number"))[1] >= MIN_ROWS).all()


@pytest.mark.parametrize("rows", [16, 18, 20, 21, 24])
def test_that_few_are_missing_does_not_decide_beside_a_frequent_number(rows):
    """Most are alive, 9999-12-31. The mean says how many rows have another date, and that these
    are told said how many gaps there are.
    """
    for draw in range(5):
        dates = np.random.default_rng(draw).choice(3000, rows, replace=False) + 16000.0
        cells = [*dates, *[2932896.0] * (95 - rows)]
        told = set()
        for gaps in range(MIN_ROWS):
            column = pl.Series([*cells, *[None] * gaps], dtype=pl.Float64)
            told.add(bool((counts_of(shown(column, "number"))[1] < MIN_ROWS).any()))
        assert told == {rows > 20}


def test_numbers_of_few_rows_become_the_nearest_of_many():
    cells = pl.Series([0.0] * 9 + [1.0] * 6 + [0.2, 0.9, 49.634])
    assert shown(cells, "number").to_list() == [0.0] * 9 + [1.0] * 6 + [0.0, 1.0, 1.0]
    # What fills gaps makes few rows no more.
    few = pl.Series([0.0] * 4 + [7.0] * 3 + [49.634, None, None])
    assert shown(few, "number").null_count() == 10
    many = pl.Series([0.0] * 6 + [49.634, None, None])
    assert shown(many, "number").to_list() == [0.0] * 9

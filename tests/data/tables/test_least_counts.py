"""No count of fewer rows than `MIN_ROWS` is in the sums of a column, nor a difference
from which it follows.
"""

from itertools import product

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtailor.data.tables import hiding
from fedtailor.data.tables.encoding import MIN_ROWS
from fedtailor.data.tables.hiding import counts_of, shown
from fedtailor.data.tables.sums import ColumnSums


def none_but(rows, *values):
    """A column of missing cells, but for some values at its beginning."""
    return pl.Series([*values, *[None] * (rows - len(values))], dtype=pl.Float64)


@pytest.mark.parametrize("kind", ["number", "boolean", "date"])
@pytest.mark.parametrize("few", range(MIN_ROWS))
def test_a_column_with_few_values_is_one_without_values(kind, few):
    """VA's `ca` has one value or two: mean and squares would tell them."""
    told = ColumnSums.of(none_but(60, *[0.0, 1.0, 1.0, 0.0][:few]), kind)
    assert told == ColumnSums(count=0, missing=60)


@pytest.mark.parametrize("few", range(1, MIN_ROWS))
def test_few_missing_cells_are_filled_by_cells_near_the_mean(few):
    """The mean itself would have the number of the other cells in its digits."""
    values = np.random.default_rng(0).normal(size=20)
    nearest = values[np.argsort(np.abs(values - values.mean()))]
    told = ColumnSums.of(pl.Series([*values, *[None] * few]), "number")
    filled = [*values, *nearest[:few]]
    assert told.count == 20 + few and told.missing == 0
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
def test_few_rows_of_a_category_are_counted_to_the_most_frequent(agreed):
    cells = ["low"] * 20 + ["high"] * 9 + ["Ms Jones"] * 1 + [None] * 2
    told = ColumnSums.of(pl.Series(cells), "category", agreed)
    listed = {} if agreed is None else {"Ms Jones": 0}
    assert told == ColumnSums(count=32, categories={"low": 23, "high": 9, **listed})
    # Where all categories are rare, they are so together.
    names = pl.Series([f"{number}" for number in range(12)])
    told = ColumnSums.of(names, "category", agreed)
    assert told.rare == told.count == 12 and not any(told.categories.values())


def test_rare_categories_that_must_have_rows_are_not_counted_together():
    """Eight rows of two rare categories are four of each."""
    agreed = None
    for rare in ({"b": 4, "c": 4}, {"b": 4, "c": 3}, {"b": 4, "c": 4, "d": 4}):
        cells = ["a"] * 20 + [name for name, rows in rare.items() for _ in range(rows)]
        told = ColumnSums.of(pl.Series(cells), "category", agreed)
        assert told.rare == 0 and told.categories["a"] == len(cells)
        told = ColumnSums.of(pl.Series(cells[20:]), "category", agreed)
        assert told.count == 0 and told.missing == len(cells) - 20
    cells = ["a"] * 20 + ["b"] * 3 + ["c"] * 3 + ["d"] * 2
    assert ColumnSums.of(pl.Series(cells), "category", agreed).rare == 8


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


@pytest.mark.parametrize("unit", [1.0, 0.1, 1 / 3, 7.0])
@pytest.mark.parametrize("few", [1, 2, 4, 5])
def test_few_numbers_with_more_digits_lose_them(unit, few):
    """Among ages 39.407 is the fraction of their sum, and its square that of the squares."""
    rng = np.random.default_rng(few)
    ordinary = rng.integers(20, 95, 300) * unit
    cells = ordinary.copy()
    cells[:few] += rng.integers(1, 1000, few) * unit / 1009
    told = shown(pl.Series(cells), "number").to_numpy()
    is_hidden = few < MIN_ROWS
    np.testing.assert_allclose(told[few:], ordinary[few:])
    if is_hidden:
        assert np.abs(told / unit - np.rint(told / unit)).max() < 1e-9
        assert np.abs(told - cells).max() <= unit / 2
    else:
        np.testing.assert_array_equal(told, cells)
    # Days and the time of one.
    days = ordinary / unit
    days[0] += 0.407
    days = shown(pl.Series(days), "date").to_numpy()
    assert np.abs(days - np.rint(days)).max() < 1e-9


@pytest.mark.parametrize("others", ["range", "sentinel", "two kinds"])
def test_decimals_of_few_rows_are_hidden_beside_any_numbers(others):
    rng = np.random.default_rng(0)
    cells = rng.integers(0, 1000, 400).astype(float)
    if others == "range":
        cells = rng.integers(0, 5_000_000, 400).astype(float)
    if others == "sentinel":
        cells[100:120] = 9_999_999
    places = 0
    if others == "two kinds":
        cells[10:13] += [0.12, 0.25, 0.38]
        places = 2
    ordinary = cells.copy()
    cells[:2] += [0.407, 0.113]
    told = hiding._without_finer(pl.Series(cells), MIN_ROWS).to_numpy()
    np.testing.assert_allclose(np.round(told, places), told, rtol=0, atol=1e-9)
    np.testing.assert_allclose(told, ordinary, rtol=0, atol=0.5)
    np.testing.assert_array_equal(told[13:], ordinary[13:])


def test_digits_of_ordinary_columns_are_kept():
    rng = np.random.default_rng(0)
    for numbers in (
        rng.normal(size=60),
        rng.normal(size=60).round(2),
        rng.integers(0, 1000, 60).astype(float),
        (rng.integers(900, 2600, 60) * 0.45359237).round(1),
        # Half of them have one more digit.
        np.r_[rng.integers(0, 300, 30), rng.integers(0, 3000, 30) / 10],
    ):
        told = hiding._without_finer(pl.Series(numbers), MIN_ROWS)
        np.testing.assert_array_equal(told.to_numpy(), numbers)


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
    assert found.equals(shown(found, kind)) and len(found) == len(values)
    missing = found.null_count()
    assert missing in (0, len(values)) or MIN_ROWS <= missing <= len(values) - MIN_ROWS
    _, rows = counts_of(found)
    few = rows[rows < MIN_ROWS]
    if kind == "number":  # many numbers may be those of a row each, or none
        assert few.sum() == 0 or few.sum() >= MIN_ROWS
    elif len(values) >= MIN_ROWS:
        assert not len(few)
    assert shown(values, kind, 1).equals(values)


def test_numbers_of_few_rows_become_the_nearest_of_many():
    cells = pl.Series([0.0] * 9 + [1.0] * 6 + [0.2, 0.9, 49.634])
    assert shown(cells, "number").to_list() == [0.0] * 9 + [1.0] * 6 + [0.0, 1.0, 1.0]
    # What fills gaps makes few rows no more.
    few = pl.Series([0.0] * 4 + [49.634, None, None])
    assert shown(few, "number").null_count() == 7
    many = pl.Series([0.0] * 5 + [49.634, None, None])
    assert shown(many, "number").to_list() == [0.0] * 8

"""No count of fewer rows than `MIN_ROWS` is in the sums of a column, nor a difference
from which it follows.
"""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtailor.tables.encoding import MIN_ROWS, ColumnEncoding
from fedtailor.tables.sums import ColumnSums, InputSums


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
def test_few_missing_cells_are_counted_as_the_mean(few):
    values = np.arange(20.0)
    told = ColumnSums.of(pl.Series([*values, *[None] * few]), "number")
    assert told.count == 20 + few and told.missing == 0
    assert told.mean == pytest.approx(9.5) and told.squares == pytest.approx(665)


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


def test_an_input_of_few_rows_is_in_no_product():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 3)).astype(np.float32)
    x[:, 1] = 0
    x[:4, 1] = 1  # four rows of a category
    told = InputSums.of(x)
    assert told.mean[1] == 0 and not told.matrix()[1].any()
    x[:5, 1] = 1
    assert InputSums.of(x).matrix()[1].all()
    with pytest.raises(ValueError, match="or fewer than 5: sums of products would"):
        InputSums.of(x[:4, :1])


def test_no_few_rows_follow_from_products_of_the_inputs_of_a_column():
    """Before, the inputs of all other categories together showed what the rows of a rare
    one hold, and a mean of all clients far away where a gap is.
    """
    rng = np.random.default_rng(0)
    other = rng.normal(size=40).astype(np.float32)
    ward = ColumnEncoding("ward", "category", "a", False, categories=("a", "b", "c"))
    age = ColumnEncoding("age", "number", 0.0, False, 0.0, 1.0)
    codes = np.r_[np.zeros(20, int), np.ones(15, int), 2, 2, 3, 3, 3]
    wards = np.eye(4, dtype=np.float32)[codes, :3]  # 3 is a category without an input
    ages = rng.normal(-1, 1e-4, 40).astype(np.float32)
    ages[7] = 0  # a gap, where all others are far from the pooled mean
    x = np.column_stack([wards, ages, other])
    told = InputSums.of(x, (ward, age, age))

    def sums_of(weights):
        """The sum of the last input over rows, weighted by inputs, from what is told."""
        mean, matrix = np.array(told.mean), told.matrix()
        return weights @ (matrix[:, -1] + 40 * mean * mean[-1])

    every = np.array(told.mean) * 40
    # All rows have a ward: what is told of all wards is what is told of all rows.
    np.testing.assert_allclose(every[:3].sum(), 40)
    np.testing.assert_allclose(sums_of(np.array([1, 1, 1, 0, 0])), every[-1], atol=1e-4)
    # The sum over rows with an age, times the age, is that of all rows.
    shown = every[-1] + sums_of(np.array([0, 0, 0, 1, 0]))
    assert abs(shown - other[7]) > 0.1 * abs(other[7]) and abs(shown) < 0.05
    # What follows for five rows or more stays as it is.
    wards[35:37] = [0, 1, 0]
    wards[37:] = [0, 1, 0]
    np.testing.assert_array_equal(
        InputSums.of(wards, (ward,)).mean, InputSums.of(wards).mean
    )

"""Pooled statistics that clients accept: all that tables can give, and no invented
ones.
"""

import dataclasses
from functools import reduce
from operator import add

import polars as pl
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from fedtailor.data.tables.sums import ColumnSums
from fedtailor.remote.job.agreement import check_column_sums, check_own_sums
from fedtailor.remote.job.job import Schema
from fedtailor.remote.job.statistics import Statistics

SCHEMA = Schema(
    target="y",
    classes=None,
    columns={
        "number": None,
        "yes": None,
        "day": None,
        "free": None,
        "listed": ("a", "b", "c"),
    },
    kinds={
        "number": "number",
        "yes": "boolean",
        "day": "date",
        "free": "category",
        "listed": "category",
    },
    preprocessing="federated",
)
rows = st.integers(0, 20)


@st.composite
def numbers(draw, count):
    """Numbers of any size, also far from zero and close together."""
    size = 10.0 ** draw(st.integers(-30, 30))
    centre = size * draw(st.sampled_from([0, 1, -3, 1e3, 1e9, -1e15]))
    values = draw(
        st.lists(
            st.none() | st.floats(-1, 1) | st.just(0.5), min_size=count, max_size=count
        )
    )
    return pl.Series(
        [None if value is None else centre + size * value for value in values],
        dtype=pl.Float64,
    )


def picked(draw, count, values, dtype):
    cells = draw(
        st.lists(st.none() | st.sampled_from(values), min_size=count, max_size=count)
    )
    return pl.Series(cells, dtype=dtype)


@st.composite
def tables(draw):
    """The statistics of a client."""
    count = draw(rows)
    cells = {
        "number": draw(numbers(count)),
        "yes": picked(draw, count, [0, 1], pl.Int64),
        "day": picked(draw, count, [19000, 19001, 3], pl.Int64),
        "free": picked(draw, count, ["p", "q"], pl.String),
        "listed": picked(draw, count, ["a", "b", "c"], pl.String),
    }
    columns = {
        name: ColumnSums.of(values, SCHEMA.kinds[name], SCHEMA.columns[name])
        for name, values in cells.items()
    }
    target = ColumnSums.of(draw(numbers(count)), "number")
    return Statistics(columns=columns, target=target)


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(tables(), min_size=1, max_size=8))
def test_what_tables_give_together_is_accepted_by_each_of_them(parts):
    pooled = reduce(add, parts)
    # as it is sent
    pooled = Statistics.from_json(pooled.to_json(), SCHEMA)
    for own in parts:
        check_own_sums(own, SCHEMA)
        check_column_sums(pooled, own, SCHEMA)


def of_number(pooled, own):
    """Statistics of one column of numbers."""
    schema = dataclasses.replace(
        SCHEMA, columns={"x": None}, kinds={"x": "number"}, classes=("a", "b")
    )
    check_column_sums(
        Statistics(columns={"x": pooled}), Statistics(columns={"x": own}), schema
    )


finite = st.floats(-1e6, 1e6).map(lambda value: round(value, 3))


@settings(max_examples=60)
@given(
    st.lists(finite, min_size=2, max_size=20),
    finite,
    st.integers(9, 50),
)
def test_the_least_variance_is_that_of_equal_rows_elsewhere(own_rows, other, others):
    """Equal rows elsewhere have no variance of their own, so that the pooled one is the
    least that this client and a pooled mean allow.
    """
    own = ColumnSums.of(pl.Series(own_rows), "number", least=1)
    least = own + ColumnSums.of(pl.Series([other] * others), "number")
    assume(least.squares > 1e-6)
    of_number(least, own)
    of_number(least.model_copy(update={"squares": least.squares * 1.001}), own)
    # with numbers of this size, rounding is far below this
    spread = max(abs(other), *map(abs, own_rows)) ** 2
    assume(least.squares > 1e-5 * spread)
    for factor in (0.999999, 0.5, 0.0):
        smaller = least.model_copy(update={"squares": least.squares * factor})
        with pytest.raises(ValueError, match="smaller than this table alone makes it"):
            of_number(smaller, own)


OWN = ColumnSums(count=40, missing=2, mean=50.0, squares=1000.0)


@pytest.mark.parametrize(
    "invented",
    [
        {"squares": 1e-39**2 * 120},  # a deviation of 1e-39
        {"squares": 0.0},
        {"count": 39},
        {"missing": 1},
        {"count": 40, "mean": 50.1},  # nobody else has rows
        {"count": 40, "squares": 1000.1},
        {"count": 41},  # nobody tells of one row
        {"missing": 10**12},
        {"count": 2**45, "mean": 2e5, "squares": 2e5**2 * 2**45},
        {"mean": 56.0},
        {"mean": -1e300},
        {"rare": 3},
        {"categories": {"a": 5}},
    ],
    ids=str,
)
def test_invented_sums_of_numbers_are_refused(invented):
    possible = ColumnSums(count=120, missing=7, mean=50.0, squares=1700.0)
    of_number(possible, OWN)
    with pytest.raises(ValueError, match=r"^column 'x': "):
        of_number(possible.model_copy(update=invented), OWN)


@pytest.mark.parametrize(
    ("column", "own", "possible", "invented"),
    [
        (
            "yes",
            ColumnSums(count=20, mean=0.25, squares=3.75),
            ColumnSums(count=40, mean=0.25, squares=7.5),
            [
                {"mean": 0.26, "squares": 40 * 0.26 * 0.74},  # not a number of rows
                {"mean": 1.4},
                {"mean": 0.1, "squares": 3.6},  # fewer than here
                {"mean": 0.9, "squares": 3.6},  # more than the other rows
                {"squares": 1e-70},
            ],
        ),
        (
            "free",
            ColumnSums(count=12, categories={"p": 7}, rare=5),
            ColumnSums(count=30, categories={"p": 12, "q": 8}, rare=10),
            [
                {"categories": {"p": 6, "q": 14}},  # fewer than here
                {"categories": {"q": 20}},  # not those of here
                {"rare": 4, "count": 24},
                {"count": 31},
                {"categories": {"p": 19, "q": 1}},  # nobody tells of one row
                {"categories": {"p": 8, "q": 12}},
                {"mean": 1.0},
                {"squares": 1.0},
            ],
        ),
        (
            "listed",
            ColumnSums(count=15, categories={"a": 9, "b": 6, "c": 0}),
            ColumnSums(count=27, categories={"a": 14, "b": 6, "c": 7}),
            [
                {"categories": {"a": 8, "b": 12, "c": 7}},
                {"categories": {"a": 20, "b": 7}},
                {"categories": {"a": 14, "b": 6, "c": 2, "d": 5}},
            ],
        ),
    ],
)
def test_invented_counts_are_refused(column, own, possible, invented):
    schema = dataclasses.replace(
        SCHEMA,
        columns={column: SCHEMA.columns[column]},
        kinds={column: SCHEMA.kinds[column]},
        classes=("a", "b"),
    )

    def check(sums):
        check_column_sums(
            Statistics(columns={column: sums}),
            Statistics(columns={column: own}),
            schema,
        )

    check(possible)
    for change in invented:
        with pytest.raises(ValueError, match=rf"^column '{column}': "):
            check(possible.model_copy(update=change))

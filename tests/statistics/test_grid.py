"""Sums over machines as whole numbers."""

from fractions import Fraction
from functools import partial, reduce

import numpy as np
import pytest

from fedtailor.aggregation.whole_numbers import add_words
from fedtailor.statistics.grid import (
    BITS,
    LARGEST,
    MOST_ROWS,
    WORDS,
    check_numbers,
    check_rows,
    counts_in_words,
    from_grid,
    sums_by_place,
    sums_of_rows,
)

ADD = partial(add_words, words=WORDS)
STEP = Fraction(1, 2**BITS)


def made(rows, columns):
    rng = np.random.default_rng(0)
    sizes = 10.0 ** rng.uniform(-14, 12, (rows, columns))
    return sizes * rng.choice([-1, 0, 1], sizes.shape)


def added(numbers):
    return float(sum(round(Fraction(it) / STEP) for it in numbers) * STEP)


def test_a_sum_is_of_rows_that_are_rounded_whoever_has_them():
    """Before, the last digits were those of the smallest client, as large ones had none."""
    values = made(200, 6)
    whole = sums_of_rows([values])
    np.testing.assert_array_equal(
        from_grid(whole), [added(column) for column in values.T.tolist()]
    )
    # In blocks, of clients, in any order.
    for order in (slice(None), np.random.default_rng(1).permutation(200)):
        moved = values[order]
        parts = [sums_of_rows([moved[:1], moved[1:90]]), sums_of_rows([moved[90:]])]
        np.testing.assert_array_equal(reduce(ADD, parts), whole)
    assert from_grid(sums_of_rows([np.zeros((0, 2))])).tolist() == [0, 0]


def test_sums_by_place_are_of_rounded_rows_too():
    values = made(500, 1)[:, 0]
    rng = np.random.default_rng(2)
    places, clients = rng.integers(0, 7, 500), rng.integers(0, 5, 500)
    parts = [
        sums_by_place(values[clients == client], places[clients == client], 8)
        for client in range(5)
    ]
    expected = [added(values[places == place].tolist()) for place in range(8)]
    np.testing.assert_array_equal(from_grid(reduce(ADD, parts)), expected)
    # Below half a step a row is none, however many there are.
    few = sums_by_place(np.full(1000, 0.4 * 2.0**-BITS), np.zeros(1000, int), 1)
    assert from_grid(few).tolist() == [0]
    assert from_grid(counts_in_words(np.array([3, 0]))).tolist() == [3, 0]


def test_the_largest_sums_fit():
    total = sums_of_rows([np.full((1, 2), [[LARGEST, -LARGEST]])])
    for _ in range(20 + 11):  # 2^20 rows of 2^11 clients
        total = ADD(total, total)
    np.testing.assert_array_equal(
        from_grid(total), 2.0**31 * LARGEST * np.array([1, -1])
    )


def test_what_is_asked_makes_no_number_too_large():
    """A client that said so would say how many rows there are of which it is the sum."""
    rows = np.array([[1.0, np.inf, -1e300], [1.0, np.nan, 0.5]])
    found = from_grid(sums_of_rows([rows]))
    assert found.tolist() == [2, LARGEST, 0.5 - LARGEST]


def test_a_table_that_sums_cannot_hold_is_told():
    with pytest.raises(ValueError, match="a target is 5e\\+12, and sums over machines"):
        check_numbers(np.array([0, -5e12]), "a target")
    check_rows(MOST_ROWS)
    with pytest.raises(ValueError, match="1,048,577 rows, and sums over machines hold"):
        check_rows(MOST_ROWS + 1)

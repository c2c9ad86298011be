"""Sums of boosting as whole numbers."""

from functools import partial, reduce

import numpy as np
import pytest

from fedtailor.aggregation.whole_numbers import add_words
from fedtailor.statistics.boosting.grid import (
    LARGEST,
    STEP,
    WORDS,
    counts_on_grid,
    from_grid,
    from_numbers,
    sums_on_grid,
    to_numbers,
)


def test_a_sum_is_of_rows_that_are_rounded_whoever_has_them():
    rng = np.random.default_rng(0)
    values = 10.0 ** rng.uniform(-14, 5, 500) * rng.choice([-1, 0, 1], 500)
    places, clients = rng.integers(0, 7, 500), rng.integers(0, 5, 500)
    expected = [
        sum(round(value / STEP) for value in values[places == place].tolist())
        for place in range(7)
    ]
    together = sums_on_grid(values, places, 7)
    assert together.tolist() == expected
    parts = [
        sums_on_grid(values[clients == client], places[clients == client], 7)
        for client in range(5)
    ]
    total = reduce(partial(add_words, words=WORDS), map(to_numbers, parts))
    np.testing.assert_array_equal(from_numbers(total), from_grid(together))


def test_rows_below_half_a_step_are_none_however_many():
    """The sum of a client's rows was rounded: three such rows were one step."""
    few = sums_on_grid(np.full(1000, 0.4 * STEP), np.zeros(1000, int), 1)
    assert few.tolist() == [0]


def test_sums_of_the_most_clients_fit():
    largest = to_numbers(np.array([2**60 - 1, 1 - 2**60]))
    total = largest
    for _ in range(11):  # 2^11 clients
        total = add_words(total, total, WORDS)
    np.testing.assert_array_equal(from_numbers(total), np.array([2.0**31, -(2.0**31)]))
    assert counts_on_grid(np.array([3])).tolist() == [3 * 2**40]


@pytest.mark.parametrize("value", [LARGEST, -LARGEST, np.nan, np.inf])
def test_what_sums_cannot_hold_is_told(value):
    with pytest.raises(ValueError, match="sums hold numbers below"):
        sums_on_grid(np.array([0.0, value]), np.array([0, 1]), 2)
    with pytest.raises(ValueError, match="sums hold numbers below"):
        sums_on_grid(np.full(3, LARGEST / 2), np.zeros(3, int), 1)
    with pytest.raises(ValueError, match="sums hold numbers below"):
        counts_on_grid(np.array([2**20]))

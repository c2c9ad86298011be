"""Sums of a regression as whole numbers."""

from fractions import Fraction
from functools import partial, reduce

import numpy as np
import pytest

from fedtailor.aggregation.whole_numbers import add_words
from fedtailor.statistics.regression.grid import (
    BITS,
    LARGEST,
    WORDS,
    from_numbers,
    sums_on_grid,
)

ADD = partial(add_words, words=WORDS)


def test_a_sum_is_of_rows_that_are_rounded_whoever_has_them():
    """Before, the last digits were those of the smallest client, as large ones had none."""
    rng = np.random.default_rng(0)
    sizes = 10.0 ** rng.uniform(-20, 15, (200, 6))
    values = sizes * rng.choice([-1, 0, 1], sizes.shape)
    step = Fraction(1, 2**BITS)
    expected = [
        float(sum(round(Fraction(value) / step) for value in column) * step)
        for column in values.T.tolist()
    ]
    whole = sums_on_grid([values])
    np.testing.assert_array_equal(from_numbers(whole), expected)
    # In blocks, of clients, in any order.
    for order in (slice(None), rng.permutation(200)):
        moved = values[order]
        parts = [sums_on_grid([moved[:1], moved[1:90]]), sums_on_grid([moved[90:]])]
        np.testing.assert_array_equal(reduce(ADD, parts), whole)
    assert from_numbers(sums_on_grid([np.zeros((0, 2))])).tolist() == [0, 0]


def test_sums_of_the_most_clients_fit():
    total = sums_on_grid([np.array([[np.nextafter(LARGEST, 0), -LARGEST / 2]])])
    expected = from_numbers(total)
    for _ in range(11):  # 2^11 clients
        total = ADD(total, total)
    np.testing.assert_array_equal(from_numbers(total), 2.0**11 * expected)


@pytest.mark.parametrize("value", [LARGEST, -LARGEST, np.nan, np.inf])
def test_what_sums_cannot_hold_is_told(value):
    with pytest.raises(ValueError, match="use other units"):
        sums_on_grid([np.array([[0.0, 1.0], [0.0, value]])])

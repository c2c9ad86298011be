"""Whole numbers of several words."""

from functools import partial, reduce

import numpy as np
import pytest

from fedtailor.aggregation.whole_numbers import (
    add_words,
    from_words,
    negative_words,
    to_words,
)


def words_of(numbers, words):
    high = np.array([number >> 64 for number in numbers], np.int64)
    low = np.array([number & (2**64 - 1) for number in numbers], np.uint64)
    return to_words(high, low)[:, :words]


@pytest.mark.parametrize("words", [1, 2, 3, 4])
def test_sums_carry_and_end_at_the_number_of_words(words):
    rng = np.random.default_rng(words)
    most = 2 ** (32 * words - 1)
    # Numbers of all sizes, at the ends and around carries.
    numbers = [
        int(sign * 2.0 ** rng.uniform(0, 32 * words - 4)) + int(rng.integers(-2, 3))
        for sign in rng.choice([-1, 1], 300)
    ]
    numbers += [0, 1, -1, 2**31 - 1, -(2**31), most - 1, -most]
    one = words_of(numbers, words)
    assert from_words(one) == numbers
    other = rng.permutation(numbers).tolist()

    def within(number):
        return (number + most) % (2 * most) - most

    add = partial(add_words, words=words)
    total = reduce(add, [one, words_of(other, words), words_of(other[::-1], words)])
    expected = [sum(it) for it in zip(numbers, other, other[::-1], strict=True)]
    assert from_words(total) == [within(number) for number in expected]
    assert from_words(negative_words(one, words)) == [within(-it) for it in numbers]
    # As vectors travel, in a row.
    flat = add(one.reshape(1, -1), negative_words(one.reshape(1, -1), words))
    assert flat.shape == (1, one.size) and not flat.any()

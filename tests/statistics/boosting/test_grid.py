"""Sums of boosting as whole numbers."""

import numpy as np
import pytest

from fedtailor.statistics.boosting.grid import (
    LARGEST,
    MOST_CLIENTS,
    STEP,
    from_grid,
    from_limbs,
    to_grid,
    to_limbs,
)


def test_parts_add_up_to_the_sum():
    rng = np.random.default_rng(0)
    sizes = 10.0 ** rng.uniform(-12, 5.9, (7, 500))
    values = sizes * rng.choice([-1, 0, 1], sizes.shape)
    values[:, :2] = [[LARGEST - 1, 1 - LARGEST]] * 7
    steps = to_grid(values)
    assert (
        np.abs(from_grid(steps) - values) <= STEP / 2 + 1e-16 * np.abs(values)
    ).all()
    limbs = np.stack([to_limbs(one) for one in steps])
    assert np.abs(limbs).max() * MOST_CLIENTS < 2**31
    np.testing.assert_array_equal(from_limbs(limbs.sum(axis=0)), steps.sum(axis=0))


@pytest.mark.parametrize("value", [LARGEST, -LARGEST, np.nan, np.inf])
def test_what_sums_cannot_hold_is_told(value):
    with pytest.raises(ValueError, match="sums hold numbers below"):
        to_grid(np.array([0.0, value]))

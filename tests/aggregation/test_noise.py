"""Gaussian noise in single precision hides what it is added to, to the last digit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import kstest

from fedtailor.aggregation.noise import STEPS, with_gaussian_noise

N = 40_000


@pytest.mark.parametrize("deviation", [1e-3, 0.7, 10.0])
def test_noise_is_normal_and_of_whole_steps(deviation):
    values = jnp.linspace(-3, 3, N, dtype=jnp.float32) * deviation
    found = with_gaussian_noise(values, deviation, jax.random.key(0))
    step = 2.0 ** np.floor(np.log2(deviation / STEPS))
    numbers = np.asarray(found, np.float64)
    np.testing.assert_array_equal(numbers / step, np.rint(numbers / step))
    noise = (numbers - np.asarray(values)) / deviation
    assert kstest(noise, "norm").pvalue > 0.01
    assert kstest(with_pairs(noise), "norm").pvalue > 0.01


def with_pairs(noise):
    """Sums of neighbours, which are normal if these are independent."""
    return (noise[::2] + noise[1::2]) / np.sqrt(2)


def test_no_digit_says_what_the_value_is():
    """Before, what is sent beside the right value was one of 2^23 normal numbers, and
    beside another it was one in a third of the tables.
    """
    deviation, shift = 10.0, 0.025
    keys = jax.random.split(jax.random.key(1), N)
    sent = jax.vmap(lambda key: with_gaussian_noise(jnp.full(1, shift), deviation, key))
    numbers = np.asarray(sent(keys), np.float64).reshape(-1)
    # All normal numbers that a float32 draw can be.
    uniform = np.arange(-(2**22), 2**22) / 2.0**22 + 2.0**-23
    every = np.asarray(jax.scipy.special.erfinv(jnp.float32(uniform))) * np.sqrt(2)
    every = np.sort(every[np.isfinite(every)].astype(np.float64)) * deviation
    shares = []
    for candidate in (0.0, shift):
        place = np.searchsorted(every, numbers - candidate).clip(1, len(every) - 1)
        gap = np.minimum(
            np.abs(every[place] - numbers + candidate),
            np.abs(every[place - 1] - numbers + candidate),
        )
        shares.append((gap < 1e-6).mean())
    assert abs(shares[0] - shares[1]) < 4 * np.sqrt(0.5 / N)


def test_half_precision_does_not_draw_few_numbers():
    """Before, the noise was one of 128 numbers, and the nearest taken away left the value."""
    values = jnp.full(N, 0.0, jnp.bfloat16)
    found = with_gaussian_noise(values, 1.0, jax.random.key(0))
    assert found.dtype == jnp.bfloat16
    near = np.unique(np.asarray(found.astype(jnp.float32)))
    assert len(near[np.abs(near) < 0.125]) == 2 * 128 - 1

"""Gaussian noise whose digits say nothing about what it hides."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, ScalarLike

STEPS = 2.0**10
"""At least so many steps, of which results are multiples, are in a standard deviation."""


def with_gaussian_noise(
    values: Float[Array, "..."], deviation: ScalarLike, key: PRNGKeyArray
) -> Float[Array, "..."]:
    """Values with independent Gaussian noise of a standard deviation.

    Of numbers in single precision there are 2^23 normal ones: a noisy number is one of
    these beside the true value, and most probably beside no other (Mironov 2012). So the
    noise is made of two, of which there are 2^46, and the result is rounded to a multiple
    of a step: any value can have become any multiple within six standard deviations.

    Args:
        values: floating-point numbers, up to about 2^12 standard deviations.
        deviation: 0 or more; 0 leaves the values as they are.
        key: of random numbers.
    """
    # In half precision there are 128 normal numbers.
    wide = jnp.promote_types(values.dtype, jnp.float32)
    scale = jnp.asarray(deviation, wide)
    step = jnp.ldexp(jnp.ones_like(scale), jnp.frexp(scale)[1] - 1) / STEPS
    pair = jax.random.normal(key, (2, *values.shape), wide)
    noisy = values.astype(wide) + scale * (pair.sum(axis=0) / math.sqrt(2))
    rounded = jnp.rint(noisy / step) * step
    return jnp.where(scale > 0, rounded.astype(values.dtype), values)

import functools

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtailor.aggregation.variances import update, variance

seeds = st.integers(0, 2**32 - 1)
step = jax.jit(update)


def no_values(like, per_coordinate=True):
    like = jnp.asarray(like)
    return (
        jnp.int32(0),
        jnp.zeros_like(like),
        jnp.zeros_like(like) if per_coordinate else jnp.zeros((), like.dtype),
    )


def collect(values, like, per_coordinate=True):
    return functools.reduce(step, values, no_values(like, per_coordinate))


@given(seeds, st.integers(2, 6))
@settings(max_examples=15)
def test_welford_is_the_two_pass_variance(seed, count):
    values = 1e4 + np.random.default_rng(seed).normal(size=(count, 3))
    with jax.enable_x64(True):
        moments = collect(values, np.zeros(3))
        trace = collect(values, np.zeros(3), per_coordinate=False)
        numbers = collect(values[:, 0], np.zeros(()))
        variances = [np.asarray(variance(these)) for these in (moments, trace, numbers)]
    two_pass = values.var(0, ddof=1)
    np.testing.assert_allclose(moments[1], values.mean(0), atol=1e-10)
    for ours, expected in zip(
        variances, (two_pass, two_pass.sum(), two_pass[0]), strict=True
    ):
        assert ours.shape == expected.shape
        np.testing.assert_allclose(ours, expected, atol=1e-10)


def test_fewer_than_two_values_have_no_variance():
    empty = no_values(jnp.zeros(2))
    assert (np.asarray(variance(empty)) == 0).all()
    assert (np.asarray(variance(update(empty, jnp.ones(2)))) == 0).all()


def test_moments_pass_through_compiled_loops():
    @jax.jit
    def run(values):
        return jax.lax.scan(
            lambda moments, x: (update(moments, x), None), no_values(values[0]), values
        )[0]

    values = jnp.arange(6, dtype=jnp.float32).reshape(3, 2)
    count, mean, _ = run(values)
    assert count == 3
    assert mean.dtype == jnp.float32
    np.testing.assert_allclose(variance(run(values)), [4, 4])

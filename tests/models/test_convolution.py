"""The fast convolution and pooling are the textbook ones, forward, backward and
differentiated twice.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fedtailor.models.convolution import convolve, to_feature_maps
from fedtailor.models.pooling import convolve_windows, pool_relu, windows

# (image height and width, channels, filters, size of the kernel); the second has odd
# rows and columns to drop.
CASES = [((8, 8), 3, 4, 5), ((9, 7), 2, 5, 3)]


def textbook_convolution(x, kernel):
    return lax.conv_general_dilated(
        x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def textbook_pooling(y, kind):
    b, h, w, o = y.shape
    blocks = y[:, : h // 2 * 2, : w // 2 * 2].reshape(b, h // 2, 2, w // 2, 2, o)
    return blocks.mean((2, 4)) if kind == "average" else blocks.max((2, 4))


def as_images(x):
    return x.transpose(3, 1, 2, 0)


def fast(x, kernel, bias):
    return as_images(convolve(to_feature_maps(x), kernel)) + bias


def textbook(x, kernel, bias):
    return textbook_convolution(x, kernel) + bias


def fast_block(kind):
    def block(x, kernel, bias):
        y = convolve(to_feature_maps(x), kernel)
        o, h, w, b = y.shape
        return as_images(
            pool_relu(windows(y), bias, kind).reshape(o, h // 2, w // 2, b)
        )

    return block


def fast_block_of_images(kind):
    def block(x, kernel, bias):
        pooled = pool_relu(convolve_windows(x, kernel), bias, kind)
        h, w = ((side - len(kernel) + 1) // 2 for side in x.shape[1:3])
        return as_images(pooled.reshape(kernel.shape[3], h, w, len(x)))

    return block


def textbook_block(kind):
    return lambda x, kernel, bias: textbook_pooling(
        jax.nn.relu(textbook(x, kernel, bias)), kind
    )


PAIRS = [
    pytest.param(fast, textbook, id="convolution"),
    *[
        pytest.param(fast_block(kind), textbook_block(kind), id=f"{kind} block")
        for kind in ("average", "max")
    ],
    *[
        pytest.param(
            fast_block_of_images(kind), textbook_block(kind), id=f"{kind} windows"
        )
        for kind in ("average", "max")
    ],
]


def inputs(case, dtype):
    (h, w), channels, filters, size = case
    rng = np.random.default_rng(0)
    shapes = ((4, h, w, channels), (size, size, channels, filters), (filters,))
    return tuple(jnp.asarray(rng.standard_normal(shape), dtype) for shape in shapes)


def value_and_gradients(function):
    def weighted(*args):
        y = function(*args)
        return (
            jnp.vdot(y, jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape)),
            y,
        )

    return jax.jit(jax.grad(weighted, argnums=(0, 1, 2), has_aux=True))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_equals_the_textbook_in_double_precision(ours, theirs, case):
    with jax.enable_x64(True):
        args = inputs(case, "float64")
        for got, expected in zip(
            jax.tree.leaves(value_and_gradients(ours)(*args)),
            jax.tree.leaves(value_and_gradients(theirs)(*args)),
            strict=True,
        ):
            np.testing.assert_allclose(got, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_equals_the_textbook_in_single_precision(ours, theirs):
    """To 1e-6 of the largest entry: sums of up to a hundred products of size one, taken
    in another order.
    """
    args = inputs(CASES[0], "float32")
    for got, expected in zip(
        jax.tree.leaves(value_and_gradients(ours)(*args)),
        jax.tree.leaves(value_and_gradients(theirs)(*args)),
        strict=True,
    ):
        np.testing.assert_allclose(
            got, expected, rtol=0, atol=1e-6 * float(jnp.abs(expected).max())
        )


@pytest.mark.parametrize(("ours", "theirs"), PAIRS[1:])
def test_hessian_vector_product(ours, theirs):
    with jax.enable_x64(True):
        x, kernel, bias = inputs(CASES[0], "float64")
        direction = jnp.sin(jnp.arange(kernel.size, dtype=kernel.dtype)).reshape(
            kernel.shape
        )

        def product(block):
            gradient = jax.grad(lambda kernel: jnp.square(block(x, kernel, bias)).sum())
            return jax.jit(
                lambda kernel: jax.jvp(gradient, (kernel,), (direction,))[1]
            )(kernel)

        np.testing.assert_allclose(product(ours), product(theirs), rtol=0, atol=1e-10)


def test_of_equal_maxima_the_first_gets_the_gradient():
    y, bias = jnp.asarray([1.0, 2.0, 2.0, 0.0]).reshape(4, 1, 1), jnp.zeros(1)
    gradient = jax.grad(lambda y: pool_relu(y, bias, "max").sum())(y)
    assert gradient.ravel().tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize("kind", ["average", "max"])
def test_nothing_flows_through_a_relu_that_is_off(kind):
    y, bias = jnp.asarray([-1.0, -2.0, -3.0, -4.0]).reshape(4, 1, 1), jnp.zeros(1)
    to_y, to_bias = jax.grad(lambda y, bias: pool_relu(y, bias, kind).sum(), (0, 1))(
        y, bias
    )
    assert not to_y.any() and not to_bias.any()


def test_clients_can_be_stacked():
    x, kernel, bias = inputs(CASES[0], "float32")
    kernels = jnp.stack([kernel, 2 * kernel])
    stacked = jax.vmap(lambda kernel: fast_block_of_images("max")(x, kernel, bias))(
        kernels
    )
    for got, kernel in zip(stacked, kernels, strict=True):
        np.testing.assert_allclose(
            got, textbook_block("max")(x, kernel, bias), rtol=1e-5, atol=1e-5
        )


def test_runs_without_compilation():
    x, kernel, bias = inputs(CASES[0], "float32")
    step = jax.grad(
        lambda kernel: fast_block_of_images("average")(x, kernel, bias).sum()
    )
    with jax.disable_jit():
        plain = step(kernel)
    np.testing.assert_allclose(step(kernel), plain, rtol=1e-5)

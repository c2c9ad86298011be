"""Networks with W + B A in the place of W, computed without the sum."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedtailor.models.low_rank_products import low_rank_sum, run_adapted
from fedtailor.testing.problems import float64

RANK = 2


def dense(network, x):
    return jnp.tanh(x @ network["w"]) + network["bias"]


def first_axis(network, x):
    return jax.vmap(lambda row: network["w"] @ row + network["bias"])(x)


def through_jit(network, x):
    return jax.jit(lambda w, x: jnp.matmul(x, w))(network["w"].T, x)


def convolution(network, x):
    images = x.reshape(-1, 4, 4, 3)
    return jax.lax.conv_general_dilated(
        images, network["w"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def columns(network, x):
    return x.reshape(-1, 12) @ network["w"].reshape(12, 5)


def tied(network, x):
    return x @ network["w"] @ network["w"].T


def in_a_loop(network, x):
    return jax.lax.scan(lambda h, _: (jnp.tanh(h @ network["w"]), None), x, None, 3)[0]


def part_of_the_inputs(network, x):
    return jnp.einsum("bi,ijo->bjo", x, network["w"])


CASES = {
    dense: ((6, 5), True, (3, 6)),
    first_axis: ((5, 6), False, (3, 6)),
    through_jit: ((5, 6), False, (3, 6)),
    convolution: ((3, 3, 3, 5), True, (2, 48)),
    columns: ((2, 2, 3, 5), True, (3, 12)),
    tied: ((6, 5), True, (3, 6)),
    in_a_loop: ((6, 6), True, (3, 6)),
    part_of_the_inputs: ((6, 3, 5), True, (3, 6)),
}
MERGES = (in_a_loop, part_of_the_inputs)
"""What needs the numbers of the sum."""

# A list, since a set of functions has another order in each process that runs tests.
MULTIPLIES = [function for function in CASES if function not in MERGES]


def made(function):
    shape, is_last, inputs = CASES[function]
    rng = np.random.default_rng(0)
    outputs = shape[-1] if is_last else shape[0]
    fan_in = int(np.prod(shape)) // outputs
    network = {"w": rng.normal(size=shape), "bias": rng.normal(size=outputs)}
    a, b = rng.normal(size=(RANK, fan_in)), rng.normal(size=(outputs, RANK))
    arrays = jax.tree.map(jnp.asarray, (network, a, b, rng.normal(size=inputs)))
    return (*arrays, is_last)


@pytest.mark.parametrize("function", CASES)
def test_it_is_the_network_with_the_sum_and_so_are_its_gradients(function):
    with float64():
        network, a, b, x, is_last = made(function)

        def merged(a, b, x):
            total = low_rank_sum(network["w"], a, b, is_last).total
            return function({**network, "w": total}, x)

        def apart(a, b, x):
            return run_adapted(
                lambda inner: function(inner, x), network, {"w": (a, b, is_last)}
            )

        np.testing.assert_allclose(apart(a, b, x), merged(a, b, x), rtol=1e-10)
        gradients = [
            jax.grad(lambda *args, f=f: jnp.sin(f(*args)).sum(), (0, 1, 2))(a, b, x)
            for f in (apart, merged)
        ]
        jax.tree.map(
            lambda one, other: np.testing.assert_allclose(one, other, atol=1e-9),
            *gradients,
        )


@pytest.mark.parametrize("function", CASES)
def test_with_b_zero_it_is_the_network_to_the_bit(function):
    network, a, b, x, is_last = made(function)
    found = run_adapted(
        lambda inner: function(inner, x), network, {"w": (a, 0 * b, is_last)}
    )
    np.testing.assert_array_equal(found, function(network, x))


def sizes_computed(program):
    """The sizes of all arrays that a traced program computes."""
    for equation in program.eqns:
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from sizes_computed(inner)
        if equation.primitive.name not in ("jit", "transpose", "reshape"):
            yield from (var.aval.size for var in equation.outvars)


@pytest.mark.parametrize("function", MULTIPLIES, ids=lambda f: f.__name__)
def test_neither_outputs_nor_gradients_compute_anything_of_the_size_of_w(function):
    network, a, b, x, is_last = made(function)

    # One row, so that everything but W is small.
    def loss(a, b):
        outputs = run_adapted(
            lambda inner: function(inner, x[:1]), network, {"w": (a, b, is_last)}
        )
        return outputs.sum()

    def loss_merged(a, b):
        total = low_rank_sum(network["w"], a, b, is_last).total
        return function({**network, "w": total}, x[:1]).sum()

    size = network["w"].size
    computed = [
        sum(found == size for found in sizes_computed(jax.make_jaxpr(f)(a, b).jaxpr))
        for f in (jax.value_and_grad(loss), jax.value_and_grad(loss_merged))
    ]
    assert computed[0] == 0 and computed[1] > 0


def test_results_may_hold_weights_and_settings():
    network, a, b, x, is_last = made(dense)
    found = run_adapted(
        lambda inner: (inner, "text", x), network, {"w": (a, b, is_last)}
    )
    total = low_rank_sum(network["w"], a, b, is_last).total
    np.testing.assert_array_equal(found[0]["w"], total)
    assert found[1] == "text" and eqx.tree_equal(found[2], x)

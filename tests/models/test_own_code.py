"""A network of one's own that fails, and how networks print."""

import functools
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import fedtailor as ft
from fedtailor.models import Architecture, by_client, from_equinox, from_function, mlp
from fedtailor.protocol.plain import to_plain


class Narrow(eqx.Module):
    layers: list

    def __init__(self, key):
        a, b = jax.random.split(key)
        self.layers = [eqx.nn.Linear(12, 8, key=a), eqx.nn.Linear(8, 3, key=b)]

    def __call__(self, x):
        return self.layers[1](jax.nn.relu(self.layers[0](x)))


def times(weights, x):
    return x @ weights


def refused(architecture, message):
    """The error of a network for 4 inputs and 3 classes is this one line."""
    with pytest.raises(ValueError, match=message) as caught:
        model = architecture.bind((4,), 3)
        jax.eval_shape(model.logits, model.init(jax.random.key(0)), jnp.zeros((2, 4)))
    assert "\n" not in str(caught.value) and "0x" not in str(caught.value)


def test_a_module_that_does_not_fit_its_inputs_is_one_line():
    refused(
        from_equinox(Narrow),
        r"the network fails on inputs of shape \(4,\): Linear \(in_features 12\) was given"
        r" shape \(4,\): test_own_code.py, line 24: dot_general requires .* got \(12,\) and"
        r" \(4,\)",
    )
    linen = pytest.importorskip("flax.linen")

    class Flat(linen.Module):
        @linen.compact
        def __call__(self, x):
            return linen.Dense(3)(x @ jnp.ones((5, 3)))

    refused(
        ft.models.from_linen(Flat()),
        r"for inputs of shape \(4,\) and 3 outputs: Flat was given shape \(1, 4\):"
        r" test_own_code.py, line \d+: dot_general .* got \(4,\) and \(5,\)",
    )


@pytest.mark.parametrize(
    ("init", "apply", "message"),
    [
        (
            lambda key: jnp.zeros((5, 3)),
            times,
            r"fails on inputs of shape \(4,\): test_own_code.py, line 28: dot_general",
        ),
        (
            lambda key: jnp.zeros((4, 3)),
            lambda w, x: x.nothing,
            r"test_own_code.py, line \d+: AttributeError: .*nothing",
        ),
        (
            lambda shape, outputs, key: jnp.zeros((4, 3)),
            times,
            r"cannot be made for inputs of shape \(4,\) and 3 outputs: .*missing 2 required",
        ),
        (
            lambda key: jnp.zeros((4, 3)),
            lambda w, x: x @ w if x.sum() > 0 else x,
            r"line \d+: Attempted boolean conversion of traced array",
        ),
    ],
)
def test_two_functions_that_fail_are_one_line(init, apply, message):
    refused(from_function(init, apply), message)


def test_errors_that_say_what_to_do_stay():
    refused(
        from_function(lambda key: jnp.zeros((4, 2)), times),
        "^the network gives .2,. out",
    )


def test_networks_print_names_and_no_addresses():
    partial = functools.partial(times, jnp.zeros(1))

    class Thing:
        def __call__(self, key):
            return jnp.zeros((4, 3))

    for network, text in (
        (from_function(Narrow, times), r"Functions\(init=\S*Narrow, function=times\)"),
        (
            from_function(Thing(), partial),
            r"Functions\(init=\S+Thing, function=functools.par",
        ),
        (from_equinox(lambda key: None), r"EquinoxModule\(make=.*<lambda>"),
    ):
        assert isinstance(network, Architecture)
        assert "0x" not in str(network) and re.match(text, str(network))
        # What a manifest holds is equal in every process.
        assert "0x" not in str(to_plain(network))


def test_networks_by_client_are_counted():
    networks = by_client({"a": mlp(2), "b": mlp(2), "c": mlp(3)}, default=mlp(3))
    assert (
        str(networks) == f"{mlp(2)} of 2 clients; {mlp(3)} of 1 clients and all others"
    )
    assert str(networks.member(0)) == str(mlp(2))

"""The layout of parameters inside a training loop."""

import jax
import jax.numpy as jnp
import numpy as np

from fedtailor.engine.client.loop_layout import LoopLayout

PARAMS = {
    "last": jnp.arange(60.0).reshape(20, 3),
    "hidden": jnp.arange(400.0).reshape(20, 20),
    "small": jnp.arange(6.0).reshape(2, 3),
    "bias": jnp.arange(3.0),
    "kernel": jnp.zeros((3, 3, 20, 3)),
}


def test_only_narrow_matrices_are_transposed():
    layout = LoopLayout(PARAMS, transpose_narrow=True)
    in_loop = layout.to_loop(PARAMS)
    np.testing.assert_array_equal(in_loop["last"], PARAMS["last"].T)
    others = {name: PARAMS[name] for name in PARAMS if name != "last"}
    assert all(in_loop[name] is others[name] for name in others)
    jax.tree.map(np.testing.assert_array_equal, layout.to_model(in_loop), PARAMS)


def test_an_optimizer_of_the_user_s_own_is_given_the_model_s_layout():
    layout = LoopLayout(PARAMS, transpose_narrow=False)
    assert layout.to_loop(PARAMS)["last"] is PARAMS["last"]

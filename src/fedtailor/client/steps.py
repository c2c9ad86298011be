"""Mini-batch SGD with drift and pull: the one local program behind most methods."""

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedtailor.protocol import SGD, Batch, Params, StepGradient, is_off

if TYPE_CHECKING:
    from fedtailor.client.trainer import DeviceTrainer

NARROW = 16
"""Matrices of fewer columns are kept transposed in the loop (the last layer, of one column a class): a column fills no
vector register, and on CPUs their updates took three times as long."""


def train(
    local: "DeviceTrainer",
    theta: Float[Array, " d"],
    sgd: SGD,
    pull: tuple[Any, Float[Array, " d"]] | None,
    drift: Float[Array, " d"] | None,
    gradient: StepGradient | None,
    steps: Int[Array, ""] | int,
    split: str,
) -> Float[Array, " d"]:
    """theta after `steps` mini-batch steps on w -> F(w) + mu/2 |w - anchor|^2 + <drift, w>.

    `gradient` replaces that of the mean loss F over a batch."""
    rate = sgd.rate(local.round)
    params = local.params(theta)
    turned = jax.tree.map(lambda w: sgd.optimizer is None and w.ndim == 2 and w.shape[1] < NARROW <= w.shape[0], params)

    def turn(params: Params) -> Params:
        """To the loop's layout and back."""
        return jax.tree.map(lambda w, turned: w.T if turned else w, params, turned)

    anchor = None if pull is None else turn(local.params(pull[1]))
    constant = None if drift is None else turn(local.params(drift))
    dropout = local.key("dropout") if local.model.stochastic else None

    def of_loss(params: Params, batch: Batch, step: Int[Array, ""]) -> Params:
        return local.batch_gradient(params, batch, None if dropout is None else jax.random.fold_in(dropout, step))

    def direction(params: Params, batch: Batch, step: Int[Array, ""]) -> Params:
        g = turn((gradient or of_loss)(turn(params), batch, step))
        if not is_off(sgd.weight_decay):
            g = jax.tree.map(lambda g, w: g + sgd.weight_decay * w, g, params)
        if pull is not None:
            g = jax.tree.map(lambda g, w, a, mu=pull[0]: g + mu * (w - a), g, params, anchor)
        return g if constant is None else jax.tree.map(jnp.add, g, constant)

    def plain(params: Params, batch: Batch, step: Int[Array, ""]) -> Params:
        return jax.tree.map(lambda w, g: w - rate * g, params, direction(params, batch, step))

    def momentum(carry: tuple[Params, Params], batch: Batch, step: Int[Array, ""]) -> tuple[Params, Params]:
        params, velocity = carry
        velocity = jax.tree.map(lambda v, g: sgd.momentum * v + g, velocity, direction(params, batch, step))
        return jax.tree.map(lambda w, v: w - rate * v, params, velocity), velocity

    def transformed(carry: tuple[Params, Any], batch: Batch, step: Int[Array, ""]) -> tuple[Params, Any]:
        assert sgd.optimizer is not None
        params, state = carry
        updates, state = sgd.optimizer.update(direction(params, batch, step), state, params)
        return jax.tree.map(lambda w, u: w + u.astype(w.dtype), params, updates), state

    params = turn(params)
    loop = lambda carry, step: local.loop(carry, step, steps, sgd.batch_size, drop_last=sgd.drop_last, split=split)  # noqa: E731
    if sgd.optimizer is not None:
        params, _ = loop((params, sgd.optimizer.init(params)), transformed)
    elif is_off(sgd.momentum):
        params = loop(params, plain)
    else:
        params, _ = loop((params, jax.tree.map(jnp.zeros_like, params)), momentum)
    return local.vector(turn(params))

"""Mini-batch SGD with drift and pull: the one local program behind most methods."""

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedtailor.client.private_steps import PrivateSteps
from fedtailor.models.layers import NARROW
from fedtailor.protocol import SGD, Batch, ModelPart, Params, StepGradient, is_off

if TYPE_CHECKING:
    from fedtailor.client.trainer import DeviceTrainer


def train(
    local: "DeviceTrainer",
    theta: Float[Array, " d"],
    sgd: SGD,
    pull: tuple[Any, Float[Array, " d"]] | None,
    drift: Float[Array, " d"] | None,
    gradient: StepGradient | None,
    steps: Int[Array, ""] | int,
    split: str,
    train_only: ModelPart | None = None,
) -> Float[Array, " d"]:
    """Mini-batch steps on w -> F(w) + mu/2 |w - anchor|^2 + <drift, w>, where F is the mean loss over a batch.

    Args:
        pull: mu and the anchor [d].
        gradient: takes the place of F's gradient.
        split: whose samples the batches are drawn from.
        train_only: entries outside of this part keep their bits.

    Returns:
        theta after `steps` steps.
    """
    # Everything that does not change from step to step is made once, before the loop.
    rate = sgd.rate(local.round)
    params = local.params(theta)
    private = None if sgd.dp_noise is None else PrivateSteps(local, sgd, split)
    if private is not None and gradient is not None:
        raise ValueError("private steps clip the gradient of the loss, and this method descends along another one")

    def is_turned(w: Array) -> bool:
        # Narrow matrices (a last layer, of one column a class) are transposed in the loop: on CPUs their updates took
        # three times as long. An optimiser of the user's own may look at shapes, so it sees the model's.
        return sgd.optimizer is None and w.ndim == 2 and w.shape[1] < NARROW <= w.shape[0]

    turned = jax.tree.map(is_turned, params)

    def turn(params: Params) -> Params:
        """To the loop's layout and back."""
        return jax.tree.map(lambda w, turned: w.T if turned else w, params, turned)

    trained = None if train_only is None else train_only.tree_mask(params)
    anchor = None if pull is None else turn(local.params(pull[1]))
    constant = None if drift is None else turn(local.params(drift))
    model = local.model

    def descent(params: Params, batch: Batch, step: Int[Array, ""]) -> tuple[Params, Params]:
        """What a step descends along, and parameters that hold the new running statistics, if the model has any."""
        # The loss's own term first, from the layout that the model knows.
        given = turn(params)
        if private is not None:
            slope, renewed = private.direction(given, step), given
        elif gradient is None:
            slope, renewed = local.gradient_and_statistics(given, batch)
        else:
            slope, renewed = gradient(given, batch, step), local.renew_statistics(given, batch)
        slope = turn(slope)

        # Then every term that the method or the user has switched on; one that is off leaves nothing in the program.
        if not is_off(sgd.weight_decay):
            slope = jax.tree.map(lambda g, w: g + sgd.weight_decay * w, slope, params)
        if pull is not None:
            # the gradient of mu/2 |w - anchor|^2
            mu, _ = pull
            slope = jax.tree.map(lambda g, w, a: g + mu * (w - a), slope, params, anchor)
        if constant is not None:
            # the gradient of <drift, w>
            slope = jax.tree.map(jnp.add, slope, constant)
        if trained is not None:
            # No gradient outside the part, for optimisers that look at all of it (a clipped global norm).
            slope = jax.tree.map(lambda g, trained: g if trained else jnp.zeros_like(g), slope, trained)

        if not model.has_statistics:
            return slope, renewed
        # Running statistics are entries of the tree, too. The terms above must not move them.
        return model.with_statistics(slope, jax.tree.map(jnp.zeros_like, slope)), turn(renewed)

    def settle(before: Params, params: Params, renewed: Params) -> Params:
        """A step's result, with the running statistics of its batch, and what is frozen as it was before."""
        after = model.with_statistics(params, renewed) if model.has_statistics else params
        if trained is None:
            return after
        return jax.tree.map(lambda old, new, trained: new if trained else old, before, after, trained)

    # The three kinds of steps differ in what they carry from one to the next: nothing, a velocity, optax's state.

    def plain(params: Params, batch: Batch, step: Int[Array, ""]) -> Params:
        slope, renewed = descent(params, batch, step)
        stepped = jax.tree.map(lambda w, g: w - rate * g, params, slope)
        return settle(params, stepped, renewed)

    def momentum(carry: tuple[Params, Params], batch: Batch, step: Int[Array, ""]) -> tuple[Params, Params]:
        params, velocity = carry
        slope, renewed = descent(params, batch, step)
        velocity = jax.tree.map(lambda v, g: sgd.momentum * v + g, velocity, slope)
        stepped = jax.tree.map(lambda w, v: w - rate * v, params, velocity)
        return settle(params, stepped, renewed), velocity

    def transformed(carry: tuple[Params, Any], batch: Batch, step: Int[Array, ""]) -> tuple[Params, Any]:
        assert sgd.optimizer is not None
        params, state = carry
        slope, renewed = descent(params, batch, step)
        updates, state = sgd.optimizer.update(slope, state, params)
        stepped = jax.tree.map(lambda w, u: w + u.astype(w.dtype), params, updates)
        return settle(params, stepped, renewed), state

    def loop(carry: Any, step: Any) -> Any:
        if private is not None:
            return local.private_loop(carry, step, steps, sgd.batch_size, split)
        return local.loop(carry, step, steps, sgd.batch_size, drop_last=sgd.drop_last, split=split)

    # Momentum that is 0 is another program, without a velocity; the optimiser's state is new in every round.
    params = turn(params)
    if sgd.optimizer is not None:
        params, _ = loop((params, sgd.optimizer.init(params)), transformed)
    elif is_off(sgd.momentum):
        params = loop(params, plain)
    else:
        params, _ = loop((params, jax.tree.map(jnp.zeros_like, params)), momentum)
    return local.vector(turn(params))

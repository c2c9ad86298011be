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
    """Mini-batch steps on w -> F(w) + mu/2 |w - anchor|^2 + <drift, w>, where F is the
    mean loss over a batch.

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
        raise ValueError(
            "private steps clip the gradient of the loss, and this method descends"
            " along another one"
        )

    def is_narrow(w: Array) -> bool:
        # Narrow matrices (a last layer, of one column a class) are transposed in the
        # loop: on CPUs their updates took three times as long. An optimiser of the
        # user's own may look at shapes, so it sees the model's.
        return (
            sgd.optimizer is None and w.ndim == 2 and w.shape[1] < NARROW <= w.shape[0]
        )

    narrow_mask = jax.tree.map(is_narrow, params)

    def transposed(tree: Params) -> Params:
        """A tree in the loop's layout from the model's, or back: transposing twice
        changes nothing.
        """
        return jax.tree.map(lambda w, narrow: w.T if narrow else w, tree, narrow_mask)

    trainable_mask = None if train_only is None else train_only.tree_mask(params)
    mu, anchor = (
        (None, None) if pull is None else (pull[0], transposed(local.params(pull[1])))
    )
    linear_term = None if drift is None else transposed(local.params(drift))
    model = local.model

    def step_gradient(
        params: Params, batch: Batch, step: Int[Array, ""]
    ) -> tuple[Params, Params]:
        """What a step descends along, and where the batch's new running statistics are.

        Args:
            params: in the loop's layout, as the results are.

        Returns:
            The gradient of all terms, and a tree of parameters of which only the
            running statistics are read: by no one where the model has none.
        """
        # The loss's own term first, in the layout that the model knows.
        of_model = transposed(params)
        if private is not None:
            grads, with_statistics = private.direction(of_model, step), of_model
        elif gradient is None:
            grads, with_statistics = local.gradient_and_statistics(of_model, batch)
        else:
            grads, with_statistics = (
                gradient(of_model, batch, step),
                local.renew_statistics(of_model, batch),
            )
        grads = transposed(grads)

        # Then every term that the method or the user has switched on; one that is off
        # leaves nothing in the program.
        if not is_off(sgd.weight_decay):
            grads = jax.tree.map(lambda g, w: g + sgd.weight_decay * w, grads, params)
        if pull is not None:
            # the gradient of mu/2 |w - anchor|^2
            grads = jax.tree.map(
                lambda g, w, a: g + mu * (w - a), grads, params, anchor
            )
        if linear_term is not None:
            # the gradient of <drift, w>
            grads = jax.tree.map(jnp.add, grads, linear_term)
        if trainable_mask is not None:
            # No gradient outside the part, for optimisers that look at all of it (a
            # clipped global norm).
            grads = jax.tree.map(
                lambda g, trainable: g if trainable else jnp.zeros_like(g),
                grads,
                trainable_mask,
            )

        if model.has_statistics:
            # Running statistics are entries of the tree, too. The terms above must not
            # move them.
            grads = model.with_statistics(grads, jax.tree.map(jnp.zeros_like, grads))
            with_statistics = transposed(with_statistics)
        return grads, with_statistics

    def finished(before: Params, after: Params, with_statistics: Params) -> Params:
        """A step's result, with the running statistics of its batch, and what is frozen
        as it was before.
        """
        if model.has_statistics:
            after = model.with_statistics(after, with_statistics)
        if trainable_mask is None:
            return after
        return jax.tree.map(
            lambda old, new, trainable: new if trainable else old,
            before,
            after,
            trainable_mask,
        )

    # The three kinds of steps differ in what they carry from one to the next: nothing,
    # a velocity, optax's state.

    def plain(params: Params, batch: Batch, step: Int[Array, ""]) -> Params:
        grads, with_statistics = step_gradient(params, batch, step)
        stepped = jax.tree.map(lambda w, g: w - rate * g, params, grads)
        return finished(params, stepped, with_statistics)

    def momentum(
        carry: tuple[Params, Params], batch: Batch, step: Int[Array, ""]
    ) -> tuple[Params, Params]:
        params, velocity = carry
        grads, with_statistics = step_gradient(params, batch, step)
        velocity = jax.tree.map(lambda v, g: sgd.momentum * v + g, velocity, grads)
        stepped = jax.tree.map(lambda w, v: w - rate * v, params, velocity)
        return finished(params, stepped, with_statistics), velocity

    def transformed(
        carry: tuple[Params, Any], batch: Batch, step: Int[Array, ""]
    ) -> tuple[Params, Any]:
        assert sgd.optimizer is not None
        params, state = carry
        grads, with_statistics = step_gradient(params, batch, step)
        updates, state = sgd.optimizer.update(grads, state, params)
        stepped = jax.tree.map(lambda w, u: w + u.astype(w.dtype), params, updates)
        return finished(params, stepped, with_statistics), state

    def loop(carry: Any, step: Any) -> Any:
        if private is not None:
            return local.private_loop(carry, step, steps, sgd.batch_size, split)
        return local.loop(
            carry, step, steps, sgd.batch_size, drop_last=sgd.drop_last, split=split
        )

    # With momentum 0 the loop that is compiled has no velocity. The optimiser's state
    # is new in every round.
    params = transposed(params)
    if sgd.optimizer is not None:
        params, _ = loop((params, sgd.optimizer.init(params)), transformed)
    elif is_off(sgd.momentum):
        params = loop(params, plain)
    else:
        params, _ = loop((params, jax.tree.map(jnp.zeros_like, params)), momentum)
    return local.vector(transposed(params))

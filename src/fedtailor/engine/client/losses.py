"""Losses over batches, and predictors as functions of inputs."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from fedtailor.models import Model
from fedtailor.protocol import (
    Batch,
    CombinedPredictor,
    IntScalar,
    Params,
    Predictor,
)


def mean_loss(
    model: Model,
    params: Params,
    batch: Batch,
    count: IntScalar | Float[Array, ""],
    key: Array | None = None,
) -> Float[Array, ""]:
    """The sum of a batch's losses divided by `count`.

    Args:
        model: the network and its loss.
        params: its parameters.
        batch: the examples.
        count: the number of examples in the batch, or in all batches whose results are
            added up to one mean.
        key: a random key for dropout in a training step; None = evaluation mode.
    """
    outputs = model.logits(params, batch.x, key)
    losses = model.losses(outputs, batch.y, batch.weight)
    return _mean(losses, batch.weight, count)


def training_loss(
    model: Model, params: Params, batch: Batch, key: Array | None = None
) -> tuple[Float[Array, ""], Params]:
    """The mean loss of a batch in training mode.

    Returns:
        The mean loss, and the parameters with running statistics updated by the batch.
    """
    outputs, updated = model.train_outputs(params, batch.x, batch.weight, key)
    losses = model.losses(outputs, batch.y, batch.weight)
    return _mean(losses, batch.weight, batch.weight.sum()), updated


def _mean(
    losses: Float[Array, " b"], weight: Float[Array, " b"], count: ArrayLike
) -> Float[Array, ""]:
    """The sum of a batch's losses divided by `count`, or by 1 if that is 0."""
    # Padding has weight 0. Its loss is finite, as it repeats real samples.
    return jnp.vdot(losses, weight) / jnp.maximum(count, 1).astype(losses.dtype)


def accumulated_gradient(
    model: Model, params: Params, batch: Batch, micro_batch: int, key: Array | None
) -> Params:
    """The gradient of `training_loss`, accumulated over micro-batches whose activations
    fit into the cache.

    Args:
        model: a model without running statistics, which every micro-batch would update.
        params: its parameters.
        batch: the examples.
        micro_batch: examples in a micro-batch; divides the size of the batch.
        key: a random key for the step.

    Returns:
        The gradient, a tree like `params`.
    """
    count = batch.weight.sum()
    parts = len(batch.weight) // micro_batch
    micro_batches = jax.tree.map(
        lambda leaf: leaf.reshape(parts, micro_batch, *leaf.shape[1:]), batch
    )

    # The losses of a micro-batch are divided by the count of the whole batch, so that
    # the gradients add up to that of the mean.
    def accumulate(total: Params, part: Batch) -> tuple[Params, None]:
        grads = jax.grad(mean_loss, argnums=1)(model, params, part, count, key)
        return jax.tree.map(jnp.add, total, grads), None

    zero = jax.tree.map(jnp.zeros_like, params)
    grads, _ = jax.lax.scan(accumulate, zero, micro_batches)
    return grads


def outputs(model: Model, predictor: Predictor) -> Callable[[Array], Array]:
    """A predictor as a function of inputs.

    Returns:
        x [b, ...] -> logits, or log-probabilities of a mixture: what the model's losses
        are computed from.
    """
    if isinstance(predictor, CombinedPredictor):
        combined = predictor.outputs(model)

        def checked(x: Array) -> Array:
            out = combined(x)
            model.require_outputs(out.shape, len(x))
            return out

        return checked
    params = model.params(predictor)
    return lambda x: model.logits(params, x)

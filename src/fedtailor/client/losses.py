"""Losses over batches, of one model or of a mixture of models."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedtailor.models import Model
from fedtailor.protocol import (
    Batch,
    IntScalar,
    Mixture,
    NearestNeighbors,
    Params,
    Predictor,
    along_axis,
    require,
)


def mean_loss(
    model: Model,
    params: Params,
    batch: Batch,
    count: IntScalar,
    key: Array | None = None,
) -> Float[Array, ""]:
    """A batch's part of a mean loss.

    Args:
        model: the network and its loss.
        params: its parameters.
        batch: the examples.
        count: how many examples the mean is over: the batch's own, or more where
            several batches add up to one mean.
        key: randomness of a training step (dropout); None = evaluation mode.

    Returns:
        The sum of the batch's losses over `count`.
    """
    losses = model.losses(model.logits(params, batch.x, key), batch.y)
    # padding weighs 0; it repeats some real sample, so that its loss is a number
    return jnp.vdot(losses, batch.weight) / jnp.maximum(count, 1).astype(losses.dtype)


def training_loss(
    model: Model, params: Params, batch: Batch, key: Array | None = None
) -> tuple[Float[Array, ""], Params]:
    """The loss that a training step descends along.

    Returns:
        The mean loss of the batch, and the parameters with the running statistics that
        follow from it.
    """
    outputs, renewed = model.train_outputs(params, batch.x, batch.weight, key)
    losses = model.losses(outputs, batch.y)
    total = jnp.vdot(losses, batch.weight)
    count = jnp.maximum(batch.weight.sum(), 1).astype(losses.dtype)
    return total / count, renewed


def accumulated_gradient(
    model: Model, params: Params, batch: Batch, micro_batch: int, key: Array | None
) -> Params:
    """The gradient of `training_loss`, added up over parts of the batch whose
    activations fit into the cache.

    Args:
        model: one without running statistics, which a part of a batch would renew by
            its own.
        params: its parameters.
        batch: the examples.
        micro_batch: examples in a part; divides those of the batch.
        key: randomness of the step.

    Returns:
        A tree as `params`.
    """
    count = batch.weight.sum()
    parts_count = len(batch.weight) // micro_batch
    parts = jax.tree.map(
        lambda leaf: leaf.reshape(parts_count, micro_batch, *leaf.shape[1:]), batch
    )

    # Every part's gradient is over the count of the whole batch, so that they add up to
    # the gradient of its mean.
    def add(total: Params, part: Batch) -> tuple[Params, None]:
        gradient = jax.grad(lambda p: mean_loss(model, p, part, count, key))(params)
        return jax.tree.map(jnp.add, total, gradient), None

    zero = jax.tree.map(jnp.zeros_like, params)
    gradient, _ = jax.lax.scan(add, zero, parts)
    return gradient


def outputs(model: Model, predictor: Predictor) -> Callable[[Array], Array]:
    """A predictor as a function of inputs.

    Returns:
        x [b, ...] -> what the predictor's losses are computed from: logits, or a
        mixture's log-probabilities.

    Raises:
        ValueError: a mixture of probabilities of a model that predicts no classes.
    """
    if isinstance(predictor, NearestNeighbors):
        return _with_neighbors(model, predictor)
    if not isinstance(predictor, Mixture):
        params = model.params(predictor)
        return lambda x: model.logits(params, x)
    require(
        predictor.logits or model.classification,
        "a mixture of probabilities needs a model of classes; this method cannot train"
        " a model with another loss",
    )
    stacked = jax.vmap(model.params)(predictor.models)
    weights = predictor.weights

    def mixed(x: Array) -> Array:
        logits = jax.vmap(lambda params: model.logits(params, x))(
            stacked
        )  # [k, b, ...]
        if predictor.logits:
            return jnp.tensordot(weights, logits, 1)
        # log sum_k w_k p_k in the log domain, so that small probabilities do not
        # underflow. The inner `where` keeps log(0) out of the derivative, which would
        # be NaN even where the outer one discards the value.
        log_weights = jnp.where(
            weights > 0, jnp.log(jnp.where(weights > 0, weights, 1)), -jnp.inf
        )
        log_weights = along_axis(log_weights, 0, logits.ndim)
        return jax.nn.logsumexp(model.log_probabilities(logits) + log_weights, axis=0)

    return mixed


def _with_neighbors(
    model: Model, predictor: NearestNeighbors
) -> Callable[[Array], Array]:
    """x [b, ...] -> outputs of a model and of the neighbours among a client's
    examples.
    """
    params = model.params(predictor.model)

    def mixed(x: Array) -> Array:
        # one pass of the body serves both: the neighbours are sought where the head
        # looks
        z = model.features(params, x)
        neighbors = predictor.probabilities(z, model.outputs)
        return predictor.combine(
            neighbors, model.head_outputs(params, z), predictor.share
        )

    return mixed

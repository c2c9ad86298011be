"""Passes over a whole split, in evaluation mode: full gradients and metrics.

They go block by block, so that memory does not grow with the client and clients of all
sizes share a compiled program.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedtailor._base.choice import require
from fedtailor.engine.client.losses import mean_loss, outputs
from fedtailor.protocol import Batch, BatchMetric, Params, Predictor

if TYPE_CHECKING:
    from fedtailor.engine.client.trainer import DeviceTrainer

BLOCK = 128
"""The number of samples in a block."""


def gradient_over_range(
    local: "DeviceTrainer",
    theta: Float[Array, " d"],
    first: Int[Array, ""],
    end: Int[Array, ""],
    purpose: str | None,
) -> Float[Array, " d"]:
    """`LocalTrainer.gradient`: the gradient of the mean loss over the training samples in
    [first, end).
    """
    count = end - first
    # With a purpose, the range is one of a random permutation of the samples.
    view = local if purpose is None else local.any_part(0, local.size, purpose)
    params = local.params(theta)

    def batch_of(index: Int[Array, ""]) -> Batch:
        positions = index * BLOCK + jnp.arange(BLOCK, dtype=jnp.int32)
        # Positions past the end of the range are padding: a real sample with weight 0.
        indices = jnp.clip(first + positions, 0, local.size - 1)
        return view.examples(indices, positions < count, "train")

    def add_weight(index: Int[Array, ""], total: Array) -> Array:
        return total + batch_of(index).weight.sum()

    # What blocks are divided by, so that they add up to the mean.
    total_weight = count
    if local.pool.weights is not None:
        none = jnp.zeros((), local.model.precision.sums)
        total_weight = local.repeat(_blocks(count), add_weight, none)

    def add_block(index: Int[Array, ""], total: Params) -> Params:
        batch = batch_of(index)
        grads = jax.grad(lambda p: mean_loss(local.model, p, batch, total_weight))(
            params
        )
        return jax.tree.map(jnp.add, total, grads)

    local.context.add_work(gradients=jnp.maximum(count, 0))
    zero = jax.tree.map(jnp.zeros_like, params)
    return local.vector(local.repeat(_blocks(count), add_block, zero))


def split_statistics(
    local: "DeviceTrainer",
    predictor: Predictor,
    split: str,
    metrics: Sequence[BatchMetric],
) -> dict[str, dict[str, Array]]:
    """Measure a predictor on a split, block by block.

    Returns:
        Metric's name -> its statistic, summed over the split's samples.
    """
    count, block = local.count(split), BLOCK
    if local.context.is_evaluating:
        # Small clients need no block of padding. A method's own passes keep its size, on
        # which the rounding of sums depends.
        block = local.padded_size(BLOCK)
    predict = outputs(local.model, predictor)

    def block_statistics(index: Int[Array, ""]) -> dict[str, dict[str, Array]]:
        positions = index * block + jnp.arange(block, dtype=jnp.int32)
        indices = jnp.clip(positions, 0, count - 1)
        batch = local.examples(indices, positions < count, split)
        out = predict(batch.x)
        return {
            metric.name: metric.statistic(local.model, out, batch.y, batch.weight)
            for metric in metrics
        }

    def add_block(index: Int[Array, ""], total: Any) -> Any:
        return jax.tree.map(jnp.add, total, block_statistics(index))

    local.context.add_work(forwards=count)
    shapes = jax.eval_shape(block_statistics, jnp.int32(0))
    for metric, sums in shapes.items():
        for name, value in sums.items():
            # Those of blocks are added, and True + True is True.
            require(
                value.dtype != bool,
                f"metric {metric}: statistic() returns {name!r} as True or False; return a"
                " sum over the batch, weighted with weight",
            )
    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return local.repeat(_blocks(count, block), add_block, zero)


def _blocks(n: Int[Array, ""], block: int = BLOCK) -> Int[Array, ""]:
    """The number of blocks in a pass over n samples."""
    return (n + block - 1) // block

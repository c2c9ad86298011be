"""Passes over a whole split, in evaluation mode: full gradients and measurements.

They go in blocks of one size, so that memory does not grow with the client and one
program serves all sizes.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedtailor.client.losses import mean_loss, outputs
from fedtailor.metrics import add_statistics, zero_statistic
from fedtailor.protocol import BatchMetric, Params, Predictor

if TYPE_CHECKING:
    from fedtailor.client.trainer import DeviceTrainer

BLOCK = 128
"""Samples at a time."""


def gradient_over_range(
    local: "DeviceTrainer",
    theta: Float[Array, " d"],
    first: Int[Array, ""],
    end: Int[Array, ""],
    purpose: str | None,
) -> Float[Array, " d"]:
    """Gradient of the mean loss over the training samples in [first, end); see
    `LocalTrainer.gradient`.
    """
    # Blocks' sums over `count` add up to the gradient of the mean.
    count = end - first
    # a purpose puts the samples into an order of its own, so that a range of them is a
    # random part of the data
    view = local if purpose is None else local.part(0, local.size, purpose)
    params = local.params(theta)

    def add_block(index: Int[Array, ""], total: Params) -> Params:
        positions = index * BLOCK + jnp.arange(BLOCK, dtype=jnp.int32)
        # the last block reaches past the end: what stands there is some real sample,
        # and weighs nothing
        inside = positions < count
        batch = view.examples(
            jnp.clip(first + positions, 0, local.size - 1), inside, "train"
        )
        part = jax.grad(lambda p: mean_loss(local.model, p, batch, count))(params)
        return jax.tree.map(jnp.add, total, part)

    local.trace.add_work(gradients=jnp.maximum(count, 0))
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
    count = local.count(split)
    predict = outputs(local.model, predictor)

    def of_block(index: Int[Array, ""]) -> dict[str, dict[str, Array]]:
        positions = index * BLOCK + jnp.arange(BLOCK, dtype=jnp.int32)
        batch = local.examples(
            jnp.clip(positions, 0, count - 1), positions < count, split
        )
        out = predict(batch.x)
        return {
            metric.name: metric.statistic(local.model, out, batch.y, batch.weight)
            for metric in metrics
        }

    local.trace.add_work(forwards=count)
    # nothing is computed here: only the shapes of a block's sums are looked at
    zero = zero_statistic(of_block, jnp.int32(0))
    return local.repeat(
        _blocks(count),
        lambda index, total: add_statistics(total, of_block(index)),
        zero,
    )


def _blocks(n: Int[Array, ""]) -> Int[Array, ""]:
    """Blocks of a pass over n samples: none where there are none."""
    return (n + BLOCK - 1) // BLOCK

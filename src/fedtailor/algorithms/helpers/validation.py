"""How well a model does on a client's validation data, by what runs of classifiers are
judged by.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedtailor.protocol import Batch, LocalTrainer

_BATCH = 128


def validation_error(
    local: LocalTrainer, theta: Float[Array, " d"]
) -> Float[Array, ""]:
    """How wrong a model is on a client's validation samples.

    Returns:
        The share that it predicts wrongly; where its outputs are not scores of classes,
        its mean loss. 0 for an empty split.
    """
    params = local.params(theta)
    samples = local.count("val")

    def add(
        total: Float[Array, ""], batch: Batch, index: Int[Array, ""]
    ) -> Float[Array, ""]:
        local.count_work(forwards=1)
        outputs = local.logits(params, batch.x, training=False)
        if (
            jnp.issubdtype(batch.y.dtype, jnp.integer)
            and outputs.ndim == batch.y.ndim + 1
        ):
            wrong = (outputs.argmax(axis=-1) != batch.y).astype(total.dtype)
            each = wrong.reshape(len(wrong), -1).mean(
                axis=1
            )  # of a text, the share of its tokens
        else:
            each = local.losses(outputs, batch.y)
        return total + batch.weight @ each

    one_pass = (samples + _BATCH - 1) // _BATCH
    total = local.loop(
        jnp.zeros((), theta.dtype),
        add,
        one_pass,
        _BATCH,
        purpose="validation",
        split="val",
    )
    return total / jnp.maximum(samples, 1)

"""The validation error of a model, the share of wrong predictions of a classifier."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedtailor.protocol import Batch, LocalTrainer, sums_type

_BATCH = 128


def validation_error(
    local: LocalTrainer, theta: Float[Array, " d"]
) -> Float[Array, ""]:
    """The error of a model on a client's validation samples.

    Returns:
        The share of wrong predictions or, if the outputs are not scores of classes, the
        mean loss; 0 for an empty split.
    """
    params = local.params(theta)
    samples = local.count("val")

    def add(
        total: Float[Array, ""], batch: Batch, index: Int[Array, ""]
    ) -> Float[Array, ""]:
        local.count_work(forwards=1)
        outputs = local.logits(params, batch.x, training=False)
        has_labels = jnp.issubdtype(batch.y.dtype, jnp.integer)
        if has_labels and outputs.ndim == batch.y.ndim + 1:
            is_wrong = (outputs.argmax(axis=-1) != batch.y).astype(total.dtype)
            # A text has a label for each token. Its error is the share of wrong tokens.
            errors = is_wrong.reshape(len(is_wrong), -1).mean(axis=1)
        else:
            errors = local.losses(outputs, batch.y, batch.weight)
        return total + batch.weight @ errors

    one_pass = (samples + _BATCH - 1) // _BATCH
    total = local.loop(
        jnp.zeros((), sums_type(theta)),
        add,
        one_pass,
        _BATCH,
        whole=True,
        purpose="validation",
        split="val",
    )
    return total / jnp.maximum(local.total("val"), 1)

"""Which targets of a sequence count."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from fedtailor.models import Model, TokenCrossEntropy
from fedtailor.protocol import along_axis


def token_weights(
    model: Model, y: Shaped[Array, "b ..."], weight: Float[Array, " b"]
) -> Float[Array, "b ..."]:
    """1 for a token of a sample, 0 for padding of either kind."""
    weights = jnp.broadcast_to(along_axis(weight, 0, y.ndim), y.shape)
    if isinstance(model.loss, TokenCrossEntropy):
        return weights * model.loss.is_token(y).astype(weight.dtype)
    return weights

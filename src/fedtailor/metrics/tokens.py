"""Which targets of a sequence count."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from fedtailor.models import Model, TokenCrossEntropy


def token_weights(
    model: Model, y: Shaped[Array, "b ..."], weight: Float[Array, " b"]
) -> Float[Array, "b ..."]:
    """1 for a token of a sample, 0 for padding of either kind."""
    weights = jnp.broadcast_to(weight.reshape(-1, *[1] * (y.ndim - 1)), y.shape)
    if isinstance(model.loss, TokenCrossEntropy):
        return weights * model.loss.is_token(y).astype(weight.dtype)
    return weights

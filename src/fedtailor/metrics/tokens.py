"""The weights of the tokens of a sequence."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from fedtailor.models import Model, TokenCrossEntropy
from fedtailor.protocol import along_axis


def token_weights(
    model: Model, y: Shaped[Array, "b ..."], weight: Float[Array, " b"]
) -> Float[Array, "b ..."]:
    """The weight of each token: 1, or 0 for padding.

    Padding is the rest of a shorter sequence, and all of an example that only fills the
    batch.
    """
    weights = jnp.broadcast_to(along_axis(weight, 0, y.ndim), y.shape)
    if isinstance(model.loss, TokenCrossEntropy):
        return weights * model.loss.is_token(y).astype(weight.dtype)
    return weights

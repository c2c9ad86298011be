"""How curved a client's loss is."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedtailor.protocol import LocalTrainer

_ITERATIONS = 10
_LEAST = 1e-30
"""Norms are not smaller than this, so that directions can be scaled to length 1."""


def largest_eigenvalue(
    local: LocalTrainer, theta: Float[Array, " d"], key: Array
) -> Float[Array, ""]:
    """The largest eigenvalue, in absolute value, of the Hessian of the training loss at
    theta, by power iteration.

    Args:
        key: draws the direction that the iteration starts from.

    Returns:
        The norm of the Hessian times a direction of length 1 after ten iterations, a
        lower bound.
    """

    def iterate(k: Array, v: Array) -> Array:
        direction = v / jnp.maximum(jnp.linalg.norm(v), _LEAST)
        # Hessian-vector product, forward over reverse: the derivative of the gradient
        # along the direction.
        _, hessian_times_direction = jax.jvp(local.gradient, (theta,), (direction,))
        return hessian_times_direction

    start = jax.random.normal(key, theta.shape, theta.dtype)
    return jnp.linalg.norm(local.fori_loop(_ITERATIONS, iterate, start))

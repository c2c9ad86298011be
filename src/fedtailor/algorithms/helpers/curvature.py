"""The curvature of a client's loss."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedtailor.protocol import LocalTrainer

_ITERATIONS = 10
_MIN_NORM = 1e-30
"""The smallest number that a direction is divided by when it is scaled to length 1."""


def largest_eigenvalue(
    local: LocalTrainer, theta: Float[Array, " d"], key: Array
) -> Float[Array, ""]:
    """The largest absolute eigenvalue of the Hessian, by power iteration.

    Args:
        local: the client, whose mean training loss is differentiated.
        theta: the model at which the Hessian is taken.
        key: draws the first direction.

    Returns:
        A lower bound: the norm of the Hessian times a direction of length 1, after ten
        iterations.
    """

    def iterate(k: Array, v: Array) -> Array:
        direction = v / jnp.maximum(jnp.linalg.norm(v), _MIN_NORM)
        # Hessian-vector product, forward over reverse
        _, hessian_product = jax.jvp(local.gradient, (theta,), (direction,))
        return hessian_product

    start = jax.random.normal(key, theta.shape, theta.dtype)
    return jnp.linalg.norm(local.fori_loop(_ITERATIONS, iterate, start))

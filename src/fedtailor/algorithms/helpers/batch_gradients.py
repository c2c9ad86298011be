"""How much a client's gradients vary over disjoint batches of its rows."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.lax import Precision
from jaxtyping import Array, Float, Int

from fedtailor.protocol import LocalTrainer, sums_type


def batch_size(n_k: int | float, n: Int[Array, ""]) -> Int[Array, ""]:
    """The samples of a batch: a number, or a share of a client's n samples. At most half
    of them, so that there are two batches.
    """
    if not isinstance(n_k, int):
        # The tolerance makes a third of 9 samples 3 samples, although 1/3 is rounded in
        # single precision.
        n_k = jnp.int32(n_k * n + 1e-3)
    return jnp.maximum(jnp.minimum(n_k, n // 2), 1)


def batch_variance(
    local: LocalTrainer,
    theta: Float[Array, " d"],
    gradient: Float[Array, " d"],
    n_k: Int[Array, ""],
) -> Float[Array, ""]:
    """The variance of a client's gradients over K disjoint batches of n_k samples, around
    the gradient g_i of all its examples (eq. 10):

        sigma_i^2 = (1/K) sum_k |g_k - g_i|^2
    """
    batches = jnp.maximum(local.size // n_k, 1)

    def add(k: Array, total: Array) -> Array:
        # Batch k of a random partition, because the data may be sorted (by label).
        g_k = local.gradient(theta, k * n_k, (k + 1) * n_k, purpose="sigma")
        return total + jnp.sum(jnp.square(g_k - gradient))

    total = local.fori_loop(batches, add, jnp.zeros((), sums_type(theta)))
    return total / batches


def batch_scatter(
    local: LocalTrainer,
    theta: Float[Array, " d"],
    gradient: Float[Array, " d"],
    share: float,
    project: Callable[[Float[Array, " d"]], Float[Array, " k"]] | None,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The variance of `batch_variance`, and in how few directions the gradients vary.

    With A = sum_k (g_k - g_i)(g_k - g_i)^T over the gradients g_k of K batches, the
    concentration is tr A^2 / (tr A)^2: 1 if they vary in one direction, and about
    1 / r + 1 / K if they vary alike in r of them. Without two batches it is 1.

    Args:
        local: the client.
        theta: the model.
        gradient: g_i.
        share: samples of a batch, as a share of the client's.
        project: maps gradients to the vectors that are compared; None = themselves.

    Returns:
        sigma_i^2, and the concentration.
    """
    n_k = batch_size(share, local.size)
    batches = jnp.maximum(local.size // n_k, 1)
    # Where the share is of fewer than two rows, a batch is one row.
    most = int(2 / share)

    def add(k: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        total, rows = carry
        g_k = local.gradient(theta, k * n_k, (k + 1) * n_k, purpose="sigma")
        deviation = g_k - gradient
        total = total + jnp.sum(jnp.square(deviation))
        row = deviation if project is None else project(deviation)
        return total, rows.at[k].set(row.astype(rows.dtype))

    projected = gradient if project is None else jax.eval_shape(project, gradient)
    width = projected.size
    start = jnp.zeros((), sums_type(theta)), jnp.zeros((most, width), sums_type(theta))
    total, rows = local.fori_loop(batches, add, start)
    gram = jnp.matmul(rows, rows.T, precision=Precision.HIGHEST)
    trace = jnp.trace(gram)
    # Divided before it is squared: squares of small gradients are 0 in single precision.
    shares = gram / jnp.where(trace > 0, trace, 1)
    concentration = jnp.where(trace > 0, jnp.sum(jnp.square(shares)), 1)
    return total / batches, jnp.minimum(concentration, 1)  # rounding

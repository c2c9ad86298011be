"""How much a client's gradients vary over disjoint batches of its rows."""

from collections.abc import Callable
from typing import Any

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

    def add(k: Array, total: Array, deviation: Array) -> Array:
        return total + jnp.sum(jnp.square(deviation))

    zero = jnp.zeros((), sums_type(theta))
    total, batches = _over_batches(local, theta, gradient, n_k, add, zero)
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
    # Where the share is of fewer than two rows, a batch is one row.
    most = int(2 / share)

    def add(
        k: Array, carry: tuple[Array, Array], deviation: Array
    ) -> tuple[Array, Array]:
        total, rows = carry
        total = total + jnp.sum(jnp.square(deviation))
        row = deviation if project is None else project(deviation)
        return total, rows.at[k].set(row.astype(rows.dtype))

    projected = gradient if project is None else jax.eval_shape(project, gradient)
    width = projected.size
    start = jnp.zeros((), sums_type(theta)), jnp.zeros((most, width), sums_type(theta))
    (total, rows), batches = _over_batches(local, theta, gradient, n_k, add, start)
    gram = jnp.matmul(rows, rows.T, precision=Precision.HIGHEST)
    trace = jnp.trace(gram)
    # Divided before it is squared: squares of small gradients are 0 in single precision.
    shares = gram / jnp.where(trace > 0, trace, 1)
    concentration = jnp.where(trace > 0, jnp.sum(jnp.square(shares)), 1)
    return total / batches, jnp.minimum(concentration, 1)  # rounding


def _over_batches(
    local: LocalTrainer,
    theta: Float[Array, " d"],
    gradient: Float[Array, " d"],
    n_k: Int[Array, ""],
    add: Callable[[Array, Any, Float[Array, " d"]], Any],
    start: Any,
) -> tuple[Any, Int[Array, ""]]:
    """Add up something over disjoint batches of n_k samples.

    Args:
        local: the client.
        theta: the model.
        gradient: g_i.
        n_k: samples of a batch.
        add: of k, what was added up before and g_k - g_i, what there is with batch k.
        start: what there is before the first batch.

    Returns:
        What there is after the last batch, and the number of batches.
    """
    batches = jnp.maximum(local.size // n_k, 1)

    def with_batch(k: Array, carry: Any) -> Any:
        # Batch k of a random partition, because the data may be sorted (by label).
        g_k = local.gradient(theta, k * n_k, (k + 1) * n_k, purpose="sigma")
        return add(k, carry, g_k - gradient)

    return local.fori_loop(batches, with_batch, start), batches

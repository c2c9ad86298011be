"""Running means and variances of vectors (Welford 1962), for use under `jax.jit`."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

Moments = tuple[Array, Array, Array]
"""(count, mean [...], M2), where M2 is the sum of squared deviations.

M2 is kept for each coordinate [...], or as one sum over all coordinates ().
"""


def update(moments: Moments, x: Float[Array, "..."]) -> Moments:
    """The moments after one more value x (Welford's algorithm)."""
    count, mean, m2 = moments
    count = count + 1
    from_old_mean = x - mean
    mean = mean + from_old_mean / count.astype(mean.dtype)
    from_new_mean = x - mean
    # The product of the two deviations is never negative and, unlike E[x^2] - E[x]^2,
    # has no cancellation.
    squares = from_old_mean * from_new_mean
    if m2.shape != squares.shape:
        squares = squares.sum()
    return count, mean, m2 + squares


def variance(moments: Moments) -> Float[Array, "..."]:
    """The unbiased variance M2 / (count - 1), of the shape of M2.

    It is 0 while the count is below 2.
    """
    count, _, m2 = moments
    return m2 / jnp.maximum(count - 1, 1).astype(m2.dtype)


@jax.jit
def variance_between(
    models: Float[Array, "c d"], reporting: Bool[Array, " c"]
) -> Float[Array, ""]:
    """The unbiased variance between models, averaged over coordinates.

    Args:
        models: the models of the clients of a cohort.
        reporting: which clients report, at least two. The rows of the others are
            ignored.
    """
    # The mean is subtracted before squaring, because the models of a round are close to
    # each other and far from the origin.
    count = reporting.sum()
    is_used = reporting[:, None]
    mean = jnp.where(is_used, models, 0).sum(axis=0) / count
    squares = jnp.where(is_used, jnp.square(models - mean), 0)
    return squares.sum() / ((count - 1) * models.shape[1])

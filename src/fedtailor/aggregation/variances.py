"""Running means and variances of vectors (Welford 1962). Pure: they trace and scan."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

Moments = tuple[Array, Array, Array]
"""(count, mean [...], M2): M2 sums squared deviations, per coordinate [...] or over all
of them ().
"""


def update(moments: Moments, x: Float[Array, "..."]) -> Moments:
    """The moments with one more value."""
    count, mean, m2 = moments
    count = count + 1
    from_old_mean = x - mean
    mean = mean + from_old_mean / count.astype(mean.dtype)
    from_new_mean = x - mean
    # Welford: the product of the two deviations is never negative, and does not cancel
    # as E[x^2] - E[x]^2 does.
    return count, mean, m2 + _like(m2, from_old_mean * from_new_mean)


def variance(moments: Moments) -> Float[Array, "..."]:
    """The unbiased variance M2 / (count - 1), shaped as M2; 0 while there are fewer
    than two values (see count).
    """
    count, _, m2 = moments
    return m2 / jnp.maximum(count - 1, 1).astype(m2.dtype)


@jax.jit
def variance_between(
    models: Float[Array, "c d"], reporting: Bool[Array, " c"]
) -> Float[Array, ""]:
    """The unbiased variance over the models of those that report (two at least),
    averaged over coordinates.
    """
    # In two passes, mean first: models of one round are close to each other and far
    # from the origin. Rows of clients that do not report may hold anything.
    count = reporting.sum()
    mean = jnp.where(reporting[:, None], models, 0).sum(axis=0) / count
    squares = jnp.where(reporting[:, None], jnp.square(models - mean), 0)
    return squares.sum() / ((count - 1) * models.shape[1])


def _like(m2: Array, squares: Array) -> Array:
    """Squares per coordinate, or their sum where M2 is the trace."""
    return squares if m2.shape == squares.shape else squares.sum()

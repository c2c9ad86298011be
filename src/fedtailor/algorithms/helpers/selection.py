"""How a client chooses: among models by its own data, among shares of a mixture from a
cover of [0, 1].
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedtailor.protocol import LocalTrainer, require


def closest(
    models: Float[Array, "q d"], received: Bool[Array, " q"], local: LocalTrainer
) -> tuple[Int[Array, ""], Float[Array, ""]]:
    """The model with the lowest loss on the client's training data (Mansour et al.
    2020, eq. 6), the first on ties.

    Args:
        models: the candidates; a single one is chosen without looking at the data.
        received: which of them were sent; the others cannot be chosen.

    Returns:
        Its number, and its loss (0 where nothing was sent, or where there was no
        choice).
    """
    if len(models) == 1:
        return jnp.int32(0), jnp.zeros((), models.dtype)
    # f(k) = argmin_i F_k(h_i); `argmin` takes the first of equal ones
    losses = jnp.where(received, local.map(local.loss, models), jnp.inf)
    choice = jnp.argmin(losses)
    return choice.astype(jnp.int32), jnp.where(received.any(), losses[choice], 0)


def require_cover(cover: tuple[float, ...]) -> None:
    """Check the lambdas that a client chooses from.

    Raises:
        ValueError: they are not ascending numbers in [0, 1].
    """
    in_range = len(cover) > 0 and all(0 <= lam <= 1 for lam in cover)
    ascending = list(cover) == sorted(set(cover))
    require(
        in_range and ascending,
        f"cover is {cover}; it must be one number or more in [0, 1], ascending",
    )

"""A client's choice among models, and among the shares of a mixture."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedtailor._base.choice import require
from fedtailor.protocol import LocalTrainer, sums_type


def closest(
    models: Float[Array, "q d"], received: Bool[Array, " q"], local: LocalTrainer
) -> tuple[Int[Array, ""], Float[Array, ""]]:
    """The model with the lowest loss on the client's training data.

    f(k) = argmin_i F_k(h_i) of Mansour et al. 2020, eq. 6; the first on ties.

    Args:
        models: the candidates h_i. A single candidate is chosen without evaluation.
        received: which candidates were sent. Others are not chosen.
        local: the client k.

    Returns:
        The number of the chosen model, and its loss (0 if there is only one candidate,
        or if none was sent).
    """
    if len(models) == 1:
        return jnp.int32(0), jnp.zeros((), sums_type(models))
    losses = jnp.where(received, local.map(local.loss, models), jnp.inf)
    choice = jnp.argmin(losses)
    return choice.astype(jnp.int32), jnp.where(received.any(), losses[choice], 0)


def require_cover(cover: tuple[float, ...]) -> None:
    """Require ascending values of lambda in [0, 1], at least one.

    Raises:
        ValueError: `cover` is something else.
    """
    in_range = len(cover) > 0 and all(0 <= lam <= 1 for lam in cover)
    is_ascending = list(cover) == sorted(set(cover))
    require(
        in_range and is_ascending,
        f"cover is {cover}; it must be one number or more in [0, 1], ascending",
    )

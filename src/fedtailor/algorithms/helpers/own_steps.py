"""Plain SGD for methods that take steps of their own on several things at once."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, ScalarLike

from fedtailor.protocol import (
    SGD,
    Batch,
    LocalTrainer,
    ModelPart,
    Params,
    is_off,
    require,
)


def descend(params: Params, gradient: Params, sgd: SGD, rate: ScalarLike) -> Params:
    """One plain step: w - rate ( g + weight_decay w )."""
    # A decay of 0 is not compiled.
    if not is_off(sgd.weight_decay):
        gradient = jax.tree.map(lambda g, w: g + sgd.weight_decay * w, gradient, params)
    return jax.tree.map(lambda w, g: w - rate * g, params, gradient)


def descend_with_momentum(
    params: Params, velocity: Params, gradient: Params, sgd: SGD, rate: ScalarLike
) -> tuple[Params, Params]:
    """One step of SGD with momentum.

        v <- momentum v + g + weight_decay w,    w <- w - rate v

    Returns:
        The new w and v.
    """
    if not is_off(sgd.weight_decay):
        gradient = jax.tree.map(lambda g, w: g + sgd.weight_decay * w, gradient, params)
    velocity = jax.tree.map(lambda v, g: sgd.momentum * v + g, velocity, gradient)
    return jax.tree.map(lambda w, v: w - rate * v, params, velocity), velocity


def descend_in_training(
    params: Params,
    gradient: Params,
    batch: Batch,
    sgd: SGD,
    rate: ScalarLike,
    local: LocalTrainer,
) -> Params:
    """`descend` for models that may have running statistics.

    Returns:
        The parameters after the step; running statistics are those that a training step
        on `batch` leaves.
    """
    # The statistics are those of the model before the step, in training mode.
    statistics = local.renew_statistics(params, batch)
    new = descend(params, gradient, sgd, rate)
    return local.with_statistics(new, statistics)


def sgd_from_velocity(
    local: LocalTrainer,
    theta: Float[Array, " d"],
    velocity: Float[Array, " d"],
    sgd: SGD,
) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
    """`local.sgd` with momentum that does not start at zero.

    Returns:
        The trained model and the velocity after the last step.
    """
    rate = sgd.rate(local.round)

    def step(
        carry: tuple[Params, Params], batch: Batch, index: Int[Array, ""]
    ) -> tuple[Params, Params]:
        params, velocity = carry
        gradient = local.batch_gradient(params, batch)
        statistics = local.renew_statistics(params, batch)
        new, velocity = descend_with_momentum(params, velocity, gradient, sgd, rate)
        return local.with_statistics(new, statistics), velocity

    start = local.params(theta), local.params(velocity)
    params, last = local.loop(
        start, step, local.steps(sgd), sgd.batch_size, drop_last=sgd.drop_last
    )
    return local.vector(params), local.vector(last)


def require_plain(method: str, sgd: SGD) -> None:
    """Require plain SGD, for a method that writes its own steps.

    Raises:
        ValueError: `sgd` has momentum or another optimiser.
    """
    require(
        is_off(sgd.momentum) and sgd.optimizer is None,
        f"{method}'s coupled steps are plain SGD; train without momentum and without an"
        " optimizer",
    )


def head_of(local: LocalTrainer) -> ModelPart:
    """The head of a client's model, or the whole model if it has no body."""
    part = "head" if "head" in local.parts_of_model else "everything"
    return local.part_of_model(part)


def mean_over(
    values: Float[Array, " b"], weight: Float[Array, " b"]
) -> Float[Array, ""]:
    """The mean of a batch's values; padding has weight 0."""
    return (values * weight).sum() / jnp.maximum(weight.sum(), 1)

"""Steps and loops of SGD, for methods that train several models at once."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, ScalarLike

from fedtailor._base.choice import require
from fedtailor.protocol import SGD, Batch, LocalTrainer, ModelPart, Params, is_off

Carry = TypeVar("Carry")
"""Any pytree that one step hands to the next."""


def loop_over_batches(
    local: LocalTrainer,
    carry: Carry,
    step: Callable[[Carry, Batch, Int[Array, ""]], Carry],
    sgd: SGD,
    purpose: str = "batches",
) -> Carry:
    """`local.loop` with the number of steps and the batches of `sgd`.

    `SGD(batch_size=b)` is one pass over the client's training samples.
    """
    return local.loop(
        carry,
        step,
        local.steps(sgd),
        sgd.batch_size,
        drop_last=sgd.drop_last,
        purpose=purpose,
    )


def pass_over_samples(
    local: LocalTrainer,
    carry: Carry,
    step: Callable[[Carry, Batch, Int[Array, ""]], Carry],
    batch_size: int,
    purpose: str = "batches",
) -> Carry:
    """`local.loop` over every training sample of the client once, training nothing."""
    steps = -(-local.size // batch_size)
    return local.loop(carry, step, steps, batch_size, whole=True, purpose=purpose)


def add_penalty(
    gradient: Params, params: Params, sgd: SGD, local: LocalTrainer
) -> Params:
    """The gradient g + weight_decay w, for weights with + ridge / n_i w."""
    # A constant decay of 0 is left out of the compiled program.
    if not sgd.has_penalty:
        return gradient
    return jax.tree.map(
        lambda g, w: g + sgd.penalty(w.ndim, local.samples) * w, gradient, params
    )


def sgd_step(
    params: Params, gradient: Params, sgd: SGD, rate: ScalarLike, local: LocalTrainer
) -> Params:
    """One step of plain SGD, w - rate g, where g has its penalty (`add_penalty`)."""
    gradient = add_penalty(gradient, params, sgd, local)
    return jax.tree.map(lambda w, g: w - rate * g, params, gradient)


def momentum_step(
    params: Params,
    velocity: Params,
    gradient: Params,
    sgd: SGD,
    rate: ScalarLike,
    local: LocalTrainer,
) -> tuple[Params, Params]:
    """One step of SGD with momentum, where g has its penalty (`add_penalty`).

        v <- momentum v + g,    w <- w - rate v

    Returns:
        The new w and v.
    """
    gradient = add_penalty(gradient, params, sgd, local)
    velocity = jax.tree.map(lambda v, g: sgd.momentum * v + g, velocity, gradient)
    return jax.tree.map(lambda w, v: w - rate * v, params, velocity), velocity


def sgd_step_with_statistics(
    params: Params,
    gradient: Params,
    batch: Batch,
    sgd: SGD,
    rate: ScalarLike,
    local: LocalTrainer,
) -> Params:
    """`sgd_step` for models that may have running statistics.

    Returns:
        The parameters after the step, with the running statistics after a training step
        on `batch`.
    """
    # The model before the step gives the statistics, in training mode.
    statistics = local.renew_statistics(params, batch)
    return local.with_statistics(
        sgd_step(params, gradient, sgd, rate, local), statistics
    )


def sgd_from_velocity(
    local: LocalTrainer,
    theta: Float[Array, " d"],
    velocity: Float[Array, " d"],
    sgd: SGD,
) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
    """`local.sgd` with momentum that starts at a given velocity.

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
        new, velocity = momentum_step(params, velocity, gradient, sgd, rate, local)
        return local.with_statistics(new, statistics), velocity

    start = local.params(theta), local.params(velocity)
    params, velocity_params = loop_over_batches(local, start, step, sgd)
    return local.vector(params), local.vector(velocity_params)


def require_plain_sgd(steps: str, sgd: SGD) -> None:
    """Require plain SGD, for a method with its own steps.

    Args:
        steps: what the message calls these steps, such as "apfl's coupled steps".
        sgd: the settings.

    Raises:
        ValueError: `sgd` has momentum, another optimiser or a bound of gradients.
    """
    require(
        is_off(sgd.momentum) and sgd.optimizer is None,
        f"{steps} are plain SGD; train without momentum and without an optimizer",
    )
    require_no_clip(steps, sgd)


def require_no_clip(steps: str, sgd: SGD) -> None:
    """Require steps without a bound of gradients, for a method with its own steps.

    Args:
        steps: as in `require_plain_sgd`.
        sgd: the settings.
    """
    require(
        sgd.clip is None,
        f"{steps} do not clip gradients; leave out clip, and try a lower lr",
    )


def why_sums_show_clients(sgd: SGD) -> str:
    """`Algorithm.sums_show_clients` of a method whose clients send, beside their models or in
    the next round, what follows from these by the number of steps: for few steps a model's
    change is that number times a mean gradient.
    """
    if sgd.steps is not None:
        return ""
    return (
        "what they send beside their models, or next, is about the change of these by each"
        " client's number of steps, so that two sums show a client whose number is another:"
        " say a number of steps in sgd instead of epochs"
    )


def head_of(local: LocalTrainer) -> ModelPart:
    """The head of a client's model; the whole model if the model has no body."""
    part = "head" if "head" in local.parts_of_model else "everything"
    return local.part_of_model(part)


def mean_over(
    values: Float[Array, " b"], weight: Float[Array, " b"]
) -> Float[Array, ""]:
    """The mean of a batch's values; padding has weight 0."""
    return (values * weight).sum() / jnp.maximum(weight.sum(), 1)

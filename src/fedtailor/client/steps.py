"""Mini-batch SGD: the local training behind most methods."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import optax
from jaxtyping import Array, Float, Int

from fedtailor.client import gradient_terms
from fedtailor.client.loop_layout import LoopLayout
from fedtailor.client.private_steps import PrivateSteps
from fedtailor.protocol import (
    SGD,
    Batch,
    ModelPart,
    Params,
    StepGradient,
    is_off,
    require,
)

if TYPE_CHECKING:
    from fedtailor.client.trainer import DeviceTrainer

LossGradient = Callable[[Params, Batch, Int[Array, ""]], tuple[Params, Params]]
"""(params, batch, step) -> the gradient of the loss, and the parameters with running
statistics renewed.
"""


def train(
    local: "DeviceTrainer",
    theta: Float[Array, " d"],
    sgd: SGD,
    proximal: tuple[Any, Float[Array, " d"]] | None,
    linear_term: Float[Array, " d"] | None,
    gradient: StepGradient | None,
    steps: Int[Array, ""] | int,
    split: str,
    train_only: ModelPart | None = None,
) -> Float[Array, " d"]:
    """Mini-batch steps on w -> F(w) + mu/2 |w - anchor|^2 + <linear_term, w>, where F is the
    mean loss over a batch.

    Args:
        local: the client.
        theta: the model to start from.
        sgd: learning rate, batch size and the like.
        proximal: mu and the anchor [d].
        linear_term: the linear term [d].
        gradient: takes the place of F's gradient.
        steps: how many to take.
        split: whose samples the batches are drawn from.
        train_only: entries outside of this part keep their bits.

    Returns:
        theta after `steps` steps.
    """
    model = local.model
    optimizer = _optimizer(sgd, sgd.rate(local.round))
    params = local.params(theta)
    loss_gradient = _loss_gradient(local, sgd, gradient, split)
    is_trained = None if train_only is None else train_only.tree_mask(params)
    # An optimizer of the user's own may look at shapes, so it is given the model's.
    layout = LoopLayout(params, transpose_narrow=sgd.optimizer is None)

    # A term that is switched off leaves nothing in the program.
    terms = []
    if not is_off(sgd.weight_decay):
        terms.append(gradient_terms.weight_decay(sgd.weight_decay))
    if proximal is not None:
        mu, anchor = proximal
        terms.append(gradient_terms.proximal(mu, layout.to_loop(local.params(anchor))))
    if linear_term is not None:
        terms.append(gradient_terms.linear(layout.to_loop(local.params(linear_term))))
    if is_trained is not None:
        # for optimizers that look at all of the gradient (a clipped global norm)
        terms.append(gradient_terms.only(is_trained))
    if model.has_statistics:
        # Running statistics are leaves of the tree, too, which no term may move.
        is_learned = model.statistics.complement.tree_mask(params)
        terms.append(gradient_terms.only(is_learned))

    def step(
        carry: tuple[Params, optax.OptState], batch: Batch, number: Int[Array, ""]
    ) -> tuple[Params, optax.OptState]:
        params, opt_state = carry
        grads, renewed = loss_gradient(layout.to_model(params), batch, number)
        grads = layout.to_loop(grads)
        for term in terms:
            grads = term(grads, params)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        stepped = jax.tree.map(lambda w, u: w + u.astype(w.dtype), params, updates)
        if model.has_statistics:
            stepped = model.with_statistics(stepped, layout.to_loop(renewed))
        if is_trained is not None:
            # whatever the optimizer does to them
            stepped = jax.tree.map(
                lambda old, new, trained: new if trained else old,
                params,
                stepped,
                is_trained,
            )
        return stepped, opt_state

    params = layout.to_loop(params)
    carry = (params, optimizer.init(params))
    if sgd.dp_noise is not None:
        carry = local.private_loop(carry, step, steps, sgd.batch_size, split)
    else:
        carry = local.loop(
            carry, step, steps, sgd.batch_size, drop_last=sgd.drop_last, split=split
        )
    params, _ = carry
    return local.vector(layout.to_model(params))


def _optimizer(sgd: SGD, rate: Any) -> optax.GradientTransformation:
    """The user's optimizer, or SGD at the rate of this round."""
    if sgd.optimizer is not None:
        return sgd.optimizer
    # Without momentum, which is known while tracing, the loop carries no velocity.
    return optax.sgd(rate, None if is_off(sgd.momentum) else sgd.momentum)


def _loss_gradient(
    local: "DeviceTrainer", sgd: SGD, gradient: StepGradient | None, split: str
) -> LossGradient:
    """The gradient of the loss that steps descend along: of single examples where they
    are private, the method's own, or that of the batch.

    Raises:
        ValueError: private steps with a gradient of the method's own.
    """
    if sgd.dp_noise is not None:
        private = PrivateSteps(local, sgd, split)
        require(
            gradient is None,
            "private steps clip the gradient of the loss, and this method descends"
            " along another one",
        )
        return lambda params, _, step: (private.gradient(params, step), params)
    if gradient is None:
        return lambda params, batch, _: local.gradient_and_statistics(params, batch)
    return lambda params, batch, step: (
        gradient(params, batch, step),
        local.renew_statistics(params, batch),
    )

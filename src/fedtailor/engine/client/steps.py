"""Mini-batch SGD: the local training behind most methods.

`DeviceTrainer` is one class, whose long parts stand in files of their own: here, in
`losses`, `passes` and `private_steps`. Their functions take the trainer and use what it
has (examples, model, loops, random keys, the step that is traced). Passing these one by
one would give each of them a dozen arguments that all come from the same object.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import optax
from jaxtyping import Array, Float, Int

from fedtailor._base.choice import require
from fedtailor.engine.client import gradient_terms
from fedtailor.engine.client.loop_layout import LoopLayout
from fedtailor.engine.client.private_steps import PrivateSteps
from fedtailor.protocol import SGD, Batch, ModelPart, Params, StepGradient, is_off

if TYPE_CHECKING:
    from fedtailor.engine.client.trainer import DeviceTrainer

StepCarry = tuple[Params, optax.OptState]
LossGradient = Callable[[Params, Any, Int[Array, ""]], tuple[Params, Params]]
"""(params, batch, step number) -> (the gradient of the loss, params with updated running
statistics).

The batch is a `Batch`; None in private steps, which draw their own examples.
"""


def train_steps(
    local: "DeviceTrainer",
    theta: Float[Array, " d"],
    sgd: SGD,
    *,
    proximal: tuple[Any, Float[Array, " d"]] | None,
    linear_term: Float[Array, " d"] | None,
    gradient: StepGradient | None,
    steps: Int[Array, ""] | int,
    split: str,
    train_only: ModelPart | None,
) -> Float[Array, " d"]:
    """Minimize F(w) + mu/2 |w - anchor|^2 + <linear_term, w> by mini-batch steps, where
    F is the mean loss.

    Args:
        local: the client.
        theta: the model to start from.
        sgd: the optimizer's settings; with `dp_noise` the steps are those of DP-SGD.
        proximal: (mu, anchor [d]); None = no proximal term.
        linear_term: [d]; None = no linear term.
        gradient: computes a gradient that replaces the one of F; None = that of F.
        steps: the number of steps.
        split: the split that batches are drawn from.
        train_only: the part of the model to train, while all other entries are frozen;
            None = the whole model.

    Returns:
        The trained model.
    """
    model = local.model
    params = local.params(theta)
    trained_mask = None if train_only is None else train_only.tree_mask(params)
    optimizer = _optimizer(sgd, sgd.rate(local.round))
    loss_gradient = _loss_gradient(local, sgd, gradient, split)

    # The loop carries narrow matrices transposed, which makes plain SGD faster. A user's
    # optimizer may depend on the shapes of parameters, so it gets the model's layout.
    layout = LoopLayout(params, transpose_narrow=sgd.optimizer is None)

    changes = _gradient_changes(
        local, layout, sgd, proximal, linear_term, params, trained_mask
    )

    def step(
        carry: StepCarry, batch: Batch | None, number: Int[Array, ""]
    ) -> StepCarry:
        # The carry, gradients and updates have the loop's layout. Only the loss takes
        # parameters in the model's layout. In DP-SGD `batch` is None: `loss_gradient`
        # draws the examples.
        params, opt_state = carry
        grads, with_statistics = loss_gradient(layout.to_model(params), batch, number)
        grads = layout.to_loop(grads)
        for change in changes:
            grads = change(grads, params)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        new_params = jax.tree.map(lambda w, u: w + u.astype(w.dtype), params, updates)
        if model.has_statistics:
            statistics = layout.to_loop(with_statistics)
            new_params = model.with_statistics(new_params, statistics)
        # The optimizer may change a parameter whose gradient is zero (weight decay).
        if trained_mask is not None:
            new_params = gradient_terms.select_leaves(trained_mask, new_params, params)
        return new_params, opt_state

    def private_step(carry: StepCarry, number: Int[Array, ""]) -> StepCarry:
        return step(carry, None, number)

    params = layout.to_loop(params)
    carry = (params, optimizer.init(params))
    if sgd.dp_noise is not None:
        carry = local.private_loop(carry, private_step, steps, sgd.batch_size, split)
    else:
        carry = local.loop(
            carry, step, steps, sgd.batch_size, drop_last=sgd.drop_last, split=split
        )
    params, _ = carry
    return local.vector(layout.to_model(params))


def _gradient_changes(
    local: "DeviceTrainer",
    layout: LoopLayout,
    sgd: SGD,
    proximal: tuple[Any, Float[Array, " d"]] | None,
    linear_term: Float[Array, " d"] | None,
    params: Params,
    trained_mask: Params | None,
) -> list[gradient_terms.GradientChange]:
    """The changes to a batch's gradient, in order: first terms are added, then masks set
    entries to zero. What is switched off adds no operations to the program.

    Args:
        params: the parameters in the model's layout.
        trained_mask: one bool for each parameter array, the same in both layouts; None =
            all are trained. The other arguments are those of `train_steps`.

    Returns:
        Functions (gradient, params) -> gradient; all have the layout of the loop.
    """
    penalties, drifts, masks = [], [], []
    if sgd.has_penalty:
        penalties.append(gradient_terms.penalty(sgd, local.samples))
    if proximal is not None:
        mu, anchor = proximal
        anchor = layout.to_loop(local.params(anchor))
        drifts.append(gradient_terms.proximal(mu, anchor))
    if linear_term is not None:
        drifts.append(
            gradient_terms.linear_term(layout.to_loop(local.params(linear_term)))
        )
    # Frozen parameters must not affect an optimizer that uses the whole gradient
    # (clipping by global norm).
    if trained_mask is not None:
        masks.append(gradient_terms.zero_outside(trained_mask))
    # Running statistics are arrays of params, too. The forward pass updates them, and the
    # optimizer must not.
    if local.model.has_statistics:
        learned_mask = local.model.statistics.complement.tree_mask(params)
        masks.append(gradient_terms.zero_outside(learned_mask))
    if sgd.clip is None:
        return [*penalties, *drifts, *masks]
    # What is not trained does not count in the norm, nor do penalties.
    clip = gradient_terms.clipped(sgd.clip)
    return [*drifts, *masks, clip, *penalties, *masks]


def _optimizer(sgd: SGD, rate: Any) -> optax.GradientTransformation:
    """The user's optimizer, or SGD at the learning rate of this round."""
    if sgd.optimizer is not None:
        return sgd.optimizer
    # Whether there is momentum is known while tracing. Without momentum the loop carries
    # no velocity.
    return optax.sgd(rate, None if is_off(sgd.momentum) else sgd.momentum)


def _loss_gradient(
    local: "DeviceTrainer", sgd: SGD, gradient: StepGradient | None, split: str
) -> LossGradient:
    """Choose the gradient that `train_steps` uses, before terms are added: the noisy gradient of
    private steps, the method's own `gradient`, or the gradient of a batch's mean loss.

    Raises:
        ValueError: private steps are combined with a gradient of the method's own.
    """
    if sgd.dp_noise is not None:
        private_steps = PrivateSteps(local, sgd, split)
        require(
            gradient is None,
            "private steps clip the gradient of the loss, and this method descends"
            " along another one",
        )

        def private_gradient(
            params: Params, batch: None, step: Int[Array, ""]
        ) -> tuple[Params, Params]:
            # There are no running statistics: `PrivateSteps` refuses such models.
            return private_steps.gradient(params, step), params

        return private_gradient

    if gradient is not None:

        def method_gradient(
            params: Params, batch: Batch, step: Int[Array, ""]
        ) -> tuple[Params, Params]:
            grads = gradient(params, batch, step)
            return grads, local.renew_statistics(params, batch)

        return method_gradient

    def batch_gradient(
        params: Params, batch: Batch, step: Int[Array, ""]
    ) -> tuple[Params, Params]:
        return local.gradient_and_statistics(params, batch)

    return batch_gradient

"""APFL: each client's own mixture of a global and a personal model."""

from collections.abc import Callable
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.algorithms.helpers.own_steps import descend
from fedtailor.protocol import (
    SGD,
    About,
    Batch,
    ClientState,
    ClientUpdate,
    Inbox,
    LocalTrainer,
    Mixture,
    Params,
    Predictor,
    ZeroIsStatic,
    hyperparameters,
    is_off,
    require,
)

Pair = tuple[Params, Params]
"""v, the personal model, and w, the client's copy of the global one."""


@hyperparameters
class APFL(FedAvg):
    """Adaptive personalized federated learning (Deng et al. 2020, algorithm 1).

    A client predicts with alpha v + (1 - alpha) w. Its copy w_i of the global model is
    trained as in FedAvg, independently of alpha. On the same batches the loss of the
    mixture trains its personal model v, which never leaves the client:

        w_i <- w_i - eta g_i(w_i),    v <- v - eta alpha g_i( alpha v + (1 - alpha) w_i )

    Once a round, on its first batch, alpha <- alpha - eta_alpha < g_i(alpha v + (1 -
    alpha) w_i), v - w_i >, clipped to [0, 1]. alpha = 0 is FedAvg and alpha = 1 is
    training alone. The paper mixes parameters; its released code mixes the outputs of
    the two models (`mix="logits"`), with the gradients that belong to them.
    """

    # What tables of methods say of this one; `About` explains the words.
    about: ClassVar[About] = About(
        name="apfl",
        paper="Deng et al. 2020, Adaptive Personalized Federated Learning",
        down="1 model",
        up="1 model",
        client_keeps="its personal model and its share alpha",
        unseen_clients_get="a round of its own training from the global model",
        server_sees="sums",
    )

    sgd: SGD = SGD(lr=0.1, steps=10, batch_size=50)
    """Local training of both models (released code: rate 0.1, 10 steps, batch 50)."""
    weights: Literal["samples", "uniform"] = "uniform"
    """Weights of the average over reporters: equal (Deng et al., algorithm 1), or by
    training samples n_i.
    """
    alpha: float = 0.5
    """Share of the personal model, at the start (released code: 0.5)."""
    alpha_lr: ZeroIsStatic = 0.1
    """Learning rate of alpha's one step in a round; 0 = alpha is fixed (released code:
    the rate of the models).
    """
    mix: Literal["parameters", "logits"] = "parameters"
    """What is mixed: the parameters of the two models (the paper), or their outputs
    (the released code).
    """

    def __post_init__(self) -> None:
        require(0 <= self.alpha <= 1, f"alpha is {self.alpha}; it must be in [0, 1]")
        require(
            self.alpha_lr >= 0,
            f"alpha_lr is {self.alpha_lr}; it must be 0 (fixed alpha) or more",
        )
        require(
            self.mix in ("parameters", "logits"),
            f"mix is {self.mix!r}; it must be 'parameters' or 'logits'",
        )
        require(
            is_off(self.sgd.momentum) and self.sgd.optimizer is None,
            "apfl's coupled steps are plain SGD; train without momentum and without an"
            " optimizer",
        )

    def init_client(self, theta: Float[Array, " d"]) -> ClientState:
        return {"model": theta, "alpha": jnp.full((), self.alpha, theta.dtype)}

    def client(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> tuple[ClientState, ClientUpdate]:
        sgd = self.sgd
        rate = sgd.rate(local.round)

        def step(
            carry: tuple[Pair, Array], batch: Batch, index: Int[Array, ""]
        ) -> tuple[Pair, Array]:
            (v, w), alpha = carry
            # The mixture's gradients are taken before v and w take their steps.
            grad_v, grad_alpha = self._gradients(local, (v, w), alpha, batch)
            # With alpha_lr = 0 alpha is fixed, and this is not compiled.
            if not is_off(self.alpha_lr):
                # Once a round, on its first batch. Where parameters are mixed, the
                # derivative is not computed on the others.
                alpha = jax.lax.cond(
                    index == 0,
                    lambda: jnp.clip(alpha - self.alpha_lr * grad_alpha(), 0, 1),
                    lambda: alpha,
                )
            v = descend(v, grad_v, sgd, rate)
            w = descend(w, local.batch_gradient(w, batch), sgd, rate)
            return (v, w), alpha

        # v continues from the client's last round, w_i starts at the model received.
        start = local.params(state["model"]), local.params(inbox.only("model"))
        carry = start, state["alpha"]
        (v, w), alpha = local.loop(
            carry, step, local.steps(sgd), sgd.batch_size, drop_last=sgd.drop_last
        )
        return {"model": local.vector(v), "alpha": alpha}, {"model": local.vector(w)}

    def _gradients(
        self, local: LocalTrainer, pair: Pair, alpha: Array, batch: Batch
    ) -> tuple[Params, Callable[[], Array]]:
        """Gradients of the mixture's mean loss over a batch.

        Args:
            pair: v, the personal model, and w, the client's copy of the global one.
            alpha: share of v in the mixture.

        Returns:
            The gradient with respect to v, and a function that gives the derivative
            with respect to alpha: needed only once a round, it is computed when asked
            for, unless it comes with the gradient.
        """
        v, w = pair
        if self.mix == "parameters":
            mixture = jax.tree.map(lambda v, w: alpha * v + (1 - alpha) * w, v, w)
            # One gradient g at the mixture gives both, by the chain rule:
            # d mixture / dv = alpha, and d mixture / d alpha = v - w.
            g = local.batch_gradient(mixture, batch)

            def grad_alpha() -> Array:
                """< g, v - w >, a sum over all leaves."""
                products = jax.tree.map(lambda g, v, w: jnp.vdot(g, v - w), g, v, w)
                return jnp.stack(jax.tree.leaves(products)).sum()

            return jax.tree.map(lambda g: alpha * g, g), grad_alpha

        # Outputs, not parameters, are mixed here, so no single model has this loss:
        # differentiate through both.
        def loss(v: Params, alpha: Array) -> Array:
            outputs_v = local.logits(v, batch.x)
            outputs_w = local.logits(w, batch.x)
            mixed = alpha * outputs_v + (1 - alpha) * outputs_w
            total = jnp.vdot(local.losses(mixed, batch.y), batch.weight)
            return total / jnp.maximum(batch.weight.sum(), 1)

        local.count_work(gradients=1, forwards=1)
        grad_v, derivative = jax.grad(loss, argnums=(0, 1))(v, alpha)
        return grad_v, lambda: derivative

    def personal(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> Predictor:
        v, w, alpha = state["model"], inbox.only("model"), state["alpha"]
        if self.mix == "logits":
            return Mixture(
                jnp.stack([alpha, 1 - alpha]), jnp.stack([v, w]), logits=True
            )
        return alpha * v + (1 - alpha) * w

    def init_unseen(self, inbox: Inbox, local: LocalTrainer) -> ClientState:
        # One round as of any client, from v = w. `client` returns the new state and a
        # message to the server, which is not sent.
        return self.client(self.init_client(inbox.only("model")), inbox, local)[0]

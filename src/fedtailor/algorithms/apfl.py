"""APFL: each client's own mixture of a global and a personal model."""

from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedtailor._base.choice import require
from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.algorithms.helpers.own_steps import (
    loop_over_batches,
    require_plain_sgd,
    sgd_step,
)
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
    sums_type,
)

Pair = tuple[Params, Params]
"""v, the personal model, and w_i, the client's copy of the global model."""


@hyperparameters
class APFL(FedAvg):
    """Adaptive personalized federated learning (Deng et al. 2020, algorithm 1).

    A client predicts with alpha v + (1 - alpha) w, where w is the global model and v
    its personal model, which never leaves it. In a round it trains w_i, its copy of w,
    as in FedAvg, independently of alpha. On the same batches it trains v by the loss of
    the mixture:

        w_i <- w_i - eta g_i(w_i),    v <- v - eta alpha g_i( alpha v + (1 - alpha) w_i )

    Once a round, on its first batch, alpha <- alpha - eta_alpha < g_i(alpha v + (1 -
    alpha) w_i), v - w_i >, clipped to [0, 1]. alpha = 0 is FedAvg and alpha = 1 is
    training alone. The paper mixes the parameters of the two models; its released code
    mixes their outputs (`mix="logits"`) and uses the gradients of that loss.
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
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
        require_plain_sgd("apfl's coupled steps", self.sgd)

    def init_client(self, theta: Float[Array, " d"]) -> ClientState:
        return {"model": theta, "alpha": jnp.full((), self.alpha, sums_type(theta))}

    def client(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> tuple[ClientState, ClientUpdate]:
        sgd = self.sgd
        rate = sgd.rate(local.round)

        def step(
            carry: tuple[Pair, Array], batch: Batch, index: Int[Array, ""]
        ) -> tuple[Pair, Array]:
            (v, w_i), alpha = carry
            # The gradients of the mixture are taken before v and w_i take their steps.
            grad_v, grad_alpha = self._mixture_gradients(
                v, w_i, alpha, batch, local, is_first=index == 0
            )
            # A constant rate of 0 leaves this step out of the compiled program.
            if not is_off(self.alpha_lr):
                alpha = jnp.clip(alpha - self.alpha_lr * grad_alpha, 0, 1)
            v = sgd_step(v, grad_v, sgd, rate, local)
            w_i = sgd_step(w_i, local.batch_gradient(w_i, batch), sgd, rate, local)
            return (v, w_i), alpha

        # v continues from the client's last round; w_i starts at the received w.
        pair = local.params(state["model"]), local.params(inbox.only("model"))
        (v, w_i), alpha = loop_over_batches(local, (pair, state["alpha"]), step, sgd)
        return {"model": local.vector(v), "alpha": alpha}, {"model": local.vector(w_i)}

    def _mixture_gradients(
        self,
        v: Params,
        w_i: Params,
        alpha: Array,
        batch: Batch,
        local: LocalTrainer,
        is_first: Bool[Array, ""],
    ) -> tuple[Params, Float[Array, ""]]:
        """Gradients of the mixture's mean loss over a batch.

        Args:
            v: the personal model.
            w_i: the client's copy of the global model.
            alpha: the share of v in the mixture.
            batch: the samples.
            local: the client.
            is_first: whether this is the first batch of the round.

        Returns:
            The gradient with respect to v, and the derivative with respect to alpha.
            The derivative is 0 after the first batch, as alpha takes one step in a
            round.
        """
        zero = jnp.zeros((), alpha.dtype)
        if self.mix == "parameters":
            mixture = jax.tree.map(lambda v, w: alpha * v + (1 - alpha) * w, v, w_i)
            # The chain rule gives both from g, the gradient at the mixture:
            # d mixture / dv = alpha, and d mixture / d alpha = v - w_i.
            g = local.batch_gradient(mixture, batch)

            def inner_product() -> Float[Array, ""]:
                """< g, v - w_i >, a sum over all leaves."""
                products = jax.tree.map(lambda g, v, w: jnp.vdot(g, v - w), g, v, w_i)
                return jnp.stack(jax.tree.leaves(products)).sum().astype(zero.dtype)

            grad_alpha = jax.lax.cond(is_first, inner_product, lambda: zero)
            return jax.tree.map(lambda g: alpha * g, g), grad_alpha

        # A mixture of outputs is not the output of a single model, so this loss is
        # differentiated through both models.
        def loss(v: Params, alpha: Array) -> Array:
            outputs_v = local.logits(v, batch.x)
            outputs_w = local.logits(w_i, batch.x)
            mixed = alpha * outputs_v + (1 - alpha) * outputs_w
            total = jnp.vdot(local.losses(mixed, batch.y, batch.weight), batch.weight)
            return total / jnp.maximum(batch.weight.sum(), 1)

        local.count_work(gradients=1, forwards=1)
        grad_v, grad_alpha = jax.grad(loss, argnums=(0, 1))(v, alpha)
        return grad_v, jnp.where(is_first, grad_alpha, zero)

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
        # A round of training from v = w. The message to the server is not sent.
        start = self.init_client(inbox.only("model"))
        state, _ = self.client(start, inbox, local)
        return state

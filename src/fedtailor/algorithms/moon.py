"""MOON: FedAvg whose clients' features stay near the global model's."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedtailor._base.choice import require
from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.algorithms.helpers.own_steps import mean_over
from fedtailor.protocol import (
    SGD,
    About,
    Batch,
    ClientState,
    ClientUpdate,
    Inbox,
    LocalTrainer,
    Params,
    Population,
    StepGradient,
    ZeroIsStatic,
    hyperparameters,
    is_off,
)

MIN_SQUARED_NORM = 1e-16
"""The smallest squared norm in a cosine (released code: 1e-8 for the norm)."""


@hyperparameters
class MOON(FedAvg):
    """Model-contrastive federated learning.

    Li et al. 2021, algorithm 1 and equation 3.

    As FedAvg, but a client minimises F_i(w) + mu l(w). The term l attracts the features
    z of its model to those of the received global model, and repels them from those of
    the model that the client trained last:

        l = mean_x -log( exp(cos(z, z_global) / tau) / ( exp(cos(z, z_global) / tau) +
        exp(cos(z, z_previous) / tau) ) )

    The other two models are evaluated without training mode, even if the client's model
    has batch normalisation (as in the released code). In a client's first round the
    previous model is the common initial model.
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="moon",
        paper="Li et al. 2021, Model-Contrastive Federated Learning",
        down="1 model",
        up="1 model",
        client_keeps="the model that it trained last",
        unseen_clients_get="the global model",
        server_sees="sums",
    )

    sgd: SGD = SGD(lr=0.01, momentum=0.9, weight_decay=1e-5, epochs=10, batch_size=64)
    """Local training (the paper: learning rate 0.01, momentum 0.9, weight decay 1e-5,
    batch 64, 10 epochs).
    """
    mu: ZeroIsStatic = 1.0
    """Weight of the contrast (the paper tunes it in {0.1, 1, 5, 10})."""
    tau: float = 0.5
    """Temperature of the contrast."""

    def __post_init__(self) -> None:
        require(self.mu >= 0, f"mu is {self.mu}; it must be 0 or more")
        require(self.tau > 0, f"tau is {self.tau}; it must be above 0")

    def check(self, population: Population) -> None:
        if population.model is not None:
            _ = population.model.feature_shape  # a model without a head is refused here

    def init_client(self, theta: Float[Array, " d"]) -> ClientState:
        return {"previous": theta}

    def client(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> tuple[ClientState, ClientUpdate]:
        theta = inbox.only("model")
        gradient = None  # None: `local.sgd` uses the gradient of the usual loss
        # A constant mu = 0 leaves the contrast out of the compiled program.
        if not is_off(self.mu):
            gradient = self._gradient(theta, state["previous"], local)
        trained = local.sgd(theta, self.sgd, gradient=gradient)
        return {"previous": trained}, {"model": trained}

    def _gradient(
        self,
        received: Float[Array, " d"],
        previous: Float[Array, " d"],
        local: LocalTrainer,
    ) -> StepGradient:
        """The gradient of F_i(w) + mu l(w) on a batch.

        Args:
            received: the global model, whose features attract.
            previous: the client's last model, whose features repel.
            local: the client.

        Returns:
            (parameters, batch, step) -> the gradient, as a pytree.
        """
        global_params = local.params(received)
        previous_params = local.params(previous)

        def gradient(params: Params, batch: Batch, step: Int[Array, ""]) -> Params:
            local.count_work(gradients=1, forwards=2)
            # The features of both models are constants of the loss.
            z_global = local.features(global_params, batch.x, training=False)
            z_previous = local.features(previous_params, batch.x, training=False)

            def loss(params: Params) -> Float[Array, ""]:
                z = local.features(params, batch.x)
                # -log( e^a / (e^a + e^b) ) = log(1 + e^(b - a)), which does not
                # overflow
                difference = _cosine(z, z_previous) - _cosine(z, z_global)
                contrast = jax.nn.softplus(difference / self.tau)
                losses = local.losses(
                    local.head_outputs(params, z), batch.y, batch.weight
                )
                return mean_over(losses + self.mu * contrast, batch.weight)

            return jax.grad(loss)(params)

        return gradient


def _cosine(a: Float[Array, "b ..."], b: Float[Array, "b ..."]) -> Float[Array, " b"]:
    """The cosine between the features of each example; 0 if one of them is zero."""
    a = a.reshape(len(a), -1)
    b = b.reshape(len(b), -1)
    norm_a = jnp.sqrt(jnp.maximum((a * a).sum(1), MIN_SQUARED_NORM))
    norm_b = jnp.sqrt(jnp.maximum((b * b).sum(1), MIN_SQUARED_NORM))
    return (a * b).sum(1) / (norm_a * norm_b)

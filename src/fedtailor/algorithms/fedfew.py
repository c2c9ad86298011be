"""FedFew: a few models for many clients; the worst-off clients count most."""

from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fedtailor._base.choice import require
from fedtailor.aggregation import mix
from fedtailor.algorithms.helpers.selection import closest
from fedtailor.protocol import (
    SGD,
    About,
    Algorithm,
    Answers,
    ClientState,
    ClientUpdate,
    Cohort,
    Downlink,
    Inbox,
    Init,
    LocalTrainer,
    ModelParts,
    Population,
    Predictor,
    ServerState,
    Streams,
    hyperparameters,
    server_state,
)


@server_state
class FedFewState(ServerState):
    """The models that each client picks one from."""

    model: Float[Array, "k d"]
    """theta_1, ..., theta_K."""


@hyperparameters
class FedFew(Algorithm):
    """Few-for-many personalized federated learning (Guo et al. 2026).

    K models serve all clients. They minimise a smooth form of the largest loss of a
    client under the best of the models,

        max_i min_k L_i(theta_k)  ~  g = mu log sum_i 1 / S_i,    S_i = sum_k exp(-L_i(theta_k) / mu)

    where L_i is client i's mean loss. Its gradient weighs the clients' gradients, so that
    a round is

        theta_k <- theta_k + sum_i alpha_i w_ik ( SGD(theta_k; D_i) - theta_k )
        w_ik = exp(-L_i(theta_k) / mu) / S_i,    alpha_i = (1 / S_i) / sum_j (1 / S_j)

    with the losses of the received models. w_ik says which model fits client i, alpha_i
    how badly it is served: with small mu a round learns from hardly more than the client
    of the largest loss. Every client trains all K models, and predicts with the one of
    lowest loss on its training data, whether or not it ever took part. The models start
    from independent initial ones, because equal models would stay equal.

    The released code multiplies the losses by the client's share of all samples
    (`scaled`), which with m equal clients is the same as m mu instead of mu. It takes
    them from the steps of the last local epoch, each batch before its step, and its
    models start as copies that differ by the order of batches only.
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="fedfew",
        paper="Guo et al. 2026, Few-for-Many Personalized Federated Learning",
        down="all K models",
        up="K models, and the loss of each",
        client_keeps="nothing",
        unseen_clients_get="all K models; it picks the one that fits its data best",
        models_received="several",
        server_sees="sums, numbers",
    )

    sgd: SGD = SGD(lr=0.005, batch_size=50)
    """Local training (Guo et al., CIFAR-100: rate 0.005, one epoch, batch 50)."""
    models: int = 3
    """K, the number of models (Guo et al.: 3; the released code's default is 5)."""
    mu: float = 0.001
    """How smooth the minimum and the maximum are (released code: 0.001)."""
    scaled: bool = False
    """Whether losses are first multiplied by the client's share of the reporters'
    samples, as in the released code.
    """

    def __post_init__(self) -> None:
        require(self.models >= 1, f"models is {self.models}; it must be 1 or more")
        require(self.mu > 0, f"mu is {self.mu}; it must be above 0")

    # on the server
    # ----------------------------------------------------------------------------------

    def numbers_per_round(self, model: ModelParts) -> int:
        return self.models * model.size

    def init_server(self, init: Init, population: Population) -> FedFewState:
        return FedFewState(jnp.stack([init(k) for k in range(self.models)]))

    def broadcast(self, server: FedFewState, cohort: Cohort) -> Downlink:
        return Downlink({"model": Streams.all_to_all(server.model, len(cohort))})

    def server(
        self,
        server: FedFewState,
        downlink: Downlink,
        answers: Answers,
        cohort: Cohort,
    ) -> FedFewState:
        if not cohort.reporting.any():
            return server
        losses = np.stack(
            [answers.host(f"loss_{k}") for k in range(self.models)], axis=1
        ).astype(np.float64)
        weights = np.zeros(losses.shape)
        weights[cohort.reporting] = self._weights(
            losses[cohort.reporting], cohort.shares[cohort.reporting]
        )
        # The weights of a model add up to 1 or less; the rest is that of its old value.
        models = []
        for k in range(self.models):
            trained = answers["model"].item(
                k
            )  # SGD(theta_k; D_i) of all clients, [c, d]
            models.append(mix(server.model[k : k + 1], trained, weights[:, k][None]))
        return FedFewState(jnp.concatenate(models))

    def _weights(
        self, losses: Float[np.ndarray, "r k"], sizes: np.ndarray
    ) -> Float[np.ndarray, "r k"]:
        """alpha_i w_ik of the reporters, which add up to 1."""
        if self.scaled:
            losses = losses * (sizes / sizes.sum())[:, None]
        # In the log domain, because exp(-L / mu) underflows.
        fits = -losses / self.mu
        log_s = np.logaddexp.reduce(fits, axis=1)
        log_alpha = -log_s - np.logaddexp.reduce(-log_s)
        return np.exp(fits + (log_alpha - log_s)[:, None])

    # on the client
    # ----------------------------------------------------------------------------------

    def client(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> tuple[ClientState, ClientUpdate]:
        models = inbox["model"]
        losses = local.map(local.loss, models)
        trained = local.map(lambda theta: local.sgd(theta, self.sgd), models)
        # A loss is a number of its own, as secure sums hide vectors only.
        numbers = {f"loss_{k}": losses[k] for k in range(self.models)}
        return state, {"model": trained, **numbers}

    def personal(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> Predictor:
        choice, _ = closest(inbox["model"], inbox.received["model"], local)
        return inbox["model"][choice]

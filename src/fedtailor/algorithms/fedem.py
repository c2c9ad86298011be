"""FedEM: each client predicts with a mixture of models that all clients train."""

from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedtailor._base.choice import require
from fedtailor.aggregation import mix, reporter_weights
from fedtailor.algorithms.helpers.own_steps import (
    loop_over_batches,
    momentum_step,
    pass_over_samples,
    require_no_clip,
    sgd_step,
)
from fedtailor.protocol import (
    SGD,
    About,
    Algorithm,
    Answers,
    Batch,
    ClientState,
    ClientUpdate,
    Cohort,
    Downlink,
    Inbox,
    Init,
    LocalTrainer,
    Mixture,
    ModelParts,
    Params,
    Population,
    Predictor,
    ServerState,
    Streams,
    TracedInt,
    hyperparameters,
    is_off,
    server_state,
    sums_type,
)

Models = tuple[Params, ...]


@server_state
class FedEMState(ServerState):
    """The components that all clients mix."""

    model: Float[Array, "k d"]
    """theta_1, ..., theta_K."""


@hyperparameters
class FedEM(Algorithm):
    """Federated multi-task learning under a mixture of distributions.

    Marfoq et al. 2021, algorithm 1.

    Client i's data are drawn from K distributions that all clients share, in
    proportions pi_i of its own. A round is a step of expectation maximization, from the
    K models that the server sends:

        E:  r_is(k) ~ pi_ik exp(-loss_k(s))  for every sample s, sum_k r_is(k) = 1;    pi_ik <- mean_s r_is(k)
        M:  theta_ik = SGD(theta_k; (1/n_i) sum_s r_is(k) loss_k(s)),    theta_k <- sum_i q_i theta_ik

    with q_i = n_i / sum_S n_j. The weights r are computed with the models as received,
    in all steps of the round. A client predicts with the mixture sum_k pi_ik p_k of the
    models' probabilities. The K initial models are different, as equal ones would stay
    equal; with one model this is FedAvg. A client that never took part computes its pi
    by E steps on the final models, without training. A client that took part arrives at
    the same pi once its proportions have converged.
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="fedem",
        paper=(
            "Marfoq et al. 2021, Federated Multi-Task Learning under a Mixture of"
            " Distributions"
        ),
        down="all K models",
        up="K models",
        client_keeps="its proportions of the K models",
        unseen_clients_get="all K models; it finds its proportions",
        models_received="several",
        server_sees="sums",
    )

    sgd: SGD = SGD(lr=0.05, batch_size=128)
    """Local training (Marfoq et al.: an epoch a round in batches of 128, rate 0.03 to
    0.05; their released code adds momentum 0.9, kept from round to round, and weight
    decay 5e-4). Momentum starts again in every round, for each model by its own weighted
    gradients."""
    components: int = 3
    """K, the number of models (Marfoq et al.: 3)."""
    weights: Literal["samples", "uniform"] = "samples"
    """Weights of the averages over reporters: by training samples n_i, or equal."""
    newcomer_steps: TracedInt = 20
    """E steps of a client that never took part; each is a pass over its data with all K
    models.
    """

    def __post_init__(self) -> None:
        require(
            self.components >= 1,
            f"components is {self.components}; it must be 1 or more",
        )
        require(
            self.newcomer_steps >= 1,
            f"newcomer_steps is {self.newcomer_steps}; it must be 1 or more",
        )
        require(
            self.sgd.optimizer is None,
            "fedem's weighted steps are SGD's; train without an optimizer",
        )
        require_no_clip("fedem's weighted steps", self.sgd)

    @property
    def sums_show_clients(self) -> str:
        if self.components == 1:
            return ""
        return (
            "clients whose rows are not of a component change its model as little, so that its"
            " sum can be what a single one has changed"
        )

    # on the server
    # ----------------------------------------------------------------------------------

    def numbers_per_round(self, model: ModelParts) -> int:
        return self.components * model.size

    def init_server(self, init: Init, population: Population) -> FedEMState:
        return FedEMState(jnp.stack([init(k) for k in range(self.components)]))

    def broadcast(self, server: FedEMState, cohort: Cohort) -> Downlink:
        return Downlink({"model": Streams.all_to_all(server.model, len(cohort))})

    def server(
        self, server: FedEMState, downlink: Downlink, answers: Answers, cohort: Cohort
    ) -> FedEMState:
        # theta_k <- sum_i q_i theta_ik, one component k after another, all with the
        # same row of weights q [1, c].
        weights = reporter_weights(cohort, self.weights)[None]
        averages = []
        for k in range(self.components):
            component = answers["model"].item(k)  # theta_ik of all clients, [c, d]
            old = server.model[k : k + 1]  # [1, d]
            averages.append(mix(old, component, weights))
        return FedEMState(jnp.concatenate(averages))

    # on the client
    # ----------------------------------------------------------------------------------

    def init_client(self, theta: Float[Array, " d"]) -> ClientState:
        return {
            "weights": jnp.full(self.components, 1 / self.components, sums_type(theta))
        }

    def client(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> tuple[ClientState, ClientUpdate]:
        pi, received = state["weights"], self._models(inbox, local)
        sgd, rate = self.sgd, self.sgd.rate(local.round)

        def gradient(params: Params, batch: Batch, r: Float[Array, " b"]) -> Params:
            """The gradient of (1/b) sum_s r(s) loss(s) over the batch."""
            weight = batch.weight * r
            g = local.batch_gradient(params, Batch(batch.x, batch.y, weight))
            # `batch_gradient` divides by the sum of the weights, not by b.
            scale = jnp.maximum(weight.sum(), 1) / jnp.maximum(batch.weight.sum(), 1)
            return jax.tree.map(lambda g: scale * g, g)

        def gradients(models: Models, batch: Batch) -> Models:
            # r is computed with the received models in all steps, as in algorithm 1,
            # and not with the models that are being trained.
            r = self._responsibilities(received, pi, batch, local)
            pairs = zip(models, r, strict=True)
            return tuple(gradient(params, batch, r_k) for params, r_k in pairs)

        def plain(models: Models, batch: Batch, index: Int[Array, ""]) -> Models:
            return sgd_step(models, gradients(models, batch), sgd, rate, local)

        def momentum(
            carry: tuple[Models, Models], batch: Batch, index: Int[Array, ""]
        ) -> tuple[Models, Models]:
            models, velocities = carry
            g = gradients(models, batch)
            return momentum_step(models, velocities, g, sgd, rate, local)

        # M step: theta_ik = SGD(theta_k; (1/n_i) sum_s r_is(k) loss_k(s))
        if is_off(sgd.momentum):
            trained = loop_over_batches(local, received, plain, sgd)
        else:
            velocities = jax.tree.map(jnp.zeros_like, received)
            start = received, velocities
            trained, _ = loop_over_batches(local, start, momentum, sgd)
        # E step, also with the received models: pi_ik <- mean_s r_is(k)
        pi = self._expectation(received, pi, local)
        models = jnp.stack([local.vector(params) for params in trained])
        return {"weights": pi}, {"model": models}

    def personal(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> Predictor:
        return Mixture(state["weights"], inbox["model"])

    def init_unseen(self, inbox: Inbox, local: LocalTrainer) -> ClientState:
        # E steps only: the models are not trained.
        models = self._models(inbox, local)

        def e_step(_: Array, pi: Array) -> Array:
            return self._expectation(models, pi, local)

        # Equal proportions. `init_client` uses only the type of the model.
        start = self.init_client(inbox["model"][0])["weights"]
        return {"weights": local.fori_loop(self.newcomer_steps, e_step, start)}

    def _models(self, inbox: Inbox, local: LocalTrainer) -> Models:
        return tuple(local.params(theta) for theta in inbox["model"])

    def _responsibilities(
        self, models: Models, pi: Float[Array, " k"], batch: Batch, local: LocalTrainer
    ) -> Float[Array, "k b"]:
        """r of a batch's samples, the posterior probability of each model.

        Returns:
            r_is(k) ~ pi_ik exp(-loss_k(s)) [k, b], which sums to 1 over the models.
        """
        local.count_work(forwards=len(models))
        losses = []
        for params in models:
            outputs = local.logits(params, batch.x, training=False)
            losses.append(local.losses(outputs, batch.y, batch.weight))
        # In the log domain, because likelihoods of networks underflow.
        log_joint = jnp.log(pi)[:, None] - jnp.stack(losses)
        return jax.nn.softmax(log_joint, axis=0)

    def _expectation(
        self, models: Models, pi: Float[Array, " k"], local: LocalTrainer
    ) -> Float[Array, " k"]:
        """The new proportions pi_ik = mean_s r_is(k), which sum to 1.

        They are the means of r over the client's training samples. A client without
        samples keeps `pi`.
        """

        def add(
            total: Float[Array, " k"], batch: Batch, index: Int[Array, ""]
        ) -> Float[Array, " k"]:
            r = self._responsibilities(models, pi, batch, local)
            return total + r @ batch.weight

        size = self.sgd.batch_size
        zero = jnp.zeros_like(pi)
        total = pass_over_samples(local, zero, add, size, purpose="expectation")
        return jnp.where(local.size > 0, total / jnp.maximum(local.total(), 1), pi)

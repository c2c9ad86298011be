"""FedDBE: each client learns a vector that removes the bias of its features."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fedtailor._base.choice import require
from fedtailor.aggregation import reporter_weights
from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.algorithms.helpers.averaging import AveragedModels
from fedtailor.algorithms.helpers.own_steps import (
    head_of,
    loop_over_batches,
    mean_over,
    require_plain_sgd,
    sgd_step_with_statistics,
)
from fedtailor.algorithms.helpers.shared_part import model_parts_of
from fedtailor.protocol import (
    NOT_SENT,
    SGD,
    About,
    Answers,
    Batch,
    ClientState,
    ClientUpdate,
    Cohort,
    Downlink,
    Inbox,
    Init,
    LocalTrainer,
    ModelParts,
    Params,
    Population,
    Predictor,
    Streams,
    ZeroIsStatic,
    along_axis,
    hyperparameters,
    is_off,
    server_state,
    sums_type,
)


@server_state
class FedDBEState(AveragedModels):
    """The global model and the mean features of all clients."""

    initial: Float[Array, " d"]
    """The common initial model, at which the features were averaged."""
    mean: Float[np.ndarray, "..."]
    """Mean features of all training samples."""
    told: Bool[np.ndarray, " m"]
    """Which clients have been sent that mean."""


@hyperparameters
class FedDBE(FedAvg):
    """Eliminating domain bias.

    Zhang et al. 2023, algorithm 1: the domain bias eliminator on FedAvg.

    Before training the server computes zbar, the mean of the clients' mean features at
    the initial model, weighted by samples. In training the input of the head of client
    i is z + m_i, where m_i is a learned vector that stays on the client. The loss keeps
    the running mean r_i of the client's features near zbar:

        r = (1 - momentum) r_i + momentum mean_b z,    loss_b( h(z + m_i) ) + kappa |r - zbar|^2,    r_i <- r

    with one plain SGD step of body, head and m_i on every batch b; r_i starts at zbar.
    The model is averaged as in FedAvg. A client that never took part trains its m from
    0 on the received model, for as many steps as a round has. In models with batch
    normalisation, features z (and those in zbar) are normalised by the statistics of
    batches, except in predictions.
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="feddbe",
        paper=(
            "Zhang et al. 2023, Eliminating Domain Bias for Federated Learning in"
            " Representation Space"
        ),
        down="1 model; once mean features",
        up="1 model; once mean features",
        client_keeps="a vector added to features, and their running mean",
        unseen_clients_get="trains its vector on the global model",
        server_sees="sums",
    )

    sgd: SGD = SGD()
    """Local training, without momentum."""
    kappa: ZeroIsStatic = 0.05
    """Weight of the term |r - zbar|^2 on mean features (released code, on Fashion-MNIST: 50 times
    half a mean over 512 features); tune it."""
    momentum: float = 0.1
    """Weight of a batch in the running mean, in (0, 1]; 1 = the batch's mean alone
    (released code, on Fashion-MNIST, where the running mean starts at zero in every
    round; here it continues from round to round)."""
    vector: bool = True
    """Whether the head sees z + m_i, or z alone."""

    def __post_init__(self) -> None:
        require_plain_sgd("feddbe's coupled steps", self.sgd)
        require(self.kappa >= 0, f"kappa is {self.kappa}; it must be 0 or more")
        require(
            0 < self.momentum <= 1, f"momentum is {self.momentum}; it must be in (0, 1]"
        )

    @property
    def probes(self) -> bool:
        return True

    @property
    def probe_tells_columns(self) -> bool:
        return True

    # on the server
    # ----------------------------------------------------------------------------------

    def check(self, population: Population) -> None:
        model = model_parts_of(population, self.about.name)
        _ = model.feature_shape  # a model without a head is refused here
        if self.vector:
            require(
                "bias" in model.parts,
                "feddbe's vector moves the bias of the head; use a model whose head"
                " has one",
            )

    def init_server(self, init: Init, population: Population) -> FedDBEState:
        averaged = super().init_server(init, population)
        shape = model_parts_of(population, self.about.name).feature_shape
        return FedDBEState(
            model=averaged.model,
            optimizer=averaged.optimizer,
            initial=init(0),
            mean=np.zeros(shape, sums_type(averaged.model)),
            told=np.zeros(len(population), bool),
        )

    def aggregate_probe(
        self, server: FedDBEState, answers: Answers, cohort: Cohort
    ) -> FedDBEState:
        share = reporter_weights(cohort, "samples")
        means = answers.host("features")  # of each client, as a NumPy array [c, ...]
        # zbar, weighted by samples. It is not a matrix product, because the rounding of
        # matrix products depends on the alignment of the matrices in memory.
        weighted = along_axis(share, 0, means.ndim) * means
        return server.replace(mean=weighted.sum(axis=0).astype(means.dtype))

    @property
    def sent_to_each(self) -> frozenset[str]:
        return frozenset({"features"})

    def broadcast(self, server: Any, cohort: Cohort) -> Downlink:
        # Every client receives zbar once: in its first round, or when it predicts
        # without having taken part.
        has_mean = np.zeros(len(cohort), bool)
        if cohort.seen:
            has_mean = server.told[cohort.position]
        zbar = jnp.asarray(server.mean)[None]  # one stream, number 0
        features = Streams.by_index(zbar, np.where(has_mean, NOT_SENT, 0))
        model = Streams.everyone(server.model, len(cohort))
        return Downlink({"model": model, "features": features})

    def server(
        self, server: Any, downlink: Downlink, answers: Answers, cohort: Cohort
    ) -> FedDBEState:
        new = super().server(server, downlink, answers, cohort)
        assert isinstance(new, FedDBEState)
        told = new.told.copy()
        told[cohort.reporters] = True
        return new.replace(told=told)

    def serve(self, server: Any, cohort: Cohort) -> Downlink:
        # Unseen clients also need zbar, as every client does in its first round.
        if not cohort.seen:
            return self.broadcast(server, cohort)
        return Downlink({"model": Streams.everyone(server.model, len(cohort))})

    # on the client
    # ----------------------------------------------------------------------------------

    def probe(self, inbox: Inbox, local: LocalTrainer) -> ClientUpdate:
        params = local.params(inbox.only("model"))
        example = local.draw("features", 0, 1)
        features = jax.eval_shape(local.features, params, example.x)

        def add(total: Array, batch: Batch, step: Int[Array, ""]) -> Array:
            local.count_work(forwards=1)
            # By the statistics of batches, as the features of training will be.
            local.renew_statistics(params, batch)  # of a model that is thrown away
            z = local.features(params, batch.x, training=local.has_statistics)
            return total + _weighted_sum(z, batch.weight)

        one_pass = SGD(batch_size=self.sgd.batch_size)
        zero = jnp.zeros(features.shape[1:], features.dtype)
        total = loop_over_batches(local, zero, add, one_pass)
        return {"features": total / jnp.maximum(local.total(), 1)}

    def init_state(self, theta: Float[Array, " d"], model: ModelParts) -> ClientState:
        zero = jnp.zeros(model.feature_shape, theta.dtype)
        return {"vector": zero, "running": zero, "mean": zero}

    def client(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> tuple[ClientState, ClientUpdate]:
        # In the round in which a client receives zbar, its running mean r_i starts at
        # zbar. In other rounds it uses the two that it has stored.
        (is_sent,) = inbox.received["features"]
        mean = jnp.where(is_sent, inbox.only("features"), state["mean"])
        running = jnp.where(is_sent, mean, state["running"])
        start = local.params(inbox.only("model")), state["vector"], running
        params, vector, running = self._train(start, mean, local, train_model=True)
        state = {"vector": vector, "running": running, "mean": mean}
        return state, {"model": local.vector(params)}

    def init_unseen(self, inbox: Inbox, local: LocalTrainer) -> ClientState:
        mean = inbox.only("features")
        start = local.params(inbox.only("model")), jnp.zeros_like(mean), mean
        _, vector, running = self._train(start, mean, local, train_model=False)
        return {"vector": vector, "running": running, "mean": mean}

    def _train(
        self,
        start: tuple[Params, Array, Array],
        mean: Array,
        local: LocalTrainer,
        train_model: bool,
    ) -> tuple[Params, Array, Array]:
        """A round's steps.

        Args:
            start: the model's parameters, the vector m_i, and the running mean r_i.
            mean: zbar.
            local: the client's data and training.
            train_model: whether the model is trained, too, or the vector only.

        Returns:
            The three of `start`, after the steps.
        """
        sgd, rate = self.sgd, self.sgd.rate(local.round)

        def step(
            carry: tuple[Params, Array, Array], batch: Batch, index: Int[Array, ""]
        ) -> tuple[Params, Array, Array]:
            params, vector, running = carry

            def loss(params: Params, vector: Array) -> tuple[Array, Array]:
                z = local.features(params, batch.x)
                # r = (1 - momentum) r_i + momentum mean_b z; the gradient of the pull
                # passes through it
                mean_weights = batch.weight / jnp.maximum(batch.weight.sum(), 1)
                batch_mean = jnp.tensordot(mean_weights, z, 1)
                new_running = running + self.momentum * (batch_mean - running)
                # loss_b( h(z + m_i) ) + kappa |r - zbar|^2
                outputs = local.head_outputs(params, z + vector if self.vector else z)
                total = mean_over(
                    local.losses(outputs, batch.y, batch.weight), batch.weight
                )
                # With kappa = 0 this term is not compiled.
                if not is_off(self.kappa):
                    pull = self.kappa * jnp.square(new_running - mean).sum()
                    total = total + pull
                return total, new_running

            local.count_work(gradients=1)
            gradient = jax.grad(loss, argnums=(0, 1), has_aux=True)
            (grad_params, grad_vector), running = gradient(params, vector)
            # One step of body, head and m_i, from the same gradient.
            new_params = sgd_step_with_statistics(
                params, grad_params, batch, sgd, rate, local
            )
            new_vector = vector - rate * grad_vector
            return new_params if train_model else params, new_vector, running

        return loop_over_batches(local, start, step, sgd)

    def personal(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> Predictor:
        theta = inbox.only("model")
        if not self.vector:
            return theta
        # The head is linear: h(z + m) = h(z) + (h(m) - h(0)), so m is another bias.
        inputs = jnp.stack([state["vector"], jnp.zeros_like(state["vector"])])
        outputs = local.head_outputs(local.params(theta), inputs)
        head = head_of(local).indices
        bias = np.intersect1d(head, local.part_of_model("bias").indices)
        require(
            len(bias) == outputs.shape[-1],
            "feddbe's vector moves the bias of the head; this head has none",
        )
        return theta.at[bias].add((outputs[0] - outputs[1]).astype(theta.dtype))


def _weighted_sum(
    z: Float[Array, "b ..."], weight: Float[Array, " b"]
) -> Float[Array, "..."]:
    """The sum of a batch's features; padding has weight 0."""
    return (z * along_axis(weight, 0, z.ndim)).sum(axis=0)

"""FedMD: what travels is the scores of public inputs, and no model."""

from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from fedtailor._base.choice import require
from fedtailor.aggregation import reporter_weights, weighted_sums
from fedtailor.algorithms.helpers.class_means import require_classes
from fedtailor.algorithms.helpers.own_steps import mean_over
from fedtailor.algorithms.helpers.personal_model import PersonalModelAlgorithm
from fedtailor.algorithms.helpers.shared_part import model_parts_of
from fedtailor.protocol import (
    SGD,
    About,
    Answers,
    ClientState,
    ClientUpdate,
    Cohort,
    Downlink,
    Inbox,
    Init,
    LocalTrainer,
    Params,
    Population,
    ServerState,
    Streams,
    hyperparameters,
    server_state,
    sums_type,
)

INPUTS, SCORES = "inputs", "scores"
"""The kinds of message. Clients have the inputs before training, so that only scores are
counted.
"""


@server_state
class FedMDState(ServerState):
    """The consensus, and what a newcomer needs to train for as long as the others."""

    consensus: Float[Array, "p classes"]
    """The mean scores of each public input."""
    is_known: bool
    """Whether any client has sent scores."""
    initial: Float[Array, " d"]
    """The model that all clients started from."""
    rounds: int
    """Rounds done since then."""


@hyperparameters
class FedMD(PersonalModelAlgorithm):
    """Distillation over a public set (Li and Wang 2019, algorithm 1).

    Each client has a model of its own, with any network. Server and clients all have the
    inputs x_1, ..., x_p of a public set (`Federation.public`), whose labels nobody needs. A
    client i sends the scores f_i(x_k) of its model, before the softmax. The server sends
    back their mean, the consensus, which clients digest before they train on their own
    samples:

        s_k = sum_i q_i f_i(x_k),    v_i = SGD(mean_k distance(f(x_k), s_k)) from w_i,
        w_i = SGD(F_i) from v_i,     q_i equal for all reporters

    In the first round there is no consensus, and clients train alone. They send the scores
    of evaluation, and digest in evaluation mode (without dropout, and without a change of
    running statistics). With digest_epochs = 0 clients train alone in all rounds. A newcomer
    trains as in `Local`, and digests the last consensus before each round.

    The paper first trains each model on the labels of the public set, and then to
    convergence on the client's samples; it draws some of the public inputs again in each
    round. Here the clients begin with the initial model of their network, and score all
    public inputs in each round. Its released code trains by Adam.
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="fedmd",
        paper="Li and Wang 2019, FedMD: Heterogenous Federated Learning via Model Distillation",
        down="the mean scores of each public input",
        up="the scores of each public input",
        client_keeps="its model",
        unseen_clients_get="trains alone in as many rounds, and digests the last scores",
        models_received="nothing",
        server_sees="sums",
        in_common="nothing",
    )

    sgd: SGD = SGD(lr=0.01, momentum=0.9, epochs=4, batch_size=5)
    """Training on the client's own samples (released run on CIFAR: 4 epochs of batch 5).
    """
    digest_lr: float = 0.01
    """Learning rate of the steps towards the consensus."""
    digest_epochs: int = 1
    """Passes over the public inputs in a round (released run: 1)."""
    digest_batch: int = 256
    """Public inputs in a step (released run: 256)."""
    distance: Literal["absolute", "squared", "cross-entropy"] = "absolute"
    """Between a client's scores and the consensus: the mean over classes of absolute
    differences (released code) or of squared ones, or the cross-entropy of the
    probabilities.
    """
    weights: Literal["samples", "uniform"] = "uniform"
    """Weights q_i of the mean over reporters: equal (released code), or by training samples
    n_i.
    """

    def __post_init__(self) -> None:
        require(
            self.digest_lr > 0, f"digest_lr is {self.digest_lr}; it must be above 0"
        )
        require(
            self.digest_epochs >= 0,
            f"digest_epochs is {self.digest_epochs}; it must be 0 or more",
        )
        require(
            self.digest_batch >= 1,
            f"digest_batch is {self.digest_batch}; it must be 1 or more",
        )

    # on the server
    # ----------------------------------------------------------------------------------

    def check(self, population: Population) -> None:
        model = model_parts_of(population, self.about.name)
        require_classes(model, "fedmd's clients send scores of classes")
        require(
            population.public is not None,
            "fedmd needs a public set of inputs, which these data do not have: set some"
            " training rows aside (ft.federation.set_aside, or --public 0.1 where a"
            " scenario has it), or give other inputs (Federation.public); machines have"
            " none",
        )

    def init_server(self, init: Init, population: Population) -> FedMDState:
        model = model_parts_of(population, self.about.name)
        assert population.public is not None
        theta = init(0)
        shape = (len(population.public), model.outputs)
        return FedMDState(
            jnp.zeros(shape, sums_type(theta)), is_known=False, initial=theta, rounds=0
        )

    def broadcast(self, server: FedMDState, cohort: Cohort) -> Downlink:
        return Downlink(self._streams(server, cohort))

    def _streams(self, server: FedMDState, cohort: Cohort) -> dict[str, Streams]:
        """The public inputs, and the consensus once there is one."""
        assert cohort.public is not None
        public = jnp.asarray(cohort.public)[None]
        everyone = np.zeros((len(cohort), 1), np.int32)
        streams = {INPUTS: Streams(public, everyone, already_held=True)}
        if server.is_known:
            streams[SCORES] = Streams.everyone(server.consensus[None], len(cohort))
        return streams

    def server(
        self,
        server: FedMDState,
        downlink: Downlink,
        answers: Answers,
        cohort: Cohort,
    ) -> FedMDState:
        rounds = server.rounds + 1
        if not cohort.reporting.any():
            return server.replace(rounds=rounds)
        weights = reporter_weights(cohort, self.weights)[None]
        mean = weighted_sums(answers[SCORES], weights).reshape(server.consensus.shape)
        return server.replace(
            consensus=mean.astype(server.consensus.dtype), is_known=True, rounds=rounds
        )

    def serve(self, server: FedMDState, cohort: Cohort) -> Downlink:
        if cohort.seen:
            return Downlink()
        # A newcomer can compute theta^0 from the run's seed (`already_held`).
        start = Streams.everyone(server.initial, len(cohort), already_held=True)
        return Downlink(
            {"model": start, **self._streams(server, cohort)},
            scalars={"rounds": server.rounds},
        )

    # on the client
    # ----------------------------------------------------------------------------------

    def client(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> tuple[ClientState, ClientUpdate]:
        w = self._train(state["model"], inbox, local)
        return {"model": w}, {SCORES: self._scores(w, inbox, local).reshape(-1)}

    def _train(
        self, w: Float[Array, " d"], inbox: Inbox, local: LocalTrainer
    ) -> Float[Array, " d"]:
        """A round's steps: first those towards the consensus, if there is one."""
        if SCORES in inbox.values and self.digest_epochs > 0:
            w = self._digested(w, inbox, local)
        return local.sgd(w, self.sgd)

    def _digested(
        self, w: Float[Array, " d"], inbox: Inbox, local: LocalTrainer
    ) -> Float[Array, " d"]:
        """The model after plain SGD towards the consensus."""
        public, consensus = inbox.only(INPUTS), inbox.only(SCORES)
        rows, weight = self._batches(len(public), local.key("digest"))

        def step(index: Int[Array, ""], params: Params) -> Params:
            x, target = local.inputs(public[rows[index]]), consensus[rows[index]]

            def loss(params: Params) -> Float[Array, ""]:
                scores = local.logits(params, x, training=False)
                return mean_over(self._distances(scores, target), weight[index])

            change = jax.grad(loss)(params)
            return jax.tree.map(
                lambda w, g: w - (self.digest_lr * g).astype(w.dtype), params, change
            )

        local.count_passes(gradients=self.digest_epochs * len(public))
        return local.vector(local.fori_loop(len(rows), step, local.params(w)))

    def _batches(
        self, count: int, key: Array
    ) -> tuple[Int[Array, "steps b"], Float[Array, "steps b"]]:
        """The rows of the public set in each step, and their weights: 0 for padding.

        Each pass is in a random order.
        """
        size = min(self.digest_batch, count)
        steps = -(-count // size)
        keys = jax.random.split(key, self.digest_epochs)
        order = jax.vmap(lambda key: jax.random.permutation(key, count))(keys)
        padding = ((0, 0), (0, steps * size - count))
        rows = jnp.pad(order, padding).reshape(-1, size)
        weight = jnp.pad(jnp.ones(order.shape), padding).reshape(-1, size)
        return rows, weight

    def _distances(
        self, scores: Float[Array, "b classes"], target: Float[Array, "b classes"]
    ) -> Float[Array, " b"]:
        """The distance of each row of scores to those of the consensus."""
        if self.distance == "absolute":
            return jnp.abs(scores - target).mean(axis=1)
        if self.distance == "squared":
            return jnp.square(scores - target).mean(axis=1)
        log_shares = jax.nn.log_softmax(scores)
        return -(jax.nn.softmax(target) * log_shares).sum(axis=1)

    def _scores(
        self, w: Float[Array, " d"], inbox: Inbox, local: LocalTrainer
    ) -> Float[Array, "p classes"]:
        """The scores of all public inputs, some at a time to save memory."""
        public, params = inbox.only(INPUTS), local.params(w)
        count = len(public)
        size = min(self.digest_batch, count)
        padded = np.minimum(np.arange(-(-count // size) * size), count - 1)

        def scores_of(rows: Int[Array, " b"]) -> Shaped[Array, "b classes"]:
            return local.logits(params, local.inputs(public[rows]), training=False)

        scores = local.map(scores_of, jnp.asarray(padded.reshape(-1, size)))
        local.count_passes(forwards=count)
        return scores.reshape(len(padded), -1)[:count]

    def init_unseen(self, inbox: Inbox, local: LocalTrainer) -> ClientState:
        rounds = inbox.scalars["rounds"]
        first = local.round - rounds

        # Each round has its own learning rate, batches and optimiser state.
        def train(k: Array, w: Float[Array, " d"]) -> Float[Array, " d"]:
            return self._train(w, inbox, local.in_round(first + k))

        return {"model": local.fori_loop(rounds, train, inbox.only("model"))}

"""HypCluster: several models; each client trains the one that fits its data best.

The q models are the server's streams, numbered 0..q-1. The c clients of a round are its
cohort. The reporters are the clients of the cohort whose answers the server uses.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Literal, get_args

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.aggregation import ServerOptimizer, cluster_averages, reporter_weights
from fedtailor.algorithms.helpers.averaging import AveragedModels, average_step
from fedtailor.algorithms.helpers.selection import closest
from fedtailor.protocol import (
    SGD,
    About,
    Algorithm,
    Answers,
    ClientState,
    ClientUpdate,
    Cohort,
    Diagnostic,
    Downlink,
    Inbox,
    Init,
    LineDiagnostic,
    LocalTrainer,
    Population,
    Predictor,
    Streams,
    TracedInt,
    hyperparameters,
    server_state,
)

Phase = Literal["farthest", "warm", "choose"]
"""What happens in a round.

==========  =====================  =======================  ============================
phase       rounds                 a client receives        a client sends
==========  =====================  =======================  ============================
"farthest"  the first q, if        [q + 1, d]: the q        the initial model after
            `start` is "farthest"  models (zeros if not     training, and the lowest
                                   initialised yet) and     loss of the initialised
                                   the initial model        models
"warm"      the first q * `warm`,  [1, d]: the model that   that model after training
            if `start` is          all clients train
            "random"
"choose"    all later rounds       [q, d]: all models       the closest model after
                                                            training and, for q > 1, its
                                                            number
==========  =====================  =======================  ============================
"""


@server_state
class HypClusterState(AveragedModels):
    """The q models, and which of them each client trained last."""

    cluster: NDArray[np.int64]
    """The number of the model that each client chose last [m]; -1 = none yet."""
    round: int
    """Rounds of this method so far, without those of earlier methods of a schedule."""
    initial: Float[Array, " d"] | None
    """The common initial model, for `farthest`; else None."""


@hyperparameters
class HypCluster(Algorithm):
    """Hypothesis-based clustering (Mansour et al. 2020, section 3, figure 1).

    The server sends q models h_1, ..., h_q. A client picks the one with the lowest loss
    on its training data and trains it; each model then moves towards the average of the
    clients that picked it

        f(k) = argmin_i F_k(h_i)   (eq. 6),    h_i <- h_i - opt_i( h_i - sum_{k: f(k) = i} q_k SGD(h_i; D_k) )

    with q_k ~ n_k, a server optimiser for each model. A model that nobody picks
    does not change, nor does the state of its optimiser; on ties the first model wins.
    Clients, also those that never took part, predict with the model of lowest loss on
    their training data.

    If the q models were equal at first, every client would pick the first one.
    Therefore they start from different models (in the paper, from models trained on a
    few clients):

    * `random`: independent initial models. All clients train each of them for `warm`
      rounds before clients choose.
    * `farthest`: the common initial model after training on different clients. Each of
      the first q rounds initialises one model: every reporter trains the initial model,
      and the server takes the result of the reporter with the largest loss under the
      models initialised so far (in the first round, of a random reporter).
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="hypcluster",
        paper=(
            "Mansour et al. 2020, Three Approaches for Personalization with"
            " Applications to Federated Learning"
        ),
        down="all q models",
        up="1 model, and its number",
        client_keeps="nothing",
        unseen_clients_get="all q models; it picks the one that fits its data best",
        models_received="several",
        server_sees="sums, numbers",
    )

    modes = get_args(Phase)

    sgd: SGD = SGD(lr=0.01, epochs=2, batch_size=20)
    """Local training (Mansour et al., appendix F.2: rate 0.01, 2 epochs, batch 20)."""
    weights: Literal["samples", "uniform"] = "samples"
    """Weights of a model's average over the reporters that picked it: by training
    samples n_i, or equal.
    """
    optimizer: ServerOptimizer = ServerOptimizer("momentum", lr=1.0, momentum=0.9)
    """The server's step of each model (Mansour et al., appendix F.2: rate 1, momentum
    0.9).
    """
    clusters: int = 2
    """Number of models q (Mansour et al., appendix F.2: 2 on EMNIST)."""
    start: Literal["random", "farthest"] = "random"
    """Where the q models come from (see the class)."""
    warm: TracedInt = 0
    """Rounds in which all clients train the same `random` model, for each of the q
    models. They count as rounds of the run.
    """

    def __post_init__(self) -> None:
        require(
            self.clusters >= 1, f"clusters is {self.clusters}; it must be 1 or more"
        )
        require(self.warm >= 0, f"warm is {self.warm}; it must be 0 or more")
        require(
            self.warm == 0 or self.start == "random",
            "warm rounds belong to start='random'; leave one of them out",
        )

    def check(self, population: Population) -> None:
        # The default may exceed the number of clients of a small federation, which does
        # no harm. Many times more clusters than clients are a mistake.
        clients = len(population)
        message = (
            f"clusters is {self.clusters}, and there are {clients} clients; ask for at"
            " most as many"
        )
        require(self.clusters <= 10 * clients, message)

    # on the server
    # ----------------------------------------------------------------------------------

    def _phase(self, server: HypClusterState) -> Phase:
        if self.start == "farthest":
            return "farthest" if server.round < self.clusters else "choose"
        return "warm" if server.round < self.clusters * self.warm else "choose"

    def init_server(self, init: Init, population: Population) -> HypClusterState:
        is_random = self.start == "random"
        theta = jnp.stack([init(k if is_random else 0) for k in range(self.clusters)])
        return HypClusterState(
            model=theta,
            optimizer=self.optimizer.init(theta),
            cluster=np.full(len(population), -1),
            round=0,
            initial=None if is_random else init(0),
        )

    def broadcast(self, server: HypClusterState, cohort: Cohort) -> Downlink:
        clients = len(cohort)
        phase = self._phase(server)
        if phase == "warm":
            # Model 0 in the first `warm` rounds, model 1 in the next ones, ...
            model_number = np.full(clients, server.round // self.warm)
            models = Streams.by_index(server.model, model_number)
            return Downlink({"model": models}, mode=phase)
        if phase == "farthest":
            # The last stream is the initial model, which clients train. Each round
            # initialises one model, so models 0..round-1 are sent with it.
            assert server.initial is not None
            models = jnp.concatenate([server.model, server.initial[None]])
            is_sent = np.append(np.arange(self.clusters) < server.round, True)
            sent = Streams.all_to_all(models, clients, is_sent=is_sent)
            return Downlink({"model": sent}, mode=phase)
        sent = Streams.all_to_all(server.model, clients)
        return Downlink({"model": sent}, mode=phase)

    def server(
        self,
        server: HypClusterState,
        downlink: Downlink,
        answers: Answers,
        cohort: Cohort,
    ) -> HypClusterState:
        if not cohort.reporting.any():
            return server
        phase = self._phase(server)
        if phase == "farthest":
            server = self._initialise_next_model(server, answers, cohort)
        elif phase == "choose" and self.clusters > 1:
            # f(k) of each client k of the cohort (eq. 6), as a NumPy array [c]
            choice = answers.host("cluster")
            server = self._train_models(server, answers, choice, cohort)
            cluster = server.cluster.copy()
            cluster[cohort.reporters] = choice[cohort.reporting]
            server = server.replace(cluster=cluster)
        else:
            # Each client trained the only model that it was sent, whose number is in
            # `recipients` [c, 1].
            sent = downlink.streams["model"].recipients[:, 0]
            server = self._train_models(server, answers, sent, cohort)
        return server.replace(round=server.round + 1)

    def _initialise_next_model(
        self, server: HypClusterState, answers: Answers, cohort: Cohort
    ) -> HypClusterState:
        """The trained model of one reporter becomes model number `round`."""
        losses = answers.host("loss")  # as a NumPy array [c]
        reporter = _next_model_from(losses, cohort, is_first=server.round == 0)
        trained = answers["model"].take(reporter)
        return server.replace(model=server.model.at[server.round].set(trained))

    def _train_models(
        self,
        server: HypClusterState,
        answers: Answers,
        model_of_client: NDArray[np.integer],
        cohort: Cohort,
    ) -> HypClusterState:
        """`aggregate` with each reporter's weight q_k."""
        share = reporter_weights(cohort, self.weights)
        return self.aggregate(server, answers, model_of_client, share, cohort)

    def aggregate(
        self,
        server: HypClusterState,
        answers: Answers,
        model_of_client: NDArray[np.integer],
        share: NDArray[np.float64],
        cohort: Cohort,
    ) -> HypClusterState:
        """The server's step of every model.

        Args:
            server: before the step.
            answers: what the clients sent.
            model_of_client: the number of the model that each client trained [c].
            share: q_k, each client's weight [c]: 0 for clients that do not report, and
                1 in sum.
            cohort: the clients of the round.

        Returns:
            The server with a new `model` and `optimizer`.
        """
        # h_i <- h_i - opt_i( h_i - sum_{k: f(k) = i} q_k SGD(h_i; D_k) ). Row i of the
        # weights holds the q_k of the clients that trained model i, scaled to sum 1.
        # The row of a model that nobody trained is zero, and `average_step` changes
        # neither that model nor the state of its optimiser.
        weights = cluster_averages(model_of_client, self.clusters, share)
        return average_step(
            server, self.optimizer, answers["model"], weights, cohort.is_statistic
        )

    def serve(self, server: HypClusterState, cohort: Cohort) -> Downlink:
        # Every client receives all models and picks one to predict with (`personal`).
        return Downlink({"model": Streams.all_to_all(server.model, len(cohort))})

    def diagnostics(self, server: HypClusterState) -> Sequence[Diagnostic]:
        return cluster_diagnostics(server)

    # on the client
    # ----------------------------------------------------------------------------------

    def ranges(self, size: int) -> Mapping[str, tuple[float, float]]:
        return {"cluster": (0, self.clusters - 1)}

    def client(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> tuple[ClientState, ClientUpdate]:
        return state, train_closest(
            inbox, local, lambda theta: self.train(theta, local)
        )

    def train(self, theta: Float[Array, " d"], local: LocalTrainer) -> ClientUpdate:
        """Train theta. Returns what the client sends."""
        return {"model": local.sgd(theta, self.sgd)}

    def personal(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> Predictor:
        choice, _ = closest(inbox["model"], inbox.received["model"], local)
        return inbox["model"][choice]


def train_closest(
    inbox: Inbox,
    local: LocalTrainer,
    train: Callable[[Float[Array, " d"]], ClientUpdate],
) -> ClientUpdate:
    """A client's part of a round of HypCluster: train the model that fits it best.

    Args:
        inbox: the models of the round, and its `Phase` as the mode.
        local: the client's data and training.
        train: trains a model and returns what the client sends.

    Returns:
        What the client sends in the `Phase` of the round.
    """
    # `received` says which models were sent; the rows of the others are zeros.
    models, received = inbox["model"], inbox.received["model"]
    if inbox.mode == "farthest":
        initialised, initial = models[:-1], models[-1]
        _, loss = closest(initialised, received[:-1], local)
        return {"model": train(initial)["model"], "loss": loss}
    # With a single model there is no choice.
    if inbox.mode == "warm" or len(models) == 1:
        return train(models[0])
    # f(k) = argmin_i F_k(h_i)   (eq. 6)
    choice, _ = closest(models, received, local)
    return {**train(models[choice]), "cluster": choice}


def cluster_diagnostics(server: HypClusterState) -> Sequence[Diagnostic]:
    """The model that each client chose last, without clients that never chose."""
    clients = np.flatnonzero(server.cluster >= 0)
    return [
        LineDiagnostic(
            name="cluster",
            title="Model that each client chose last",
            x=clients,
            y=server.cluster[clients],
            x_label="client",
            y_label="model",
        )
    ]


def _next_model_from(
    losses: NDArray[np.floating], cohort: Cohort, is_first: bool
) -> int:
    """The reporter whose trained model becomes the next of the q models.

    Args:
        losses: each client's lowest loss under the models initialised so far [c].
        cohort: the clients of the round.
        is_first: whether no model has been initialised yet.

    Returns:
        The position in the cohort of the reporter with the largest loss; for the first
        model, the position of a random reporter.
    """
    reporters = np.flatnonzero(cohort.reporting)
    if is_first:
        return int(cohort.rng("first model").choice(reporters))
    return int(reporters[np.argmax(losses[reporters])])

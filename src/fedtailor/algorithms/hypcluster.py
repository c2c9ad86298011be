"""HypCluster: several models, and every client trains the one that fits it best."""

from collections.abc import Callable, Sequence
from typing import ClassVar, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

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
    require,
    server_state,
)

Phase = Literal["find", "warm", "choose"]
"""What a round is for, and what clients receive and send in it.

* "find" (the first q rounds of `farthest`): all train the common initial model, of
  which the next of the q models is made. Down: the models found so far, and the initial
  one [q + 1, d]; up: the trained model, and the least loss of the models found so far.
* "warm" (the first q * `warm` rounds of `random`): all train one of the models. Down:
  that model [1, d]; up: the trained model.
* "choose" (all later rounds): each trains the model that fits it best. Down: all models
  [q, d]; up: the trained model and, for q > 1, its number.
"""


@server_state
class HypClusterState(AveragedModels):
    """The q models, and which of them each client trained last."""

    cluster: NDArray[np.int64]
    """The model that each client chose last [m]; -1 = it has not chosen yet."""
    round: int
    """Rounds done by this method (those before it in a schedule do not count)."""
    initial: Float[Array, " d"] | None
    """The common initial model, for `farthest`; else None."""


@hyperparameters
class HypCluster(Algorithm):
    """Hypothesis-based clustering (Mansour et al. 2020, section 3, figure 1).

    The server sends q models h_1, ..., h_q. A client picks the one with the lowest loss
    on its training data and trains it; each model then moves towards the average of the
    clients that picked it

        f(k) = argmin_i F_k(h_i)   (eq. 6),    h_i <- h_i - opt_i( h_i - sum_{k: f(k) = i} q_k SGD(h_i; D_k) )

    with q_k ~ n_k, a server optimiser for each model. A model that nobody picks stays
    as it is, optimiser included; on ties the first model wins. Clients, also newcomers,
    predict with the model that fits their training data best.

    Equal initial models would tie, so the q models start apart (the paper: from models
    trained on a few clients): `random` takes independent initial models, each first
    trained by `warm` rounds of its own over all clients; `farthest` finds one of the q
    models in each of the first q rounds: every reporter trains the common initial
    model, and the next model is that of the reporter with the largest loss under those
    found so far (the first is drawn at random).
    """

    about: ClassVar[About] = About(
        name="hypcluster",
        paper=(
            "Mansour et al. 2020, Three Approaches for Personalization with"
            " Applications to Federated Learning"
        ),
        down="all q models",
        up="1 model, and its number",
        keeps="nothing",
        unseen="all q models; it picks the one that fits its data best",
        travels="several",
        sees="sums, numbers",
    )

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
    """Where the q models come from."""
    warm: TracedInt = 0
    """Rounds of plain averaging for each `random` model, one model after another (they
    count as rounds of the run).
    """

    def __post_init__(self) -> None:
        require(
            self.clusters >= 1, f"clusters is {self.clusters}; it must be 1 or more"
        )
        require(
            self.start in ("random", "farthest"),
            f"start is {self.start!r}; it must be 'random' or 'farthest'",
        )
        require(self.warm >= 0, f"warm is {self.warm}; it must be 0 or more")
        require(
            self.warm == 0 or self.start == "random",
            "warm rounds belong to start='random'; leave one of them out",
        )

    def check(self, population: Population) -> None:
        # A few clusters more than clients do no harm, and small federations are often
        # given a default; many are a typo.
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
            return "find" if server.round < self.clusters else "choose"
        return "warm" if server.round < self.clusters * self.warm else "choose"

    def init_server(self, init: Init, population: Population) -> HypClusterState:
        independent = self.start == "random"
        theta = jnp.stack([init(k if independent else 0) for k in range(self.clusters)])
        return HypClusterState(
            model=theta,
            optimizer=self.optimizer.init(theta),
            cluster=np.full(len(population), -1),
            round=0,
            initial=None if independent else init(0),
        )

    def broadcast(self, server: HypClusterState, cohort: Cohort) -> Downlink:
        clients = len(cohort)
        phase = self._phase(server)
        if phase == "warm":
            # `warm` rounds for each model, one model after another
            number = server.round // self.warm
            to_everyone = np.full((clients, 1), number)
            return Downlink({"model": Streams(server.model, to_everyone)})
        if phase == "find":
            # One model is found in each round: 0..round-1 are there (-1 = not sent).
            # The initial model comes last.
            assert server.initial is not None
            numbers = np.arange(self.clusters)
            found = np.where(numbers < server.round, numbers, -1)
            models = jnp.concatenate([server.model, server.initial[None]])
            to_everyone = np.tile([*found, self.clusters], (clients, 1))
            return Downlink({"model": Streams(models, to_everyone)})
        return Downlink({"model": Streams.all_to_all(server.model, clients)})

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
        if phase == "find":
            # The next of the q models is what the reporter of largest loss made of the
            # initial model.
            is_first = server.round == 0
            row = _largest_loss(answers.host("loss"), cohort, is_first)
            model = server.model.at[server.round].set(answers["model"].take(row))
            return server.replace(model=model, round=server.round + 1)
        cluster = server.cluster.copy()
        if phase == "choose" and self.clusters > 1:
            # f(k), the clients' choices (eq. 6)
            trained = answers.host("cluster")
            cluster[cohort.reporters] = trained[cohort.reporting]
        else:
            # Nobody had a choice: all trained the one model that they were sent.
            trained = downlink.streams["model"].recipients[:, 0]
        share = reporter_weights(cohort, self.weights)
        server = self.aggregate(server, answers, trained, share, cohort)
        return server.replace(cluster=cluster, round=server.round + 1)

    def aggregate(
        self,
        server: HypClusterState,
        answers: Answers,
        trained: NDArray[np.integer],
        share: NDArray[np.float64],
        cohort: Cohort,
    ) -> HypClusterState:
        """The server's step of every model.

        Args:
            server: before the step.
            answers: what the clients sent.
            trained: the number of the model that each client trained [c].
            share: q_k, each client's share of the reporters [c].
            cohort: the clients of the round.

        Returns:
            The server with a new `model` and `optimizer`.
        """
        # h_i <- h_i - opt_i( h_i - sum_{k: f(k) = i} q_k SGD(h_i; D_k) ). Row i of the
        # weights holds the q_k of the clients that trained model i, scaled to sum 1. A
        # model that nobody trained has a row of zeros, which leaves the model and its
        # optimiser as they are.
        weights = cluster_averages(trained, self.clusters, share)
        return average_step(server, self.optimizer, answers["model"], weights)

    def serve(self, server: HypClusterState, cohort: Cohort) -> Downlink:
        return Downlink({"model": Streams.all_to_all(server.model, len(cohort))})

    def diagnostics(self, server: HypClusterState) -> Sequence[Diagnostic]:
        return cluster_diagnostics(server)

    # on the client
    # ----------------------------------------------------------------------------------

    def client(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> tuple[ClientState, ClientUpdate]:
        return state, train_closest(
            inbox, local, self.clusters, lambda theta: self.train(theta, local)
        )

    def train(self, theta: Float[Array, " d"], local: LocalTrainer) -> ClientUpdate:
        """What a client sends of its training of theta."""
        return {"model": local.sgd(theta, self.sgd)}

    def personal(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> Predictor:
        choice, _ = closest(inbox["model"], inbox.received["model"], local)
        return inbox["model"][choice]


def train_closest(
    inbox: Inbox,
    local: LocalTrainer,
    clusters: int,
    train: Callable[[Float[Array, " d"]], ClientUpdate],
) -> ClientUpdate:
    """A client's part of a round of HypCluster: it trains the model that fits it best.

    A client tells the phase of the round by the number of models that it is sent.

    Args:
        inbox: the models of the round.
        local: the client's data and training.
        clusters: q, the number of models.
        train: model -> what the client sends of its training.

    Returns:
        What the client sends in this `Phase`.
    """
    models, received = inbox["model"], inbox.received["model"]
    # "find": the initial model is the last one, the others are those found so far
    if len(models) == clusters + 1:
        _, loss = closest(models[:-1], received[:-1], local)
        return {"model": train(models[-1])["model"], "loss": loss}
    # "warm", or a single cluster
    if len(models) == 1:
        return train(models[0])
    # "choose": f(k) = argmin_i F_k(h_i)   (eq. 6)
    choice, _ = closest(models, received, local)
    return {**train(models[choice]), "cluster": choice}


def cluster_diagnostics(server: HypClusterState) -> Sequence[Diagnostic]:
    """Which model each client chose last, for clients that have chosen."""
    chosen = np.flatnonzero(server.cluster >= 0)
    return [
        LineDiagnostic(
            name="cluster",
            title="Model that each client chose last",
            x=chosen,
            y=server.cluster[chosen],
            x_label="client",
            y_label="model",
        )
    ]


def _largest_loss(loss: NDArray[np.floating], cohort: Cohort, is_first: bool) -> int:
    """The reporter, by its row in the cohort, with the largest loss.

    Args:
        loss: the least loss of each client under the models found so far [c].
        cohort: the clients of the round.
        is_first: no model has been found yet, so a reporter is drawn at random.
    """
    reporters = np.flatnonzero(cohort.reporting)
    if is_first:
        return int(cohort.rng("first model").choice(reporters))
    return int(reporters[np.argmax(loss[reporters])])

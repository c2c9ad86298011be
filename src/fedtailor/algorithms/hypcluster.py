"""HypCluster: several models, and every client trains the one that fits it best."""

from typing import Any, ClassVar, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import NDArray

from fedtailor.aggregation import cluster_averages, reporter_weights
from fedtailor.algorithms.fedavg import step
from fedtailor.algorithms.fedavgm import FedAvgM
from fedtailor.protocol import (
    About,
    Answers,
    ClientUpdate,
    Cohort,
    Downlink,
    Inbox,
    Init,
    LocalTrainer,
    Population,
    Predictor,
    Streams,
    TracedInt,
    hyperparameters,
    require,
)


@hyperparameters
class HypCluster(FedAvgM):
    """Hypothesis-based clustering (Mansour et al. 2020, section 3, figure 1).

    The server sends q models h_1, ..., h_q. A client picks the one with the lowest loss on its training data and
    trains it; each model then moves towards the average of the clients that picked it

        f(k) = argmin_i F_k(h_i)   (eq. 6),    h_i <- h_i - opt_i( h_i - sum_{k: f(k) = i} q_k SGD(h_i; D_k) )

    with q_k ~ n_k, a server optimiser for each model. A model that nobody picks stays as it is, optimiser included; on
    ties the first model wins. Clients, also newcomers, predict with the model that fits their training data best.

    Equal initial models would tie, so the q models start apart (the paper: from models trained on a few clients):
    `random` takes independent initial models, each first trained by `warm` rounds of its own over all clients;
    `farthest` gives the first q rounds to finding, one after another, the model of the reporter that the models found
    so far serve worst, trained by that client from the common initial model (the first one is drawn at random).
    """

    about: ClassVar[About] = About(
        name="hypcluster",
        paper="Mansour et al. 2020, Three Approaches for Personalization with Applications to Federated Learning",
        down="all q models",
        up="1 model, and its number",
        keeps="nothing",
        unseen="all q models; it picks the one that fits its data best",
    )

    clusters: int = 2
    """Number of models q (Mansour et al., appendix F.2: 2 on EMNIST)."""
    start: Literal["random", "farthest"] = "random"
    """Where the q models come from."""
    warm: TracedInt = 0
    """Rounds of plain averaging for each `random` model, one model after another (they count as rounds of the run)."""

    def __post_init__(self) -> None:
        require(self.clusters >= 1, f"clusters is {self.clusters}; it must be 1 or more")
        require(self.start in ("random", "farthest"), f"start is {self.start!r}; it must be 'random' or 'farthest'")
        require(self.warm >= 0, f"warm is {self.warm}; it must be 0 or more")
        require(self.warm == 0 or self.start == "random", "warm rounds belong to start='random'; leave one of them out")

    @property
    def _preparation(self) -> int:
        """Rounds before clients choose."""
        return self.clusters if self.start == "farthest" else self.clusters * self.warm

    def init_server(self, init: Init, population: Population) -> Any:
        distinct = self.start == "random"
        theta = jnp.stack([init(k if distinct else 0) for k in range(self.clusters)])
        cluster = np.full(len(population), -1)  # the last choice of each client
        server = {"model": theta, "optimizer": self.optimizer.init(theta), "cluster": cluster, "round": 0}
        return server if distinct else {**server, "initial": init(0)}

    def broadcast(self, server: Any, cohort: Cohort) -> Downlink:
        models, clients, round = server["model"], len(cohort), server["round"]
        if round >= self._preparation:
            return Downlink({"model": Streams.all_to_all(models, clients)})
        if self.start == "random":
            return Downlink({"model": Streams(models, np.full((clients, 1), round // self.warm))})
        found = np.where(np.arange(self.clusters) < round, np.arange(self.clusters), -1)
        to = np.tile([*found, self.clusters], (clients, 1))  # the last place: what to train
        return Downlink({"model": Streams(jnp.concatenate([models, server["initial"][None]]), to)})

    def client(self, state: Any, inbox: Inbox, local: LocalTrainer) -> tuple[Any, ClientUpdate]:
        models = inbox["model"]
        if len(models) > self.clusters:
            _, loss = closest(models[:-1], inbox.received["model"][:-1], local)
            return state, {"model": local.sgd(models[-1], self.sgd), "loss": loss}
        if len(models) == 1:
            return state, self.train(models[0], local)
        choice, _ = closest(models, inbox.received["model"], local)
        return state, {**self.train(models[choice], local), "cluster": choice}

    def server(self, server: Any, downlink: Downlink, answers: Answers, cohort: Cohort) -> Any:
        if not cohort.reporting.any():
            return server
        if "loss" in answers:
            chosen = _worst_served(answers.host("loss"), cohort, first=server["round"] == 0)
            model = server["model"].at[server["round"]].set(answers["model"].take(chosen))
            return {**server, "model": model, "round": server["round"] + 1}
        cluster = server["cluster"].copy()
        if "cluster" in answers:
            stream = answers.host("cluster")
            cluster[cohort.reporters] = stream[cohort.reporting]
        else:
            stream = downlink.streams["model"].recipients[:, 0]
        new = self.aggregate(server, answers, stream, reporter_weights(cohort, self.weights), cohort)
        return {**server, **new, "cluster": cluster, "round": server["round"] + 1}

    def train(self, theta: Float[Array, " d"], local: LocalTrainer) -> ClientUpdate:
        """What a client sends of its training of theta."""
        return {"model": local.sgd(theta, self.sgd)}

    def aggregate(
        self, server: Any, answers: Answers, stream: NDArray[np.integer], share: NDArray[np.float64], cohort: Cohort
    ) -> dict[str, Any]:
        """New models and optimiser states, from each client's cluster [c] and share of the reporters [c]."""
        return step(self.optimizer, server, answers["model"], cluster_averages(stream, self.clusters, share))

    def serve(self, server: Any, cohort: Cohort) -> Downlink:
        return Downlink({"model": Streams.all_to_all(server["model"], len(cohort))})

    def personal(self, state: Any, inbox: Inbox, local: LocalTrainer) -> Predictor:
        return inbox["model"][closest(inbox["model"], inbox.received["model"], local)[0]]


def closest(
    models: Float[Array, "q d"], got: Bool[Array, " q"], local: LocalTrainer
) -> tuple[Int[Array, ""], Float[Array, ""]]:
    """The model with the lowest loss on the client's training data, the first one on ties; and that loss.

    Models that were not sent do not count; where none was, the loss is 0."""
    if len(models) == 1:
        return jnp.int32(0), jnp.zeros((), models.dtype)
    losses = jnp.where(got, local.map(local.loss, models), jnp.inf)
    choice = jnp.argmin(losses)
    return choice.astype(jnp.int32), jnp.where(got.any(), losses[choice], 0)


def _worst_served(loss: NDArray[np.floating], cohort: Cohort, first: bool) -> int:
    """The reporter (its place in the cohort) with the largest loss, or any of them."""
    reporters = np.flatnonzero(cohort.reporting)
    return int(cohort.rng("first model").choice(reporters) if first else reporters[np.argmax(loss[reporters])])

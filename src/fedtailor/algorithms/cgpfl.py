"""CGPFL: personal models near the model of a context, a cluster of clients."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Real
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.aggregation import cluster_averages, mix, reporter_weights
from fedtailor.aggregation.clusters import k_means_of_models, match
from fedtailor.aggregation.distances import squared_distances
from fedtailor.algorithms.helpers.envelope import envelope_steps
from fedtailor.algorithms.helpers.own_steps import require_plain_sgd
from fedtailor.algorithms.helpers.personal_model import PersonalModelAlgorithm
from fedtailor.algorithms.helpers.proximal import require_stable
from fedtailor.algorithms.helpers.selection import closest
from fedtailor.protocol import (
    NOT_SENT,
    SGD,
    About,
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
    ServerState,
    Streams,
    TracedInt,
    hyperparameters,
    server_state,
)


@server_state
class ContextualState(ServerState):
    """The contexts, and who is in which."""

    model: Float[Array, "s d"]
    """The context models omega_k."""
    context: NDArray[np.int64]
    """The context of each client [m]; -1 = it has never reported."""


@hyperparameters
class Contextual(PersonalModelAlgorithm):
    """The base of `CGPFL` and `CGPFLHeur`, which say how many contexts there are."""

    sgd: SGD = SGD(lr=0.005, steps=10, batch_size=20)
    """Inner steps: their rate eta, and the number R of mini-batches in a round (Tang et
    al.: rate 0.005, R = 10; for CIFAR-10 rate 0.03)."""
    inner_steps: TracedInt = 5
    """S, inner steps on each mini-batch (Tang et al.: 5)."""
    lam: float = 12.0
    """lambda, weight of the proximal term of theta around the context (Tang et al.:
    12).
    """
    gamma: float | None = None
    """Share of the way that the local context goes to theta after each mini-batch; None
    = eta lambda, as pFedMe does. Read literally, the paper's step is 2 beta / N with N
    clients: 0.00025 in its experiments."""
    alpha: float = 1.0
    """The server's step of contexts towards the means of their clusters (Tang et al.:
    1).
    """
    weights: Literal["samples", "uniform"] = "uniform"
    """Weights of the clients in the mean of their cluster: equal (the paper), or by
    training samples.
    """
    start: Literal["context", "personal"] = "context"
    """Where theta starts in a round: from the context received (as pFedMe), or from the
    client's theta of its last round.
    """

    def __post_init__(self) -> None:
        require_plain_sgd("cgpfl's inner steps", self.sgd)
        require(
            self.inner_steps >= 1,
            f"inner_steps is {self.inner_steps}; it must be 1 or more",
        )
        require(self.lam > 0, f"lam is {self.lam}; it must be above 0")
        require(self.alpha >= 0, f"alpha is {self.alpha}; it must be 0 or more")
        require_stable("lam", self.lam, self.sgd)
        gamma = self._gamma(self.sgd.lr)
        require(
            0 <= gamma < 2,
            f"gamma is {gamma:g}; it must be 0 or more and below 2 (at most 1 is"
            " usual)",
        )

    def _gamma(self, rate: Any) -> Any:
        """gamma at a learning rate eta, a number or traced."""
        return rate * self.lam if self.gamma is None else self.gamma

    def _number(
        self, models: Float[Array, "c d"], sizes: Real[np.ndarray, " c"]
    ) -> int:
        """K, the number of contexts.

        Args:
            models: the first models that clients send.
            sizes: their training samples, or the sums of these samples' weights [c].
        """
        raise NotImplementedError

    # on the server
    # ----------------------------------------------------------------------------------

    def init_server(self, init: Init, population: Population) -> ContextualState:
        return ContextualState(
            model=init(0)[None], context=np.full(len(population), -1)
        )

    def broadcast(self, server: ContextualState, cohort: Cohort) -> Downlink:
        context = server.context[cohort.position]
        if (server.context < 0).all():
            # Nobody has reported yet, so all contexts are the common initial model, and
            # every client is sent context 0.
            models = Streams.by_index(server.model, np.zeros_like(context))
        elif (context >= 0).all():
            models = Streams.by_index(server.model, context)
        else:
            # Clients that report for the first time choose among all contexts.
            recipients = _own_or_all(context, len(server.model))
            models = Streams(server.model, recipients)
        return Downlink({"model": models})

    def server(
        self,
        server: ContextualState,
        downlink: Downlink,
        answers: Answers,
        cohort: Cohort,
    ) -> ContextualState:
        rows = np.flatnonzero(cohort.reporting)
        if len(rows) == 0:
            return server
        local_models = answers["model"].take(rows)  # w_i of the reporters
        contexts = server.model  # omega_k
        context = server.context.copy()
        if (context < 0).all():
            # The first local models determine the number of contexts. All contexts start
            # from the common initial model.
            number = self._number(local_models, cohort.shares[rows])
            contexts = jnp.repeat(contexts[:1], number, axis=0)
        # Cluster the local models, and average each cluster. Fewer clients than contexts
        # may have reported.
        label = k_means_of_models(local_models, min(len(contexts), len(rows)))
        clusters = label.max() + 1
        share = reporter_weights(cohort, self.weights)[rows]
        weights = cluster_averages(label, clusters, share)
        # The rows of weights sum to 1, so `mix` returns the means of the clusters. It
        # uses only the shape of its first argument.
        means = mix(contexts[:clusters], local_models, weights)
        # The numbers of k-means clusters change from round to round, so each cluster is
        # matched with the context that is nearest to its mean.
        context_of_cluster = match(squared_distances(means, contexts))
        context[cohort.reporters] = context_of_cluster[label]
        # omega_k <- (1 - alpha) omega_k + alpha mean_k. The row of weights of context k
        # has the entry alpha at the cluster that is matched with it. Without such a
        # cluster it is a row of zeros, and `mix` leaves the context unchanged.
        is_matched = np.arange(len(contexts))[:, None] == context_of_cluster
        model = mix(contexts, means, self.alpha * is_matched)
        return server.replace(model=model, context=context)

    def serve(self, server: ContextualState, cohort: Cohort) -> Downlink:
        # Unseen clients choose among all contexts (`init_unseen`).
        if cohort.seen:
            return Downlink()
        return Downlink({"model": Streams.all_to_all(server.model, len(cohort))})

    def diagnostics(self, server: ContextualState) -> Sequence[Diagnostic]:
        reported = np.flatnonzero(server.context >= 0)
        return [
            LineDiagnostic(
                name="context",
                title="Context of each client",
                x=reported,
                y=server.context[reported],
                x_label="client",
                y_label="context",
            )
        ]

    # on the client
    # ----------------------------------------------------------------------------------

    def client(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> tuple[ClientState, ClientUpdate]:
        # A client that reports for the first time is sent all contexts and chooses the
        # one of lowest loss. The others are sent their own context only.
        choice, _ = closest(inbox["model"], inbox.received["model"], local)
        omega = inbox["model"][choice]
        # On each of the R batches: S steps of theta, then a step of w towards theta.
        start = state["model"] if self.start == "personal" else None
        gamma = self._gamma(self.sgd.rate(local.round))
        theta, w = envelope_steps(
            local, omega, self.sgd, self.inner_steps, self.lam, gamma, theta=start
        )
        return {"model": theta}, {"model": w}

    def init_unseen(self, inbox: Inbox, local: LocalTrainer) -> ClientState:
        # Inner steps around the context of lowest loss. The context does not change:
        # the last argument, gamma, is 0.
        choice, _ = closest(inbox["model"], inbox.received["model"], local)
        omega = inbox["model"][choice]
        theta, _ = envelope_steps(
            local, omega, self.sgd, self.inner_steps, self.lam, 0.0
        )
        return {"model": theta}


def _own_or_all(context: NDArray[np.int64], contexts: int) -> NDArray[np.int32]:
    """`Streams.recipients` [c, K]: each client's own context, or all if it has none.

    Args:
        context: the context of each client [c]; -1 = none yet.
        contexts: K, the number of contexts.
    """
    numbers = np.arange(contexts)
    is_own = context[:, None] == numbers
    has_none = context[:, None] < 0
    return np.where(is_own | has_none, numbers, NOT_SENT).astype(np.int32)


@hyperparameters
class CGPFL(Contextual):
    """Personalized federated learning with contextualized generalization.

    Tang et al. 2022, algorithm 1.

    The server keeps K context models omega_k and sends each client that of its own
    context. From w = omega, on each of R mini-batches,

        theta <- theta - eta ( g_i(theta) + lam (theta - w) )     S times on the same batch
        w <- w - gamma (w - theta)

    Clients store theta, their personal model, and send w. The server clusters the models
    w by k-means and moves each context towards the mean of its cluster:

        omega_k <- (1 - alpha) omega_k + alpha mean_{i in C_k} w_i

    With one context this is pFedMe.

    The numbers of k-means clusters change from round to round, so clusters are matched
    one to one with the contexts, at the least sum of squared distances. Clients that do
    not report keep their context. A client that reports for the first time in a later
    round receives all contexts and trains around the one with the lowest loss on its
    data. A client that never took part chooses a context in the same way and computes
    its theta around it.
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="cgpfl",
        paper=(
            "Tang et al. 2022, Personalized Federated Learning with Contextualized"
            " Generalization"
        ),
        down="1 model of its context",
        up="1 model",
        client_keeps="its personal model",
        unseen_clients_get=(
            "all contexts, of which it takes the one of lowest loss; then inner steps"
        ),
        models_received="one of several",
    )

    contexts: int = 4
    """K, the number of contexts (Tang et al.: 4)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.contexts >= 1, f"contexts is {self.contexts}; it must be 1 or more"
        )

    def check(self, population: Population) -> None:
        require(
            self.contexts <= population.reporters_per_round,
            f"{population.reporters_per_round} clients report in a round, too few for"
            f" {self.contexts} contexts; ask for fewer",
        )

    def init_server(self, init: Init, population: Population) -> ContextualState:
        server = super().init_server(init, population)
        return server.replace(model=jnp.repeat(server.model, self.contexts, axis=0))

    def _number(
        self, models: Float[Array, "c d"], sizes: Real[np.ndarray, " c"]
    ) -> int:
        return self.contexts

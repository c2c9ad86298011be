"""CGPFL: personal models pulled towards the model of a context, a cluster of clients
that is found anew every round.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from fedtailor.aggregation import cluster_averages, mix, reporter_weights
from fedtailor.aggregation.clusters import k_means_of_models, match
from fedtailor.aggregation.distances import squared_distances
from fedtailor.algorithms.fedprox import require_stable
from fedtailor.algorithms.helpers.envelope import envelope_steps
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
    ServerState,
    Streams,
    TracedInt,
    hyperparameters,
    is_off,
    require,
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
class Contextual(Algorithm):
    """What CGPFL and CGPFL-Heur share: everything but the number of contexts. See
    `CGPFL`.
    """

    sgd: SGD = SGD(lr=0.005, steps=10, batch_size=20)
    """Inner steps: their rate eta, and the number R of mini-batches in a round (Tang et
    al.: rate 0.005, R = 10; for CIFAR-10 rate 0.03)."""
    inner_steps: TracedInt = 5
    """S, inner steps on each mini-batch (Tang et al.: 5)."""
    lam: float = 12.0
    """lambda, strength of the pull of theta towards the context (Tang et al.: 12)."""
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
    """Where theta starts in a round: from the context received (as pFedMe), or where it
    ended the last time.
    """

    def __post_init__(self) -> None:
        require(
            self.start in ("context", "personal"),
            f"start is {self.start!r}; it must be 'context' or 'personal'",
        )
        require(
            is_off(self.sgd.momentum) and self.sgd.optimizer is None,
            "cgpfl's inner steps are plain SGD; train without momentum and without an"
            " optimizer",
        )
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
        """gamma at a learning rate: a number of a number, traced of a traced one."""
        return rate * self.lam if self.gamma is None else self.gamma

    def _number(self, models: Float[Array, "c d"], sizes: NDArray[np.int64]) -> int:
        """How many contexts there are, from the first uploads and the clients' training
        samples.
        """
        raise NotImplementedError

    # on the server
    # ----------------------------------------------------------------------------------

    def init_server(self, init: Init, population: Population) -> ContextualState:
        return ContextualState(
            model=init(0)[None], context=np.full(len(population), -1)
        )

    def broadcast(self, server: ContextualState, cohort: Cohort) -> Downlink:
        # Three cases: nobody has a context yet, all clients of the cohort have one, or
        # some come for the first time.
        context = server.context[cohort.position].astype(np.int32)
        if (server.context < 0).all():
            # nobody has reported, and all contexts are still the common initial model
            return Downlink(
                {"model": Streams(server.model, np.zeros((len(cohort), 1), np.int32))}
            )
        if (context >= 0).all():
            return Downlink({"model": Streams(server.model, context[:, None])})
        # clients that report for the first time choose among all contexts, as they
        # would to be served
        numbers = np.arange(len(server.model), dtype=np.int32)
        return Downlink({"model": Streams(server.model, _own_or_all(context, numbers))})

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
        uploads = answers["model"].take(rows)
        contexts = server.model
        context = server.context.copy()
        if (context < 0).all():
            # The first uploads: until now all contexts were one model, and only now is
            # there anything to count them by.
            number = self._number(uploads, cohort.sizes[rows])
            contexts = jnp.repeat(contexts[:1], number, axis=0)
        # cluster what was received, and find out which context each cluster goes on
        # from
        label = k_means_of_models(uploads, len(contexts))
        clusters = label.max() + 1
        share = reporter_weights(cohort, self.weights)[rows]
        means = mix(
            contexts[:clusters], uploads, cluster_averages(label, clusters, share)
        )
        # k-means numbers its clusters anew in every round: a context goes on as the
        # cluster that is nearest to it.
        continued = match(squared_distances(means, contexts))
        context[cohort.reporters] = continued[label]
        # omega_k <- (1 - alpha) omega_k + alpha times the mean of its cluster, for
        # every context that is continued; a row of zeros leaves the others as they are
        moves = self.alpha * (np.arange(len(contexts))[:, None] == continued)
        return server.replace(model=mix(contexts, means, moves), context=context)

    def serve(self, server: ContextualState, cohort: Cohort) -> Downlink:
        return (
            Downlink()
            if cohort.seen
            else Downlink({"model": Streams.all_to_all(server.model, len(cohort))})
        )

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

    def init_client(self, theta: Float[Array, " d"]) -> ClientState:
        return {"model": theta}

    def client(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> tuple[ClientState, ClientUpdate]:
        # As a rule one context was received. A client that reports for the first time
        # was sent all, and chooses by its loss.
        choice, _ = closest(inbox["model"], inbox.received["model"], local)
        start = state["model"] if self.start == "personal" else None
        share = self._gamma(self.sgd.rate(local.round))
        omega = inbox["model"][choice]
        # Algorithm 1's local part: on each of R batches S inner steps of theta, and a
        # step of w towards it.
        theta, w = envelope_steps(
            local, omega, self.sgd, self.inner_steps, self.lam, share, theta=start
        )
        return {"model": theta}, {"model": w}

    def personal(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> Predictor:
        return state["model"]

    def init_unseen(self, inbox: Inbox, local: LocalTrainer) -> ClientState:
        # inner solves around the nearest context, which stays where it is
        choice, _ = closest(inbox["model"], inbox.received["model"], local)
        omega = inbox["model"][choice]
        theta, _ = envelope_steps(
            local, omega, self.sgd, self.inner_steps, self.lam, 0.0
        )
        return {"model": theta}


def _own_or_all(
    context: NDArray[np.int32], numbers: NDArray[np.int32]
) -> NDArray[np.int32]:
    """Who is sent which contexts: its own where a client has one, else all.

    Args:
        context: the context of each client [c]; -1 = it has none.
        numbers: of all contexts [K].

    Returns:
        Recipients [c, K] as `Streams` takes them.
    """
    own = (context[:, None] == numbers) | (context < 0)[:, None]
    return np.where(own, numbers, -1).astype(np.int32)


@hyperparameters
class CGPFL(Contextual):
    """Personalized federated learning with contextualized generalization (Tang et al.
    2022, algorithm 1).

    The server keeps K context models omega_k and sends each client that of its own
    context. From w = omega, on each of R mini-batches,

        theta <- theta - eta ( g_i(theta) + lam (theta - w) )     S times on the same batch
        w <- w - gamma (w - theta)

    Clients keep theta, their personal model, and send w. The server clusters what it
    receives by k-means and moves each context towards the mean of its cluster:  omega_k
    <- (1 - alpha) omega_k + alpha mean_{i in C_k} w_i. With one context this is pFedMe.

    Clusters of a round are matched with the contexts nearest to them at the least total
    cost, so that contexts keep their identity where alpha < 1 or where clients are
    absent (those keep their context). A client that reports for the first time when
    there are contexts already is sent all of them and trains around the one with the
    lowest loss on its data. One that never took part chooses likewise, and finds its
    theta around that context.
    """

    about: ClassVar[About] = About(
        name="cgpfl",
        paper=(
            "Tang et al. 2022, Personalized Federated Learning with Contextualized"
            " Generalization"
        ),
        down="1 model of its context",
        up="1 model",
        keeps="its personal model",
        unseen=(
            "all contexts, of which it takes the one of lowest loss; then inner steps"
        ),
        travels="one of several",
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

    def _number(self, models: Float[Array, "c d"], sizes: NDArray[np.int64]) -> int:
        return self.contexts

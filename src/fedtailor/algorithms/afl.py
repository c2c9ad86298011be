"""AFL: one model for the worst mixture of clients."""

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.aggregation import mix, weighted_sums
from fedtailor.aggregation.simplex import project_onto_simplex
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
    ServerState,
    Streams,
    hyperparameters,
    server_state,
)


@server_state
class AFLState(ServerState):
    """The iterates of model and mixture."""

    model: Float[Array, "1 d"]
    """w, the last iterate. The leading axis counts the server's models."""
    average: Float[Array, "1 d"]
    """The average of all iterates so far."""
    rounds: int
    """The number of iterates in that average."""
    mixture: Float[np.ndarray, " m"]
    """lambda, a point of the simplex."""
    shares: Float[np.ndarray, " m"]
    """p, the clients' shares of all training samples."""

    @property
    def skewness(self) -> float:
        """s(lambda), see the function `mixture_skewness`."""
        return mixture_skewness(self.mixture, self.shares)


@hyperparameters
class AFL(Algorithm):
    """Agnostic federated learning.

    Mohri et al. 2019, algorithm 1; Mansour et al. 2020, appendix B.

    A saddle point of the loss over all mixtures lambda of the clients,  min_w max_lambda sum_k lambda_k F_k(w):

        w      <- w - gamma_w sum_k lambda_k grad F_k(w)
        lambda <- projection onto the simplex of  lambda + gamma_l (F_1(w), ..., F_m(w))

    Both steps use the old w and lambda. The result is the average of all iterates w,
    because the last one cycles. When only some clients report, their terms are
    multiplied by m / |S|, which makes both steps unbiased. With `update="model"`,
    weights whose sum exceeds 1 are scaled to sum 1, so that w moves no further than to
    the mean of the reporters' models.

    The server's state has the skewness s(lambda) = sum_k lambda_k^2 / p_k, p_k = n_k /
    N, of the generalization bound. It is 1 for lambda = p, and larger if the mixture
    relies on clients with few samples.
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="afl",
        paper="Mohri, Sivek and Suresh 2019, Agnostic Federated Learning",
        down="1 model",
        up="1 gradient (or model) and its loss",
        client_keeps="nothing",
        unseen_clients_get="the averaged global model",
        server_sees="sums, numbers",
    )

    lr: float = 0.1
    """Rate gamma_w of the model (Li et al. 2020, released code of q-FFL, whose AFL runs
    with 0.1).
    """
    lambda_lr: float = 0.1
    """Rate gamma_l of the mixture; 0 = lambda is fixed (same source: 0.1)."""
    initial: Literal["uniform", "samples"] = "uniform"
    """The first lambda: 1/m for every client, or p_k by training samples."""
    update: Literal["gradient", "model"] = "gradient"
    """What a client sends: its full gradient at w (the paper), or w after training by
    `sgd`. In that case w moves towards the clients' models with weights lambda, and
    `lr` is not used."""
    sgd: SGD = SGD(lr=0.1)
    """Local training, for `update="model"`."""
    average: bool = True
    """Serve the average of all iterates, or else the last one."""

    def __post_init__(self) -> None:
        require(self.lr > 0, f"lr is {self.lr}; it must be above 0")
        require(
            self.lambda_lr >= 0,
            f"lambda_lr is {self.lambda_lr}; it must be 0 (fixed mixture) or more",
        )

    def init_server(self, init: Init, population: Population) -> AFLState:
        shares = population.shares / population.shares.sum()
        clients = len(population)
        mixture = shares if self.initial == "samples" else np.full(clients, 1 / clients)
        theta = init(0)[None]
        return AFLState(
            model=theta, average=theta, rounds=0, mixture=mixture, shares=shares
        )

    def broadcast(self, server: AFLState, cohort: Cohort) -> Downlink:
        return Downlink({"model": Streams.everyone(server.model, len(cohort))})

    def client(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> tuple[ClientState, ClientUpdate]:
        theta = inbox.only("model")
        # F_k(w) for the received w, because both steps of a round use the old w.
        loss = local.loss(theta)
        if self.update == "model":
            return state, {"model": local.sgd(theta, self.sgd), "loss": loss}
        return state, {"gradient": local.gradient(theta), "loss": loss}

    def server(
        self, server: AFLState, downlink: Downlink, answers: Answers, cohort: Cohort
    ) -> AFLState:
        if not cohort.reporting.any():
            return server
        mixture, theta = server.mixture, server.model
        # The factor m / |S| makes the expectation of a sum over the reporters equal to
        # the sum over all clients.
        scale = cohort.reporting * len(mixture) / cohort.reporting.sum()
        weights = (mixture[cohort.position] * scale)[None]  # [1, c]
        # Primal step: w <- w - gamma_w sum_k lambda_k grad F_k(w)
        if self.update == "gradient":
            gradient = weighted_sums(answers["gradient"], weights)  # [1, d]
            theta = theta - self.lr * gradient
        else:
            # w <- w + sum_k lambda_k (w_k - w), which `mix` computes. With weights
            # whose sum exceeds 1, w would move beyond the mean of the clients' models.
            total = round(weights.sum(), 12)
            theta = mix(theta, answers["model"], weights / max(1.0, total))
        # Dual step: lambda <- projection of lambda + gamma_l (F_1(w), ..., F_m(w)),
        # with the losses at the old w, and 0 for clients that do not report.
        losses = np.zeros(len(mixture))
        sent_losses = answers.host("loss").astype(np.float64)  # a NumPy array [c]
        losses[cohort.position] = np.where(cohort.reporting, sent_losses, 0) * scale
        mixture = project_onto_simplex(mixture + self.lambda_lr * losses)
        # The output of algorithm 1, (1/T) sum_t w_t, as a running mean
        rounds = server.rounds + 1
        average = server.average + (theta - server.average) / rounds
        return server.replace(
            model=theta, average=average, rounds=rounds, mixture=mixture
        )

    def serve(self, server: AFLState, cohort: Cohort) -> Downlink:
        return Downlink(
            {"model": Streams.everyone(self.global_model(server), len(cohort))}
        )

    def global_model(self, server: AFLState) -> Float[Array, " d"]:
        return (server.average if self.average else server.model)[0]

    def diagnostics(self, server: AFLState) -> Sequence[Diagnostic]:
        clients = np.arange(len(server.mixture))
        title = f"The worst mixture of clients (skewness {server.skewness:.3g})"
        return [
            LineDiagnostic(
                "mixture", title, clients, server.mixture, "client", "lambda"
            )
        ]


def mixture_skewness(
    mixture: NDArray[np.floating], shares: NDArray[np.floating]
) -> float:
    """How far a mixture departs from the clients' shares of samples.

    s(lambda) of Mansour et al. 2020, appendix B.

    Args:
        mixture: lambda [m], which sums to 1.
        shares: p [m], the clients' shares of all training samples.

    Returns:
        s(lambda) = sum_k lambda_k^2 / p_k, 1 or more; 1 where lambda = p.
    """
    return float(np.sum(np.square(mixture) / shares))

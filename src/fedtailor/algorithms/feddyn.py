"""FedDyn: FedAvg with dynamic regularization, whose fixed point is the minimum."""

from typing import ClassVar, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Real

from fedtailor._base.choice import require
from fedtailor.aggregation import mix, reporter_weights
from fedtailor.algorithms.helpers.own_steps import why_sums_show_clients
from fedtailor.algorithms.helpers.proximal import require_stable
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
    Population,
    ServerState,
    Streams,
    hyperparameters,
    server_state,
)


@server_state
class FedDynState(ServerState):
    """The global model, and the mean of the clients' linear terms."""

    model: Float[Array, "1 d"]
    """The global model theta. The leading axis counts the server's models."""
    drift: Float[Array, "1 d"]
    """c, the mean of all clients' linear terms -g_i, in the shape of `model`."""
    clients: int
    """m, the number of clients in the population."""


@hyperparameters
class FedDyn(Algorithm):
    """Federated learning with dynamic regularization (Acar et al. 2021, algorithm 1).

    Each client stores g_i, an estimate of its gradient at the global model, which is
    zero at first. With theta the received model,

        theta_i = SGD(theta; F_i(w) - <g_i, w> + alpha/2 |w - theta|^2),    g_i <- g_i - alpha (theta_i - theta)

    and the server, for all m clients and the reporters S,

        c <- c - (alpha / m) sum_S (theta_i - theta),    theta <- mean_S theta_i - c / alpha

    If the local problems are solved exactly, g_i is the gradient of F_i at theta_i, and
    the fixed point is the minimum of the mean of the F_i, for any differences between
    clients. Averages are uniform, because the objective is the mean over clients.

    The released code minimizes the mean over all samples instead: client i with the
    share q_i of the samples has alpha / (m q_i) instead of alpha. `weights="samples"`
    does that; its fixed point is the minimum of sum_i q_i F_i.
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="feddyn",
        paper="Acar et al. 2021, Federated Learning Based on Dynamic Regularization",
        down="1 model",
        up="1 model",
        client_keeps="its linear term",
        unseen_clients_get="the global model",
        server_sees="sums",
    )

    sgd: SGD = SGD(lr=0.1, epochs=5, batch_size=50)
    """Local training (Acar et al.: rate 0.1, 5 epochs, batch 50)."""
    alpha: float = 0.01
    """Strength of the regularizer (Acar et al. choose among 0.001, 0.01, 0.1; 0.01 most
    often).
    """
    weights: Literal["uniform", "samples"] = "uniform"
    """Whether every client counts the same in the objective, or every sample (released
    code)."""

    @property
    def sums_show_clients(self) -> str:
        # A client's state is its change, and changes the next one by its number of steps,
        # and by its strength.
        if self.weights == "samples":
            return (
                "what they send next is about their change by their number of rows, so that"
                " two sums show one of them: say weights = 'uniform'"
            )
        return why_sums_show_clients(self.sgd)

    def __post_init__(self) -> None:
        require(
            self.alpha > 0,
            f"alpha is {self.alpha}; it must be above 0 (fedavg is the method"
            " without it)",
        )
        require_stable("alpha", self.alpha, self.sgd)

    def check(self, population: Population) -> None:
        if self.weights == "samples":
            largest = float(self._strengths(population.shares, population.shares).max())
            require_stable(
                "alpha / (m q_i), for the fewest samples,", largest, self.sgd
            )

    def _strengths(
        self, sizes: Real[np.ndarray, " c"], all_sizes: Real[np.ndarray, " m"]
    ) -> Float[np.ndarray, " c"]:
        """alpha / (m q_i) of clients with these numbers of samples."""
        return self.alpha * np.mean(all_sizes) / np.asarray(sizes, np.float64)

    def init_server(self, init: Init, population: Population) -> FedDynState:
        theta = init(0)[None]
        return FedDynState(theta, jnp.zeros_like(theta), len(population))

    def init_client(self, theta: Float[Array, " d"]) -> ClientState:
        return {"gradient": jnp.zeros_like(theta)}

    @property
    def sent_to_each(self) -> frozenset[str]:
        return frozenset({"alpha"} if self.weights != "uniform" else ())

    def broadcast(self, server: FedDynState, cohort: Cohort) -> Downlink:
        streams = {"model": Streams.everyone(server.model, len(cohort))}
        if self.weights == "uniform" or not cohort.seen:
            return Downlink(streams)
        sizes = cohort.clients.shares
        strengths = self._strengths(sizes[cohort.rows], sizes)
        return Downlink(streams, scalars={"alpha": strengths})

    def client(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> tuple[ClientState, ClientUpdate]:
        # The loss has two more terms: -<g_i, w>, whose gradient is -g_i, and
        # alpha/2 |w - theta|^2, the proximal term.
        theta, g = inbox.only("model"), state["gradient"]
        is_uniform = self.weights == "uniform"
        alpha = self.alpha if is_uniform else inbox.scalars["alpha"]
        trained = local.sgd(theta, self.sgd, proximal=(alpha, theta), linear_term=-g)
        # c is the mean of all -g_i (of all -m q_i g_i, weighted by samples). If the
        # server does not use this client's answer (`reply` is False), c does not
        # change, so g_i must not change either.
        new = g - alpha * (trained - theta)
        return {"gradient": jnp.where(inbox.reply, new, g)}, {"model": trained}

    def server(
        self, server: FedDynState, downlink: Downlink, answers: Answers, cohort: Cohort
    ) -> FedDynState:
        reporters = int(cohort.reporting.sum())
        if not reporters:
            return server
        # One row of weights [1, c] that sums to 1: `mix` returns mean_S theta_i.
        weights = reporter_weights(cohort, "uniform")[None]
        average = mix(server.model, answers["model"], weights)
        # c <- c - (alpha / m) sum_S (theta_i - theta). The sum is |S| (average - theta).
        share = reporters / server.clients
        drift = server.drift - self.alpha * share * (average - server.model)
        model = average - drift / self.alpha
        if cohort.is_statistic is not None:
            model = jnp.where(cohort.is_statistic, average, model)
        return server.replace(model=model, drift=drift)

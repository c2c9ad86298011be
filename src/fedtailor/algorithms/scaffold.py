"""SCAFFOLD: FedAvg with control variates against client drift."""

from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fedtailor._base.choice import require
from fedtailor.aggregation import mix, reporter_weights, weighted_sums
from fedtailor.algorithms.helpers.own_steps import (
    require_no_clip,
    why_sums_show_clients,
)
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
    ModelParts,
    Population,
    ServerState,
    Streams,
    hyperparameters,
    is_off,
    server_state,
)


@server_state
class SCAFFOLDState(ServerState):
    """The global model and the mean of the clients' control variates."""

    model: Float[Array, "1 d"]
    """The global model x. The leading axis counts the server's models."""
    control: Float[Array, " d"]
    """c, the mean of all clients' control variates, a single vector."""
    share: Float[np.ndarray, " m"]
    """The weight of each client in that mean. The weights sum to 1."""


@hyperparameters
class SCAFFOLD(Algorithm):
    """Stochastic controlled averaging (Karimireddy et al. 2020, algorithm 1).

    A client corrects its gradients by c - c_i, where c is the server's control variate
    and c_i is its own. All are zero at first. In a round, client i takes K_i steps from
    y = x and computes its new control variate c_i+:

        y    <- y - eta ( g_i(y) - c_i + c )
        c_i+ =  grad F_i(x)                        (option I)
        c_i+ =  c_i - c + (x - y) / (K_i eta)      (option II)
        c_i  <- c_i+

    The server averages over S, the clients that report, out of all m clients:

        x <- x + server_lr (1/|S|) sum_S (y_i - x)
        c <- c + (1/m) sum_S (c_i+ - c_i)

    Therefore c is the mean of the control variates of all m clients, and the fixed
    point is the minimum of the mean loss for any K_i. Option II divides by the number
    of steps of the client times their learning rate, which is constant within a round.
    There is no such factor for momentum or other optimisers, so SCAFFOLD needs plain
    SGD.
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="scaffold",
        paper=(
            "Karimireddy et al. 2020, SCAFFOLD: Stochastic Controlled Averaging for"
            " Federated Learning"
        ),
        down="1 model and 1 control",
        up="1 model and 1 control",
        client_keeps="its control",
        unseen_clients_get="the global model",
        server_sees="sums",
    )

    sgd: SGD = SGD(lr=0.01, epochs=5)
    """Local training, without momentum (Mestoukirdi et al. 2021 run it at rate 0.01 for
    5 epochs).
    """
    option: Literal["I", "II"] = "II"
    """The new control variate: the gradient at x, which takes another pass over the
    data (I), or the mean gradient of the local steps (II).
    """
    server_lr: float = 1.0
    """Server learning rate (eta_g)."""
    weights: Literal["samples", "uniform"] = "uniform"
    """Weights of the clients in both averages: equal (the paper), or by training
    samples n_i.
    """

    def __post_init__(self) -> None:
        require(
            self.server_lr > 0, f"server_lr is {self.server_lr}; it must be above 0"
        )
        require(
            is_off(self.sgd.momentum) and self.sgd.optimizer is None,
            "scaffold's controls are defined for plain SGD only; train without momentum"
            " and without an optimizer",
        )
        require_no_clip("scaffold's steps", self.sgd)
        steps = self.sgd.epochs if self.sgd.steps is None else self.sgd.steps
        require(
            steps >= 1,
            "scaffold divides by the number of local steps; ask for 1 epoch or step at"
            " least",
        )

    @property
    def sums_show_clients(self) -> str:
        return why_sums_show_clients(self.sgd)

    def numbers_per_round(self, model: ModelParts) -> int:
        return 2 * model.size

    def init_server(self, init: Init, population: Population) -> SCAFFOLDState:
        theta = init(0)
        uniform = self.weights == "uniform"
        share = np.ones(len(population)) if uniform else population.shares
        # theta[None] is [1, d]: the server holds one model.
        return SCAFFOLDState(theta[None], jnp.zeros_like(theta), share / share.sum())

    def init_client(self, theta: Float[Array, " d"]) -> ClientState:
        return {"control": jnp.zeros_like(theta)}

    def broadcast(self, server: SCAFFOLDState, cohort: Cohort) -> Downlink:
        model = Streams.everyone(server.model, len(cohort))
        control = Streams.everyone(server.control, len(cohort))
        return Downlink({"model": model, "control": control})

    def client(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> tuple[ClientState, ClientUpdate]:
        x = inbox.only("model")
        server_control = inbox.only("control")
        client_control = state["control"]
        # y <- y - eta ( g_i(y) - c_i + c )
        y = local.sgd(x, self.sgd, linear_term=server_control - client_control)
        # c_i+, by option I or II
        if self.option == "I":
            new_control = local.gradient(x)
        else:
            # K_i eta: the number of steps of this client, times the rate of this round
            steps_times_rate = local.steps(self.sgd) * self.sgd.rate(local.round)
            new_control = client_control - server_control + (x - y) / steps_times_rate
        # c is the mean of all c_i. If the server does not use this client's answer
        # (`reply` is False), c does not change, so c_i must not change either.
        kept_control = jnp.where(inbox.reply, new_control, client_control)
        update = {"model": y, "control": new_control - client_control}
        return {"control": kept_control}, update

    def server(
        self,
        server: SCAFFOLDState,
        downlink: Downlink,
        answers: Answers,
        cohort: Cohort,
    ) -> SCAFFOLDState:
        # x <- x + server_lr (1/|S|) sum_S (y_i - x). This is x + sum_i w_i (y_i - x),
        # which `mix` computes, with w_i = server_lr / |S| for reporters. The weights
        # are one row [1, c] for the server's one model.
        weights = self.server_lr * reporter_weights(cohort, self.weights)[None]
        model = mix(server.model, answers["model"], weights)
        if cohort.is_statistic is not None and self.server_lr != 1:
            weights = reporter_weights(cohort, self.weights)[None]
            average = mix(server.model, answers["model"], weights)
            model = jnp.where(cohort.is_statistic, average, model)
        # c <- c + (1/m) sum_S (c_i+ - c_i), with 0 for clients that do not report
        share = np.where(cohort.reporting, server.share[cohort.position], 0.0)
        # One row of weights [1, c] gives one sum [1, d].
        change = weighted_sums(answers["control"], share[None])
        return server.replace(model=model, control=_moved(server.control, change))

    def serve(self, server: SCAFFOLDState, cohort: Cohort) -> Downlink:
        # Predictions need the model only, not the control variate.
        return Downlink({"model": Streams.everyone(server.model, len(cohort))})


@jax.jit
def _moved(control: Float[Array, " d"], change: Float[Array, "1 d"]) -> Array:
    """The sum of both, in one program: each operation of the server takes time."""
    return control + change[0]

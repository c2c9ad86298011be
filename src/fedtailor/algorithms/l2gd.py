"""L2GD: local steps and averaging steps, by the toss of a coin."""

from typing import Any, ClassVar, Literal

import jax.numpy as jnp
from jaxtyping import Array, Float

from fedtailor.aggregation import mix, reporter_weights
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
    Predictor,
    ServerState,
    Streams,
    hyperparameters,
    require,
    server_rng,
    server_state,
)


@server_state
class L2GDState(ServerState):
    """The clients' mean, and the number of rounds."""

    model: Float[Array, "1 d"]
    """xbar, the mean of the models that clients sent last."""
    rounds: int
    """Number of rounds so far."""
    local_rounds: int
    """Number of those rounds in which the clients trained."""


@hyperparameters
class L2GD(Algorithm):
    """Loopless local gradient descent for a mixture of local and global models.

    Hanzely and Richtarik 2020.

    Minimises over personal models x_i

        (1/m) sum_i f_i(x_i) + lam/(2m) sum_i |x_i - xbar|^2

    A random draw decides for all clients at once what a round is:

        with probability 1-p    x_i <- x_i - eta g_i(x_i)
        with probability p      x_i <- (1 - tau) x_i + tau xbar,    tau = eta lam (1-p) / p

    In the paper's letters eta is a / (m (1-p)) and tau is a lam / (m p) for a step size
    a: in expectation a round is a gradient step. Averaging steps do not change xbar, so
    models need to be sent only between a local and an averaging round: clients send
    theirs in a local round that an averaging round follows, and receive the mean in
    that averaging round. The draws can be computed ahead of time (`_averages`).

    All clients take every step; when only some report, their mean takes the place of
    xbar. A client that never took part starts from xbar and minimises its own f(x) +
    lam/2 |x - xbar|^2 in as many local rounds as the others did, with a fresh optimiser
    in each and with the learning rates of rounds that are spread evenly over the run.
    """

    # What tables of methods say of this one; `About` explains the words.
    about: ClassVar[About] = About(
        name="l2gd",
        paper=(
            "Hanzely and Richtarik 2020, Federated Learning of a Mixture of Global and"
            " Local Models"
        ),
        down="1 model, in the first averaging round after a local one",
        up="1 model, in the last local round before an averaging one",
        client_keeps="its personal model (and the mean)",
        unseen_clients_get="proximal steps from the mean",
        server_sees="sums",
    )
    participants: ClassVar = "all"

    sgd: SGD = SGD(lr=0.1, steps=1, batch_size=32)
    """What a local round is (the paper: one gradient step, of rate eta = a / (m
    (1-p))).
    """
    lam: float = 0.5
    """lambda, weight of the distance to the mean: 0 is training alone, infinity one
    global model.
    """
    p: float = 0.1
    """Probability of an averaging round, in (0, 1)."""
    weights: Literal["samples", "uniform"] = "uniform"
    """Weights of the mean: equal (the paper), or by training samples n_i."""

    def __post_init__(self) -> None:
        require(0 < self.p < 1, f"p is {self.p}; it must be above 0 and below 1")
        require(self.lam >= 0, f"lam is {self.lam}; it must be 0 or more")
        tau = self._tau(self.sgd.lr)
        require(
            tau <= 1,
            f"an averaging step would go {tau:g} of the way to the mean, beyond it:"
            " lower the learning rate or lam, or raise p, so that lr * lam * (1 - p) /"
            " p is at most 1",
        )

    def _tau(self, rate: Any) -> Any:
        """tau at a learning rate eta, a number or traced."""
        return rate * self.lam * (1 - self.p) / self.p

    def _averages(self, cohort: Cohort, ahead: int = 0) -> bool:
        """Whether this round, or one some rounds ahead, is an averaging round."""
        coin = server_rng(cohort.seed, "l2gd", cohort.round + ahead).random()
        return bool(coin < self.p)

    def init_server(self, init: Init, population: Population) -> L2GDState:
        # model [1, d]: the server holds one model
        return L2GDState(model=init(0)[None], rounds=0, local_rounds=0)

    def init_client(self, theta: Float[Array, " d"]) -> ClientState:
        return {"model": theta}

    def broadcast(self, server: L2GDState, cohort: Cohort) -> Downlink:
        if not self._averages(cohort):
            # The server needs the clients' models only if the next round averages.
            return Downlink(reply=self._averages(cohort, 1))
        # Averaging does not change the mean. So clients already have it if the last
        # round averaged, too; in round 0 it is the common initial model.
        held = server.rounds == 0 or self._averages(cohort, -1)
        return Downlink(
            {"model": Streams.everyone(server.model, len(cohort), already_held=held)},
            reply=False,
        )

    def client(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> tuple[ClientState, ClientUpdate]:
        x = state["model"]
        if "model" in inbox.values:  # an averaging round
            # x_i <- (1 - tau) x_i + tau xbar: the step of the penalty's gradient
            tau = self._tau(self.sgd.rate(local.round))
            x = (1 - tau) * x + tau * inbox.only("model")
        else:
            # x_i <- x_i - eta g_i(x_i): the step of the loss
            x = local.sgd(x, self.sgd)
        return {"model": x}, {"model": x}

    def server(
        self, server: L2GDState, downlink: Downlink, answers: Answers, cohort: Cohort
    ) -> L2GDState:
        # xbar is the mean of the clients' models, by one row of weights [1, c]. In a
        # round that asks for no reply all weights are 0, and `mix` returns the old xbar.
        weights = reporter_weights(cohort, self.weights)[None]
        model = mix(server.model, answers["model"], weights)
        is_local = not downlink.streams  # the mean travels in averaging rounds only
        return L2GDState(model, server.rounds + 1, server.local_rounds + is_local)

    def serve(self, server: L2GDState, cohort: Cohort) -> Downlink:
        # Clients that took part have their personal model and need nothing; the others
        # receive the mean to start from (`init_unseen`).
        if cohort.seen:
            return Downlink()
        mean = Streams.everyone(server.model, len(cohort))
        return Downlink(
            {"model": mean},
            scalars={"rounds": server.rounds, "local_rounds": server.local_rounds},
        )

    def personal(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> Predictor:
        return state["model"]

    def init_unseen(self, inbox: Inbox, local: LocalTrainer) -> ClientState:
        mean = inbox.only("model")
        rounds, local_rounds = inbox.scalars["rounds"], inbox.scalars["local_rounds"]
        first = local.round - rounds

        def train(k: Array, x: Float[Array, " d"]) -> Float[Array, " d"]:
            # The local rounds are spread evenly over all rounds; each has the learning
            # rate of its round.
            spread = k * rounds // jnp.maximum(local_rounds, 1)
            in_round = local.in_round(first + spread)
            # A stronger pull would overshoot the mean in one step.
            strength = jnp.minimum(self.lam, 1 / self.sgd.rate(in_round.round))
            return in_round.sgd(x, self.sgd, proximal=(strength, mean))

        return {"model": local.fori_loop(local_rounds, train, mean)}

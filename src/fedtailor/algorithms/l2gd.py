"""L2GD: local steps and averaging steps, by the toss of a coin."""

from typing import Any, ClassVar, Literal

import jax.numpy as jnp
from jaxtyping import Array, Float

from fedtailor._base.choice import require
from fedtailor.aggregation import mix, reporter_weights
from fedtailor.algorithms.helpers.own_steps import why_sums_show_clients
from fedtailor.algorithms.helpers.personal_model import PersonalModelAlgorithm
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
    Population,
    ServerState,
    Streams,
    hyperparameters,
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
class L2GD(PersonalModelAlgorithm):
    """Loopless local gradient descent for a mixture of local and global models.

    Hanzely and Richtarik 2020.

    Minimises over personal models x_i

        (1/m) sum_i f_i(x_i) + lam/(2m) sum_i |x_i - xbar|^2

    A random draw decides for all clients at once what a round is:

        with probability 1-p    x_i <- x_i - eta g_i(x_i)
        with probability p      x_i <- (1 - tau) x_i + tau xbar,    tau = eta lam (1-p) / p

    In the paper's letters eta is a / (m (1-p)) and tau is a lam / (m p) for a step size
    a: in expectation a round is a gradient step. Averaging steps do not change xbar, so
    models are sent only where an averaging round follows a local one: clients send
    their models in the local round, and receive the mean in the averaging round. The
    draw of any round can be computed in advance (`_is_averaging`).

    All clients take every step. When only some report, xbar is the mean of their
    models. A client that never took part starts from xbar and minimises f(x) + lam/2 |x
    - xbar|^2 in as many local rounds as the others did, with a new optimiser in each
    and with the learning rates of rounds that are spread evenly over the run.
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
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

    @property
    def sums_show_clients(self) -> str:
        # What it sends is its own model, which it goes on to train.
        return why_sums_show_clients(self.sgd)

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

    def _is_averaging(self, cohort: Cohort, offset: int = 0) -> bool:
        """Whether the round `offset` rounds after this one is an averaging round."""
        uniform = server_rng(cohort.seed, "l2gd", cohort.round + offset).random()
        return bool(uniform < self.p)

    def init_server(self, init: Init, population: Population) -> L2GDState:
        # model [1, d]: the server holds one model
        return L2GDState(model=init(0)[None], rounds=0, local_rounds=0)

    def broadcast(self, server: L2GDState, cohort: Cohort) -> Downlink:
        if not self._is_averaging(cohort):
            # The server needs the clients' models only if the next round averages.
            return Downlink(reply=self._is_averaging(cohort, offset=1))
        # An averaging step does not change the mean, so clients already hold it after
        # an averaging round. In round 0 it is the common initial model.
        already_held = server.rounds == 0 or self._is_averaging(cohort, offset=-1)
        mean = Streams.everyone(server.model, len(cohort), already_held)
        return Downlink({"model": mean}, reply=False)

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
        # `mix` with one row of weights [1, c] returns xbar, the mean of the clients'
        # models. In a round without replies all weights are 0, and xbar is unchanged.
        weights = reporter_weights(cohort, self.weights)[None]
        model = mix(server.model, answers["model"], weights)
        is_local = not downlink.streams  # the mean is sent in averaging rounds only
        return L2GDState(model, server.rounds + 1, server.local_rounds + is_local)

    def serve(self, server: L2GDState, cohort: Cohort) -> Downlink:
        if cohort.seen:
            return Downlink()
        mean = Streams.everyone(server.model, len(cohort))
        return Downlink(
            {"model": mean},
            scalars={"rounds": server.rounds, "local_rounds": server.local_rounds},
        )

    def init_unseen(self, inbox: Inbox, local: LocalTrainer) -> ClientState:
        mean = inbox.only("model")
        rounds, local_rounds = inbox.scalars["rounds"], inbox.scalars["local_rounds"]
        first = local.round - rounds

        def train(k: Array, x: Float[Array, " d"]) -> Float[Array, " d"]:
            # The local rounds are spread evenly over all rounds; each has the learning
            # rate of its round.
            spread = k * rounds // jnp.maximum(local_rounds, 1)
            in_round = local.in_round(first + spread)
            # With a larger weight a step would overshoot the mean.
            strength = jnp.minimum(self.lam, 1 / self.sgd.rate(in_round.round))
            return in_round.sgd(x, self.sgd, proximal=(strength, mean))

        return {"model": local.fori_loop(local_rounds, train, mean)}

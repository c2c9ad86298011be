"""Local: every client alone."""

from typing import ClassVar

from jaxtyping import Array, Float

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
    server_state,
)


@server_state
class LocalState(ServerState):
    """What a client that arrives later must know."""

    initial: Float[Array, " d"]
    """The model that all clients started from."""
    rounds: int
    """Rounds done since then."""


@hyperparameters
class Local(Algorithm):
    """Training alone, the reference point of personalization: nothing travels.

    All clients train in every round, whoever reports (otherwise sampled clients would
    be under-trained):

        w_i <- SGD(w_i; D_i),   w_i = theta^0 at the start

    A client that never took part makes up for all rounds at once, one after another as
    the others did: with each round's learning rate, and a fresh optimiser in each.
    """

    # What tables of methods say of this one; `About` explains the words.
    about: ClassVar[About] = About(
        name="local",
        paper="no federation (baseline of all five papers)",
        down="nothing",
        up="nothing",
        client_keeps="its model",
        unseen_clients_get="trains alone in as many rounds as the others did",
        models_received="nothing",
        server_sees="nothing",
    )
    participants: ClassVar = "all"

    sgd: SGD = SGD()
    """Local training."""

    def init_server(self, init: Init, population: Population) -> LocalState:
        return LocalState(initial=init(0), rounds=0)

    def broadcast(self, server: LocalState, cohort: Cohort) -> Downlink:
        return Downlink()

    def server(
        self, server: LocalState, downlink: Downlink, answers: Answers, cohort: Cohort
    ) -> LocalState:
        return server.replace(rounds=server.rounds + 1)

    def serve(self, server: LocalState, cohort: Cohort) -> Downlink:
        # Clients that took part have their model and need nothing.
        if cohort.seen:
            return Downlink()
        # A new client needs theta^0. It can compute that from the run's seed, so the
        # ledger charges nothing (`already_held`).
        start = Streams.everyone(server.initial, len(cohort), already_held=True)
        return Downlink({"model": start}, scalars={"rounds": server.rounds})

    def init_client(self, theta: Float[Array, " d"]) -> ClientState:
        return {"model": theta}

    def client(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> tuple[ClientState, ClientUpdate]:
        return {"model": local.sgd(state["model"], self.sgd)}, {}

    def personal(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> Predictor:
        return state["model"]

    def init_unseen(self, inbox: Inbox, local: LocalTrainer) -> ClientState:
        rounds = inbox.scalars["rounds"]
        first = local.round - rounds

        # Round by round, as the others trained: each with its own learning rate,
        # batches and fresh optimiser.
        def train(k: Array, w: Float[Array, " d"]) -> Float[Array, " d"]:
            return local.in_round(first + k).sgd(w, self.sgd)

        return {"model": local.fori_loop(rounds, train, inbox.only("model"))}

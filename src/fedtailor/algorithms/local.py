"""Local: every client alone."""

from typing import ClassVar

from jaxtyping import Array, Float

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
class Local(PersonalModelAlgorithm):
    """Training alone, the reference point of personalization: nothing travels.

    All clients train in every round, also those that are not sampled; otherwise they
    would be trained less than under other methods.

        w_i <- SGD(w_i; D_i),   w_i = theta^0 at the start

    A client that never took part trains for all rounds at once, with the learning rate
    of each round and a new optimiser in each.
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="local",
        paper="no federation (baseline of all five papers)",
        down="nothing",
        up="nothing",
        client_keeps="its model",
        unseen_clients_get="trains alone in as many rounds as the others did",
        models_received="nothing",
        server_sees="nothing",
        in_common="nothing",
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
        if cohort.seen:
            return Downlink()
        # An unseen client starts from theta^0. It can compute theta^0 from the run's
        # seed, so the ledger counts nothing (`already_held`).
        start = Streams.everyone(server.initial, len(cohort), already_held=True)
        return Downlink({"model": start}, scalars={"rounds": server.rounds})

    def client(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> tuple[ClientState, ClientUpdate]:
        return {"model": local.sgd(state["model"], self.sgd)}, {}

    def init_unseen(self, inbox: Inbox, local: LocalTrainer) -> ClientState:
        rounds = inbox.scalars["rounds"]
        first = local.round - rounds

        # Each round has its own learning rate, batches and optimiser state.
        def train(k: Array, w: Float[Array, " d"]) -> Float[Array, " d"]:
            return local.in_round(first + k).sgd(w, self.sgd)

        return {"model": local.fori_loop(rounds, train, inbox.only("model"))}

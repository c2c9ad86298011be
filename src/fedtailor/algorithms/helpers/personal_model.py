"""The base class of methods whose clients keep a personal model."""

from typing import Any

from jaxtyping import Array, Float

from fedtailor.protocol import (
    Algorithm,
    ClientState,
    Cohort,
    Downlink,
    Inbox,
    LocalTrainer,
    Predictor,
)


class PersonalModelAlgorithm(Algorithm):
    """A method whose clients keep a personal model and predict with it.

    The client's state is a dict with the personal model as `state["model"]`. It starts
    as the common initial model, and the method's `client` returns the trained one. A
    method with another base, such as `FedAvg`, names this class first:
    `class Ditto(PersonalModelAlgorithm, FedAvg)`.
    """

    def init_client(self, theta: Float[Array, " d"]) -> ClientState:
        return {"model": theta}

    def serve(self, server: Any, cohort: Cohort) -> Downlink:
        # Seen clients predict with their personal model, so nothing is sent to them. An
        # unseen client receives what a round sends, and `init_unseen` makes its model.
        return Downlink() if cohort.seen else self.broadcast(server, cohort)

    def personal(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> Predictor:
        return state["model"]

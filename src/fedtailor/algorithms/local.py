"""Local: every client alone."""

from typing import Any, ClassVar

from jaxtyping import Array, Float

from fedtailor.protocol import (
    SGD,
    About,
    Algorithm,
    Answers,
    ClientUpdate,
    Cohort,
    Downlink,
    Inbox,
    Init,
    LocalTrainer,
    Population,
    Predictor,
    Streams,
    hyperparameters,
)


@hyperparameters
class Local(Algorithm):
    """Training alone, the reference point of personalization: nothing travels.

    All clients train in every round, whoever reports (otherwise sampled clients would be under-trained):

        w_i <- SGD(w_i; D_i),   w_i = theta^0 at the start
    """

    about: ClassVar[About] = About(
        name="local",
        paper="no federation (baseline of all five papers)",
        down="nothing",
        up="nothing",
        keeps="its model",
        unseen="trains alone as long as the others did",
    )
    participants: ClassVar = "all"

    sgd: SGD = SGD()
    """Local training."""

    def init_server(self, init: Init, population: Population) -> Any:
        return {"initial": init(0)}

    def broadcast(self, server: Any, cohort: Cohort) -> Downlink:
        return Downlink()

    def server(self, server: Any, downlink: Downlink, answers: Answers, cohort: Cohort) -> Any:
        return server

    def serve(self, server: Any, cohort: Cohort) -> Downlink:
        if cohort.seen:
            return Downlink()
        # theta^0 is common knowledge (the seed), so nothing travels for a newcomer either
        start = Streams.everyone(server["initial"], len(cohort), already_held=True)
        return Downlink({"model": start}, scalars={"rounds": cohort.round})

    def init_client(self, theta: Float[Array, " d"]) -> Any:
        return {"model": theta}

    def client(self, state: Any, inbox: Inbox, local: LocalTrainer) -> tuple[Any, ClientUpdate]:
        return {"model": local.sgd(state["model"], self.sgd)}, {}

    def personal(self, state: Any, inbox: Inbox, local: LocalTrainer) -> Predictor:
        return state["model"]

    def init_unseen(self, inbox: Inbox, local: LocalTrainer) -> Any:
        return {"model": local.sgd(inbox["model"][0], self.sgd, steps=inbox.scalars["rounds"] * local.steps(self.sgd))}

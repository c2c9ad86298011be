"""FedAvg: one global model."""

from typing import Any, ClassVar, Literal

import numpy as np
from jaxtyping import Float

from fedtailor.aggregation import ServerOptimizer, mix, reporter_weights
from fedtailor.protocol import (
    SGD,
    About,
    Algorithm,
    Answers,
    ClientRows,
    ClientUpdate,
    Cohort,
    Downlink,
    Inbox,
    Init,
    LocalTrainer,
    Population,
    Streams,
    hyperparameters,
)


@hyperparameters
class FedAvg(Algorithm):
    """Federated averaging (McMahan et al. 2017).

    Each round the reporters train the global model on their own data and the server averages what they return:

        theta_i = SGD(theta; D_i),    theta <- theta - opt( theta - sum_i q_i theta_i ),    q_i = n_i / sum_S n_j

    with opt = identity by default. Also the base of methods whose server does just this (FedProx, Ditto, APFL, ...).
    """

    about: ClassVar[About] = About(
        name="fedavg",
        paper="McMahan et al. 2017, Communication-Efficient Learning of Deep Networks from Decentralized Data",
        down="1 model",
        up="1 model",
        keeps="nothing",
        unseen="the global model",
    )

    sgd: SGD = SGD()
    """Local training."""
    weights: Literal["samples", "uniform"] = "samples"
    """Weights of the average over reporters: by training samples n_i, or equal."""
    optimizer: ServerOptimizer = ServerOptimizer()
    """The server's step towards the average; the default takes it whole."""

    def init_server(self, init: Init, population: Population) -> Any:
        theta = init(0)[None]
        return {"model": theta, "optimizer": self.optimizer.init(theta)}

    def broadcast(self, server: Any, cohort: Cohort) -> Downlink:
        return Downlink({"model": Streams.everyone(server["model"], len(cohort))})

    def client(self, state: Any, inbox: Inbox, local: LocalTrainer) -> tuple[Any, ClientUpdate]:
        return state, {"model": local.sgd(inbox["model"][0], self.sgd)}

    def server(self, server: Any, downlink: Downlink, answers: Answers, cohort: Cohort) -> Any:
        weights = reporter_weights(cohort, self.weights)[None]
        return {**server, **step(self.optimizer, server, answers["model"], weights)}


def step(
    optimizer: ServerOptimizer, server: Any, models: ClientRows, weights: Float[np.ndarray, "s c"]
) -> dict[str, Any]:
    """New "model" [s, d] and "optimizer" of a server state after mixing; streams with zero rows are frozen."""
    mixed = mix(server["model"], models, weights)
    state, theta = optimizer.apply(server["optimizer"], server["model"], mixed, np.any(weights, axis=1))
    return {"model": theta, "optimizer": state}

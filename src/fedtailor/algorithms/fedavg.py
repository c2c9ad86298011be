"""FedAvg: one global model."""

from typing import ClassVar, Literal

from fedtailor.aggregation import ServerOptimizer, reporter_weights
from fedtailor.algorithms.helpers.averaging import AveragedModels, average_step
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
    Streams,
    hyperparameters,
)


@hyperparameters
class FedAvg(Algorithm):
    """Federated averaging (McMahan et al. 2017).

    Each round the reporters train the global model on their own data and the server
    averages what they return:

        theta_i = SGD(theta; D_i),    theta <- theta - opt( theta - sum_i q_i theta_i ),    q_i = n_i / sum_S n_j

    By default opt is the identity. FedAvg is also the base class of methods with the
    same server (FedProx, Ditto, APFL, ...).
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="fedavg",
        paper=(
            "McMahan et al. 2017, Communication-Efficient Learning of Deep Networks"
            " from Decentralized Data"
        ),
        down="1 model",
        up="1 model",
        client_keeps="nothing",
        unseen_clients_get="the global model",
        server_sees="sums",
    )

    sgd: SGD = SGD()
    """Local training."""
    weights: Literal["samples", "uniform"] = "samples"
    """Weights of the average over reporters: by training samples n_i, or equal."""
    optimizer: ServerOptimizer = ServerOptimizer()
    """The server's step towards the average; by default the whole step."""

    def init_server(self, init: Init, population: Population) -> AveragedModels:
        theta = init(0)[None]  # [1, d]: the server holds one model
        return AveragedModels(theta, self.optimizer.init(theta))

    def broadcast(self, server: AveragedModels, cohort: Cohort) -> Downlink:
        return Downlink({"model": Streams.everyone(server.model, len(cohort))})

    def client(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> tuple[ClientState, ClientUpdate]:
        # theta_i = SGD(theta; D_i)
        return state, {"model": local.sgd(inbox.only("model"), self.sgd)}

    @property
    def server_only_averages(self) -> bool:
        return True

    def server(
        self,
        server: AveragedModels,
        downlink: Downlink,
        answers: Answers,
        cohort: Cohort,
    ) -> AveragedModels:
        # q_i, one row [1, c] for the server's one model; 0 for clients that do not
        # report
        weights = reporter_weights(cohort, self.weights)[None]
        return average_step(
            server, self.optimizer, answers["model"], weights, cohort.is_statistic
        )

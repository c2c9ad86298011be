"""FedAvgM: FedAvg with momentum on the server."""

from typing import ClassVar

from fedtailor.aggregation import ServerOptimizer
from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.protocol import SGD, About, hyperparameters


@hyperparameters
class FedAvgM(FedAvg):
    """Federated averaging with server momentum.

    Hsu et al. 2019; the baseline of Mansour et al. 2020, section 6.

        Delta = sum_i q_i (theta - theta_i),    v <- beta v + Delta,    theta <- theta - eta v

    FedAvg with another server step. Momentum is not dampened: the effective server rate
    is eta / (1 - beta).
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="fedavgm",
        paper=(
            "Hsu et al. 2019, Measuring the Effects of Non-Identical Data Distribution"
            " for Federated Visual Classification"
        ),
        down="1 model",
        up="1 model",
        client_keeps="nothing",
        unseen_clients_get="the global model",
        server_sees="sums",
    )

    sgd: SGD = SGD(lr=0.01, epochs=2, batch_size=20)
    """Local training (Mansour et al., appendix F.2: rate 0.01, 2 epochs, batch 20)."""
    optimizer: ServerOptimizer = ServerOptimizer("momentum", lr=1.0, momentum=0.9)
    """The server's step (Mansour et al., appendix F.2: rate 1, momentum 0.9)."""

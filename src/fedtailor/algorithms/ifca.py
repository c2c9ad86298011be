"""IFCA: several models, each trained by the clients whose data it fits best."""

from typing import ClassVar, Literal

import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.aggregation import ServerOptimizer, weighted_sums
from fedtailor.algorithms.hypcluster import HypCluster, HypClusterState
from fedtailor.protocol import (
    SGD,
    About,
    Answers,
    ClientUpdate,
    Cohort,
    LocalTrainer,
    hyperparameters,
)


@hyperparameters
class IFCA(HypCluster):
    """Iterative federated clustering (Ghosh et al. 2020, algorithm 1).

    HypCluster with equal weights and the plain server step, in two versions:

        models:     theta_j <- mean over { i: s_i = j } of SGD(theta_j; D_i)
        gradients:  theta_j <- theta_j - (eta / |S|) sum_{i: s_i = j} grad F_i(theta_j),    eta the local rate

    where s_i is the model that client i picked. Gradients are divided by the number of
    all reporters |S|, not of those in the cluster.
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="ifca",
        paper=(
            "Ghosh et al. 2020, An Efficient Framework for Clustered Federated Learning"
        ),
        down="all q models",
        up="1 model or gradient, and the model's number",
        client_keeps="nothing",
        unseen_clients_get="all q models; it picks the one that fits its data best",
        models_received="several",
        server_sees="sums, numbers",
    )

    sgd: SGD = SGD(lr=0.1, steps=10, batch_size=200)
    """Local training; `gradients` uses its rate only (Ghosh et al., rotated MNIST: rate
    0.1, 10 steps on all of a client's 50 to 200 samples)."""
    weights: Literal["samples", "uniform"] = "uniform"
    """Weights of reporters: equal, or by training samples n_i."""
    optimizer: ServerOptimizer = ServerOptimizer()
    """The server's step towards the average; the default takes it whole."""
    clusters: int = 4
    """Number of models (Ghosh et al., rotated MNIST: 4)."""
    averaging: Literal["models", "gradients"] = "models"
    """What clients send and the server averages."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.averaging == "models" or self.start == "random",
            "start='farthest' makes models of what clients send, which gradients are"
            " not; give start='random' with averaging='gradients'",
        )

    def train(self, theta: Float[Array, " d"], local: LocalTrainer) -> ClientUpdate:
        if self.averaging == "gradients":
            return {"gradient": local.gradient(theta)}
        return super().train(theta, local)

    def aggregate(
        self,
        server: HypClusterState,
        answers: Answers,
        model_of_client: NDArray[np.integer],
        share: NDArray[np.float64],
        cohort: Cohort,
    ) -> HypClusterState:
        if self.averaging == "models":
            return super().aggregate(server, answers, model_of_client, share, cohort)
        # (1/|S|) sum_{i: s_i = j} grad F_i(theta_j) for every model j. The weights of a
        # cluster are not scaled to sum 1, because gradients are divided by the number
        # of all reporters.
        is_picked = model_of_client == np.arange(self.clusters)[:, None]  # [q, c]
        weights = is_picked * share
        gradients = weighted_sums(answers["gradient"], weights)
        descended = server.model - self.sgd.rate(cohort.round) * gradients
        is_updated = weights.sum(axis=1) > 0
        state, model = self.optimizer.apply(
            server.optimizer, server.model, descended, is_updated
        )
        return server.replace(model=model, optimizer=state)

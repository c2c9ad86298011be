"""Oracle: one FedAvg for each true group."""

from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.aggregation import ServerOptimizer, cluster_averages, reporter_weights
from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.algorithms.helpers.averaging import AveragedModels, average_step
from fedtailor.protocol import (
    About,
    Answers,
    Cohort,
    Downlink,
    Init,
    Population,
    Streams,
    hyperparameters,
    server_state,
)


@server_state
class OracleState(AveragedModels):
    """One model for each true group, in the order of `groups`."""

    groups: NDArray[np.int64]
    """The groups of the seen clients [s], ascending."""


@hyperparameters
class Oracle(FedAvg):
    """One FedAvg for each true group, the reference for clustered methods.

        theta_g <- theta_g - opt( theta_g - sum_(i in g) q_i SGD(theta_g; D_i) ),    q_i = n_i / sum_(j in g, S) n_j

    Equals user-centric aggregation with the block matrix W_ij = n_j / N_group(i) for j
    in i's group, else 0.
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="oracle",
        paper=(
            "reference point of Mestoukirdi et al. 2021, User-Centric Federated"
            " Learning, section V"
        ),
        down="1 model of its group",
        up="1 model",
        client_keeps="nothing",
        unseen_clients_get="the model of its true group",
        models_received="one of several",
        server_sees="sums",
    )

    weights: Literal["samples", "uniform"] = "samples"
    """Weights of a group's average over its reporters: by training samples n_i, or
    equal.
    """
    optimizer: ServerOptimizer = ServerOptimizer()
    """The server's step towards the average of every group; the default takes it whole.
    """

    def check(self, population: Population) -> None:
        require(
            population.groups is not None,
            "oracle needs the true group of every client, and these data have none",
        )

    def init_server(self, init: Init, population: Population) -> OracleState:
        assert population.groups is not None
        groups = np.unique(population.groups)
        # the common initial model for each group [s, d]
        theta = init(0)[None].repeat(len(groups), axis=0)
        return OracleState(theta, self.optimizer.init(theta), groups)

    @property
    def sent_to_each(self) -> frozenset[str]:
        return frozenset({"model"})

    def broadcast(self, server: Any, cohort: Cohort) -> Downlink:
        stream = _stream_of_group(server, cohort)
        return Downlink({"model": Streams.by_index(server.model, stream)})

    def server(
        self, server: Any, downlink: Downlink, answers: Answers, cohort: Cohort
    ) -> OracleState:
        # Row g of the weights [s, c] holds the q_i of the reporters in group g.
        share = reporter_weights(cohort, self.weights)
        stream = _stream_of_group(server, cohort)
        weights = cluster_averages(stream, len(server.groups), share)
        return average_step(
            server, self.optimizer, answers["model"], weights, cohort.is_statistic
        )


def _stream_of_group(server: OracleState, cohort: Cohort) -> NDArray[np.int64]:
    """The stream [c] of each client's true group.

    Raises:
        ValueError: an unseen client of a group that nobody trained.
    """
    assert cohort.groups is not None
    # `groups` is ascending. For an unknown group the search returns the row of another
    # group.
    last = len(server.groups) - 1
    stream = np.minimum(np.searchsorted(server.groups, cohort.groups), last)
    is_known = server.groups[stream] == cohort.groups
    require(
        bool(is_known.all()),
        f"no seen client belongs to group {cohort.groups[~is_known][:1]}; oracle cannot"
        " serve it",
    )
    return stream

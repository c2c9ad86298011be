"""Oracle: one FedAvg for each true group."""

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtailor.aggregation import cluster_averages, reporter_weights
from fedtailor.algorithms.fedavg import FedAvg, step
from fedtailor.protocol import (
    About,
    Answers,
    Cohort,
    Downlink,
    Init,
    Population,
    Streams,
    hyperparameters,
    require,
)


@hyperparameters
class Oracle(FedAvg):
    """One FedAvg for each true group: the reference that clustered methods try to reach.

        theta_g <- theta_g - opt( theta_g - sum_(i in g) q_i SGD(theta_g; D_i) ),    q_i = n_i / sum_(j in g, S) n_j

    Equals user-centric aggregation with the block matrix W_ij = n_j / N_group(i) for j in i's group, else 0.
    """

    about: ClassVar[About] = About(
        name="oracle",
        paper="reference point of Mestoukirdi et al. 2021, User-Centric Federated Learning, section V",
        down="1 model of its group",
        up="1 model",
        keeps="nothing",
        unseen="the model of its true group",
    )

    def check(self, population: Population) -> None:
        require(population.groups is not None, "oracle needs the true group of every client, and these data have none")

    def init_server(self, init: Init, population: Population) -> Any:
        assert population.groups is not None
        groups = np.unique(population.groups)
        theta = init(0)[None].repeat(len(groups), axis=0)
        return {"model": theta, "optimizer": self.optimizer.init(theta), "groups": groups}

    def broadcast(self, server: Any, cohort: Cohort) -> Downlink:
        return Downlink({"model": Streams(server["model"], _streams(server, cohort)[:, None])})

    def server(self, server: Any, downlink: Downlink, answers: Answers, cohort: Cohort) -> Any:
        share = reporter_weights(cohort, self.weights)
        weights = cluster_averages(_streams(server, cohort), len(server["groups"]), share)
        return {**server, **step(self.optimizer, server, answers["model"], weights)}


def _streams(server: Any, cohort: Cohort) -> NDArray[np.int32]:
    """Each client's stream [c].

    Raises:
        ValueError: an unseen client of a group that nobody trained.
    """
    assert cohort.groups is not None
    place = np.minimum(np.searchsorted(server["groups"], cohort.groups), len(server["groups"]) - 1)
    known = server["groups"][place] == cohort.groups
    require(bool(known.all()), f"no seen client belongs to group {cohort.groups[~known][:1]}; oracle cannot serve it")
    return place.astype(np.int32)

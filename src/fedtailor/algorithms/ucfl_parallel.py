"""UCFL, parallel variant: every client trains every stream."""

from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool

from fedtailor._base.choice import require
from fedtailor.aggregation import mix, restrict_to_reporters
from fedtailor.algorithms.helpers.user_centric import UCFLState
from fedtailor.algorithms.helpers.warm_up import WarmUp
from fedtailor.algorithms.ucfl import UCFL
from fedtailor.protocol import (
    About,
    Answers,
    ClientRows,
    ClientState,
    ClientUpdate,
    Cohort,
    Downlink,
    Inbox,
    LocalTrainer,
    ModelParts,
    Streams,
    hyperparameters,
)


@hyperparameters
class UCFLParallel(UCFL):
    """The parallel variant of user-centric federated learning.

    Mestoukirdi et al. 2022, eq. 12.

        theta_s = sum_j W_sj theta_sj,    theta_sj = SGD(theta_s; D_j)

    Each stream is exactly FedAvg with the weights of its row. Every client trains and
    sends as many models as there are streams. (According to the text below eq. 12
    client j starts from its own model, which would be eq. 8.) With a stream for each
    client, an unseen client receives its own mix of the streams' models.
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="ucfl-parallel",
        paper="Mestoukirdi et al. 2022, User-Centric Federated Learning, eq. 12",
        down="all streams' models",
        up="as many models as streams (and in each probe what ucfl sends)",
        client_keeps="nothing",
        unseen_clients_get="answers the probe; the nearest stream, or its own mix of the streams",
        models_received="several",
    )

    @property
    def sent_to_each(self) -> frozenset[str]:
        return frozenset()

    def numbers_per_round(self, model: ModelParts) -> int:
        streams = self.streams if isinstance(self.streams, int) else 1
        return streams * model.size

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.sigma_batch != "auto",
            "ucfl-parallel cannot choose sigma_batch; have ucfl choose it",
        )

    def broadcast(self, server: Any, cohort: Cohort) -> Downlink:
        if isinstance(server, WarmUp):
            return super().broadcast(server, cohort)
        already_held = self.probes and server.fresh
        return Downlink(
            {"model": Streams.all_to_all(server.model, len(cohort), already_held)}
        )

    def client(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> tuple[ClientState, ClientUpdate]:
        # eq. 12: theta_sj = SGD(theta_s; D_j) for every stream s
        trained = local.map(lambda theta: local.sgd(theta, self.sgd), inbox["model"])
        return state, {"model": trained}

    def server(
        self, server: Any, downlink: Downlink, answers: Answers, cohort: Cohort
    ) -> UCFLState | WarmUp:
        if isinstance(server, WarmUp):
            return self._after_warm_up(server, answers["model"].item(0), cohort)
        weights = restrict_to_reporters(server.weights, server.sizes, cohort)
        # eq. 12: theta_s = sum_j W_sj theta_sj, stream by stream; theta_sj is the s-th
        # of the models that client j sent
        streams = []
        for s in range(len(weights)):
            old = server.model[s : s + 1]  # [1, d]
            row = weights[s : s + 1]  # [1, c]
            # the models [c, d] that clients trained from stream s
            trained = answers["model"].item(s)
            streams.append(mix(old, trained, row))
        return server.replace(
            model=jnp.concatenate(streams),
            mixed=server.mixed | weights.any(axis=1),
            fresh=False,
        )

    def _models_for_newcomers(
        self, server: UCFLState
    ) -> tuple[ClientRows, Bool[np.ndarray, " m"]]:
        return ClientRows(server.model, server.stream), server.mixed

"""FedEx-LoRA: averaged adapters, and the rest of their mean product in the weights."""

from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.aggregation import reporter_weights
from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.algorithms.helpers.averaging import AveragedModels
from fedtailor.models.low_rank import (
    adapters_of,
    scale_of_adapters,
    second_adapters_of,
)
from fedtailor.protocol import (
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
    hyperparameters,
    server_state,
)


@server_state
class FedExLoRAState(AveragedModels):
    """The global model, and where its adapters are."""

    scale: float
    """alpha / r, the factor of the trained adapters."""
    a: tuple[NDArray[np.int64], ...]
    """For each adapter, where its A [r, inputs] is in theta."""
    b: tuple[NDArray[np.int64], ...]
    """For each adapter, where its B [outputs, r] is in theta."""
    rest_a: tuple[NDArray[np.int64], ...]
    """Where the A of the second adapter is, which holds the rest."""
    rest_b: tuple[NDArray[np.int64], ...]
    """Where the B of the second adapter is."""


@hyperparameters
class FedExLoRA(FedAvg):
    """Exact aggregation of low-rank adapters (Singhal et al. 2025, FedEx-LoRA).

    Clients train adapters A, B of frozen weights W as in FedAvg. The mean of their
    products is not the product of their means; the server adds what is missing to W:

        A <- sum_i q_i A_i,    B <- sum_i q_i B_i,    W <- W + s ( sum_i q_i B_i A_i - B A ),    s = alpha / r

    so that the network's weight after a round is exactly the mean of the clients'. The
    sum of all rests is kept in a second adapter of each weight, which clients use and do
    not train: the model is `lora(network, rank=r, local_rank=q)`. The sum has a rank of at
    most that of W. With q of this size it is exact; with a smaller q the server keeps
    its nearest matrix of rank q, by a singular value decomposition (the paper's variant
    that saves traffic).

    Without adapters, or with A frozen, this is FedAvg. The server computes with each
    client's adapters. The paper weighs clients equally (`weights="uniform"`).
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="fedex-lora",
        paper=(
            "Singhal et al. 2025, FedEx-LoRA: Exact Aggregation for Federated and"
            " Efficient Fine-Tuning of Foundation Models"
        ),
        down="1 model, with the rest of the mean product",
        up="1 model",
        client_keeps="nothing",
        unseen_clients_get="the global model",
    )

    def check(self, population: Population) -> None:
        require(
            not adapters_of(population.model)
            or len(second_adapters_of(population.model)) > 0,
            "fedex-lora keeps the rest of the mean product in a second adapter, and this"
            " model has none; give lora(..., local_rank=64), or --model"
            " NAME:lora=8,local_rank=64",
        )

    def init_server(self, init: Init, population: Population) -> Any:
        start = super().init_server(init, population)
        trained = adapters_of(population.model)
        # Without trained A, the mean of products is exact, and there is no rest.
        rest = second_adapters_of(population.model) if trained else ()
        return FedExLoRAState(
            start.model,
            start.optimizer,
            scale_of_adapters(population.model),
            a=tuple(adapter.a for adapter in trained),
            b=tuple(adapter.b for adapter in trained),
            rest_a=tuple(adapter.a for adapter in rest),
            rest_b=tuple(adapter.b for adapter in rest),
        )

    def server(
        self,
        server: Any,
        downlink: Downlink,
        answers: Answers,
        cohort: Cohort,
    ) -> Any:
        new = super().server(server, downlink, answers, cohort)
        if not server.a or not cohort.reporting.any():
            return new
        q = reporter_weights(cohort, self.weights)[cohort.reporting]
        sent = np.asarray(answers.reporters("model"), np.float64)
        mean = q @ sent
        old, theta = np.asarray(server.model[0], np.float64), np.array(new.model[0])
        places = zip(server.a, server.b, server.rest_a, server.rest_b, strict=True)
        for a, b, rest_a, rest_b in places:
            # sum_i q_i B_i A_i - B A, added to the rests of all rounds before
            products = np.einsum("c,cor,cri->oi", q, sent[:, b], sent[:, a])
            rest = old[rest_b] @ old[rest_a]
            rest = rest + server.scale * (products - mean[b] @ mean[a])
            theta[rest_a], theta[rest_b] = nearest_factors(rest, len(rest_a))
        return new.replace(model=jnp.asarray(theta)[None])

    def client(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> tuple[ClientState, ClientUpdate]:
        theta = inbox.only("model")
        if "local" not in local.parts_of_model:
            return state, {"model": local.sgd(theta, self.sgd)}
        trained = local.part_of_model("not local")
        return state, {"model": local.sgd(theta, self.sgd, train_only=trained)}


def nearest_factors(
    matrix: Float[np.ndarray, "o i"], rank: int
) -> tuple[Float[np.ndarray, "r i"], Float[np.ndarray, "o r"]]:
    """A and B whose product is the nearest matrix of a rank."""
    u, lengths, v = np.linalg.svd(matrix, full_matrices=False)
    return v[:rank], u[:, :rank] * lengths[:rank]

"""FlexLoRA: low-rank adapters whose ranks differ from client to client."""

from collections.abc import Sequence
from typing import ClassVar, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from fedtailor.aggregation import mix, reporter_weights
from fedtailor.models.low_rank import AdapterEntries, adapters_of
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
    ServerState,
    Streams,
    hyperparameters,
    require,
    server_state,
)


@server_state
class FlexLoRAState(ServerState):
    """The global model, in the ranks of the clients."""

    model: Float[Array, "s d"]
    """The global model, with adapters of each rank of `FlexLoRA.ranks`."""
    a: tuple[NDArray[np.int64], ...]
    """For each adapter, where its A [rank, inputs] is in theta."""
    b: tuple[NDArray[np.int64], ...]
    """For each adapter, where its B [outputs, rank] is in theta."""


@hyperparameters
class FlexLoRA(Algorithm):
    """Federated fine-tuning with heterogeneous ranks (Bai et al. 2024, FlexLoRA).

    Client i trains low-rank adapters of its own rank r_i. The server averages their
    products, which the averages of the factors are not, and gives each client the best
    adapter of its rank, by a singular value decomposition of each weight's mean change:

        sum_i q_i B_i A_i = U S V',    client i receives  B = U_r S_r,  A = V_r'  with r = r_i

    All other entries of the model are averaged as in FedAvg, so that without adapters
    this is FedAvg. The model is `lora(network, rank=r)`. Clients of a rank below r hold
    zeros in place of the rest, which plain SGD leaves at zero; messages still have the
    size of rank r. The server computes with each client's adapters.
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="flexlora",
        paper=(
            "Bai et al. 2024, Federated Fine-tuning of Large Language Models under"
            " Heterogeneous Tasks and Client Resources"
        ),
        down="1 model; with ranks, in the client's",
        up="1 model",
        client_keeps="nothing",
        unseen_clients_get="the global model, in the largest rank",
    )

    sgd: SGD = SGD()
    """Local training."""
    ranks: tuple[int, ...] = ()
    """The ranks of the clients, in the order of their ids; the list begins anew where it
    ends. Empty = all have the model's rank.
    """
    weights: Literal["samples", "uniform"] = "samples"
    """Weights of the average over reporters: by training samples n_i, or equal."""

    def __post_init__(self) -> None:
        require(
            all(rank >= 1 for rank in self.ranks),
            f"ranks are {self.ranks}; each must be 1 or more",
        )

    def check(self, population: Population) -> None:
        if not self.ranks:
            return
        adapters = adapters_of(population.model)
        require(
            len(adapters) > 0,
            "ranks are those of low-rank adapters, and the model has none that train"
            " both factors; give fedtailor.models.lora(network, rank=...)",
        )
        largest = max(len(adapter.a) for adapter in adapters)
        require(
            max(self.ranks) <= largest,
            f"a client has the rank {max(self.ranks)} and the model's adapters have"
            f" {largest}; give lora a rank of {max(self.ranks)}",
        )

    # on the server
    # ----------------------------------------------------------------------------------

    def init_server(self, init: Init, population: Population) -> FlexLoRAState:
        adapters = adapters_of(population.model)
        a, b = (
            tuple(getattr(adapter, name) for adapter in adapters) for name in ("a", "b")
        )
        theta = np.asarray(init(0))
        return FlexLoRAState(self._in_ranks(theta, _entries(a, b)), a, b)

    def _distinct(self) -> tuple[int, ...]:
        """The different ranks, the largest one last; none if all have the model's."""
        return tuple(sorted(set(self.ranks)))

    def _in_ranks(
        self, theta: Float[np.ndarray, " d"], adapters: Sequence[AdapterEntries]
    ) -> Float[Array, "s d"]:
        """A model in each of the clients' ranks."""
        models = np.stack([theta] * max(1, len(self._distinct())))
        for model, rank in zip(models, self._distinct(), strict=False):
            model[_beyond(rank, adapters)] = 0
        return jnp.asarray(models)

    def _stream_of(self, cohort: Cohort) -> NDArray[np.int64]:
        """[c] the row of the server's models that each client of a cohort receives."""
        distinct = self._distinct()
        if not distinct:
            return np.zeros(len(cohort), np.int64)
        if not cohort.seen:
            return np.full(len(cohort), len(distinct) - 1)
        ranks = np.asarray(self.ranks)[cohort.position % len(self.ranks)]
        return np.searchsorted(distinct, ranks)

    def broadcast(self, server: FlexLoRAState, cohort: Cohort) -> Downlink:
        return Downlink(
            {"model": Streams.by_index(server.model, self._stream_of(cohort))}
        )

    def server(
        self,
        server: FlexLoRAState,
        downlink: Downlink,
        answers: Answers,
        cohort: Cohort,
    ) -> FlexLoRAState:
        if not cohort.reporting.any():
            return server
        weights = reporter_weights(cohort, self.weights)
        mean = mix(server.model[-1:], answers["model"], weights[None])
        sent = np.asarray(answers.reporters("model"), np.float64)
        adapters = _entries(server.a, server.b)
        if not adapters:
            return server.replace(model=mean)
        theta = np.array(mean[0])
        # Noise or compression may have filled what is beyond a client's rank.
        streams = self._stream_of(cohort)[cohort.reporting]
        for row, stream in zip(sent, streams, strict=True):
            if self.ranks:
                row[_beyond(self._distinct()[stream], adapters)] = 0
        reporters = weights[cohort.reporting]
        for adapter in adapters:
            found = best_factors(reporters, sent[:, adapter.a], sent[:, adapter.b])
            if found is not None:
                theta[adapter.a], theta[adapter.b] = found
        return server.replace(model=self._in_ranks(theta, adapters))

    # on the client
    # ----------------------------------------------------------------------------------

    def client(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> tuple[ClientState, ClientUpdate]:
        return state, {"model": local.sgd(inbox.only("model"), self.sgd)}


def best_factors(
    weights: Float[np.ndarray, " c"],
    a: Float[np.ndarray, "c r i"],
    b: Float[np.ndarray, "c o r"],
) -> tuple[Float[np.ndarray, "r i"], Float[np.ndarray, "o r"]] | None:
    """The factors of rank r whose product is nearest to sum_i q_i B_i A_i.

    Args:
        weights: q.
        a, b: A_i and B_i.

    Returns:
        A with orthonormal rows, and B with orthogonal columns, the longest first; None if
        the sum is zero.
    """
    rank = a.shape[1]
    # The sum is one product of stacked factors, whose decomposition needs no matrix of
    # the size of the weight.
    left = np.concatenate(list(weights[:, None, None] * b), axis=1)
    right = np.concatenate(list(a))
    left_basis, left_rest = np.linalg.qr(left)
    right_basis, right_rest = np.linalg.qr(right.T)
    u, lengths, v = np.linalg.svd(left_rest @ right_rest.T)
    if not lengths.any():
        return None
    best_b = (left_basis @ u[:, :rank]) * lengths[:rank]
    best_a = v[:rank] @ right_basis.T
    return best_a, best_b


def _entries(
    a: Sequence[NDArray[np.int64]], b: Sequence[NDArray[np.int64]]
) -> tuple[AdapterEntries, ...]:
    return tuple(map(AdapterEntries, a, b))


def _beyond(rank: int, adapters: Sequence[AdapterEntries]) -> NDArray[np.int64]:
    """The entries of theta that belong to a higher rank."""
    parts = [
        part
        for adapter in adapters
        for part in (adapter.a[rank:].reshape(-1), adapter.b[:, rank:].reshape(-1))
    ]
    return np.concatenate(parts)

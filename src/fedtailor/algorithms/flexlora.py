"""FlexLoRA: low-rank adapters whose ranks differ from client to client."""

from collections.abc import Sequence
from typing import ClassVar, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.aggregation import mix, reporter_weights
from fedtailor.models.low_rank import AdapterEntries, adapters_of, full_rank
from fedtailor.protocol import (
    SGD,
    About,
    Algorithm,
    Answers,
    Clients,
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
    server_state,
)

Split = Literal["b", "both"]
"""See `FlexLoRA.split`."""


@server_state
class FlexLoRAState(ServerState):
    """The global model, in the ranks of the clients."""

    model: Float[Array, "s d"]
    """The global model, with adapters of each rank of `FlexLoRA.ranks`."""
    a: tuple[NDArray[np.int64], ...]
    """For each adapter, where its A [rank, inputs] is in theta."""
    b: tuple[NDArray[np.int64], ...]
    """For each adapter, where its B [outputs, rank] is in theta."""

    @property
    def adapters(self) -> tuple[AdapterEntries, ...]:
        """Where the adapters are."""
        return tuple(map(AdapterEntries, self.a, self.b))


@hyperparameters
class FlexLoRA(Algorithm):
    """Federated fine-tuning with heterogeneous ranks (Bai et al. 2024, FlexLoRA).

    Client i trains low-rank adapters of its own rank r_i. The server averages their
    products, which the averages of the factors are not, and gives each client the best
    adapter of its rank, by a singular value decomposition of each weight's mean change:

        sum_i q_i B_i A_i = U S V',    client i receives  B = U_r S_r,  A = V_r'  with r = r_i

    All other entries of the model are averaged as in FedAvg, so that without adapters
    this is FedAvg. The model is `lora(network, rank=r)`. Clients of a rank below r fill
    the rest with zeros, which training leaves at exactly zero; messages still
    have the size of rank r. The server computes with each client's adapters.

    Ranks are dealt out in the order of the clients' ids, which are digests of their
    names, so that neighbours in a list of clients do not get one rank.
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
    """The ranks of the clients, in the order of their ids; the list begins again where it
    ends. Empty = all have the model's rank.
    """
    shares: tuple[float, ...] = ()
    """The share of clients that each of `ranks` gets; empty = they take turns."""
    named: tuple[str, ...] = ()
    """The ranks of single clients, as "NAME=RANK"; `ranks` are those of the others."""
    split: Split = "b"
    """Where the singular values S go: "b" = all into B, "both" = the roots of those above 1
    into A and B. Gradients of A grow with B, so that "both" trains larger adapters before
    it diverges.
    """
    weights: Literal["samples", "uniform"] = "samples"
    """Weights of the average over reporters: by training samples n_i, or equal."""

    def __post_init__(self) -> None:
        require(
            all(rank >= 1 for rank in self.ranks),
            f"ranks are {self.ranks}; each must be 1 or more",
        )
        if self.shares:
            require(
                len(self.shares) == len(self.ranks),
                f"there are {len(self.shares)} shares and {len(self.ranks)} ranks; give"
                " each rank the share of clients that gets it",
            )
            require(
                min(self.shares) >= 0 and abs(sum(self.shares) - 1) < 1e-6,
                f"shares are {self.shares}; they must be 0 or more, and add up to 1",
            )
        _named_ranks(self.named)

    def check(self, population: Population) -> None:
        named = _named_ranks(self.named)
        if not self.ranks and not named:
            return
        adapters = adapters_of(population.model)
        require(
            len(adapters) > 0,
            "ranks are those of low-rank adapters, and the model has none that train"
            " both factors; give fedtailor.models.lora(network, rank=...)",
        )
        highest = max((*self.ranks, *named.values()))
        possible = full_rank(population.model)
        require(
            highest <= possible,
            f"a client has the rank {highest}, and the full rank of the largest weight"
            f" with an adapter is {possible}; give ranks of {possible} or less",
        )
        largest = largest_rank(adapters)
        require(
            highest <= largest,
            f"a client has the rank {highest} and the model's adapters have {largest};"
            f" give lora a rank of {highest}",
        )
        unknown = sorted(named.keys() - set(population.names))
        require(
            not unknown,
            f"named gives a rank to {unknown[0] if unknown else ''!r}, and no client that"
            f" trains has this name; names are such as {population.names[0]!r}",
        )

    # on the server
    # ----------------------------------------------------------------------------------

    def init_server(self, init: Init, population: Population) -> FlexLoRAState:
        adapters = adapters_of(population.model)
        a, b = (
            tuple(getattr(adapter, name) for adapter in adapters) for name in ("a", "b")
        )
        theta = np.asarray(init(0))
        return FlexLoRAState(self._in_ranks(theta, adapters), a, b)

    def _in_ranks(
        self, theta: Float[np.ndarray, " d"], adapters: Sequence[AdapterEntries]
    ) -> Float[Array, "s d"]:
        """A model in each of the clients' ranks."""
        distinct = self._distinct(largest_rank(adapters))
        models = np.stack([theta] * len(distinct))
        for model, rank in zip(models, distinct, strict=True):
            model[_beyond(rank, adapters)] = 0
        return jnp.asarray(models)

    def _distinct(self, largest: int) -> tuple[int, ...]:
        """The different ranks, the largest one last.

        Args:
            largest: the rank of clients that are given none.
        """
        named = _named_ranks(self.named).values()
        return tuple(sorted({*(self.ranks or (largest,)), *named}))

    def _ranks(self, clients: Clients, largest: int) -> NDArray[np.int64]:
        """[m] the rank of each of the clients that take part."""
        count = len(clients)
        ranks, place = np.array(self.ranks or (largest,)), np.arange(count)
        if self.shares:
            # Each rank has a block of clients, which the middle of its client is in.
            ends = np.cumsum(self.shares)[:-1]
            found = ranks[np.searchsorted(ends, (place + 0.5) / count, side="right")]
        else:
            found = ranks[place % len(ranks)]
        named = _named_ranks(self.named)
        if named:
            found = [
                named.get(name, rank)
                for name, rank in zip(clients.names, found.tolist(), strict=True)
            ]
        return np.asarray(found, np.int64)

    def _stream_of(self, server: FlexLoRAState, cohort: Cohort) -> NDArray[np.int64]:
        """[c] the row of the server's models that each client of a cohort receives."""
        largest = largest_rank(server.adapters)
        distinct = self._distinct(largest)
        if not cohort.seen:
            return np.full(len(cohort), len(distinct) - 1)
        ranks = self._ranks(cohort.clients, largest)[cohort.position]
        return np.searchsorted(distinct, ranks)

    def broadcast(self, server: FlexLoRAState, cohort: Cohort) -> Downlink:
        return Downlink(
            {"model": Streams.by_index(server.model, self._stream_of(server, cohort))}
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
        adapters = server.adapters
        if not adapters:
            return server.replace(model=mean)
        theta = np.array(mean[0])
        # Noise or compression may have filled what is beyond a client's rank.
        ranks = self._ranks(cohort.clients, largest_rank(adapters))[cohort.reporters]
        for row, rank in zip(sent, ranks.tolist(), strict=True):
            row[_beyond(rank, adapters)] = 0
        reporters = weights[cohort.reporting]
        for adapter in adapters:
            found = best_factors(
                reporters, sent[:, adapter.a], sent[:, adapter.b], self.split
            )
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
    split: Split = "b",
) -> tuple[Float[np.ndarray, "r i"], Float[np.ndarray, "o r"]] | None:
    """The factors of rank r whose product is nearest to sum_i q_i B_i A_i.

    Args:
        weights: q.
        a, b: A_i and B_i.
        split: see `FlexLoRA.split`.

    Returns:
        A with orthogonal rows, and B with orthogonal columns, the longest first; None if
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
    lengths = lengths[:rank]
    # A direction of length 0 keeps a row of A, without which B could not grow in it.
    of_a = np.maximum(1, np.sqrt(lengths)) if split == "both" else np.ones(len(lengths))
    best_b = (left_basis @ u[:, :rank]) * (lengths / of_a)
    best_a = of_a[:, None] * (v[:rank] @ right_basis.T)
    return best_a, best_b


def _named_ranks(named: Sequence[str]) -> dict[str, int]:
    """Name of a client -> its rank.

    Raises:
        ValueError: an entry is not NAME=RANK, or a name is given twice.
    """
    ranks: dict[str, int] = {}
    for entry in named:
        name, _, rank = entry.rpartition("=")
        is_rank = rank.isascii() and rank.isdecimal() and int(rank) >= 1
        require(
            name != "" and is_rank,
            f"named holds {entry!r}; write NAME=RANK with a rank of 1 or more, such as"
            " 'clinic a=4'",
        )
        require(name not in ranks, f"named gives two ranks to {name!r}; give it one")
        ranks[name] = int(rank)
    return ranks


def largest_rank(adapters: Sequence[AdapterEntries]) -> int:
    """The largest rank of the model's adapters; 0 if it has none."""
    return max((len(adapter.a) for adapter in adapters), default=0)


def _beyond(rank: int, adapters: Sequence[AdapterEntries]) -> NDArray[np.int64]:
    """The entries of theta that belong to a higher rank."""
    parts = [
        part
        for adapter in adapters
        for part in (adapter.a[rank:].reshape(-1), adapter.b[:, rank:].reshape(-1))
    ]
    return np.concatenate([np.zeros(0, np.int64), *parts])

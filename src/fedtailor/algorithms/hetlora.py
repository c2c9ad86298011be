"""HetLoRA: adapters of different ranks, which clients prune, weighed by their size."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.aggregation import mix, reporter_weights
from fedtailor.algorithms.flexlora import FlexLoRA, FlexLoRAState, largest_rank
from fedtailor.models.low_rank import A, B
from fedtailor.models.tree_paths import path_of
from fedtailor.protocol import (
    About,
    Answers,
    Batch,
    ClientState,
    ClientUpdate,
    Cohort,
    Downlink,
    Inbox,
    LocalTrainer,
    Params,
    Predictor,
    StepGradient,
    ZeroIsStatic,
    hyperparameters,
    is_off,
    sums_type,
)

SMALLEST = 1e-30
"""Below this squared norm, a norm has no gradient."""


@hyperparameters
class HetLoRA(FlexLoRA):
    """Heterogeneous low-rank adapters (Cho et al. 2024, HetLoRA).

    Client i has adapters of its own rank r_i. It receives the first r_i rows of A and
    columns of B, and trains with a penalty on the last of them, which prunes its rank: if
    the penalty has shrunk in a round, the client goes on with the rank floor(gamma r_i):

        F_i + lam |B_>| |A_>|,    with the rows of A and columns of B beyond gamma r_i

    (the sum over all adapted weights). The server fills what is missing with zeros and
    averages A and B by the size of the clients' products, which says how much a client
    has to tell:

        A <- sum_i s_i A_i / sum_j s_j,    B <- sum_i s_i B_i / sum_j s_j,    s_i = |B_i A_i|

    in Frobenius' norm, over all adapted weights. Where all products are zero, and for all
    other entries of the model, the weights are those of FedAvg; so without adapters this
    is FedAvg. With gamma = 1 ranks stay. Ranks are dealt out as in FlexLoRA, messages
    have the size of the model's rank, and a client that never took part is served the
    model in the largest rank.
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="hetlora",
        paper=(
            "Cho et al. 2024, Heterogeneous LoRA for Federated Fine-Tuning of On-Device"
            " Foundation Models"
        ),
        down="1 model; with ranks, in the client's",
        up="1 model, and the size of its adapters' products",
        client_keeps="its rank",
        unseen_clients_get="the global model, in the largest rank",
        server_sees="sums, numbers",
    )

    lam: ZeroIsStatic = 0.001
    """Weight of the penalty."""
    gamma: float = 0.99
    """The share of its rank that a client keeps when it prunes (the paper: 0.99)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.lam >= 0, f"lam is {self.lam}; it must be 0 or more")
        require(0 < self.gamma <= 1, f"gamma is {self.gamma}; it must be in (0, 1]")
        require(
            self.split == "b",
            "split is that of a decomposition, which hetlora does not make; leave it out",
        )

    # on the server
    # ----------------------------------------------------------------------------------

    @property
    def sums_per_round(self) -> int:
        return 2

    def server(
        self,
        server: FlexLoRAState,
        downlink: Downlink,
        answers: Answers,
        cohort: Cohort,
    ) -> FlexLoRAState:
        if not cohort.reporting.any():
            return server
        share = reporter_weights(cohort, self.weights)
        sizes = answers.host("size").astype(np.float64)
        sizes = np.where(cohort.reporting, sizes, 0)
        by_size = sizes / sizes.sum() if sizes.any() else share
        # Two sums: that of the adapters, and that of all else.
        old = jnp.concatenate([server.model[-1:]] * 2)
        both = np.array(mix(old, answers["model"], np.stack([share, by_size])))
        theta = both[0]
        for adapter in server.adapters:
            theta[adapter.a] = both[1][adapter.a]
            theta[adapter.b] = both[1][adapter.b]
        return server.replace(model=self._in_ranks(theta, server.adapters))

    def _rank_to(self, server: FlexLoRAState, cohort: Cohort) -> NDArray[np.int64]:
        """[c] the rank that each client of a cohort was dealt."""
        distinct = np.array(self._distinct(largest_rank(server.adapters)))
        return distinct[self._stream_of(server, cohort)]

    def broadcast(self, server: FlexLoRAState, cohort: Cohort) -> Downlink:
        models = super().broadcast(server, cohort).streams
        return Downlink(models, scalars={"rank": self._rank_to(server, cohort)})

    # on the client
    # ----------------------------------------------------------------------------------

    def init_client(self, theta: Float[Array, " d"]) -> ClientState:
        # More than any rank: the client has that which it is dealt.
        return {"rank": jnp.int32(2**30)}

    def client(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> tuple[ClientState, ClientUpdate]:
        theta = inbox.only("model")
        if not has_adapters(local):
            size = jnp.zeros((), sums_type(theta))
            return state, {"model": local.sgd(theta, self.sgd), "size": size}
        rank = jnp.minimum(state["rank"], inbox.scalars["rank"]).astype(jnp.int32)
        # A rank of 1 cannot shrink, and gamma = 1 keeps all.
        kept = jnp.maximum(jnp.floor(self.gamma * rank).astype(jnp.int32), 1)
        start = below(local.params(theta), rank)
        before = penalty(start, kept)
        gradient = None if is_off(self.lam) else self._gradient(kept, local)
        trained = local.sgd(local.vector(start), self.sgd, gradient=gradient)
        params = local.params(trained)
        rank = jnp.where(penalty(params, kept) < before, kept, rank)
        params = below(params, rank)
        sent = {"model": local.vector(params), "size": product_size(params)}
        return {"rank": rank}, sent

    def _gradient(self, kept: Int[Array, ""], local: LocalTrainer) -> StepGradient:
        """The gradient of F_i + lam |B_>| |A_>| on a batch."""

        def gradient(params: Params, batch: Batch, step: Int[Array, ""]) -> Params:
            of_loss = local.batch_gradient(params, batch)
            of_penalty = jax.grad(penalty)(params, kept)
            return jax.tree.map(lambda g, p: g + self.lam * p, of_loss, of_penalty)

        return gradient

    def personal(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> Predictor:
        theta = inbox.only("model")
        if not has_adapters(local):
            return theta
        return local.vector(below(local.params(theta), state["rank"]))


def has_adapters(local: LocalTrainer) -> bool:
    """Whether the model has adapters that train both factors."""
    return {"lora_a", "lora_b"} <= set(local.parts_of_model)


def below(params: Params, rank: Int[Array, ""]) -> Params:
    """The model whose adapters have a rank: zeros elsewhere."""

    def cut(keys: Any, leaf: Any) -> Any:
        factor = path_of(keys).rpartition(".")[2]
        if factor == A:
            return jnp.where(jnp.arange(len(leaf))[:, None] < rank, leaf, 0)
        if factor == B:
            return jnp.where(jnp.arange(leaf.shape[1]) < rank, leaf, 0)
        return leaf

    return jax.tree_util.tree_map_with_path(cut, params)


def adapters_in(params: Params) -> list[tuple[Array, Array]]:
    """A and B of each adapter of a model."""
    factors: dict[str, dict[str, Array]] = {}
    for keys, leaf in jax.tree_util.tree_leaves_with_path(params):
        place, _, factor = path_of(keys).rpartition(".")
        if factor in (A, B):
            factors.setdefault(place, {})[factor] = leaf
    return [(found[A], found[B]) for found in factors.values()]


def penalty(params: Params, kept: Int[Array, ""]) -> Float[Array, ""]:
    """|B_>| |A_>|, with the rows of A and columns of B from `kept` on, of all adapters."""

    def norm(part: Array) -> Array:
        return jnp.sqrt(jnp.maximum(jnp.square(part).sum(), SMALLEST))

    total = jnp.zeros(())
    for a, b in adapters_in(params):
        is_last = jnp.arange(len(a)) >= kept
        total = total + norm(b * is_last) * norm(a * is_last[:, None])
    return total


def product_size(params: Params) -> Float[Array, ""]:
    """The root of the sum of |B A|^2 over all adapters."""
    total = jnp.zeros(())
    for a, b in adapters_in(params):
        # |B A|^2 is the trace of (B' B) (A A').
        total = total + ((b.T @ b) * (a @ a.T)).sum()
    return jnp.sqrt(total)

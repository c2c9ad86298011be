"""CFL: clusters of clients, split in two where their updates disagree."""

from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from numpy.typing import NDArray

from fedtailor.aggregation import cluster_averages, mix, reporter_weights
from fedtailor.aggregation.clusters import bipartition
from fedtailor.aggregation.distances import cosine_similarity
from fedtailor.protocol import (
    SGD,
    About,
    Algorithm,
    Answers,
    ClientRows,
    ClientUpdate,
    Cohort,
    Downlink,
    Inbox,
    Init,
    LocalTrainer,
    Population,
    Predictor,
    Streams,
    TracedInt,
    hyperparameters,
    require,
)


@hyperparameters
class CFL(Algorithm):
    """Clustered federated learning (Sattler, Mueller and Samek 2020).

    Each cluster runs FedAvg on the updates D_i of its clients. All clients start in one; a cluster is split in two when
    it is stationary as a whole while some of its clients are not,

        | mean D_i | < eps1    and    max_i | D_i | > eps2,

    by the cosines S_ij = <D_i, D_j> / (|D_i| |D_j|): the bipartition whose largest similarity across is smallest, or
    (released code, the default) agglomerative clustering with complete linkage. The paper accepts a bipartition iff
    sqrt((1 - max_across S_ij) / 2) > gamma_max. Each half goes on from the parent's model plus the mean of its own
    updates. Updates compare only from one model and within a whole cluster, hence full participation.

    The server keeps the log of splits: the parent's model, who went where, and the mean direction of either side's
    updates. A client that never took part walks down this tree: at each split it computes its own update of the
    parent's model and goes to the side with whose members it has the higher mean cosine.
    """

    about: ClassVar[About] = About(
        name="cfl",
        paper="Sattler et al. 2020, Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization",
        down="1 model of its cluster",
        up="1 model",
        keeps="nothing",
        unseen="walks down the tree of splits by its own updates",
    )

    sgd: SGD = SGD(lr=0.1, momentum=0.9, epochs=1, batch_size=128, lr_decay=0.01)
    """Local training (released code, whose momentum also persists from round to round)."""
    eps1: float = 0.4
    """Norm of a cluster's mean update below which it is stationary (released code; a norm of whole-model updates: it
    scales with rate, epochs and model; about a tenth of the largest norm at the start is a rule of thumb)."""
    eps2: float = 1.6
    """Norm of a client's update above which it is not stationary (released code; scales as eps1)."""
    first_split: TracedInt = 20
    """Rounds without splits at the start (released code: 20)."""
    min_clients: TracedInt = 3
    """Clients that a cluster must have to be split (released code: more than 2)."""
    linkage: Literal["complete", "single"] = "complete"
    """The bipartition: agglomerative with complete linkage (released code), or the paper's optimal one (single)."""
    gamma_max: float | None = None
    """The paper's bound for accepting a split, in [0, 1); None accepts every one (released code)."""
    weights: Literal["samples", "uniform"] = "samples"
    """Weights of the averages: by training samples n_i (the paper), or equal (the released code)."""

    def __post_init__(self) -> None:
        require(self.eps1 >= 0 and self.eps2 >= 0, f"eps1 {self.eps1} and eps2 {self.eps2} must be 0 or more")
        require(self.min_clients >= 2, f"min_clients is {self.min_clients}; it must be 2 or more")
        linkages = ("complete", "single")
        require(self.linkage in linkages, f"linkage is {self.linkage!r}; it must be one of {linkages}")
        valid = self.gamma_max is None or 0 <= self.gamma_max < 1
        require(valid, f"gamma_max is {self.gamma_max}; it must be in [0, 1), or None to accept every split")

    def check(self, population: Population) -> None:
        require(
            population.reporters_per_round == len(population),
            f"cfl splits a cluster only when all its clients report, and only {population.reporters_per_round} of "
            f"{len(population)} do in a round; train with full participation",
        )

    # rounds ---------------------------------------------------------------------------------------------------------

    def init_server(self, init: Init, population: Population) -> Any:
        model = _padded(init(0)[None], _places(1))
        return {"model": model, "stream": np.zeros(len(population), np.int64), "splits": []}

    def broadcast(self, server: Any, cohort: Cohort) -> Downlink:
        return Downlink(
            {"model": Streams(server["model"], server["stream"][cohort.position].astype(np.int32)[:, None])}
        )

    def client(self, state: Any, inbox: Inbox, local: LocalTrainer) -> tuple[Any, ClientUpdate]:
        return state, {"model": local.sgd(inbox["model"][0], self.sgd)}

    def server(self, server: Any, downlink: Downlink, answers: Answers, cohort: Cohort) -> Any:
        mixed = self._aggregate(server, answers["model"], cohort)
        split = dict(server)
        for members in self._unsettled(server, mixed, answers["model"], cohort):
            split = self._split(split, members, answers["model"], cohort)
        if len(split["splits"]) > len(server["splits"]):
            mixed = self._aggregate(split, answers["model"], cohort)
        return {**split, "model": mixed}

    def _aggregate(self, server: Any, models: ClientRows, cohort: Cohort) -> Float[Array, "s d"]:
        """Every cluster's average; a cluster nobody of which reports stays as it is."""
        share = reporter_weights(cohort, self.weights)
        stream, streams = server["stream"][cohort.position], len(server["model"])
        return mix(server["model"], models, cluster_averages(stream, streams, share))

    def _unsettled(self, server: Any, mixed: Array, models: ClientRows, cohort: Cohort) -> list[NDArray[np.int64]]:
        """The clusters to be split, as places in the cohort."""
        if cohort.round < self.first_split:
            return []
        stream = server["stream"][cohort.position]
        means = np.asarray(_distances(mixed, server["model"], np.arange(len(mixed))))
        starts = models.to_rows(stream, fill=0)
        updates = np.asarray(_distances(models.values, server["model"], starts))[models.row]
        found = []
        for cluster in np.unique(stream):
            members = np.flatnonzero((stream == cluster) & cohort.reporting)
            whole = len(members) == np.count_nonzero(server["stream"] == cluster)
            large = whole and len(members) >= self.min_clients
            if large and means[cluster] < self.eps1 and updates[members].max() > self.eps2:
                found.append(members)
        return found

    def _split(self, server: Any, members: NDArray[np.int64], models: ClientRows, cohort: Cohort) -> Any:
        """The server with one more cluster, on its parent's model; unchanged if the split is rejected."""
        parent = int(server["stream"][cohort.position[members[0]]])
        model = server["model"][parent]
        updates = np.asarray(models.take(members)) - np.asarray(model)
        similarity = cosine_similarity(updates)
        second = bipartition(similarity, self.linkage) == 1
        across = similarity[second][:, ~second].max()
        if self.gamma_max is not None and np.sqrt((1 - across) / 2) <= self.gamma_max:
            return server
        units = updates / np.maximum(np.linalg.norm(updates, axis=1, keepdims=True), np.finfo(updates.dtype).tiny)
        record = {
            "round": cohort.round,
            "parent": parent,
            "model": np.asarray(model),
            "first": cohort.position[members[~second]],
            "second": cohort.position[members[second]],
            "directions": np.stack([units[~second].mean(axis=0), units[second].mean(axis=0)]),
        }
        splits, stream = [*server["splits"], record], server["stream"].copy()
        stream[record["second"]] = len(splits)
        grown = _padded(server["model"], _places(len(splits) + 1))
        return {"model": grown.at[len(splits)].set(model), "stream": stream, "splits": splits}

    # newcomers ------------------------------------------------------------------------------------------------------

    def serve(self, server: Any, cohort: Cohort) -> Downlink:
        splits, places = server["splits"], np.arange(len(server["model"]))
        if cohort.seen:
            return self.broadcast(server, cohort)
        if not splits:
            return Downlink({"model": Streams.everyone(server["model"][0], len(cohort))})

        def to_all(values: Any, used: NDArray[np.bool_]) -> Streams:
            to = np.where(used, np.arange(len(values)), -1).astype(np.int32)
            return Streams(values, np.tile(to, (len(cohort), 1)))

        def column(name: str) -> Any:
            return _padded(np.stack([split[name] for split in splits]), len(places))

        leaf, node = places <= len(splits), places < len(splits)
        models = jnp.concatenate([server["model"], column("model")])
        directions = column("directions").reshape(2 * len(places), -1)
        return Downlink(
            {
                "model": to_all(models, np.concatenate([leaf, node])),
                "gradient": to_all(directions, np.repeat(node, 2)),
                "parent": to_all(column("parent").astype(jnp.int32), node),
            }
        )

    def init_unseen(self, inbox: Inbox, local: LocalTrainer) -> Any:
        if "parent" not in inbox.values:
            return ()
        parent, places = inbox["parent"], len(inbox["parent"])
        leaves, nodes = inbox["model"][:places], inbox["model"][places:]
        directions = inbox["gradient"].reshape(places, 2, -1)

        def descend(split: Any, stream: Any) -> Any:
            here = inbox.received["parent"][split] & (parent[split] == stream)
            steps = jnp.where(here, local.steps(self.sgd), 0)
            update = local.sgd(nodes[split], self.sgd, steps=steps) - nodes[split]
            first, second = (directions[split] * update).sum(axis=1)
            return jnp.where(second > first, split + 1, stream)  # split k made cluster k + 1; no steps, no update

        return {"model": leaves[local.fori_loop(places, descend, jnp.int32(0))]}

    def personal(self, state: Any, inbox: Inbox, local: LocalTrainer) -> Predictor:
        return state["model"] if state else inbox["model"][0]


def _places(clusters: int) -> int:
    """Rows kept for clusters: powers of two, so that most splits change no shape and recompile nothing."""
    return max(1 << (clusters - 1).bit_length(), 4)


def _padded(rows: Any, places: int) -> Array:
    rows = jnp.asarray(rows)
    return jnp.concatenate([rows, jnp.zeros((places - len(rows), *rows.shape[1:]), rows.dtype)])


@jax.jit
def _distances(models: Float[Array, "c d"], starts: Float[Array, "s d"], start: Int[Array, " c"]) -> Float[Array, " c"]:
    """How far each model is from the one it started from."""
    return jnp.linalg.norm(models - starts[start], axis=1)

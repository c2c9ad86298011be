"""CFL: clusters of clients, split in two where their updates disagree."""

from collections.abc import Sequence
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.aggregation import cluster_averages, mix, reporter_weights
from fedtailor.aggregation.agglomerative import bipartition
from fedtailor.aggregation.distances import cosine_similarity
from fedtailor.algorithms.helpers.own_steps import require_no_clip, sgd_from_velocity
from fedtailor.protocol import (
    SGD,
    About,
    Algorithm,
    Answers,
    ClientRows,
    ClientState,
    ClientUpdate,
    Cohort,
    Diagnostic,
    Downlink,
    Inbox,
    Init,
    LocalTrainer,
    MayBeInfinite,
    Population,
    Predictor,
    ServerState,
    Streams,
    TracedInt,
    TreeDiagnostic,
    hyperparameters,
    is_off,
    next_power_of_two,
    server_state,
    sums_type,
)


@server_state
class ClusterSplit(ServerState):
    """A split of a cluster into two."""

    round: int
    """The round of the split."""
    parent: int
    """The cluster that was split.

    The first half keeps its number; the second half of split k becomes cluster k + 1.
    """
    model: Float[np.ndarray, " d"]
    """The parent's model before the split."""
    first: NDArray[np.int64]
    """Positions of the clients that stayed in the parent cluster."""
    second: NDArray[np.int64]
    """Positions of the clients in the new cluster."""
    directions: Float[np.ndarray, "2 d"]
    """For each half the mean of its updates, each scaled to length 1."""


@server_state
class CFLState(ServerState):
    """The clusters, and the splits that led to them."""

    model: Float[Array, "s d"]
    """One model for each cluster, then rows of zeros for clusters of later splits (see
    `_capacity`).
    """
    cluster: NDArray[np.int64]
    """The cluster of each client [m]."""
    splits: list[ClusterSplit]
    """All splits, in the order of rounds."""


@hyperparameters
class CFL(Algorithm):
    """Clustered federated learning (Sattler, Mueller and Samek 2020).

    Each cluster runs FedAvg on the updates D_i of its clients. All clients start in one
    cluster. A cluster is split in two when it is stationary as a whole, but some of its
    clients are not:

        | mean D_i | < eps1    and    max_i | D_i | > eps2

    The split uses the cosines S_ij = <D_i, D_j> / (|D_i| |D_j|). It is the bipartition
    with the smallest maximal similarity between the halves or, in the released code and
    by default, agglomerative clustering with complete linkage. The paper accepts a
    bipartition iff sqrt((1 - max_across S_ij) / 2) > gamma_max. Each half continues
    from the parent's model plus the mean of its own updates. Updates can be compared
    only if they start from the same model, and a cluster can be split only if all its
    clients report, so the method needs full participation.

    The server stores all splits: the parent's model, the clients of each half, and the
    mean direction of each half's updates. A client that never took part follows this
    tree: at each split it computes its own update of the parent's model and moves to
    the half whose updates have the higher mean cosine with it.
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="cfl",
        paper=(
            "Sattler et al. 2020, Clustered Federated Learning: Model-Agnostic"
            " Distributed Multitask Optimization"
        ),
        down="1 model of its cluster",
        up="1 model",
        client_keeps="nothing",
        unseen_clients_get="walks down the tree of splits by its own updates",
        models_received="one of several",
    )

    sgd: SGD = SGD(lr=0.1, momentum=0.9, epochs=1, batch_size=128, lr_decay=0.01)
    """Local training (released code; see `persist`)."""
    persist: bool = False
    """Keep the momentum of local training on the client from round to round (released
    code), or start it at zero in every round. A split does not reset it."""
    eps1: MayBeInfinite = 0.4
    """Norm of a cluster's mean update below which it is stationary (released code; a
    norm of whole-model updates: it scales with rate, epochs and model; about a tenth of
    the largest norm at the start is a rule of thumb)."""
    eps2: MayBeInfinite = 1.6
    """Norm of a client's update above which it is not stationary (released code; scales
    as eps1).
    """
    first_split: TracedInt = 20
    """Rounds without splits at the start (released code: 20)."""
    min_clients: TracedInt = 3
    """Clients that a cluster must have to be split (released code: more than 2)."""
    linkage: Literal["complete", "single"] = "complete"
    """The bipartition: agglomerative clustering with complete linkage (released code),
    or the optimal one of the paper (single).
    """
    gamma_max: float | None = None
    """The paper's bound for accepting a split, in [0, 1); None accepts every one
    (released code).
    """
    weights: Literal["samples", "uniform"] = "samples"
    """Weights of the averages: by training samples n_i (the paper), or equal (the
    released code).
    """

    def __post_init__(self) -> None:
        require(
            self.eps1 >= 0 and self.eps2 >= 0,
            f"eps1 {self.eps1} and eps2 {self.eps2} must be 0 or more",
        )
        require(
            not self.persist
            or not (is_off(self.sgd.momentum) or self.sgd.optimizer is not None),
            "persist keeps the momentum of local training, which has none; give sgd a"
            " momentum and no optimizer",
        )
        if self.persist:
            require_no_clip("cfl's steps with persist", self.sgd)
        require(
            self.min_clients >= 2,
            f"min_clients is {self.min_clients}; it must be 2 or more",
        )
        valid = self.gamma_max is None or 0 <= self.gamma_max < 1
        require(
            valid,
            f"gamma_max is {self.gamma_max}; it must be in [0, 1), or None to accept"
            " every split",
        )

    @property
    def work_tells_of_rows(self) -> bool:
        # Newcomers train at the splits on their way to a cluster.
        return True

    def check(self, population: Population) -> None:
        require(
            population.reporters_per_round == len(population),
            "cfl splits a cluster only when all its clients report, and only"
            f" {population.reporters_per_round} of {len(population)} do in a round;"
            " train with full participation",
        )

    # rounds
    # ----------------------------------------------------------------------------------

    def init_server(self, init: Init, population: Population) -> CFLState:
        model = _with_capacity(init(0)[None], _capacity(1))
        return CFLState(
            model=model, cluster=np.zeros(len(population), np.int64), splits=[]
        )

    def broadcast(self, server: CFLState, cohort: Cohort) -> Downlink:
        cluster = server.cluster[cohort.position]
        return Downlink({"model": Streams.by_index(server.model, cluster)})

    def init_client(self, theta: Float[Array, " d"]) -> ClientState:
        return {"velocity": jnp.zeros_like(theta)} if self.persist else ()

    def client(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> tuple[ClientState, ClientUpdate]:
        theta = inbox.only("model")
        if not self.persist:
            return state, {"model": local.sgd(theta, self.sgd)}
        trained, velocity = sgd_from_velocity(local, theta, state["velocity"], self.sgd)
        return {"velocity": velocity}, {"model": trained}

    def server(
        self, server: CFLState, downlink: Downlink, answers: Answers, cohort: Cohort
    ) -> CFLState:
        models = answers["model"]
        # The averages of the clusters show which clusters are stationary. After a split
        # the averages of its halves are computed from the parent's old model.
        averages = self._cluster_averages(server, models, cohort)
        new = server
        for members in self._clusters_to_split(server, averages, models, cohort):
            new = self._split(new, members, models, cohort)
        if new is not server:
            averages = self._cluster_averages(new, models, cohort)
        return new.replace(model=averages)

    def _cluster_averages(
        self, server: CFLState, models: ClientRows, cohort: Cohort
    ) -> Float[Array, "s d"]:
        """The average of each cluster, or its old model if no member reports."""
        share = reporter_weights(cohort, self.weights)
        cluster = server.cluster[cohort.position]
        weights = cluster_averages(cluster, len(server.model), share)
        return mix(server.model, models, weights)

    def _clusters_to_split(
        self, server: CFLState, averages: Array, models: ClientRows, cohort: Cohort
    ) -> list[NDArray[np.int64]]:
        """The clusters that are stationary although some of their clients are not.

        Returns:
            For each cluster to be split, the rows of its members in the cohort.
        """
        if cohort.round < self.first_split:
            return []
        cluster = server.cluster[cohort.position]
        # | mean D_i | of every cluster: from its model to the average
        own = np.arange(len(averages))
        mean_norms = np.asarray(_distances(averages, server.model, own))
        # | D_i | of every client: from its cluster's model to its own
        starts = models.to_rows(cluster, fill=0)
        distances = np.asarray(_distances(models.values, server.model, starts))
        norms = distances[models.row]
        to_split = []
        for number in np.unique(cluster):
            members = np.flatnonzero((cluster == number) & cohort.reporting)
            # Only whole clusters are split.
            is_whole = len(members) == np.count_nonzero(server.cluster == number)
            if not is_whole or len(members) < self.min_clients:
                continue
            is_stationary = mean_norms[number] < self.eps1
            if is_stationary and norms[members].max() > self.eps2:
                to_split.append(members)
        return to_split

    def _split(
        self,
        server: CFLState,
        members: NDArray[np.int64],
        models: ClientRows,
        cohort: Cohort,
    ) -> CFLState:
        """Split a cluster in two.

        Args:
            server: before the split.
            members: rows of the cluster's clients in the cohort.
            models: what the clients sent.
            cohort: the clients of the round.

        Returns:
            The server with one more cluster, which starts from its parent's model;
            unchanged if the split is rejected.
        """
        parent = int(server.cluster[cohort.position[members[0]]])
        model = server.model[parent]
        sums = sums_type(models)
        updates = np.asarray(models.take(members), sums) - np.asarray(
            model, sums
        )  # D_i
        similarity = cosine_similarity(updates)  # S_ij
        in_second = bipartition(similarity, self.linkage) == 1
        first, second = members[~in_second], members[in_second]
        # The paper accepts a split iff sqrt((1 - max_across S_ij) / 2) > gamma_max.
        max_across = similarity[in_second][:, ~in_second].max()
        if (
            self.gamma_max is not None
            and np.sqrt((1 - max_across) / 2) <= self.gamma_max
        ):
            return server
        # For unseen clients the mean of each half's unit vectors is enough: its inner
        # product with an update is |update| times the mean cosine.
        lengths = np.linalg.norm(updates, axis=1, keepdims=True)
        units = updates / np.maximum(lengths, np.finfo(updates.dtype).tiny)
        directions = [units[~in_second].mean(axis=0), units[in_second].mean(axis=0)]
        split = ClusterSplit(
            round=cohort.round,
            parent=parent,
            model=np.asarray(model),
            first=cohort.position[first],
            second=cohort.position[second],
            directions=np.stack(directions),
        )
        splits = [*server.splits, split]
        # The first half keeps the parent's number and model, the second gets the next
        # number and a copy of that model.
        new_cluster = len(splits)
        cluster = server.cluster.copy()
        cluster[split.second] = new_cluster
        models_of_clusters = _with_capacity(server.model, _capacity(new_cluster + 1))
        models_of_clusters = models_of_clusters.at[new_cluster].set(model)
        return CFLState(model=models_of_clusters, cluster=cluster, splits=splits)

    def diagnostics(self, server: CFLState) -> Sequence[Diagnostic]:
        return [
            TreeDiagnostic(
                name="splits",
                title="Splits of clusters",
                parent=np.array([split.parent for split in server.splits], np.int64),
                round=np.array([split.round for split in server.splits], np.int64),
                members=server.cluster,
            )
        ]

    # newcomers
    # ----------------------------------------------------------------------------------

    def serve(self, server: CFLState, cohort: Cohort) -> Downlink:
        # Seen clients receive the model of their cluster, as in a round.
        if cohort.seen:
            return self.broadcast(server, cohort)
        clients = len(cohort)
        if not server.splits:
            return Downlink({"model": Streams.everyone(server.model[0], clients)})
        # Unseen clients receive the whole tree, in arrays of constant size: the models
        # of clusters 0..splits, and for each split the number and the model of the
        # parent and the directions of the two halves.
        capacity = len(server.model)
        splits = len(server.splits)
        is_cluster = np.arange(capacity) <= splits
        is_split = np.arange(capacity) < splits

        def field_of_splits(name: str) -> Array:
            values = np.stack([getattr(split, name) for split in server.splits])
            return _with_capacity(values, capacity)

        models = jnp.concatenate([server.model, field_of_splits("model")])
        is_model = np.concatenate([is_cluster, is_split])
        directions = field_of_splits("directions").reshape(2 * capacity, -1)
        is_direction = np.repeat(is_split, 2)
        parents = field_of_splits("parent").astype(jnp.int32)
        return Downlink(
            {
                "model": Streams.all_to_all(models, clients, is_sent=is_model),
                "gradient": Streams.all_to_all(
                    directions, clients, is_sent=is_direction
                ),
                "parent": Streams.all_to_all(parents, clients, is_sent=is_split),
            }
        )

    def init_unseen(self, inbox: Inbox, local: LocalTrainer) -> ClientState:
        if "parent" not in inbox.values:
            return ()
        parent = inbox["parent"]  # of each split
        capacity = len(parent)
        cluster_models = inbox["model"][:capacity]
        parent_models = inbox["model"][capacity:]
        directions = inbox["gradient"].reshape(capacity, 2, -1)

        # The client starts in cluster 0, the root of the tree. The splits, in the order
        # in which they were made, lead it to a leaf.
        def follow_split(split: Array, cluster: Array) -> Array:
            # The client trains only at the splits of its present cluster. At others its
            # update is 0, and it stays in its cluster.
            is_own = inbox.received["parent"][split] & (parent[split] == cluster)
            steps = jnp.where(is_own, local.steps(self.sgd), 0)
            start = parent_models[split]
            update = local.sgd(start, self.sgd, steps=steps) - start
            # The mean cosines with both halves, times |update|: the common factor does
            # not matter for the comparison.
            first, second = (directions[split] * update).sum(axis=1)
            # The second half of split k is cluster k + 1.
            return jnp.where(second > first, split + 1, cluster)

        leaf = local.fori_loop(capacity, follow_split, jnp.int32(0))
        return {"model": cluster_models[leaf]}

    def personal(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> Predictor:
        return state["model"] if "model" in state else inbox.only("model")


def _capacity(clusters: int) -> int:
    """The number of rows to allocate for the models of the clusters.

    It is a power of two, so that most splits change no shape and need no compilation.
    """
    return max(next_power_of_two(clusters), 4)


def _with_capacity(rows: ArrayLike, capacity: int) -> Array:
    """The rows [k, ...], padded with zeros to [capacity, ...]."""
    rows = jnp.asarray(rows)
    missing = capacity - len(rows)
    zeros = jnp.zeros((missing, *rows.shape[1:]), rows.dtype)
    return jnp.concatenate([rows, zeros])


@jax.jit
def _distances(
    models: Float[Array, "c d"], starts: Float[Array, "s d"], start: Int[Array, " c"]
) -> Float[Array, " c"]:
    """The Euclidean distance of each model from the one that it started from.

    Args:
        models: after training.
        starts: models to start from.
        start: for each model, the row of `starts` that it started from.
    """
    return jnp.linalg.norm(models - starts[start], axis=1)

"""PACFL: clusters of clients by the angles between the subspaces of their inputs."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from numpy.typing import NDArray

from fedtailor.aggregation import ServerOptimizer, cluster_averages, reporter_weights
from fedtailor.aggregation.clusters import agglomerative
from fedtailor.algorithms.helpers.averaging import AveragedModels, average_step
from fedtailor.protocol import (
    SGD,
    About,
    Algorithm,
    Answers,
    Batch,
    ClientUpdate,
    Cohort,
    Diagnostic,
    Downlink,
    Inbox,
    Init,
    LocalTrainer,
    MatrixDiagnostic,
    Population,
    Streams,
    hyperparameters,
    require,
    server_state,
)

_ITERATIONS = 40
"""Iterations of subspace iteration, each of them a pass over a client's inputs.

The error of a vector of singular value s falls as (s' / s)^80, where s' is the largest
singular value beyond the vectors that are iterated.
"""
_SPARE = 4
"""Vectors that are iterated in addition to those that are sent, for a smaller s'."""
_BATCH = 64
"""Samples at a time in these passes."""


@server_state
class PACFLState(AveragedModels):
    """One model for each cluster."""

    initial: Float[Array, " d"]
    """The common initial model."""
    cluster: NDArray[np.int64]
    """The cluster of every client [m]; all 0 before the clients have sent bases."""
    bases: Float[np.ndarray, "m classes p features"] | None = None
    """The bases U_ic that the clients sent; None before."""
    angles: Float[np.ndarray, "m m"] | None = None
    """Between all pairs of clients, in degrees."""


@hyperparameters
class PACFL(Algorithm):
    """Clusters by principal angles between client data subspaces.

    Vahidian et al. 2023, algorithm 1.

    Once, before training, every client sends the p leading left singular vectors of the
    inputs of each of its classes,

        X_ic = U_ic S_ic V_ic',    U_ic = [u_1, ..., u_p]

    The server compares clients by the principal angles between these subspaces (the arc
    cosines of the singular values of U_ic' U_jc, averaged over the classes that both
    clients have; 90 degrees if they have none in common), clusters them
    agglomeratively, and runs FedAvg in every cluster. Angles depend on inputs only, so
    clients that label the same inputs differently are in the same cluster. The server
    sees the bases, which reveal much about the data.

    A client that never took part sends its bases and gets the model of the nearest
    client's cluster.

    The released code differs in four ways, so thresholds of its scripts (4.9 degrees on
    CIFAR-10) cannot be used here:

    * it takes singular vectors of raw pixels, not of the model's inputs;
    * its distance is the smallest angle between any two vectors of two clients, of any
      classes and with the signs of the decomposition, which is not a principal angle;
    * its average linkage gives two merging clusters equal weights, whatever their size;
    * it evaluates a client with the model that the client trained last, not with the
      model of its cluster.
    """

    # What tables of methods say of this one; `About` explains the words.
    about: ClassVar[About] = About(
        name="pacfl",
        paper=(
            "Vahidian et al. 2023, Efficient Distribution Similarity Identification in"
            " Clustered Federated Learning via Principal Angles Between Client Data"
            " Subspaces"
        ),
        down="1 model of its cluster",
        up="1 model; once, p vectors of each class's inputs",
        client_keeps="nothing",
        unseen_clients_get="sends its vectors; the model of the nearest client's cluster",
        models_received="one of several",
        server_sees="data",
    )

    sgd: SGD = SGD(lr=0.01, momentum=0.5, epochs=10, batch_size=10)
    """Local training (released code: rate 0.01, momentum 0.5, 10 epochs of batch 10).
    """
    vectors: int = 3
    """p, singular vectors of each class (Vahidian et al.: 3 to 5)."""
    clusters: int | None = None
    """Number of clusters; None = by `threshold`, or, without one, where the angle at
    which clusters merge grows most (at least two then, unless all angles are equal)."""
    threshold: float | None = None
    """Angle in degrees from which on clusters are not merged (Vahidian et al. tune it),
    instead of their number.
    """
    angle: Literal["mean", "smallest"] = "mean"
    """Mean principal angle of the classes' subspaces, or the smallest one between the
    spans of all vectors (the paper's equation 2, for clients that share few classes).
    """
    linkage: Literal["average", "complete", "single"] = "average"
    """Distance between clusters: mean, largest or smallest angle between their members.
    """
    weights: Literal["samples", "uniform"] = "samples"
    """Weights of a cluster's average over its reporters: by training samples n_i, or
    equal.
    """
    optimizer: ServerOptimizer = ServerOptimizer()
    """The server's step towards the average of every cluster; the default takes it
    whole.
    """

    def __post_init__(self) -> None:
        require(self.vectors >= 1, f"vectors is {self.vectors}; it must be 1 or more")
        require(
            self.clusters is None or self.clusters >= 1,
            f"clusters is {self.clusters}; it must be 1 or more",
        )
        valid = self.threshold is None or 0 < self.threshold <= 90
        require(
            valid,
            f"threshold is {self.threshold}; it must be an angle above 0 and up to 90"
            " degrees",
        )
        require(
            self.clusters is None or self.threshold is None,
            "clusters and threshold both say how many clusters there are; leave one of"
            " them out",
        )
        require(
            self.angle in ("mean", "smallest"),
            f"angle is {self.angle!r}; it must be 'mean' or 'smallest'",
        )
        linkages = ("average", "complete", "single")
        require(
            self.linkage in linkages,
            f"linkage is {self.linkage!r}; it must be one of {', '.join(linkages)}",
        )

    def check(self, population: Population) -> None:
        clients = len(population)
        require(
            self.clusters is None or self.clusters <= clients,
            f"clusters is {self.clusters}, and there are {clients} clients; ask for at"
            " most as many",
        )

    @property
    def probes(self) -> bool:
        return True

    # before training
    # ----------------------------------------------------------------------------------

    def init_server(self, init: Init, population: Population) -> PACFLState:
        return self._with_clusters(init(0), np.zeros(len(population), np.int64))

    def probe_downlink(self, server: PACFLState, cohort: Cohort) -> Downlink:
        # Clients can compute the initial model from the seed; only its shapes are used.
        return Downlink(
            {"model": Streams.everyone(server.initial, len(cohort), already_held=True)}
        )

    def probe(self, inbox: Inbox, local: LocalTrainer) -> ClientUpdate:
        # One example, and the model's outputs for it, tell how many features an input
        # has, and how many classes there are.
        params = local.params(inbox.only("model"))
        example = local.draw("pacfl", 0, 1)
        outputs = jax.eval_shape(lambda x: local.logits(params, x), example.x)
        classes = outputs.shape[-1]
        features = math.prod(example.x.shape[1:])
        require(
            features > 0 and jnp.issubdtype(example.x.dtype, jnp.floating),
            "pacfl compares clients by their inputs, and these data have none that are"
            " real numbers",
        )
        require(
            example.y.ndim == 1 and jnp.issubdtype(example.y.dtype, jnp.integer),
            "pacfl takes the inputs of each class, and these data have no classes",
        )
        vectors = min(self.vectors, features)
        return {"bases": leading_vectors(local, classes, features, vectors)}

    def aggregate_probe(
        self, server: PACFLState, answers: Answers, cohort: Cohort
    ) -> PACFLState:
        # of each client, as a NumPy array [c, classes, p, features]
        bases = answers.host("bases").astype(np.float64)
        angles = self._angles(bases, bases)
        cluster = agglomerative(
            angles, self.linkage, clusters=self.clusters, threshold=self.threshold
        )
        server = self._with_clusters(server.initial, cluster)
        return server.replace(bases=bases, angles=angles)

    def _with_clusters(
        self, theta: Float[Array, " d"], cluster: NDArray[np.int64]
    ) -> PACFLState:
        """The server before the first round, when all models are theta."""
        models = jnp.repeat(theta[None], cluster.max() + 1, axis=0)  # [s, d]
        return PACFLState(models, self.optimizer.init(models), theta, cluster)

    def _angles(
        self,
        bases: Float[np.ndarray, "c classes p features"],
        others: Float[np.ndarray, "m classes p features"],
    ) -> Float[np.ndarray, "c m"]:
        """The distance between clients: one angle of 0 to 90 degrees for each pair.

        Args:
            bases: what some clients sent.
            others: what other clients sent.
        """
        smallest = self.angle == "smallest"
        if smallest:
            # one subspace for each client, of the vectors of all classes
            bases, others = _spans(bases), _spans(others)
        angles = np.stack([principal_angles(one, others) for one in bases])
        # NaN = one of the two clients lacks this direction, or class.
        reduce = np.nanmin if smallest else np.nanmean
        return reduce(angles, axis=-1)

    # rounds
    # ----------------------------------------------------------------------------------

    def broadcast(self, server: PACFLState, cohort: Cohort) -> Downlink:
        cluster = self._cluster(server, cohort)
        return Downlink({"model": Streams(server.model, cluster[:, None])})

    def _cluster(self, server: PACFLState, cohort: Cohort) -> NDArray[np.int32]:
        """The cluster of each client of a cohort [c].

        For a client that never took part, that of the seen client at the smallest angle
        to it.
        """
        if cohort.seen:
            return server.cluster[cohort.position].astype(np.int32)
        assert cohort.probes is not None and server.bases is not None
        # what the new clients answered to the probe
        bases = cohort.probes.host("bases").astype(np.float64)
        nearest = self._angles(bases, server.bases).argmin(axis=1)
        return server.cluster[nearest].astype(np.int32)

    def client(
        self, state: Any, inbox: Inbox, local: LocalTrainer
    ) -> tuple[Any, ClientUpdate]:
        return state, {"model": local.sgd(inbox.only("model"), self.sgd)}

    def server(
        self, server: PACFLState, downlink: Downlink, answers: Answers, cohort: Cohort
    ) -> PACFLState:
        # FedAvg in every cluster
        share = reporter_weights(cohort, self.weights)
        cluster = self._cluster(server, cohort)
        weights = cluster_averages(cluster, len(server.model), share)
        return average_step(server, self.optimizer, answers["model"], weights)

    def diagnostics(self, server: PACFLState) -> Sequence[Diagnostic]:
        if server.angles is None:
            return ()
        return [
            MatrixDiagnostic(
                "angles", "Angles between clients' inputs (degrees)", server.angles
            )
        ]


def leading_vectors(
    local: LocalTrainer, classes: int, features: int, vectors: int
) -> Float[Array, "classes p features"]:
    """The leading right singular vectors of one client's inputs, class by class.

    With X_c [n_c, features] the inputs of class c, these are the eigenvectors of
    X_c' X_c of largest eigenvalue. They are found by subspace iteration, which needs no
    more memory than a batch and a few vectors.

    Args:
        local: the client.
        classes: the number of classes.
        features: of an input.
        vectors: p.

    Returns:
        The vectors as rows; zero where a class has fewer directions than p.
    """
    width = min(vectors + _SPARE, features)
    dtype = local.draw("pacfl", 0, 1).x.dtype
    batches = local.steps(SGD(batch_size=_BATCH))

    def times_gram(
        basis: Float[Array, "classes features w"],
    ) -> Float[Array, "classes features w"]:
        """X_c' X_c V_c for the basis V_c of each class, in one pass over the data."""

        def add(total: Array, batch: Batch, index: Int[Array, ""]) -> Array:
            # X_c' X_c V_c is a sum over samples x of x (x' V_c). Padding has weight 0.
            weight = batch.weight[:, None].astype(dtype)
            x = batch.x.reshape(len(batch.x), -1) * weight  # [b, features]
            products = jnp.einsum("bf,bfw->bw", x, basis[batch.y])
            return total.at[batch.y].add(x[:, :, None] * products[:, None])

        return local.loop(jnp.zeros_like(basis), add, batches, _BATCH, purpose="pacfl")

    def iterate(_: Any, basis: Array) -> Array:
        # Without orthonormalisation all columns would become the first singular vector.
        return jnp.linalg.qr(times_gram(basis))[0]

    start = jax.random.normal(jax.random.key(0), (features, width), dtype)
    start = jnp.linalg.qr(start)[0]
    start = jnp.broadcast_to(start, (classes, features, width))
    basis = local.fori_loop(_ITERATIONS, iterate, start)
    # Rayleigh-Ritz: the singular vectors within the subspace follow from the
    # eigenvectors of V' X' X V. `eigh` is ascending, and the largest are wanted first.
    projected = jnp.einsum("cfv,cfw->cvw", basis, times_gram(basis))
    eigenvalues, rotation = jnp.linalg.eigh(projected)
    singular_vectors = jnp.einsum("cfv,cvw->cwf", basis, rotation)[:, ::-1]
    eigenvalues = eigenvalues[:, ::-1]
    # Eigenvalues that are no more than rounding of the largest belong to directions
    # that the class does not have.
    rounding = jnp.finfo(dtype).eps * features * eigenvalues[:, :1]
    is_direction = eigenvalues[:, :vectors] > rounding
    return jnp.where(is_direction[:, :, None], singular_vectors[:, :vectors], 0)


def principal_angles(
    one: Float[np.ndarray, "classes p features"],
    others: Float[np.ndarray, "m classes p features"],
) -> Float[np.ndarray, "m n"]:
    """Principal angles between one client's subspaces and those of other clients.

    Args:
        one: the bases of one client.
        others: the bases of m other clients.

    Returns:
        Angles in degrees [m, classes * p]; NaN where one of two clients has no such
        direction. Where two clients share no class, all of their angles are 90.
    """
    # The cosines of the principal angles are the singular values of U_ic' U_jc [p, p].
    products = np.einsum("cpf,mcqf->mcpq", one, others)
    cosines = np.linalg.svd(products, compute_uv=False)
    angles = np.degrees(np.arccos(np.clip(cosines, 0.0, 1.0)))
    # Two subspaces have as many angles as the smaller one has dimensions; a row of
    # zeros is no dimension.
    dimensions = (one != 0).any(axis=-1).sum(axis=-1)  # [classes]
    other_dimensions = (others != 0).any(axis=-1).sum(axis=-1)  # [m, classes]
    rank = np.minimum(dimensions, other_dimensions)
    beyond_rank = np.arange(cosines.shape[-1]) >= rank[..., None]
    angles[beyond_rank] = np.nan
    angles = angles.reshape(len(others), -1)
    shares_nothing = np.isnan(angles).all(axis=1)
    angles[shares_nothing] = 90.0
    return angles


def _spans(
    bases: Float[np.ndarray, "c classes p features"],
) -> Float[np.ndarray, "c 1 n features"]:
    """One subspace for each client, the span of the vectors of all its classes.

    Returns:
        Orthonormal rows; zero beyond the dimension of the span.
    """
    stacked = bases.reshape(len(bases), 1, -1, bases.shape[-1])
    _, singular_values, rows = np.linalg.svd(stacked, full_matrices=False)
    is_direction = singular_values[..., None] > 1e-6
    return np.where(is_direction, rows, 0.0)

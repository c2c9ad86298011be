"""PACFL: clusters of clients by the angles between the subspaces of their inputs."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor._base.groups import MIN_ROWS
from fedtailor.aggregation import ServerOptimizer, cluster_averages, reporter_weights
from fedtailor.aggregation.agglomerative import agglomerative
from fedtailor.algorithms.helpers.averaging import AveragedModels, average_step
from fedtailor.algorithms.helpers.pairs import check_pairs
from fedtailor.algorithms.helpers.subspaces import (
    joint_subspaces,
    leading_vectors,
    principal_angles,
)
from fedtailor.protocol import (
    SGD,
    About,
    Algorithm,
    Answers,
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
    server_state,
)


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

    Before training, every client sends the p leading left singular vectors of the
    inputs of each of its classes:

        X_ic = U_ic S_ic V_ic',    U_ic = [u_1, ..., u_p]

    The server compares clients by the principal angles between these subspaces. These
    are the arc cosines of the singular values of U_ic' U_jc, averaged over the classes
    that both clients have, or 90 degrees if they have no class in common. The server
    then clusters the clients agglomeratively and runs FedAvg in every cluster. Angles
    depend on inputs only, so clients that label the same inputs differently are in the
    same cluster. The server sees the bases, which reveal much about the data.

    A class of fewer than five training rows, or of p or fewer, sends no vectors, unlike
    in the paper: they would span these rows, and their number would be that of the rows.
    It counts as a class that the client does not have.

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

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
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
    """Number of clusters; None = determined by `threshold`. Without a threshold merging
    stops where the merge angle grows most: at two clusters or more, unless all angles
    are equal."""
    threshold: float | None = None
    """Angle in degrees from which clusters are not merged, instead of their number
    (Vahidian et al. tune it).
    """
    angle: Literal["mean", "smallest"] = "mean"
    """The mean principal angle between the subspaces of each class, or the smallest
    angle between the spans of all vectors (the paper's equation 2, for clients that
    share few classes).
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

    def check(self, population: Population) -> None:
        check_pairs(population, self.about.name)
        clients = len(population)
        require(
            self.clusters is None or self.clusters <= clients,
            f"clusters is {self.clusters}, and there are {clients} clients; ask for at"
            " most as many",
        )

    @property
    def probes(self) -> bool:
        return True

    @property
    def sends_class_counts(self) -> bool:
        # which classes have more than a few rows
        return True

    # before training
    # ----------------------------------------------------------------------------------

    def init_server(self, init: Init, population: Population) -> PACFLState:
        return self._with_clusters(init(0), np.zeros(len(population), np.int64))

    def probe_downlink(self, server: PACFLState, cohort: Cohort) -> Downlink:
        # Only the shapes of the model are used. Clients can compute it from the seed,
        # so the ledger does not count it.
        model = Streams.everyone(server.initial, len(cohort), already_held=True)
        return Downlink({"model": model})

    def probe(self, inbox: Inbox, local: LocalTrainer) -> ClientUpdate:
        # One example and the shape of the model's outputs for it give the numbers of
        # features and classes.
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
        # The vectors of p rows or fewer span them, and as many are not zero.
        least = max(MIN_ROWS, vectors + 1)
        return {"bases": leading_vectors(local, classes, features, vectors, least)}

    def ranges(self, size: int) -> Mapping[str, tuple[float, float]]:
        # Entries of vectors of length 1.
        return {"bases": (-1, 1)}

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
        is_smallest = self.angle == "smallest"
        if is_smallest:
            # One subspace for each client, spanned by the vectors of all classes.
            bases, others = joint_subspaces(bases), joint_subspaces(others)
        angles = np.stack([principal_angles(one, others) for one in bases])
        # NaN: one of the two clients does not have this direction or class.
        reduce = np.nanmin if is_smallest else np.nanmean
        return reduce(angles, axis=-1)

    # rounds
    # ----------------------------------------------------------------------------------

    def broadcast(self, server: PACFLState, cohort: Cohort) -> Downlink:
        cluster = self._cluster(server, cohort)
        return Downlink({"model": Streams.by_index(server.model, cluster)})

    def _cluster(self, server: PACFLState, cohort: Cohort) -> NDArray[np.int64]:
        """The cluster of each client of a cohort [c].

        An unseen client has the cluster of the seen client at the smallest angle to it.
        """
        if cohort.seen:
            return server.cluster[cohort.position]
        assert cohort.probes is not None and server.bases is not None
        # the answers of the unseen clients to the probe
        bases = cohort.probes.host("bases").astype(np.float64)
        nearest = self._angles(bases, server.bases).argmin(axis=1)
        return server.cluster[nearest]

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
        return average_step(
            server, self.optimizer, answers["model"], weights, cohort.is_statistic
        )

    def diagnostics(self, server: PACFLState) -> Sequence[Diagnostic]:
        if server.angles is None:
            return ()
        return [
            MatrixDiagnostic(
                "angles", "Angles between clients' inputs (degrees)", server.angles
            )
        ]

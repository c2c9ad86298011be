"""FedPAC: a shared body with aligned features, and for each client the combination of
all heads that its data ask for.
"""

from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fedtailor._base.choice import require
from fedtailor.aggregation import reporter_weights, weighted_sums
from fedtailor.algorithms.fedper import FedPer
from fedtailor.algorithms.helpers.class_means import (
    IS_SEEN,
    class_sums,
    gradient_with_pull,
    number_of_classes,
    require_classes,
    require_no_private_steps,
)
from fedtailor.algorithms.helpers.shared_part import (
    SharedPart,
    entry_of_part,
    join_parts,
    model_parts_of,
)
from fedtailor.protocol import (
    SGD,
    About,
    Answers,
    ClientState,
    ClientUpdate,
    Cohort,
    Downlink,
    Inbox,
    Init,
    LocalTrainer,
    ModelParts,
    Population,
    Predictor,
    Streams,
    ZeroIsStatic,
    hyperparameters,
    is_off,
    server_state,
    sums_type,
)


@server_state
class FedPACState(SharedPart):
    """The shared body, and what belongs to the clients."""

    heads: Float[Array, "m d_head"]
    """The combined head of each client."""
    centroids: Float[Array, "classes size+1"]
    """The mean features of each class; the last column is 1 where there are some."""


@hyperparameters
class FedPAC(FedPer):
    """Feature alignment and classifier collaboration (Xu et al. 2023, algorithm 1).

    A client receives the body b, a head h_i of its own and the mean features c_k of each
    class. It trains the head below the received body, then the body, whose features it
    pulls to c:

        h_i <- SGD(h_i; b, D_i),    b_i <- SGD(b; h_i, F_i + lam mean_x |z - c_y|^2 / size)

    The server averages the bodies and, by examples, the mean features. The head that
    client i receives next is the combination of all reporters' heads that minimises a
    bound of its expected error, by its share p_ik of examples of class k and their mean
    features mu_ik under the received body:

        min_a  sum_j a_j^2 V_j + sum_k | p_ik mu_ik - sum_j a_j p_jk mu_jk |^2,    a >= 0,  sum_j a_j = 1
        V_j = ( mean_x |z|^2 - sum_k |p_jk mu_jk|^2 ) / n_j

    This is the point of least norm in a convex hull, found exactly. The server needs
    each client's head and mean features. A client that never took part trains a head
    on the shared body, as in FedPer.

    The released code (and PFLlib) drops eigenvalues of the quadratic form below 0.01 if
    rounding makes one negative, sets weights below 0.001 to 0 (`least`) without scaling
    the others, and gives clients equal weights in the mean features of a class.
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="fedpac",
        paper=(
            "Xu et al. 2023, Personalized Federated Learning with Feature Alignment and"
            " Classifier Collaboration"
        ),
        down="1 body, its own head, the mean features of each class",
        up="1 model, its mean features of each class before and after training",
        client_keeps="its head, as it was trained",
        unseen_clients_get="trains a head on the shared body",
        models_received="a part",
    )

    sgd: SGD = SGD(lr=0.01, momentum=0.5, epochs=5, batch_size=50)
    """Training of the body."""
    head: SGD = SGD(lr=0.1, momentum=0.5, epochs=1, batch_size=50)
    """Training of the head, before the body (the paper: 1 epoch)."""
    lam: ZeroIsStatic = 1.0
    """Weight of the distance to the mean features (the paper: 1)."""
    least: float = 0.0
    """Weights of heads below it count as 0 (released code: 0.001)."""

    def __post_init__(self) -> None:
        require(self.lam >= 0, f"lam is {self.lam}; it must be 0 or more")
        require(0 <= self.least < 1, f"least is {self.least}; it must be in [0, 1)")
        require_no_private_steps("fedpac", "mean features", self.sgd, self.head)

    # on the server
    # ----------------------------------------------------------------------------------

    @property
    def sends_class_counts(self) -> bool:
        return True

    def numbers_per_round(self, model: ModelParts) -> int:
        # The mean features of all classes have the size of the head, and go up twice.
        return 3 * model.size

    def check(self, population: Population) -> None:
        super().check(population)
        model = model_parts_of(population, self.about.name)
        _ = model.feature_shape  # a model without a head is refused here
        require_classes(model, "fedpac's mean features are those of classes")

    def init_server(self, init: Init, population: Population) -> Any:
        start = super().init_server(init, population)
        model = model_parts_of(population, self.about.name)
        head = start.part.complement.take(start.initial)
        size = int(np.prod(model.feature_shape)) + 1
        return FedPACState(
            start.model,
            start.optimizer,
            start.initial,
            start.runs,
            heads=jnp.tile(head, (len(population), 1)),
            centroids=jnp.zeros((model.outputs, size), sums_type(head)),
        )

    def broadcast(self, server: Any, cohort: Cohort) -> Downlink:
        heads = Streams.one_each(server.heads[cohort.position])
        centroids = Streams.everyone(server.centroids[None], len(cohort))
        body = server.part_stream(len(cohort))
        return Downlink({"model": body, "head": heads, "centroids": centroids})

    def server(
        self, server: Any, downlink: Downlink, answers: Answers, cohort: Cohort
    ) -> Any:
        if not cohort.reporting.any():
            return server
        weights = reporter_weights(cohort, self.weights)[None]
        new = server.update_part(
            self.optimizer, answers["model"], weights, cohort.is_statistic
        )
        by_examples = reporter_weights(cohort, "samples")[None]
        sums = weighted_sums(answers["features"], by_examples)
        sums = sums.reshape(server.centroids.shape)
        is_seen = sums[:, -1:] > IS_SEEN
        means = sums / jnp.where(is_seen, sums[:, -1:], 1)
        centroids = jnp.where(is_seen, means, server.centroids)
        # a_ij for all pairs of reporters, and their heads
        combine = self._combinations(answers, len(server.centroids))
        heads = combine @ answers.reporters("head").astype(np.float64)
        heads = server.heads.at[cohort.reporters].set(
            jnp.asarray(heads, server.heads.dtype)
        )
        return new.replace(
            heads=heads, centroids=centroids.astype(server.centroids.dtype)
        )

    def _combinations(self, answers: Answers, classes: int) -> Float[np.ndarray, "r r"]:
        """The weights of all reporters' heads in each reporter's next head."""
        before = answers.reporters("before").astype(np.float64)
        before = before.reshape(len(before), classes, -1)[:, :, :-1]
        variance = np.maximum(answers.reporters("variance").astype(np.float64), 0)
        means = before.reshape(len(before), -1)  # p_jk mu_jk of all k
        weights = np.stack([head_weights(means - own, variance) for own in means])
        return np.where(weights < self.least, 0, weights)

    def serve(self, server: Any, cohort: Cohort) -> Downlink:
        body = server.part_stream(len(cohort))
        if not cohort.seen:
            initial = server.initial_stream(len(cohort))
            return Downlink({"model": body, "initial": initial})
        heads = Streams.one_each(server.heads[cohort.position])
        return Downlink({"model": body, "head": heads})

    # on the client
    # ----------------------------------------------------------------------------------

    def client(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> tuple[ClientState, ClientUpdate]:
        own, centroids = self._own(local), inbox.only("centroids")
        theta = self._received(inbox, local)
        before = self._sums(theta, local)
        theta = local.sgd(theta, self.head, train_only=own)
        gradient = None  # None: `local.sgd` uses the gradient of the usual loss
        # A constant lam = 0 leaves the distance out of the compiled program.
        if not is_off(self.lam):
            gradient = gradient_with_pull(centroids, self.lam, local)
        theta = local.sgd(theta, self.sgd, gradient=gradient, train_only=own.complement)
        # Column 0 of each class is the sum of |z|^2.
        means = before[:, 1:-1]
        variance = before[:, 0].sum() - jnp.square(means).sum()
        return entry_of_part("own", own.take(theta)), {
            **entry_of_part("model", own.complement.take(theta)),
            **entry_of_part("head", own.take(theta)),
            "before": before[:, 1:].reshape(-1),
            "variance": variance / jnp.maximum(local.total(), 1),
            "features": self._sums(theta, local)[:, 1:].reshape(-1),
        }

    def _sums(
        self, theta: Float[Array, " d"], local: LocalTrainer
    ) -> Float[Array, "classes _"]:
        """Sums of |z|^2, of features z and of examples of each class, over n_i."""
        classes = number_of_classes(theta, local)
        return class_sums(
            theta, classes, self.sgd.batch_size, local, columns=with_lengths
        )

    def _received(self, inbox: Inbox, local: LocalTrainer) -> Float[Array, " d"]:
        head = entry_of_part("own", inbox.only("head"))
        return join_parts(self._own(local), head, inbox.only("model"))

    def personal(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> Predictor:
        # Newcomers have the head that they have trained, others that which they are sent.
        if "head" in inbox.values:
            return self._received(inbox, local)
        return super().personal(state, inbox, local)


def with_lengths(z: Float[Array, "b size"]) -> Float[Array, "b size+1"]:
    """Features, and before them their squared lengths."""
    return jnp.concatenate([jnp.square(z).sum(axis=1, keepdims=True), z], axis=1)


def head_weights(
    apart: Float[np.ndarray, "r size"], variance: Float[np.ndarray, " r"]
) -> Float[np.ndarray, " r"]:
    """The weights a that minimise sum_j a_j^2 V_j + | sum_j a_j apart_j |^2.

    a is a point of the simplex. The sum is the squared norm of sum_j a_j p_j, where p_j
    stacks apart_j and the root of V_j as the j-th of r further entries. The point of
    least norm in a convex hull is that of non-negative least squares, min |P x|^2 +
    (sum x - 1)^2, scaled to sum 1.

    Args:
        apart: the difference of every reporter's p_jk mu_jk from the client's own.
        variance: V.
    """
    from scipy.optimize import nnls

    points = np.concatenate([apart, np.diag(np.sqrt(variance))], axis=1)
    # The scale of the points does not change a.
    points = points / max(np.abs(points).max(), np.finfo(float).tiny)
    matrix = np.concatenate([points.T, np.ones((1, len(points)))])
    x, _ = nnls(matrix, np.append(np.zeros(points.shape[1]), 1.0))
    return x / x.sum()

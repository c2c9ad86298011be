"""CCVR: FedAvg, and a head that is retrained on features drawn from the classes' moments."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fedtailor._base.choice import require
from fedtailor.aggregation import reporter_weights, weighted_sums
from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.algorithms.helpers.averaging import AveragedModels
from fedtailor.algorithms.helpers.class_means import (
    batches_of,
    class_sums,
    least_share,
    number_of_classes,
    require_classes,
    require_no_private_steps,
    require_server_steps,
    train_head,
)
from fedtailor.algorithms.helpers.own_steps import why_sums_show_clients
from fedtailor.algorithms.helpers.shared_part import (
    model_parts_of,
    part_of_runs,
    runs_of,
)
from fedtailor.models.dense_head import dense_head_of
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
    ModelParts,
    Population,
    Streams,
    TracedInt,
    hyperparameters,
    server_state,
)


@server_state
class CCVRState(AveragedModels):
    """FedAvg's model, and the one that is served."""

    calibrated: Float[Array, "1 d"]
    """The model that clients received last, with a calibrated head."""
    rounds: int
    """Rounds of this method so far."""
    runs: Int[np.ndarray, "runs 2"]
    """The entries of the head in theta (see `runs_of`)."""
    weight: Int[np.ndarray, "features classes"]
    """Which numbers of the head are its weights."""
    bias: Int[np.ndarray, " _"]
    """Which numbers of the head are its bias, if it has one."""


@hyperparameters
class CCVR(FedAvg):
    """Classifier calibration with virtual representations (Luo et al. 2021).

    The model is trained as in FedAvg. Then the server trains its head once more, on
    features that it draws from a normal distribution for each class, whose moments over
    all clients follow from sums over clients:

        n_c = sum_i n_ic,    mu_c = sum_i sum_x z / n_c,    Sigma_c = ( sum_i sum_x z z' - n_c mu_c mu_c' ) / (n_c - 1)

    with the features z of the received model on client i's examples x of class c. This
    is the paper's rule for the clients' means and covariances, so that secure
    aggregation applies. A client predicts with that model and its calibrated head.

    The paper asks for the moments once, after the last round. Here they come with the
    answers of every round from `after` on, and what is served is the model that clients
    received in the last round, to which they belong: a run of T rounds serves FedAvg's
    model of T - 1 rounds, calibrated. With `after` = T - 1 the moments are sent once,
    as in the paper.
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="ccvr",
        paper=(
            "Luo et al. 2021, No Fear of Heterogeneity: Classifier Calibration for"
            " Federated Learning with Non-IID Data"
        ),
        down="1 model",
        up="1 model; sums of features and of their products of each class",
        client_keeps="nothing",
        unseen_clients_get="the global model with the calibrated head",
        server_sees="sums",
    )

    modes: ClassVar[tuple[str, ...]] = ("moments",)

    after: TracedInt = 0
    """How many rounds are FedAvg's alone."""
    draws: int = 200
    """Features that are drawn of each class (FL-bench: 200)."""
    server_lr: float = 0.01
    """Rate of the server's steps on drawn features; 0 = the head stays as it is."""
    server_epochs: int = 1
    """The server's passes over the drawn features (FL-bench: 1)."""
    server_batch: int = 32
    """How many drawn features a step of the server takes (FL-bench: as in training)."""

    @property
    def takes_weights(self) -> bool:
        return False  # the covariances divide by numbers of rows

    def __post_init__(self) -> None:
        require(self.after >= 0, f"after is {self.after}; it must be 0 or more")
        require_server_steps(
            self.server_lr,
            draws=self.draws,
            server_epochs=self.server_epochs,
            server_batch=self.server_batch,
        )
        require_no_private_steps("ccvr", "sums of features", self.sgd)

    # on the server
    # ----------------------------------------------------------------------------------

    @property
    def sends_class_counts(self) -> bool:
        return True

    @property
    def sums_show_clients(self) -> str:
        return why_sums_show_clients(self.sgd)

    def numbers_per_round(self, model: ModelParts) -> int:
        features, classes = dense_head_of(model, self.about.name).weight.shape
        products = features * (features + 1) // 2
        return model.size + classes * (features + products + 1)

    def check(self, population: Population) -> None:
        model = model_parts_of(population, self.about.name)
        require_classes(model, "ccvr draws features of classes")
        dense_head_of(model, self.about.name)

    def init_server(self, init: Init, population: Population) -> Any:
        start = super().init_server(init, population)
        model = model_parts_of(population, self.about.name)
        head = dense_head_of(model, self.about.name)
        part = model.part("head" if "head" in model.parts else "everything")
        return CCVRState(
            start.model,
            start.optimizer,
            calibrated=start.model,
            rounds=0,
            runs=runs_of(part),
            weight=head.weight,
            bias=head.bias,
        )

    def broadcast(self, server: Any, cohort: Cohort) -> Downlink:
        mode = "moments" if server.rounds >= self.after else ""
        model = Streams.everyone(server.model, len(cohort))
        return Downlink({"model": model}, mode=mode)

    def server(
        self,
        server: Any,
        downlink: Downlink,
        answers: Answers,
        cohort: Cohort,
    ) -> Any:
        if not cohort.reporting.any():
            return server
        new = super().server(server, downlink, answers, cohort)
        calibrated = new.model
        if downlink.mode == "moments":
            calibrated = self._calibrated(server, answers, cohort)
        return new.replace(calibrated=calibrated, rounds=server.rounds + 1)

    def _calibrated(
        self, server: Any, answers: Answers, cohort: Cohort
    ) -> Float[Array, "1 d"]:
        """The model that clients received, with a head trained on drawn features."""
        features, classes = server.weight.shape
        share = reporter_weights(cohort, "samples")[None]
        sums = np.asarray(weighted_sums(answers["moments"], share)[0], np.float64)
        samples = int(cohort.sizes[cohort.reporting].sum())
        moments = moments_of(samples * sums.reshape(classes, -1), features)
        rng, z, y = cohort.rng("ccvr"), [], []
        for number, (count, mean, covariance) in enumerate(zip(*moments, strict=True)):
            if count > least_share(answers["moments"]) * samples:
                z.append(draw_normal(rng, mean, covariance, self.draws))
                y.append(np.full(self.draws, number))
        examples, labels = np.concatenate(z), np.concatenate(y)
        order = np.tile(np.arange(len(labels)), (self.server_epochs, 1))
        batches = batches_of(
            rng.permuted(order, axis=1), len(labels), self.server_batch
        )
        part = part_of_runs(server.runs, server.model.shape[1])
        head = train_head(
            part.take(server.model[0]),
            jnp.asarray(server.weight),
            jnp.asarray(server.bias),
            jnp.asarray(examples, server.model.dtype),
            jnp.asarray(labels),
            jax.tree.map(jnp.asarray, batches),
            self.server_lr,
        )
        return part.put(server.model, head[None])

    def serve(self, server: Any, cohort: Cohort) -> Downlink:
        return Downlink({"model": Streams.everyone(server.calibrated, len(cohort))})

    # on the client
    # ----------------------------------------------------------------------------------

    def client(
        self, state: ClientState, inbox: Inbox, local: LocalTrainer
    ) -> tuple[ClientState, ClientUpdate]:
        state, update = super().client(state, inbox, local)
        if inbox.mode != "moments":
            return state, update
        theta = inbox.only("model")
        classes, size = number_of_classes(theta, local), self.sgd.batch_size
        sums = class_sums(theta, classes, size, local, columns=with_products)
        return state, {**update, "moments": sums.reshape(-1)}


def with_products(z: Float[Array, "b size"]) -> Float[Array, "b _"]:
    """Features, and their products z_i z_j for i <= j."""
    rows, columns = np.triu_indices(z.shape[1])
    return jnp.concatenate([z, z[:, rows] * z[:, columns]], axis=1)


def moments_of(
    sums: Float[np.ndarray, "classes _"], features: int
) -> tuple[
    Float[np.ndarray, " classes"],
    Float[np.ndarray, "classes size"],
    Float[np.ndarray, "classes size size"],
]:
    """The number of examples, mean and covariance of each class.

    Args:
        sums: of features, of their products (`with_products`), and of examples.
        features: the number of features.
    """
    counts = sums[:, -1]
    safe = np.where(counts > 0, counts, 1)
    means = sums[:, :features] / safe[:, None]
    rows, columns = np.triu_indices(features)
    products = np.zeros((len(sums), features, features))
    products[:, rows, columns] = sums[:, features:-1]
    products[:, columns, rows] = sums[:, features:-1]
    centred = products - safe[:, None, None] * means[:, :, None] * means[:, None]
    # A single example has no covariance.
    return counts, means, centred / np.maximum(safe - 1, 1)[:, None, None]


def draw_normal(
    rng: np.random.Generator,
    mean: Float[np.ndarray, " size"],
    covariance: Float[np.ndarray, "size size"],
    draws: int,
) -> Float[np.ndarray, "draws size"]:
    """Draws from a normal distribution whose covariance may be singular."""
    values, vectors = np.linalg.eigh(covariance)
    # Rounding makes small eigenvalues of zeros, whose roots are not small.
    values = np.where(values > 1e-10 * values.max(initial=0), values, 0)
    # The symmetric root, which does not depend on the choice of eigenvectors.
    root = (vectors * np.sqrt(values)) @ vectors.T
    return mean + rng.normal(size=(draws, len(mean))) @ root

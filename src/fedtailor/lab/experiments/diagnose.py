"""`diagnose`: analyze a federation by a probe, before training or after a few rounds."""

from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.lax import Precision
from jaxtyping import Array, Float, Int
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor._base.notebook import html_paragraphs, html_table
from fedtailor.algorithms import FedAvg
from fedtailor.algorithms.helpers.batch_gradients import batch_scatter
from fedtailor.algorithms.helpers.warm_up import SKETCH_SIZE, sketcher
from fedtailor.data.federation import Federation
from fedtailor.engine.executors import Settings
from fedtailor.engine.runs.run import executor_of
from fedtailor.engine.training import RunSpec, Training
from fedtailor.models import Architecture, Model
from fedtailor.protocol import (
    Algorithm,
    Answers,
    Batch,
    Clients,
    ClientUpdate,
    Cohort,
    Downlink,
    Executor,
    Inbox,
    LocalTrainer,
    ServerState,
    Streams,
    hyperparameters,
    server_state,
)
from fedtailor.statistics.diagnosis import (
    Diagnosis,
    Evidence,
    Race,
    batch_sizes,
    recommend_race,
)
from fedtailor.statistics.diagnosis import diagnose as diagnose_evidence
from fedtailor.statistics.diagnosis.recommend import differ_unseen

BATCH_SHARE = 0.05
"""Size of a batch, as a share of the client's samples, for the variance of gradients.

The fewer batches there are, the less is known of the variance.
"""

PAIR_FEATURES = 4e8
"""The largest number of pairs of clients times features (10 seconds of computation).

If there are more, a subset of the features at equal distances is used.
"""

ROUNDING = 1e-6
"""Relative rounding error of gradients; smaller standard deviations count as 0."""

_BATCH = 128


@dataclass(frozen=True)
class Advice:
    """The result of `diagnose`.

    Attributes:
        diagnosis: tables of clients and of pairs of clients.
        race: the recommended methods.
        federation: name of the data.
        probe_bytes: number of bytes that all clients sent for the probe, and in the
            rounds before it.
        validation: number of validation rows of all seen clients.
        warm: rounds of FedAvg before the probe.
    """

    diagnosis: Diagnosis
    race: Race
    federation: str
    probe_bytes: int
    validation: int
    warm: int = 0

    def _repr_html_(self) -> str:
        """The advice in a notebook: sentences, methods to train, clients and pairs."""
        methods = html_table(
            ("method", "start with", "because"),
            (
                (entry.method, entry.settings or "-", entry.because)
                for entry in self.race.entries
            ),
            "train",
        )
        return (
            html_paragraphs(self.sentences()) + methods + self.diagnosis._repr_html_()
        )

    def sentences(self) -> list[str]:
        """A summary in three to seven sentences."""
        sentences = [*self.diagnosis.sentences(), self.race.doubt]
        if not self.warm and differ_unseen(self.diagnosis):
            sentences.append(
                "An untrained model can hide who resembles whom: ask again after ten"
                " rounds of FedAvg (warm 10)."
            )
        choice = self.race.sentence
        if not self.validation:
            choice += " There are no validation rows yet: set some aside."
        return [sentence for sentence in (*sentences, choice) if sentence]


def diagnose(
    federation: Federation,
    model: Model | Architecture,
    *,
    seed: int = 0,
    warm: int = 0,
    fedavg: FedAvg = FedAvg(),  # noqa: B008 (frozen)
    settings: Settings = Settings(),  # noqa: B008 (frozen)
) -> Advice:
    """Analyze how clients differ and who gains from collaboration, and recommend
    methods.

    Each client sends its gradient at a common model, the variance of the gradients of
    its batches (UCFL's probe), the frequencies of its classes, and the means and
    variances of its features. The model is the initial one, or that of some rounds of
    FedAvg: the gradients of a network that has learned nothing may hide groups.

    Args:
        federation: the federation; only its training rows are used, and all count the
            same.
        model: the model to be trained.
        seed: random seed of the initial model and of the batches.
        warm: rounds of FedAvg before the probe.
        fedavg: how they train.
        settings: settings of the executor.

    Raises:
        ValueError: `warm` is negative, there is only one client, the rows of a client are all equal, or the
            model does not fit the data.
        Diverged: a gradient is NaN or infinite.

    Example:
        >>> advice = ft.diagnose(federation, ft.models.logistic())
        >>> len(advice.race.entries)
        3
    """
    require(warm >= 0, f"warm is {warm}; it must be a number of rounds, 0 or more")
    if federation.training_weights is not None:
        federation = replace(federation, weights=None, class_weights=None)
    executor = executor_of(federation, model, settings)
    # Token ids have no means.
    has_features = federation.x.dtype.kind != "i"
    features = int(np.prod(federation.input_shape, dtype=int)) if has_features else 0
    network = executor.model
    trained, warm_bytes = None, 0
    if warm:
        training = Training(RunSpec(fedavg, network, warm, seed=seed), executor)
        for _ in range(warm):
            training.advance()
        trained = training.server.model
        warm_bytes = training.ledger.totals().bytes_up
    preprocessing = federation.preprocessing
    unmixing = None if preprocessing is None else preprocessing.unmixing
    evidence, probe_bytes = gather_evidence(
        executor, network, federation.classes or 0, features, seed, trained, unmixing
    )
    if preprocessing is not None and evidence.feature_means is not None:
        names = preprocessing.inputs
        subset = _feature_subset(len(evidence.names), len(names))
        evidence = replace(
            evidence, feature_names=tuple(names[index] for index in subset)
        )
    probe_bytes += warm_bytes
    diagnosis = diagnose_evidence(evidence, trained=warm > 0)
    race = recommend_race(
        diagnosis, network.size * np.dtype(network.precision.parameters).itemsize
    )
    validation = int(federation.val.sizes[federation.seen].sum())
    return Advice(diagnosis, race, federation.name, probe_bytes, validation, warm)


def gather_evidence(
    executor: Executor,
    model: Model,
    classes: int,
    features: int,
    seed: int = 0,
    trained: Float[Array, "1 d"] | None = None,
    unmixing: NDArray[np.float64] | None = None,
) -> tuple[Evidence, int]:
    """Collect the evidence for a diagnosis from all seen clients, by one probe.

    Args:
        executor: the executor of the clients.
        model: the model to be trained.
        classes: number of classes; 0 if the targets are not labels.
        features: number of features of an input; 0 if inputs have no means.
        seed: random seed of the initial model and of the batches.
        trained: the model at which gradients are computed; None = the initial one.
        unmixing: what leads from decorrelated inputs back to the columns, see
            `PreprocessingFacts`.

    Returns:
        The evidence, with clients in the order of the federation, and the number of
        bytes that the clients sent.
    """
    rows = () if unmixing is None else tuple(map(tuple, unmixing.tolist()))
    algorithm = DataProbe(classes, features, rows)
    training = Training(RunSpec(algorithm, model, rounds=1, seed=seed), executor)
    if trained is not None:
        training.server = training.server.replace(model=trained)
    training.probe()
    answers: ProbeAnswers = training.server
    return _evidence(executor.seen, answers), training.ledger.totals().bytes_up


@server_state
class ProbeAnswers(ServerState):
    """The clients' answers, in the order of the population."""

    model: Float[Array, "1 d"]
    """The common initial model."""
    answers: dict[str, Any]
    """Arrays [m, ...] by kind; empty before the probe."""


@hyperparameters
class DataProbe(Algorithm):
    """A probe of gradients (as in UCFL), labels and features, without training."""

    classes: int = 0
    """Number of classes; 0 = targets are not labels, and are not counted."""
    features: int = 0
    """Number of features of an input; 0 = their moments are not computed."""
    unmixing: tuple[tuple[float, ...], ...] = ()
    """What leads from mixed inputs back to features; () = an input is its features."""

    @property
    def probes(self) -> bool:
        return True

    def init_server(self, init: Any, population: Any) -> ProbeAnswers:
        return ProbeAnswers(init(0)[None], {})

    def probe_downlink(self, server: ProbeAnswers, cohort: Cohort) -> Downlink:
        return Downlink({"model": Streams.everyone(server.model, len(cohort))})

    def probe(self, inbox: Inbox, local: LocalTrainer) -> ClientUpdate:
        theta = inbox.only("model")
        gradient = local.gradient(theta)
        is_large = gradient.size > SKETCH_SIZE
        project = sketcher(gradient, jnp.int32(0)) if is_large else None
        sigma2, concentration = batch_scatter(
            local, theta, gradient, BATCH_SHARE, project
        )
        answer = {
            "gradient": gradient,
            "sigma2": sigma2,
            "concentration": concentration,
        }
        dtype = gradient.dtype
        epoch = (local.size + _BATCH - 1) // _BATCH

        def count(counts: Array, batch: Batch, step: Int[Array, ""]) -> Array:
            return counts.at[batch.y].add(batch.weight)

        def features(x: Array) -> Array:
            if self.unmixing:
                matrix = jnp.array(self.unmixing, x.dtype)
                x = jnp.matmul(x, matrix, precision=Precision.HIGHEST)
            return x.reshape(len(x), -1)

        def add(total: Array, batch: Batch, step: Int[Array, ""]) -> Array:
            return total + batch.weight @ features(batch.x)

        if self.classes:
            counts = jnp.zeros(self.classes, dtype)
            answer["class_counts"] = local.loop(
                counts, count, epoch, _BATCH, whole=True
            )
        if self.features:
            zeros = jnp.zeros(self.features, dtype)
            mean = local.loop(zeros, add, epoch, _BATCH, whole=True) / local.size

            # Sum squared deviations from the mean. The mean of squares would lose the
            # variance of large features in single precision.
            def add_square(total: Array, batch: Batch, step: Int[Array, ""]) -> Array:
                deviations = features(batch.x) - mean
                return total + batch.weight @ jnp.square(deviations)

            squares = local.loop(zeros, add_square, epoch, _BATCH, whole=True)
            answer["feature_means"] = mean
            answer["feature_variances"] = squares / local.size
        return answer

    def aggregate_probe(
        self, server: ProbeAnswers, answers: Answers, cohort: Cohort
    ) -> ProbeAnswers:
        return server.replace(answers={kind: answers.host(kind) for kind in answers})


def _evidence(clients: Clients, server: ProbeAnswers) -> Evidence:
    """Build `Evidence` from the answers, in the order of the federation."""
    order = np.argsort(clients.original_index)
    answers = {
        kind: np.asarray(values)[order] for kind, values in server.answers.items()
    }
    sizes = clients.sizes[order]
    counts, means = answers.get("class_counts"), answers.get("feature_means")
    squares = None
    if means is not None:
        subset = _feature_subset(len(sizes), means.shape[1])
        means = means[:, subset].astype(np.float64)
        squares = answers["feature_variances"][:, subset].astype(np.float64) + means**2
    gradients, sigma2 = answers["gradient"], answers["sigma2"].astype(np.float64)
    # The gradients of equal rows may differ by rounding.
    lengths = np.einsum("md,md->m", gradients, gradients, dtype=np.float64)
    sigma2 = np.where(sigma2 > ROUNDING**2 * lengths, sigma2, 0.0)
    return Evidence(
        names=[clients.names[row] for row in order],
        sizes=sizes,
        gradients=gradients,
        sigma2=sigma2,
        batch_sizes=batch_sizes(sizes, BATCH_SHARE),
        concentrations=answers["concentration"].astype(np.float64),
        label_counts=None if counts is None else np.rint(counts).astype(np.int64),
        feature_means=means,
        feature_squares=squares,
    )


def _feature_subset(clients: int, features: int) -> Int[np.ndarray, " subset"]:
    """Indices of all features, or of a subset at equal distances (`PAIR_FEATURES`)."""
    max_features = max(int(2 * PAIR_FEATURES / clients**2), 1)
    positions = np.linspace(0, features - 1, min(features, max_features))
    return np.unique(positions.round().astype(np.int64))

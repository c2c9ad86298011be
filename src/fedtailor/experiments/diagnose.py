"""`diagnose`: what one probe says of a population, before anything is trained."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fedtailor.algorithms import UCFL
from fedtailor.diagnosis import Diagnosis, Evidence, Race, recommend
from fedtailor.diagnosis import diagnose as diagnose_evidence
from fedtailor.executors import Settings
from fedtailor.federation import Federation
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
from fedtailor.runs.binding import bind
from fedtailor.runs.run import executor_of
from fedtailor.training import Training

SHARE = 1 / 3
"""Samples of a batch in the variance of gradients, as a share of the client's.

Mestoukirdi et al., section V.
"""

PAIR_FEATURES = 4e8
"""Pairs of clients times features that are compared (10 seconds).

Of more, features at equal distances are taken.
"""

ROUNDING = 1e-6
"""Relative error of a gradient in single precision, generously.

Deviations below it are none.
"""

_BATCH = 128


@dataclass(frozen=True)
class Advice:
    """What `diagnose` found.

    Attributes:
        diagnosis: tables of clients and of pairs.
        race: the methods to train, with what to start and what they send.
        federation: the name of the data.
        probe_bytes: what the clients sent for it, all together.
        validation: rows of all clients together, for the choice between the methods.
    """

    diagnosis: Diagnosis
    race: Race
    federation: str
    probe_bytes: int
    validation: int

    def sentences(self) -> list[str]:
        """What a person wants to know, in three to six sentences."""
        said = [*self.diagnosis.sentences(), self.race.doubt]
        choice = self.race.sentence
        if not self.validation:
            choice += " There are no validation rows yet: set some aside."
        return [sentence for sentence in (*said, choice) if sentence]


def diagnose(
    federation: Federation,
    model: Model | Architecture,
    *,
    seed: int = 0,
    settings: Settings = Settings(),  # noqa: B008 (frozen)
) -> Advice:
    """Say who differs, who gains from sharing, and what to train.

    Each client sends its gradient at the common initial model and the variance of its
    batches' gradients (UCFL's probe), how often it has each class, and the means and
    variances of its features. Nothing is trained.

    Args:
        federation: the clients and their data; only training rows are looked at.
        model: what is to be trained.
        seed: of the initial model and of the batches.
        settings: devices.

    Raises:
        ValueError: there is one client only, or a client's rows are all the same, or
            something does not fit together.
        Diverged: a gradient is NaN or infinite.
    """
    executor = executor_of(federation, bind(model, federation), settings)
    # Tokens have no means, and a model without inputs no features.
    features = 0
    if federation.x.dtype.kind != "i":
        features = int(np.prod(federation.input_shape, dtype=int))
    network = executor.model
    evidence, sent = gather_evidence(
        executor, network, federation.classes or 0, features, seed
    )
    diagnosis = diagnose_evidence(evidence)
    race = recommend(diagnosis, network.size * np.dtype(network.dtype).itemsize)
    validation = int(federation.val.sizes[federation.seen].sum())
    return Advice(diagnosis, race, federation.name, sent, validation)


def gather_evidence(
    executor: Executor, model: Model, classes: int, features: int, seed: int = 0
) -> tuple[Evidence, int]:
    """The evidence of an executor's seen clients, by one probe.

    Args:
        executor: who answers.
        model: what is to be trained.
        classes: how many the labels have; 0 where they are no classes.
        features: of an input; 0 where they have no means.
        seed: of the initial model and of the batches.

    Returns:
        The evidence, of the clients in the order in which they are listed, and the
        bytes that the clients sent.
    """
    training = Training(DataProbe(classes, features), executor, model, seed=seed)
    training.probe()
    answers: ProbeAnswers = training.server
    return _evidence(executor.seen, answers), training.ledger.totals().bytes_up


@server_state
class ProbeAnswers(ServerState):
    """What the clients answered, in the order of the population."""

    model: Float[Array, "1 d"]
    """The common initial model."""
    answers: dict[str, Any]
    """Kind -> [m, ...]; empty before the probe."""


@hyperparameters
class DataProbe(Algorithm):
    """UCFL's probe, and what the labels and features of a client are like.

    It trains nothing.
    """

    classes: int = 0
    """Number of classes; 0 = the labels are no classes, and are not counted."""
    features: int = 0
    """Number of features of an input; 0 = their moments are not asked for."""

    @property
    def probes(self) -> bool:
        return True

    def init_server(self, init: Any, population: Any) -> ProbeAnswers:
        return ProbeAnswers(init(0)[None], {})

    def probe_downlink(self, server: ProbeAnswers, cohort: Cohort) -> Downlink:
        return Downlink({"model": Streams.everyone(server.model, len(cohort))})

    def probe(self, inbox: Inbox, local: LocalTrainer) -> ClientUpdate:
        answer = UCFL(sigma_batch=SHARE).probe(inbox, local)
        dtype = answer["gradient"].dtype
        one_pass = (local.size + _BATCH - 1) // _BATCH

        def count(counts: Array, batch: Batch, step: Int[Array, ""]) -> Array:
            return counts.at[batch.y].add(batch.weight)

        def add(total: Array, batch: Batch, step: Int[Array, ""]) -> Array:
            return total + batch.weight @ batch.x.reshape(len(batch.x), -1)

        if self.classes:
            none = jnp.zeros(self.classes, dtype)
            answer["class_counts"] = local.loop(none, count, one_pass, _BATCH)
        if self.features:
            zeros = jnp.zeros(self.features, dtype)
            mean = local.loop(zeros, add, one_pass, _BATCH) / local.size

            # Around the mean: squares of large features would leave nothing of their
            # variance in single precision.
            def add_square(total: Array, batch: Batch, step: Int[Array, ""]) -> Array:
                deviations = batch.x.reshape(len(batch.x), -1) - mean
                return total + batch.weight @ jnp.square(deviations)

            squares = local.loop(zeros, add_square, one_pass, _BATCH)
            answer["feature_means"] = mean
            answer["feature_variances"] = squares / local.size
        return answer

    def aggregate_probe(
        self, server: ProbeAnswers, answers: Answers, cohort: Cohort
    ) -> ProbeAnswers:
        return server.replace(answers={kind: answers.host(kind) for kind in answers})


def _evidence(clients: Clients, server: ProbeAnswers) -> Evidence:
    """The answers as `Evidence`, the clients as people have listed them."""
    listed = np.argsort(clients.original_index)
    answers = {
        kind: np.asarray(values)[listed] for kind, values in server.answers.items()
    }
    sizes = clients.sizes[listed]
    counts, means = answers.get("class_counts"), answers.get("feature_means")
    squares = None
    if means is not None:
        chosen = _features(len(sizes), means.shape[1])
        means = means[:, chosen].astype(np.float64)
        squares = answers["feature_variances"][:, chosen].astype(np.float64) + means**2
    gradients, sigma2 = answers["gradient"], answers["sigma2"].astype(np.float64)
    # Equal rows differ by rounding only.
    lengths = np.einsum("md,md->m", gradients, gradients, dtype=np.float64)
    sigma2 = np.where(sigma2 > ROUNDING**2 * lengths, sigma2, 0.0)
    return Evidence(
        names=[clients.names[row] for row in listed],
        sizes=sizes,
        gradients=gradients,
        sigma2=sigma2,
        batch_sizes=batch_sizes(sizes),
        label_counts=None if counts is None else np.rint(counts).astype(np.int64),
        feature_means=means,
        feature_squares=squares,
    )


def batch_sizes(sizes: Int[np.ndarray, " m"]) -> Int[np.ndarray, " m"]:
    """Samples of a batch in UCFL's probe (`UCFL.sigma_batch` = 1/3).

    At most half of the samples, at least one.
    """
    thirds = (SHARE * np.asarray(sizes) + 1e-3).astype(np.int64)
    return np.maximum(np.minimum(thirds, np.asarray(sizes) // 2), 1)


def _features(clients: int, features: int) -> Int[np.ndarray, " chosen"]:
    """Which features of so many are compared.

    All, or as many at equal distances as take seconds.
    """
    most = max(int(2 * PAIR_FEATURES / clients**2), 1)
    positions = np.linspace(0, features - 1, min(features, most))
    return np.unique(positions.round().astype(np.int64))

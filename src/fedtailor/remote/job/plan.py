"""The plan of a federation, which all its machines agree on.

Each machine makes the plan from its own copy of the job. A client refuses requests that
do not follow its plan.
"""

import json
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedtailor._base.choice import require
from fedtailor.aggregation.secure_sums import SecureSums
from fedtailor.engine.client.private_steps import private_settings
from fedtailor.engine.training import MOST_ROUNDS
from fedtailor.engine.training.binding import bind
from fedtailor.engine.training.metrics import select_metrics
from fedtailor.models import Model
from fedtailor.models.metrics import Metric
from fedtailor.models.tasks import Survival
from fedtailor.protocol import (
    Algorithm,
    Downlink,
    Noise,
    Pipeline,
    Streams,
    noise_of,
    send,
)
from fedtailor.protocol.plain import to_plain
from fedtailor.remote.job.examples import template_of
from fedtailor.remote.job.job import Boosting, Job, RegressionSettings
from fedtailor.remote.job.statistics import Statistics


@dataclass(frozen=True)
class Plan:
    """What is trained, how, and what may leave a client.

    Attributes:
        experiment: identity of the job (`Job.identity`).
        algorithm: the method, or a schedule of several.
        model: the model to be trained.
        seed: seed of all random numbers except those that must stay secret.
        uplink: the transforms that clients apply to their updates.
        downlink: the transforms that the server applies to its messages.
        evaluate: whether clients send sums of losses and of correct predictions.
        inputs: fingerprint of the federated preprocessing; empty without it.
        sums: settings of secure aggregation; None without it.
        measured: names of metrics that clients send in addition to the loss and the accuracy.
        rounds: number of rounds; a client answers no requests beyond them.
        boosting: trees that may be boosted; None = none.
        regression: a regression that may be fitted; None = none.
    """

    experiment: str
    algorithm: Algorithm
    model: Model
    seed: int = 0
    uplink: Pipeline = ()
    downlink: Pipeline = ()
    evaluate: bool = True
    inputs: str = ""
    sums: SecureSums | None = None
    measured: tuple[str, ...] = ()
    rounds: int = MOST_ROUNDS
    boosting: Boosting | None = None
    regression: RegressionSettings | None = None

    @property
    def requested_metrics(self) -> tuple[str, ...]:
        """The metrics in addition to those of every run: the job's, or those of survival, whose
        loss says little.

        Errors of a regression follow from its loss, and classes have their accuracy.
        """
        task = self.model.task
        of_task = task.metrics_of_tables if isinstance(task, Survival) else ()
        return self.measured or of_task

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics whose sums clients send in an evaluation."""
        return select_metrics(self.requested_metrics, self.model)[0]

    @property
    def client_noise(self) -> Noise | None:
        """The noise that clients add to what they send."""
        return noise_of(self.uplink, by="client")

    @property
    def clients_need_secrets(self) -> bool:
        """Whether clients add noise that the coordinator must not know."""
        return self.client_noise is not None or any(
            private_settings(phase) for phase, _ in self.algorithm.phases()
        )

    @property
    def has_noise_in_every_phase(self) -> bool:
        """Whether nothing that is trained leaves clients without noise that they add."""
        return self.client_noise is not None or all(
            private_settings(phase) for phase, _ in self.algorithm.phases()
        )

    @property
    def coordinator_needs_secret(self) -> bool:
        """Whether the server adds noise that clients must not be able to compute."""
        return noise_of(self.uplink, by="server") is not None

    def phase(self, number: int) -> Algorithm:
        """The method of one phase of the schedule.

        Raises:
            ValueError: the schedule has no such phase.
        """
        phases = self.algorithm.phases()
        require(
            0 <= number < len(phases),
            f"the job's schedule has {len(phases)} methods, and number {number} is"
            " asked for",
        )
        return phases[number][0]

    def initial(self) -> np.ndarray:
        """The initial model [d] of all machines, which follows from the seed."""
        return np.asarray(
            self.model.init(jax.random.fold_in(jax.random.key(self.seed), 0))
        )

    def common_vectors(self) -> list[np.ndarray]:
        """Vectors that need not be sent, as all machines can compute them.

        Returns:
            The initial model [d], and the same after the transforms of the downlink.
        """
        theta = self.initial()
        downlink = Downlink({"model": Streams.everyone(jnp.asarray(theta), 1)})
        sent = send(self.downlink, downlink)
        return [theta, np.asarray(sent.streams["model"].values)[0]]

    def describe(self, phase: int) -> dict[str, Any]:
        """Describe a phase by plain values, which must be equal on both sides."""
        description = {
            "phase": phase,
            "seed": self.seed,
            "method": to_plain(self.phase(phase)),
        }
        if self.inputs:
            description["inputs"] = self.inputs
        if self.uplink:
            description["uplink"] = to_plain(self.uplink)
        if self.downlink:
            description["downlink"] = to_plain(self.downlink)
        return json.loads(json.dumps(_json_values(description)))


def plan_of(job: Job, statistics: Statistics | None = None) -> Plan:
    """Make the plan of a job.

    Args:
        job: the job.
        statistics: statistics of columns, pooled or of the job; None without
            preprocessing.

    Raises:
        ValueError: the job's settings contradict each other.
    """
    model = bind(job.spec.model, template_of(job, statistics))
    measured = tuple(map(str, job.spec.metrics))
    select_metrics(measured, model)
    require(
        noise_of(job.spec.uplink, by="client") is None or not job.spec.privacy.evaluate,
        "the clients' noise does not cover the sums that they send with "
        "evaluate = true; set evaluate = false",
    )
    return Plan(
        job.identity,
        job.spec.algorithm,
        model,
        job.spec.seed,
        job.spec.uplink,
        evaluate=job.spec.privacy.evaluate,
        inputs="" if statistics is None else statistics.fingerprint,
        sums=job.spec.privacy.sums,
        measured=measured,
        rounds=job.spec.rounds,
        boosting=job.boosting,
        regression=job.regression,
    )


def _json_values(value: Any) -> Any:
    """Replace NaN and infinity, which JSON does not have, by strings."""
    if isinstance(value, dict):
        return {name: _json_values(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_json_values(part) for part in value]
    if isinstance(value, float) and not np.isfinite(value):
        return repr(value)
    return value

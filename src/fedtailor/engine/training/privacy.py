"""The privacy that a training promises and spends: differential privacy of clients, and
of single examples.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.aggregation.accounting.privacy import (
    require_accountant,
    require_delta,
    sampled_gaussian_epsilon,
    sgd_epsilon,
)
from fedtailor.engine.client.private_steps import accounted_settings, private_settings
from fedtailor.engine.training.metrics import PRIVACY, Evaluation
from fedtailor.engine.training.participation import Participation
from fedtailor.protocol import (
    PRIVATE_STEPS,
    SGD,
    Algorithm,
    Answers,
    Cohort,
    Noise,
    Pipeline,
    Population,
    noise_of,
)

CLIENT_EPSILON = "client_epsilon"
"""The metric of differential privacy of a client with all its examples."""
EXAMPLE_EPSILON = "example_epsilon"
"""The metric of differential privacy of one example of a client."""

DEFAULT_DELTA = 1e-5
"""The delta of private steps, if `SGD.dp_delta` is None."""


@dataclass
class PrivacyAccount:
    """The privacy that the clients [m] of a population have spent so far.

    Attributes:
        noise: the noise on updates, if any.
        sgd: private local training, if any.
        probability: the probability with which a client takes part in a round.
        population: the clients.
        reports: [m] the number of rounds in which each client was asked for its update.
        steps: [m] the number of private steps that each client has taken.
    """

    noise: Noise | None
    sgd: SGD | None
    probability: float
    population: Population
    reports: NDArray[np.int64] = field(init=False)
    steps: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        self.reports = np.zeros(len(self.population), np.int64)
        self.steps = np.zeros(len(self.population), np.int64)

    def add(self, cohort: Cohort, answers: Answers) -> None:
        """Add a round.

        Args:
            cohort: the clients; those in `cohort.reporting` were asked for an update.
            answers: what they sent.
        """
        self.reports[cohort.reporters] += 1
        if PRIVATE_STEPS in answers.update:
            self.steps[cohort.position] += answers.host(PRIVATE_STEPS).astype(np.int64)

    def epsilons(self, rounds: int) -> dict[str, NDArray[np.float64]]:
        """The epsilons that the run promises.

        Returns:
            The name of an epsilon -> its value for every client [m] after `rounds`
            rounds.
        """
        # Noise on the sum protects every client in every round alike, whether or not it
        # takes part. A client's own noise counts in the rounds in which the client was
        # asked, and private steps count if the client took them.
        epsilons = {}
        noise, sgd = self.noise, self.sgd
        if noise is not None and noise.by == "server":
            epsilon = sampled_gaussian_epsilon(
                noise.multiplier, self.probability, rounds, noise.delta
            )
            epsilons[CLIENT_EPSILON] = np.full(len(self.population), epsilon)
        elif noise is not None:
            each = [
                sampled_gaussian_epsilon(noise.multiplier, 1.0, int(n), noise.delta)
                for n in self.reports
            ]
            epsilons[CLIENT_EPSILON] = np.array(each)
        if sgd is not None:
            assert sgd.dp_noise is not None
            delta = delta_of(sgd)
            each = [
                sgd_epsilon(sgd.dp_noise, sgd.batch_size, int(size), int(steps), delta)
                for size, steps in zip(self.population.sizes, self.steps, strict=True)
            ]
            epsilons[EXAMPLE_EPSILON] = np.array(each)
        return epsilons

    def evaluations(self, rounds: int) -> list[Evaluation]:
        """The epsilons after `rounds` rounds, in the form of evaluations."""
        # The population is sorted by id; tables list clients as the user did.
        original_index = self.population.original_index
        order = np.argsort(original_index)
        return [
            Evaluation(
                round=rounds,
                clients=original_index[order],
                unseen=False,
                split=PRIVACY,
                metric=name,
                values=values[order],
            )
            for name, values in self.epsilons(rounds).items()
        ]

    def largest(self, rounds: int) -> dict[str, float]:
        """Name -> the largest epsilon of a client after `rounds` rounds."""
        return {
            name: float(values.max()) for name, values in self.epsilons(rounds).items()
        }

    def snapshot(self) -> Any:
        """The account's state, for `restore`."""
        return {"reports": self.reports, "steps": self.steps}

    def restore(self, snapshot: Any) -> None:
        """Return to the state of a snapshot."""
        self.reports = np.array(snapshot["reports"], np.int64)
        self.steps = np.array(snapshot["steps"], np.int64)


def promises_privacy(methods: Sequence[Algorithm], uplink: Pipeline) -> bool:
    """Whether a training with these methods and this uplink promises differential
    privacy of anything.
    """
    is_noisy = noise_of(uplink) is not None
    return is_noisy or any(private_settings(method) for method in methods)


def privacy_account(
    methods: Sequence[Algorithm],
    uplink: Pipeline,
    downlink: Pipeline,
    participation: Participation,
    population: Population,
) -> PrivacyAccount | None:
    """Create the privacy account of a training.

    Args:
        methods: the methods of the schedule.
        uplink, downlink: the transforms of messages.
        participation: chooses the clients that report.
        population: the clients.

    Returns:
        An empty account, to which rounds are added; None if the training promises no
        privacy.

    Raises:
        ValueError: the promise does not hold for these methods or for this
            participation, or the accountant is not installed.
    """
    if not promises_privacy(methods, uplink):
        return None
    # All conditions are checked first: a wrong epsilon is worse than none.
    require_accountant()
    clients = len(population)
    reporters = participation.reporters(clients)
    noise = noise_of(uplink)
    if noise is not None:
        require_delta(noise.delta, clients, "clients")
        require(
            not downlink,
            "noise on updates needs to know the models that clients start from: leave"
            " out downlink",
        )
        require(
            not any(transform.stage == "mean" for transform in uplink),
            "a robust mean cannot tell attacks from noise, and noise on the mean is no"
            " noise on a robust one: leave out robust-mean or gaussian-noise",
        )
        for method in methods:
            _check_noise(noise, method, participation, clients)
    private = accounted_settings(methods)
    if private is not None:
        require_delta(
            delta_of(private),
            int(population.sizes.max()),
            "training rows of a client (dp_delta)",
        )
        for method in methods:
            require(
                bool(private_settings(method)),
                f"{method.about.name} trains without dp_noise, and epsilon would not"
                " cover what it sends: set it in all of the schedule's methods",
            )
            require(
                method.participants == "reporters" or reporters == clients,
                f"{method.about.name} trains clients that do not report, and their"
                " private steps would not be counted; have everybody report"
                " (participation 1)",
            )
    is_poisson = participation.sampling == "poisson"
    probability = participation.fraction if is_poisson else reporters / clients
    return PrivacyAccount(noise, private, probability, population)


def delta_of(sgd: SGD) -> float:
    """The delta for the accounting of private steps."""
    return DEFAULT_DELTA if sgd.dp_delta is None else sgd.dp_delta


def _check_noise(
    noise: Noise, method: Algorithm, participation: Participation, clients: int
) -> None:
    """Refuse methods and participations that noise on updates does not cover."""
    if noise.by == "client":
        return
    name = method.about.name
    require(
        method.server_only_averages and not method.probes,
        f"noise on the mean does not cover all that {name}'s server uses of what"
        " clients send; choose a method that averages models (fedavg, ditto, mr-mtl,"
        " ...), or by = 'client'",
    )
    weights = getattr(method, "weights", None)
    require(
        weights == "uniform",
        "noise on the mean needs clients that weigh alike, as large ones could weigh "
        f"without a bound: set weights = 'uniform' of {name}, not {weights!r}",
    )
    require(
        participation.sampling == "poisson"
        or participation.reporters(clients) == clients,
        "noise on the mean is accounted for clients that report independently of each"
        " other: use Poisson participation, or have everybody report",
    )

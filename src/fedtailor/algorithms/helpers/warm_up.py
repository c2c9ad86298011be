"""When to ask: FedAvg until the clients' answers to a probe show who resembles whom.

At the initial model gradients may say little about what clients have in common: a small
network on standardised inputs answers all rotations of an image alike, and where labels
are distributed unevenly the gradients tell the labels apart and little else. After some
rounds of FedAvg they show what one model for all does not fit. So the server asks again
and again, at growing distances, until two probes in a row find the same groups of
clients and find them clearly; after the last one it decides in any case. The answers
that count have to be those of all clients, at one model: if some were late, FedAvg goes
on, and the server asks again after the next round.

So that this costs little, clients answer with a sketch of their gradient: a random
projection, the same for all clients, which keeps squared distances up to sampling error.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fedtailor.aggregation import Probe, mix, reporter_weights
from fedtailor.aggregation.clusters import CLEAR, choose_streams, k_means
from fedtailor.aggregation.differences import overall_p
from fedtailor.aggregation.distances import squared_distances
from fedtailor.algorithms.helpers.user_centric import BeforeProbe
from fedtailor.protocol import (
    Answers,
    ClientRows,
    Cohort,
    Downlink,
    LineDiagnostic,
    Population,
    Streams,
    server_state,
)

ASKED_AFTER = (0, 1, 2, 5, 10, 20)
"""The rounds of FedAvg after which clients are asked."""
LEVEL = 0.05
"""The level of the test of whether clients differ at all (`differ`)."""
SKETCH_SIZE = 1024
"""Numbers in a sketch.

A squared distance has a relative standard error of sqrt(2 / 1024), or 4.4 %.
"""
_SEEDS = 2**31
"""Seeds of sketches are below this number, as messages carry 32-bit integers."""


@server_state
class WarmUp(BeforeProbe):
    """FedAvg, while the server does not know yet who resembles whom.

    `initial` is the present model, at which the next probe is made.
    """

    model: Float[Array, "1 d"]
    """The model that all clients train."""
    rounds: int
    """Rounds of FedAvg done."""
    asked: Float[np.ndarray, "k 2"]
    """After how many rounds clients were asked, and the best silhouette found then; 0 if
    clients did not differ by more than noise.
    """
    groups: Int[np.ndarray, " m"]
    """The clients' groups of that silhouette in the last probe; -1 for clients that did
    not answer in time.
    """
    agrees: bool
    """Whether the probe before found the same groups, of clients that answered both."""
    sketch: int | None
    """The seed of the sketches; None = clients send whole gradients."""
    fresh: bool
    """Whether clients hold the model already, from a probe."""

    @staticmethod
    def start(initial: Float[Array, " d"], population: Population) -> "WarmUp":
        """The server before training.

        Args:
            initial: the common initial model.
            population: the seen clients.
        """
        return WarmUp(
            initial=initial,
            ids=population.ids,
            sizes=population.sizes,
            model=initial[None],
            rounds=0,
            asked=np.zeros((0, 2)),
            groups=np.full(len(population), -1),
            agrees=False,
            # A model that is no larger than a sketch travels as it is.
            sketch=population.seed % _SEEDS if initial.size > SKETCH_SIZE else None,
            fresh=False,
        )

    @property
    def asks(self) -> bool:
        """Whether clients are to be asked before the next round."""
        is_asked = len(self.asked) > 0 and self.asked[-1, 0] == self.rounds
        is_due = self.rounds in ASKED_AFTER or self.knows_enough
        return is_due and not is_asked

    @property
    def is_clear(self) -> bool:
        """Whether the last two probes found the same groups, and clearly."""
        return self.agrees and bool((self.asked[-2:, 1] >= CLEAR).all())

    @property
    def knows_enough(self) -> bool:
        """Whether the groups are clear, or there is no further probe."""
        return self.is_clear or self.rounds >= ASKED_AFTER[-1]

    @property
    def is_over(self) -> bool:
        """Whether the last probe is the one that counts."""
        return self.knows_enough and bool((self.groups >= 0).all())

    def after_probe(
        self,
        rows: Float[np.ndarray, "r r"],
        answered: Bool[np.ndarray, " m"],
        clients_differ: bool,
    ) -> "WarmUp":
        """The server after one more probe.

        Args:
            rows: the weights of the r clients that answered, for each of them.
            answered: which clients these are.
            clients_differ: whether the gradients differ by more than noise, in which
                one finds groups as well.
        """
        streams, silhouettes = choose_streams(rows)
        groups = np.full(len(answered), -1)
        groups[answered], _ = k_means(rows, streams)
        clarity = silhouettes.get(streams, 0.0) if clients_differ else 0.0
        return self.replace(
            asked=np.concatenate([self.asked, [[self.rounds, clarity]]]),
            groups=groups,
            agrees=_same_groups(groups, self.groups),
            fresh=bool(answered.all()),
        )

    def after_round(self, models: ClientRows, cohort: Cohort) -> "WarmUp":
        """The server after a round of FedAvg.

        Args:
            models: the models that the clients trained [c, d].
            cohort: the clients, and which of them report.
        """
        weights = reporter_weights(cohort, "samples")[None]
        model = mix(self.model, models, weights)
        return self.replace(
            initial=model[0],
            model=model,
            rounds=self.rounds + int(cohort.reporting.any()),
            fresh=False,
        )

    def downlink(self, cohort: Cohort, already_held: bool = False) -> Downlink:
        """The model, for everyone."""
        return Downlink(
            {"model": Streams.everyone(self.model, len(cohort), already_held)}
        )


def _same_groups(one: Int[np.ndarray, " m"], other: Int[np.ndarray, " m"]) -> bool:
    """Whether two partitions agree about the clients that both know (not -1).

    Clients that only one of them knows may be in any group.
    """
    both = (one >= 0) & (other >= 0)
    if not both.any():
        return False
    same_in_one = one[both][:, None] == one[both]
    same_in_other = other[both][:, None] == other[both]
    return bool((same_in_one == same_in_other).all())


def sketch(gradient: Float[Array, " d"], seed: Int[Array, ""]) -> Float[Array, " k"]:
    """A random projection to `SKETCH_SIZE` numbers (count sketch, Charikar et al. 2002).

    Each entry is added to one of the numbers, drawn at random, with a random sign. For
    any vector x the expectation of |sketch(x)|^2 is |x|^2, and its variance at most
    2 |x|^4 / SKETCH_SIZE.

    Args:
        gradient: the vector.
        seed: determines the projection; vectors to be compared need the same.
    """
    place_key, sign_key = jax.random.split(jax.random.key(seed))
    place = jax.random.randint(place_key, gradient.shape, 0, SKETCH_SIZE)
    sign = jax.random.rademacher(sign_key, gradient.shape, gradient.dtype)
    zeros = jnp.zeros(SKETCH_SIZE, gradient.dtype)
    return zeros.at[place].add(sign * gradient)


def noise_of(answers: Answers) -> Float[np.ndarray, " c"]:
    """The variances tr S_i / n_i of the clients' gradients, from their answers."""
    kind = "noise" if "noise" in answers else "sigma2"
    return answers.host(kind).astype(np.float64)


def differ(probe: Probe, noise: Float[np.ndarray, " m"]) -> bool:
    """Whether the clients' gradients differ by more than their noise (`overall_p`).

    Args:
        probe: the gradients.
        noise: v_i = tr S_i / n_i. Clients with a single sample, whose noise is unknown,
            are left out.
    """
    is_known = np.asarray(probe.sizes) > 1
    if not is_known.any():
        return False
    distances = squared_distances(np.asarray(probe.gradients)[is_known])
    return overall_p(distances, noise[is_known]) < LEVEL


def warm_up_diagnostics(asked: Float[np.ndarray, "k 2"]) -> list[LineDiagnostic]:
    """The silhouettes of the probes, by which the time of the last one was chosen."""
    if not len(asked):
        return []
    rounds, silhouettes = asked.T
    return [
        LineDiagnostic(
            name="probe",
            title="Best silhouette in each probe",
            x=rounds,
            y=silhouettes,
            x_label="rounds before the probe",
            y_label="silhouette",
            chosen=float(rounds[-1]),
        )
    ]

"""When to ask: FedAvg until the clients' answers to a probe show who resembles whom.

At the initial model gradients may say little about what clients have in common: a small
network on standardised inputs answers all rotations of an image alike, and where labels
are distributed unevenly the gradients tell the labels apart and little else. After some
rounds of FedAvg they show what one model for all does not fit. Later still they may show
nothing, where that model comes to fit all data. So the server asks again and again, at
growing distances. The probe that shows the clearest groups counts, and one that finds
the same clear groups again replaces it. Asking ends when two clear probes, one after the
other, find the same groups, or after the last one. A probe counts only with the answers
of all clients: if some were late at the last one, the server asks again after the next
round.

Meanwhile all clients train FedAvg's model, so that probes are always made at it. They
are served more than that: mixes of the models that they sent last, with the weights of
the probe that counts so far.

So that this costs little, clients answer with a sketch of their gradient: a random
projection, the same for all clients, which keeps squared distances up to sampling error.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fedtailor.aggregation import (
    Kernel,
    Probe,
    mix,
    reporter_weights,
    user_centric_weights,
)
from fedtailor.aggregation.clusters import CLEAR, choose_streams, k_means
from fedtailor.aggregation.differences import effective_rank, overall_p
from fedtailor.aggregation.distances import squared_distances
from fedtailor.algorithms.helpers.user_centric import (
    BeforeProbe,
    UCFLState,
    bandwidth_of,
)
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
LEVEL = 0.05 / len(ASKED_AFTER)
"""The level of the test of whether clients differ at all (`differ`), of each probe: of
clients that do not, a twentieth is told apart by any of them (Bonferroni).
"""
PROBE_SHARE = 0.1
"""n_k of the batches in which probes measure tr S, as a share of a client's samples.

With smaller batches there are more of them, and the test knows the noise from more
degrees of freedom: ten batches are enough, three are not.
"""
SKETCH_SIZE = 1024
"""Numbers in a sketch.

A squared distance has a relative standard error of sqrt(2 / 1024), or 4.4 %.
"""
_SEEDS = 2**31
"""Seeds of sketches are below this number, as messages carry 32-bit integers."""


@server_state
class WarmUp(BeforeProbe):
    """FedAvg, while the server still asks who resembles whom.

    `initial` is the present model, which all clients train, and at which the next probe
    is made.
    """

    rounds: int
    """Rounds of FedAvg done."""
    asked: Float[np.ndarray, "k 2"]
    """After how many rounds clients were asked, and the best silhouette found then; 0 if
    clients did not differ by more than noise, or did not all answer in time.
    """
    best: float
    """The silhouette of the best probe so far."""
    groups: Int[np.ndarray, " m"]
    """The clients' groups in the last probe that was clear; before it, all one group."""
    streams: UCFLState | None
    """The streams of the best probe so far, which clients are served: mixes of the
    models that they sent last, for each of which they had trained FedAvg's model. None =
    no probe has found clients to differ, and they are served FedAvg's model.
    """
    stands: bool
    """Whether two clear probes, one after the other, found these groups, or clients no
    longer differed after a clear one.
    """
    sketch: int | None
    """The seed of the sketches; None = clients send whole gradients."""
    fresh: bool
    """Whether clients hold the model already, as all answered a probe at it."""

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
            rounds=0,
            asked=np.zeros((0, 2)),
            best=0.0,
            groups=np.zeros(len(population), int),
            streams=None,
            stands=False,
            # A model that is no larger than a sketch travels as it is.
            sketch=population.seed % _SEEDS if initial.size > SKETCH_SIZE else None,
            fresh=False,
        )

    @property
    def asks(self) -> bool:
        """Whether clients are to be asked before the next round."""
        is_asked = len(self.asked) > 0 and self.asked[-1, 0] == self.rounds
        is_due = self.rounds in ASKED_AFTER or self.rounds > ASKED_AFTER[-1]
        return is_due and not is_asked and not self.is_over

    @property
    def is_over(self) -> bool:
        """Whether the server need not ask again."""
        return self.stands or (self.rounds >= ASKED_AFTER[-1] and self.fresh)

    @property
    def has_groups(self) -> bool:
        """Whether the best probe found clear groups, as far as is known now."""
        return self.best >= CLEAR and (self.stands or not self.is_over)

    @property
    def model(self) -> Float[Array, "s d"]:
        """The models that clients are served."""
        return self.initial[None] if self.streams is None else self.streams.model

    def after_probe(
        self,
        probe: Probe,
        concentrations: Float[np.ndarray, " m"],
        answered: Bool[np.ndarray, " m"],
        kernel: Kernel,
    ) -> tuple["WarmUp", bool]:
        """The server after one more probe, but for its streams.

        It looks for groups in the weights of eq. 9 (or 6) with the papers' n_k, a third,
        whatever the weights that streams will have: with larger n_k a client has most
        weight on itself, which hides its group.

        Args:
            probe: the clients' answers, with tr S_i / n_i for sigma_i^2.
            concentrations: of their batches' gradients, see `batch_scatter`.
            answered: which clients answered in time.
            kernel: the method's rule for the weights.

        Returns:
            The server, and whether this probe counts: all clients answered it, they
            differ by more than noise, and it shows groups no less clearly than those
            before, or the same clear groups again.
        """
        if not answered.all():
            return self._asked_again(0.0).replace(fresh=False), False
        # Noise has groups as well, and to look for them takes long with many clients.
        if not differ(probe, concentrations):
            stands = self.best >= CLEAR
            return self._asked_again(0.0).replace(stands=stands, fresh=True), False
        rows = user_centric_weights(
            probe.with_bandwidth(bandwidth_of(1 / 3)),
            "eq6" if kernel == "eq6" else "eq9",
        )
        streams, silhouettes = choose_streams(rows)
        groups, _ = k_means(rows, streams)
        silhouette = float(silhouettes.get(streams, 0.0))
        # One client apart from all others is enough for a high silhouette, and is gone in
        # the next probe: groups are found when two clear probes agree on them.
        is_clear = silhouette >= CLEAR
        is_same = is_clear and bool((groups == self.groups).all())
        counts = silhouette >= self.best or is_same
        server = self._asked_again(silhouette).replace(
            best=silhouette if counts else self.best,
            groups=groups if is_clear else self.groups,
            stands=is_same,
            fresh=True,
        )
        return server, counts

    def _asked_again(self, silhouette: float) -> "WarmUp":
        """The server with one more entry in `asked`."""
        entry = np.array([[self.rounds, silhouette]])
        return self.replace(asked=np.concatenate([self.asked, entry]))

    def after_round(self, models: ClientRows, cohort: Cohort) -> "WarmUp":
        """The server after a round of FedAvg, but for its streams.

        Args:
            models: the models that the clients trained [c, d].
            cohort: the clients, and which of them report.
        """
        weights = reporter_weights(cohort, "samples")[None]
        return self.replace(
            initial=mix(self.initial[None], models, weights)[0],
            rounds=self.rounds + int(cohort.reporting.any()),
            fresh=False,
        )

    def downlink(self, cohort: Cohort, already_held: bool = False) -> Downlink:
        """FedAvg's model, for everyone."""
        return Downlink(
            {"model": Streams.everyone(self.initial, len(cohort), already_held)}
        )


def sketch(gradient: Float[Array, " d"], seed: Int[Array, ""]) -> Float[Array, " k"]:
    """A random projection to `SKETCH_SIZE` numbers (count sketch, Charikar et al. 2002).

    Each entry is added to one of the numbers, drawn at random, with a random sign. For
    any vector x the expectation of |sketch(x)|^2 is |x|^2, and its variance at most
    2 |x|^4 / SKETCH_SIZE.

    Args:
        gradient: the vector.
        seed: determines the projection; vectors to be compared need the same.
    """
    return sketcher(gradient, seed)(gradient)


def sketcher(
    like: Float[Array, " d"], seed: Int[Array, ""]
) -> Callable[[Float[Array, " d"]], Float[Array, " k"]]:
    """The function that sketches vectors of this form, drawn once for all of them."""
    place_key, sign_key = jax.random.split(jax.random.key(seed))
    place = jax.random.randint(place_key, like.shape, 0, SKETCH_SIZE)
    sign = jax.random.rademacher(sign_key, like.shape, like.dtype)
    zeros = jnp.zeros(SKETCH_SIZE, like.dtype)
    return lambda gradient: zeros.at[place].add(sign * gradient)


def gradient_noise(answers: Answers) -> Float[np.ndarray, " c"]:
    """The variances tr S_i / n_i of the clients' gradients, from their answers."""
    kind = "noise" if "noise" in answers else "sigma2"
    return answers.host(kind).astype(np.float64)


def differ(probe: Probe, concentrations: Float[np.ndarray, " m"]) -> bool:
    """Whether the clients' gradients differ by more than their noise (`overall_p`).

    Args:
        probe: the gradients, with tr S_i / n_i for sigma_i^2. Clients with a single
            sample, whose noise is unknown, are left out.
        concentrations: of their batches' gradients, see `batch_scatter`.
    """
    is_known = np.asarray(probe.sizes) > 1
    if not is_known.any():
        return False
    distances = squared_distances(np.asarray(probe.gradients)[is_known])
    noise = np.asarray(probe.sigma2, np.float64)[is_known]
    sizes = np.asarray(probe.sizes)[is_known]
    # As the probe draws them: at most half of the samples.
    batch_sizes = np.clip((PROBE_SHARE * sizes + 1e-3).astype(int), 1, sizes // 2)
    degrees = np.maximum(sizes // batch_sizes - 1, 1).astype(np.float64)
    rank = effective_rank(noise, np.asarray(concentrations, np.float64)[is_known])
    return overall_p(distances, noise, degrees, rank) < LEVEL


def warm_up_diagnostics(asked: Float[np.ndarray, "k 2"]) -> list[LineDiagnostic]:
    """The silhouettes of the probes, which chose the time of the last one."""
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

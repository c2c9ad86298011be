"""GaussianNoise: client-level differential privacy, by clipping and noise.

A client's change is the model that it sends minus the model that it received (of several
the one with the same index); a gradient is a change itself. The clip norm C bounds the
Euclidean norm of each client's change.
"""

import math
from dataclasses import replace
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree, ScalarLike

from fedtailor._base.choice import require
from fedtailor.aggregation.noise import with_gaussian_noise
from fedtailor.aggregation.pipelines.change import common_start, fixed_reference
from fedtailor.aggregation.pipelines.clip import clipped, smaller_bound
from fedtailor.protocol import (
    MODEL_KINDS,
    Algorithm,
    ClientRows,
    ClientUpdate,
    Cohort,
    Downlink,
    Inbox,
    LocalTrainer,
    Noise,
    Population,
    Stage,
    Transform,
    Update,
    hyperparameters,
)

CLIP_NORM = "clip_norm"
"""The message to clients with the clip norm of the round (adaptive clipping)."""
WITHIN_CLIP_NORM = "within"
"""The message from clients to the server (adaptive clipping): 1 if the norm of the change
was at most the clip norm, else 0.
"""

KINDS_WITH_NOISE = ("model", "gradient")
"""The kinds of message to which noise is added. A client may send one message of one of
these kinds and nothing else.
"""

NOISE_TAIL = 8.0
"""How many standard deviations the norm of noise may lie above its typical size; it is
further above in one of 10^13 updates.
"""

REPORTERS_PER_COUNT_NOISE = 20
"""The expected number of reporters, divided by the standard deviation of the noise on the
count of clients within the clip norm (Andrew et al. 2021, section 3.2).
"""


@hyperparameters
class GaussianNoise(Transform):
    """Client-level differential privacy: changes are clipped and noise is added
    (McMahan et al. 2018, algorithm 1).

    Each client clips its change of the received model to the norm C. Then, with
    z = `multiplier`,

        by = "server":   change of the mean = (sum_S change_i + z C N(0, I)) / (expected reporters)
        by = "client":   each client sends change_i + z C N(0, I)

    Noise added by the server hides a client from everybody who sees the models, such as
    the other clients. It does not hide a client from the coordinator, which must be
    trusted to add the noise. Neighbouring inputs differ in whether one client takes
    part. Reporters must be drawn by Poisson sampling, or all clients must report, and
    they must be averaged with equal weights.

    Noise added by each client hides its change from the coordinator as well.
    Neighbouring inputs differ in one client's change, which is replaced by zero. The
    mean then holds the noise of all clients instead of one noise vector.

    In both cases the guarantee is (epsilon, `delta`), and the run reports epsilon.

    With `quantile` the clip norm follows that quantile of the norms of changes (Andrew
    et al. 2021, Differentially Private Learning with Adaptive Clipping, algorithm 1).
    Each client then also sends whether its change was within the clip norm, and the
    server uses a noisy count of these clients (`AdaptiveClipNorm`). More noise is added
    to the changes, so that changes and count together cost as much privacy as
    `multiplier` says.

    Example:
        >>> from fedtailor.aggregation.pipelines import GaussianNoise
        >>> noise = GaussianNoise(multiplier=1.0, norm=1.0)
        >>> short = ft.run(
        ...     ft.FedAvg(weights="uniform"),
        ...     federation,
        ...     ft.models.logistic(),
        ...     rounds=1,
        ...     uplink=(noise,),
        ... )
        >>> short.summary().client_epsilon > 0
        True
    """

    name: ClassVar[str] = "gaussian-noise"
    stage: ClassVar[Stage | None] = "noise"

    multiplier: float = 1.0
    """The standard deviation of the noise, divided by the clip norm: z, above 0."""
    norm: float = 1.0
    """The clip norm C: the largest Euclidean norm of a client's change; with `quantile`,
    in the first round.
    """
    delta: float = 1e-5
    """Probability that the guarantee may fail, below one over the number of clients."""
    by: Literal["server", "client"] = "server"
    """Who adds the noise: the server to the sum, or each client to its own change."""
    quantile: float | None = None
    """The share of clients whose change is to be within the clip norm, such as 0.5;
    None = the clip norm is the same in all rounds.
    """
    norm_rate: float = 0.2
    """How fast the clip norm follows the quantile, the paper's eta_C."""

    def __post_init__(self) -> None:
        require(
            self.multiplier > 0, f"multiplier is {self.multiplier}; it must be above 0"
        )
        require(self.norm > 0, f"norm is {self.norm}; it must be above 0")
        require(
            0 < self.delta < 1, f"delta is {self.delta}; it must be between 0 and 1"
        )
        require(
            self.quantile is None or 0 < self.quantile < 1,
            f"quantile is {self.quantile}; it must be between 0 and 1",
        )
        require(
            self.norm_rate > 0, f"norm_rate is {self.norm_rate}; it must be above 0"
        )
        require(
            self.quantile is None or self.by == "server",
            "adaptive clipping needs a server that adds the noise: leave out quantile,"
            " or by = 'client'",
        )

    # on the client
    # ----------------------------------------------------------------------------------

    @property
    def noise(self) -> Noise:
        return Noise(self.by, self.multiplier, self.delta)

    @property
    def keeps_sums(self) -> bool:
        return self.by == "client"

    def encode(
        self, update: ClientUpdate, inbox: Inbox, state: PyTree, local: LocalTrainer
    ) -> tuple[ClientUpdate, PyTree]:
        uncovered = sorted(kind for kind in update if kind not in KINDS_WITH_NOISE)
        require(
            not uncovered,
            "noise does not cover what this method's clients also send"
            f" ({', '.join(uncovered)}); choose a method whose clients send a model and"
            " nothing else",
        )
        if self.by == "client":
            return self._with_own_noise(update, inbox, local), state
        is_adaptive = self.quantile is not None
        clip_norm = inbox.scalars[CLIP_NORM] if is_adaptive else self.norm
        update, change_norm = clipped(update, inbox, clip_norm, fixed_reference)
        if is_adaptive:
            # The server adds noise to the number of these clients.
            is_within = change_norm <= clip_norm
            update[WITHIN_CLIP_NORM] = is_within.astype(change_norm.dtype)
        return update, state

    def _with_own_noise(
        self,
        update: ClientUpdate,
        inbox: Inbox,
        local: LocalTrainer,
    ) -> ClientUpdate:
        """The update with a clipped change and the client's noise.

        The server is not trusted: it may have sent any numbers, which decide nothing
        here, and any model. The noise is added to the change and not to
        the model, which is rounded to steps as large as its entries: such a rounding
        before the noise could make the change longer than the norm. And a change that
        became NaN or infinite is zero: a refusal would say that the model overflows on
        this client's rows.
        """
        start, change = {}, {}
        for kind, value in update.items():
            start[kind] = fixed_reference(kind, value, inbox)
            # In half precision a clipped change can be longer than the norm.
            wide = jnp.promote_types(value.dtype, jnp.float32)
            difference = value.astype(wide) - start[kind].astype(wide)
            change[kind] = jnp.where(jnp.isfinite(difference).all(), difference, 0)
        change, _ = clipped(change, inbox, self.norm, _zero_reference)
        noisy = _add_client_noise(change, self.multiplier * self.norm, local)
        return {
            kind: (start[kind] + noisy[kind]).astype(update[kind].dtype)
            for kind in noisy
        }

    # on the server
    # ----------------------------------------------------------------------------------

    def largest_norm(
        self, norm: float | None, size: int, announced: float | None = None
    ) -> float | None:
        clip_norm = self.norm if announced is None else announced
        bound = smaller_bound(norm, clip_norm)
        if self.by == "client":
            # |N(0, I)| > sqrt(d) + t has a probability of at most exp(-t^2 / 2).
            noise = math.sqrt(size) + NOISE_TAIL
            bound += self.multiplier * clip_norm * noise
        return bound

    @property
    def runs_without_reporters(self) -> bool:
        """Whether the server also adds its noise in a round in which nobody reports: the
        accounting assumes noise in every round.
        """
        return self.by == "server"

    def check(self, algorithm: Algorithm) -> None:
        require(
            not algorithm.probes,
            f"{algorithm.about.name}'s clients answer a probe, which noise on updates"
            " does not cover; choose a method without one",
        )

    def init_server(self, population: Population) -> PyTree:
        require(
            population.model is None or not population.model.has_statistics,
            "noise would make running variances of batch normalisation negative; use a"
            " model with group instead of batch normalisation",
        )
        if self.by == "client":
            return ()
        expected = population.reporters_per_round
        if self.quantile is not None:
            # The noisy count alone must cost less than `multiplier` allows for the
            # count and the changes together: z < 2 count_noise.
            bound = self.multiplier * REPORTERS_PER_COUNT_NOISE / 2
            require(
                expected > bound,
                f"adaptive clipping with multiplier {self.multiplier:g} needs more than"
                f" {math.floor(bound)} clients expected in a round, not {expected}; leave"
                " out quantile",
            )
        return {"norm": self.norm, "expected": expected}

    def announce(self, downlink: Downlink, state: PyTree) -> Downlink:
        if self.quantile is None:
            return downlink
        return replace(downlink, scalars={**downlink.scalars, CLIP_NORM: state["norm"]})

    def decode(
        self, update: Update, downlink: Downlink, cohort: Cohort, state: PyTree
    ) -> tuple[Update, PyTree]:
        kind = next((kind for kind in update if kind in MODEL_KINDS), None)
        if self.by == "client" or kind is None:
            return update, state
        clip_norm = float(state["norm"])
        expected = int(state["expected"])
        multiplier = float(self.multiplier)
        adaptive = None
        if self.quantile is not None:
            adaptive = AdaptiveClipNorm(self.quantile, self.norm_rate, expected)
            multiplier = adaptive.change_multiplier(multiplier)

        # A round that is done again with other reporters gets other noise. The difference
        # of both releases would else be that of two sums without noise.
        rng = cohort.rng("gaussian noise", among_reporters=True)
        rows = _noisy_rows(
            update[kind],
            start=common_start(kind, downlink, "noise on a sum"),
            clip_norm=clip_norm,
            deviation=multiplier * clip_norm,
            reporters=int(cohort.reporting.sum()),
            expected=expected,
            rng=rng,
        )
        decoded = {**update, kind: rows}
        if adaptive is None:
            return decoded, state

        # In a round in which nobody reports there is no such message; see `zero_update`.
        within = decoded.pop(WITHIN_CLIP_NORM, None)
        is_within = np.zeros(0) if within is None else within.host()[cohort.reporting]
        return decoded, {**state, "norm": adaptive.next(clip_norm, is_within, rng)}


class AdaptiveClipNorm(NamedTuple):
    """A clip norm that follows a quantile of the norms of the clients' changes (Andrew et
    al. 2021, algorithm 1), by a noisy count of the clients within it.
    """

    quantile: float
    """The share of clients whose change is to be within the clip norm."""
    rate: float
    """The paper's eta_C."""
    expected: int
    """The expected number of reporters in a round."""

    @property
    def count_noise(self) -> float:
        """The standard deviation of the noise on the count."""
        return self.expected / REPORTERS_PER_COUNT_NOISE

    def change_multiplier(self, multiplier: float) -> float:
        """The standard deviation of the noise on changes, divided by the clip norm.

        With it, the changes and the count together cost as much privacy as the changes
        alone with noise of `multiplier` (Andrew et al. 2021, theorem 1):

            1 / multiplier^2 = 1 / change_multiplier^2 + 1 / (2 count_noise)^2

        Args:
            multiplier: below 2 `count_noise`; `GaussianNoise.init_server` refuses others.
        """
        return (multiplier**-2 - (2 * self.count_noise) ** -2) ** -0.5

    def next(
        self,
        clip_norm: float,
        is_within: Float[np.ndarray, " reporters"],
        rng: np.random.Generator,
    ) -> float:
        """The clip norm of the next round.

        Args:
            clip_norm: the clip norm of this round.
            is_within: 1 for each reporter whose change was within it, else 0.
            rng: draws the noise on the count.
        """
        # Each reporter counts as +1/2 or -1/2, so that adding or removing one changes the
        # sum by 1/2. This is the factor 2 in `change_multiplier`. The half is added again
        # to the share.
        noise = self.count_noise * rng.standard_normal()
        noisy_sum = float((is_within - 0.5).sum()) + noise
        share_within = noisy_sum / self.expected + 0.5
        # C <- C exp( -eta_C (share within - quantile) )
        return clip_norm * math.exp(-self.rate * (share_within - self.quantile))


def _zero_reference(kind: str, value: Array, inbox: Inbox) -> Array:
    """The reference of a change itself."""
    return jnp.zeros_like(value)


def _add_client_noise(
    update: ClientUpdate, deviation: ScalarLike, local: LocalTrainer
) -> ClientUpdate:
    """Add independent Gaussian noise of a standard deviation to each message."""
    noisy = {}
    for index, kind in enumerate(sorted(update)):
        key = jax.random.fold_in(local.key("gaussian noise"), index)
        noisy[kind] = with_gaussian_noise(update[kind], deviation, key)
    return noisy


def _noisy_rows(
    rows: ClientRows,
    start: Any,
    clip_norm: float,
    deviation: float,
    reporters: int,
    expected: int,
    rng: np.random.Generator,
) -> ClientRows:
    """Rows whose mean is start + (sum_S change_i + deviation N(0, I)) / expected.

    Args:
        rows: what the clients sent, of which the algorithm averages the reporters' rows
            with equal weights (runs of methods with other weights are refused).
        start: what the clients' changes are measured from.
        clip_norm: the largest norm of a change.
        deviation: the standard deviation of the noise on the sum.
        reporters: the number of reporters.
        expected: the expected number of reporters.
        rng: draws the noise.
    """
    # The server clips the changes again: a client may be dishonest, and `Quantize` may
    # have rounded a change up.
    change = _clipped_rows(jnp.asarray(rows.values) - start, clip_norm)
    # The algorithm will divide the sum by `reporters`; the factor makes that `expected`.
    # Every row gets the same noise, which is then also the noise of their mean.
    noise = deviation * rng.standard_normal(change.shape[1:])
    noise = (noise / expected).astype(change.dtype)
    change = (reporters / expected) * change + noise
    return replace(rows, values=start + change)


def _clipped_rows(
    change: Float[Array, "clients ..."], norm: float
) -> Float[Array, "clients ..."]:
    """Each client's change, scaled to a Euclidean norm of at most `norm`."""
    all_but_clients = tuple(range(1, change.ndim))
    squared_norm = jnp.square(change).sum(axis=all_but_clients, keepdims=True)
    tiny = jnp.finfo(change.dtype).tiny
    return change * jnp.minimum(1.0, norm / jnp.maximum(jnp.sqrt(squared_norm), tiny))


def zero_update(downlink: Downlink) -> Update:
    """The update of one client whose change is zero.

    In a round in which nobody reports, training decodes this update if the transform
    `runs_without_reporters`, so that the server's model still gets its noise.

    Raises:
        ValueError: no model was sent.
    """
    sent = downlink.streams.get("model")
    require(
        sent is not None,
        "nobody reported in this round, and the method sends no model to add noise to",
    )
    assert sent is not None
    return {"model": ClientRows(np.asarray(sent.values)[:1], np.zeros(1, np.int64))}

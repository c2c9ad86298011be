"""GaussianNoise: client-level differential privacy, by clipping and noise.

A client's change is what it sends less the model that it received (of a gradient: what
it sends). The clip norm C bounds the Euclidean norm of each client's change.
"""

import math
from dataclasses import replace
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from fedtailor.pipelines.clip import clipped
from fedtailor.protocol import (
    MODEL_KINDS,
    Algorithm,
    ClientRows,
    ClientUpdate,
    Cohort,
    Downlink,
    Inbox,
    LocalTrainer,
    Population,
    Stage,
    Transform,
    Update,
    hyperparameters,
    require,
)

CLIP_NORM = "clip_norm"
"""The message to clients with the clip norm of the round (adaptive clipping)."""
WITHIN = "within"
"""The message from clients to the server: 1 if the norm of the change was at most the
clip norm, else 0 (adaptive clipping).
"""

COVERED = ("model", "gradient")
"""What a client may send: one message of one of these kinds."""

REPORTERS_PER_COUNT_NOISE = 20
"""The expected number of reporters over the standard deviation of the noise on the count
of clients within the clip norm (Andrew et al. 2021, section 3.2).
"""


@hyperparameters
class GaussianNoise(Transform):
    """Client-level differential privacy: changes are clipped and noise is added
    (McMahan et al. 2018, algorithm 1).

    Each client clips its change of the received model to the norm C. Then, with
    z = `multiplier`,

        by = "server":   change of the mean = (sum_S change_i + z C N(0, I)) / (expected reporters)
        by = "client":   each client sends change_i + z C N(0, I)

    Noise by the server hides a client from everybody who sees models, other clients
    among them, but not from the coordinator, which must be trusted to add the noise.
    Neighbouring inputs differ in one client, which takes part or does not. Reporters
    must be drawn by Poisson sampling (or be all clients), and be averaged with equal
    weights.

    Noise by each client hides its change from the coordinator as well. Neighbouring
    inputs differ in one client's change, which is replaced by zero. The mean then has
    the noise of all clients, not of one.

    In both cases the guarantee is (epsilon, `delta`), and the run reports epsilon.

    With `quantile` the clip norm follows that quantile of the norms of changes (Andrew
    et al. 2021, Differentially Private Learning with Adaptive Clipping, algorithm 1).
    Clients then also send whether they were within the clip norm, and the server uses a
    noisy count of these. The noise on the changes grows, so that both releases together
    cost what `multiplier` says.
    """

    name: ClassVar[str] = "gaussian-noise"
    stage: ClassVar[Stage | None] = "noise"

    multiplier: float = 1.0
    """Standard deviation of the noise over the clip norm, z, above 0."""
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
            self.by in ("server", "client"),
            f"by is {self.by!r}; it must be 'server' or 'client'",
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

    def encode(
        self, update: ClientUpdate, inbox: Inbox, state: PyTree, local: LocalTrainer
    ) -> tuple[ClientUpdate, PyTree]:
        others = sorted(kind for kind in update if kind not in COVERED)
        require(
            not others,
            "noise does not cover what this method's clients also send"
            f" ({', '.join(others)}); choose a method whose clients send a model and"
            " nothing else",
        )
        is_adaptive = self.quantile is not None
        clip_norm = inbox.scalars[CLIP_NORM] if is_adaptive else self.norm
        update, change_norm = clipped(update, inbox, clip_norm)
        if is_adaptive:
            # The server adds noise to the count of these; see `_next_norm`.
            update[WITHIN] = (change_norm <= clip_norm).astype(change_norm.dtype)
        elif self.by == "client":
            # change_i + z C N(0, I), with independent noise for each message
            for number, kind in enumerate(sorted(update)):
                key = jax.random.fold_in(local.key("gaussian noise"), number)
                noise = jax.random.normal(key, update[kind].shape, update[kind].dtype)
                update[kind] = update[kind] + self.multiplier * clip_norm * noise
        return update, state

    # on the server
    # ----------------------------------------------------------------------------------

    @property
    def runs_without_reporters(self) -> bool:
        """Whether the server adds its noise also in a round in which nobody reports: the
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
        if self.by == "client":
            return ()
        expected = population.reporters_per_round
        if self.quantile is not None:
            # The count of clients within the clip norm must cost less than `multiplier`
            # allows for both releases: z < 2 count_noise; see `_noise`.
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
        reporters = int(cohort.reporting.sum())
        change_multiplier, count_noise = self._noise(expected)
        rng = cohort.rng("gaussian noise")

        # Clip once more: clients may be dishonest, and `Quantize` may have rounded a
        # change up.
        rows = update[kind]
        start = _common_start(kind, downlink)
        change = _clipped_rows(jnp.asarray(rows.values) - start, clip_norm)

        # The algorithm averages the reporters' rows with equal weights (runs of methods
        # with other weights are refused). Their mean must be
        #     start + (sum_S change_i + z C N(0, I)) / expected.
        # The factor on the changes turns their mean into this sum over `expected`. Every
        # row gets the same noise, which is then also the noise of their mean.
        noise = change_multiplier * clip_norm * rng.standard_normal(change.shape[1:])
        noise = (noise / expected).astype(change.dtype)
        change = (reporters / expected) * change + noise
        decoded = {**update, kind: replace(rows, values=start + change)}
        if self.quantile is None:
            return decoded, state

        # No client says whether it was within in a round in which nobody reports; see
        # `unchanged`.
        within = decoded.pop(WITHIN, None)
        is_within = np.zeros(0) if within is None else within.host()[cohort.reporting]
        error = count_noise * rng.standard_normal()
        next_norm = self._next_norm(clip_norm, is_within, error, expected)
        return decoded, {**state, "norm": next_norm}

    def _next_norm(
        self,
        clip_norm: float,
        is_within: Float[np.ndarray, " reporters"],
        error: float,
        expected: int,
    ) -> float:
        """The clip norm of the next round (Andrew et al. 2021, algorithm 1).

        Args:
            clip_norm: that of this round.
            is_within: 1 for reporters whose change was within it, else 0.
            error: the noise on the count of these.
            expected: reporters in a round.
        """
        assert self.quantile is not None
        # Each reporter counts as +1/2 or -1/2, so that adding or removing one changes the
        # sum by 1/2: that is the factor 2 in `_noise`. The half is added again at the end.
        noisy_sum = float((is_within - 0.5).sum()) + error
        share_within = noisy_sum / expected + 0.5
        # C <- C exp( -eta_C (share within - quantile) )
        return clip_norm * math.exp(-self.norm_rate * (share_within - self.quantile))

    def _noise(self, expected: int) -> tuple[float, float]:
        """The noise on changes and on the count of clients within the clip norm, which
        together cost what `multiplier` says (Andrew et al. 2021, theorem 1).

        Args:
            expected: reporters in a round.

        Returns:
            The standard deviation of the noise on changes over the clip norm, and that
            of the noise on the count.
        """
        z = float(self.multiplier)
        if self.quantile is None:
            return z, 0.0
        count_noise = expected / REPORTERS_PER_COUNT_NOISE
        # `init_server` has refused z >= 2 count_noise.
        # 1/z^2 = 1/z_changes^2 + 1/(2 count_noise)^2
        z_changes = (z**-2 - (2 * count_noise) ** -2) ** -0.5
        return z_changes, count_noise


def _clipped_rows(
    change: Float[Array, "clients ..."], norm: float
) -> Float[Array, "clients ..."]:
    """Each client's change, scaled to a Euclidean norm of at most `norm`."""
    all_but_clients = tuple(range(1, change.ndim))
    squared_norm = jnp.square(change).sum(axis=all_but_clients, keepdims=True)
    tiny = jnp.finfo(change.dtype).tiny
    return change * jnp.minimum(1.0, norm / jnp.maximum(jnp.sqrt(squared_norm), tiny))


def _common_start(kind: str, downlink: Downlink) -> Any:
    """What all clients' changes are measured from: the only model sent; for gradients
    zero.

    Raises:
        ValueError: clients were sent different models, or none.
    """
    if kind != "model":
        return 0.0
    sent = downlink.streams.get("model")
    require(
        sent is not None
        and len(np.unique(sent.recipients)) == 1
        and sent.recipients.min() >= 0,
        "noise on a sum needs clients that all start from one model",
    )
    assert sent is not None
    return jnp.asarray(np.asarray(sent.values)[sent.recipients[0, 0]])


def unchanged(downlink: Downlink) -> Update:
    """The update of one client whose change is zero. In a round in which nobody reports,
    training decodes it with `runs_without_reporters`, so that the server's model gets its noise.

    Raises:
        ValueError: no model was sent, so that a client's message is not known.
    """
    sent = downlink.streams.get("model")
    require(
        sent is not None,
        "nobody reported in this round, and the method sends no model to add noise to",
    )
    assert sent is not None
    return {"model": ClientRows(np.asarray(sent.values)[:1], np.zeros(1, np.int64))}

"""GaussianNoise: differential privacy of clients, by clipping and noise."""

import math
from dataclasses import replace
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

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

NORM = "clip_norm"
"""The bound that the server sends (adaptive clipping)."""
WITHIN = "within"
"""A client's answer to it: whether its change was within the bound."""

COVERED = ("model", "gradient")
"""What a client may send: one message of one of these kinds."""


@hyperparameters
class GaussianNoise(Transform):
    """Client-level differential privacy: changes are clipped and noise is added
    (McMahan et al. 2018, algorithm 1).

    A client clips what it changed of the model that it received to the norm C. Then,
    with z = `multiplier`,

        by = "server":   change of the mean = (sum_S change_i + z C N(0, I)) / (expected reporters)
        by = "client":   each client sends change_i + z C N(0, I)

    The first hides a client from all who see models, the other clients too, but not
    from the coordinator, which must be trusted to add the noise. Its guarantee is on
    adding or removing a client; who takes part in a round must be drawn by Poisson
    sampling (or be everybody), and the mean must weigh all alike. The second hides what
    a client sends from the coordinator itself, round by round, at the price of as many
    times the noise as there are clients: its guarantee is on a client's changes or none
    in their place. Either way it is `delta`'s epsilon that is reported.

    With `quantile` the norm follows that quantile of the changes' norms (Andrew et al.
    2021, Differentially Private Learning with Adaptive Clipping, algorithm 1): clients
    also tell whether they were within, of which the server uses a noisy count; the
    noise on the changes grows such that both together cost what `multiplier` says.
    """

    name: ClassVar[str] = "gaussian-noise"
    stage: ClassVar[Stage | None] = "noise"

    multiplier: float = 1.0
    """Standard deviation of the noise over the norm, z, above 0."""
    norm: float = 1.0
    """Largest Euclidean norm of a client's change, C; with `quantile`, in the first
    round.
    """
    delta: float = 1e-5
    """Probability that the guarantee may fail, below one over the number of clients."""
    by: Literal["server", "client"] = "server"
    """Who adds the noise: the server to the sum, or each client to what it sends."""
    quantile: float | None = None
    """The share of clients whose change is to be within the norm, such as 0.5; None =
    the norm stays.
    """
    norm_rate: float = 0.2
    """How fast the norm follows the quantile, the paper's eta_C."""

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
        # The bound of this round: fixed, or the one that the server has announced.
        norm = self.norm if self.quantile is None else inbox.scalars[NORM]
        sent = sorted(update)
        update, length = clipped(update, inbox, norm)
        if self.quantile is not None:
            update[WITHIN] = (length <= norm).astype(length.dtype)
        if self.by == "client":
            # change_i + z C N(0, I), drawn for each message by itself
            for number, kind in enumerate(sent):
                key = jax.random.fold_in(local.key("gaussian noise"), number)
                noise = jax.random.normal(key, update[kind].shape, update[kind].dtype)
                update[kind] = update[kind] + self.multiplier * norm * noise
        return update, state

    # on the server
    # ----------------------------------------------------------------------------------

    @property
    def steps_alone(self) -> bool:
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
            _, count_noise = self._shares(expected)
            least = math.ceil(10 * self.multiplier)
            require(
                self.multiplier < 2 * count_noise,
                f"adaptive clipping with multiplier {self.multiplier:g} needs more than"
                f" {least} clients expected in a round, not {expected}; leave out"
                " quantile",
            )
        return {"norm": self.norm, "expected": expected}

    def announce(self, downlink: Downlink, state: PyTree) -> Downlink:
        if self.quantile is None:
            return downlink
        return replace(downlink, scalars={**downlink.scalars, NORM: state["norm"]})

    def decode(
        self, update: Update, downlink: Downlink, cohort: Cohort, state: PyTree
    ) -> tuple[Update, PyTree]:
        kind = next((kind for kind in update if kind in MODEL_KINDS), None)
        if self.by == "client" or kind is None:
            return update, state
        norm = float(state["norm"])
        expected = int(state["expected"])
        rows = update[kind]
        rng = cohort.rng("gaussian noise")
        reporters = int(cohort.reporting.sum())
        multiplier, count_noise = self._shares(expected)

        # Clip once more: clients may lie, and rounding (`Quantize`) may have made a
        # change longer.
        start = _common_start(kind, downlink)
        change = jnp.asarray(rows.values) - start
        all_but_clients = tuple(range(1, change.ndim))
        length = jnp.sqrt(jnp.square(change).sum(axis=all_but_clients, keepdims=True))
        tiny = jnp.finfo(change.dtype).tiny
        change = change * jnp.minimum(1.0, norm / jnp.maximum(length, tiny))

        # The mean over reporters becomes start + (sum_S change_i + z C N(0, I)) /
        # expected, whatever their number: every row gets the same noise, and so their
        # mean gets it once.
        noise = multiplier * norm * rng.standard_normal(rows.values.shape[1:])
        noise = (noise / expected).astype(change.dtype)
        change = (reporters / expected) * change + noise
        decoded = {name: answer for name, answer in update.items() if name != WITHIN}
        decoded[kind] = replace(rows, values=start + change)

        if self.quantile is not None:
            within = np.zeros(0)
            if WITHIN in update:
                within = update[WITHIN].host()[cohort.reporting]
            # Counted as +1/2 and -1/2, so that one client changes the sum by half as
            # much.
            total = float((within - 0.5).sum()) + count_noise * rng.standard_normal()
            share_within = total / expected + 0.5
            # Andrew et al.: C <- C exp( -eta_C (share within - quantile) )
            growth = math.exp(-self.norm_rate * (share_within - self.quantile))
            state = {**state, "norm": norm * growth}
        return decoded, state

    def _shares(self, expected: int) -> tuple[float, float]:
        """How the noise is divided between changes and the count (Andrew et al. 2021,
        section 3.2 and theorem 1).

        Args:
            expected: reporters in a round.

        Returns:
            The multiplier of the noise on changes, and the deviation of the noise on
            the count of clients within, such that both together cost what `multiplier`
            says. The first is infinite where the count alone costs as much.
        """
        z = float(self.multiplier)
        if self.quantile is None:
            return z, 0.0
        count_noise = expected / 20
        if z >= 2 * count_noise:
            return math.inf, count_noise
        # 1/z^2 = 1/z_changes^2 + 1/(2 count_noise)^2
        z_changes = (z**-2 - (2 * count_noise) ** -2) ** -0.5
        return z_changes, count_noise


def _common_start(kind: str, downlink: Downlink) -> Any:
    """The start of all clients' changes: the only model sent, or zero."""
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
    """The update of one client that changed nothing, for a round in which nobody
    reports.

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

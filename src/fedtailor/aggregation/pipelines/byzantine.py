"""Byzantine clients of a simulation: they send something else than they trained."""

from dataclasses import replace
from typing import Any, ClassVar, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor.data.federation.poison import byzantine_clients, check_share
from fedtailor.protocol import (
    MODEL_KINDS,
    Cohort,
    Downlink,
    Stage,
    Transform,
    Update,
    hyperparameters,
    server_rng,
)

Attack = Literal["sign-flip", "scale", "random", "little-is-enough", "nan", "huge"]

HUGE = 1e30


@hyperparameters
class Byzantine(Transform):
    """Some clients of a simulation send wrong vectors (models, gradients, controls).

    ================  ==================================================================
    sign-flip         their change of the received model, times -`factor`
    scale             their change, times `factor`: with poisoned training data a model
                      replacement or a scaled back door (attack A3 of Li et al. 2021;
                      Bagdasaryan et al. 2020)
    random            normal noise instead of the model, with `factor` times the root mean
                      square of its entries (attack A2 of Li et al. 2021)
    little-is-enough  the mean of the honest vectors (those that the other clients have
                      trained, which attackers are taken to know) minus z of their
                      standard deviations in each coordinate, for the largest z that a
                      majority cannot tell from an honest one (Baruch et al. 2019,
                      algorithm 3)
    nan               NaN
    huge              1e30
    ================  ==================================================================

    Byzantine clients know no bound and no noise: the attack takes the place of what they
    would have sent after clipping. They are those of poisoned data with the same share and
    seed (`fedtailor.data.federation.byzantine_clients`). What they train for themselves is
    not touched.

    Example:
        >>> from fedtailor.aggregation.pipelines import Byzantine
        >>> attack = Byzantine("sign-flip", share=0.2)
        >>> run = ft.run(
        ...     ft.FedAvg(), federation, ft.models.logistic(), rounds=2, uplink=attack
        ... )
    """

    name: ClassVar[str] = "byzantine"
    stage: ClassVar[Stage | None] = "byzantine"

    attack: Attack = "sign-flip"
    """What they send."""
    share: float = 0.2
    """The share of the clients that are Byzantine."""
    factor: float = 10.0
    """The size of the attack (sign-flip, scale and random)."""

    def __post_init__(self) -> None:
        check_share(self.share)
        require(self.factor > 0, f"factor is {self.factor}; it must be above 0")

    @property
    def keeps_sums(self) -> bool:
        return False

    def largest_norm(
        self, norm: float | None, size: int, announced: float | None = None
    ) -> float | None:
        return norm

    def decode(
        self, update: Update, downlink: Downlink, cohort: Cohort, state: PyTree
    ) -> tuple[Update, PyTree]:
        of_all = byzantine_clients(cohort.clients.ids, self.share, cohort.seed)
        attacks = of_all[cohort.rows] & cohort.reporting
        if not attacks.any():
            return update, state
        decoded = dict(update)
        for kind in sorted(MODEL_KINDS.intersection(update)):
            rows = update[kind]
            honest = rows.host()
            values = np.array(rows.values)
            for client in np.flatnonzero(attacks).tolist():
                values[rows.row[client]] = self._sent(
                    kind, honest, client, attacks, downlink, cohort
                )
            decoded[kind] = replace(rows, values=jnp.asarray(values))
        return decoded, state

    def _sent(
        self,
        kind: str,
        honest: NDArray[Any],
        client: int,
        attacks: NDArray[np.bool_],
        downlink: Downlink,
        cohort: Cohort,
    ) -> Any:
        """What a client sends.

        Args:
            kind: of the vector.
            honest: [c, ...] what the clients would have sent.
            client: the position of the Byzantine client.
            attacks: [c] which clients are Byzantine.
            downlink: what the clients received.
            cohort: the clients.
        """
        vector = honest[client].astype(np.float64)
        match self.attack:
            case "nan":
                return np.nan
            case "huge":
                return HUGE
            case "random":
                ids = [cohort.ids[client]]
                # The stream of random numbers keeps the name that it was drawn by first.
                rng = server_rng(cohort.seed, f"lies: {kind}", cohort.round, ids)
                size = self.factor * np.sqrt(np.mean(np.square(vector)))
                return size * rng.standard_normal(vector.shape)
            case "little-is-enough":
                known = honest[cohort.reporting].astype(np.float64)
                z = largest_unnoticed(len(known), int(attacks.sum()))
                return known.mean(axis=0) - z * known.std(axis=0)
        start = _nearest_received(kind, vector, client, downlink)
        factor = -self.factor if self.attack == "sign-flip" else self.factor
        return start + factor * (vector - start)


def largest_unnoticed(clients: int, attackers: int) -> float:
    """z of Baruch et al. 2019, algorithm 3: with so many attackers at mean - z deviations, a
    majority of all clients lies at least as far from the mean, in expectation.
    """
    from scipy.special import ndtri

    supporters = clients // 2 + 1 - attackers
    honest = clients - attackers
    return max(float(ndtri((honest - supporters) / max(honest, 1))), 0.0)


def _nearest_received(
    kind: str, vector: NDArray[np.float64], client: int, downlink: Downlink
) -> Any:
    """The received models that are nearest to a client's vector [d] or vectors [k, d]; 0
    for other kinds, and if none was received.
    """
    sent = downlink.streams.get("model")
    if kind != "model" or sent is None or sent.values.shape[-1] != vector.shape[-1]:
        return 0.0
    received = sent.recipients[client]
    models = np.asarray(sent.values)[received[received >= 0]].astype(np.float64)
    if not len(models):
        return 0.0
    vectors = vector.reshape(-1, vector.shape[-1])
    nearest = [
        models[np.square(models - each).sum(axis=1).argmin()] for each in vectors
    ]
    return np.stack(nearest).reshape(vector.shape)

"""RobustMean: an average that a few Byzantine clients cannot move far."""

import math
from typing import Any, ClassVar, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PyTree

from fedtailor._base.choice import require, require_one_or_more
from fedtailor.aggregation import robust
from fedtailor.aggregation.pipelines.change import common_start
from fedtailor.protocol import (
    MODEL_KINDS,
    Algorithm,
    ClientRows,
    Cohort,
    Downlink,
    Population,
    Stage,
    Transform,
    Update,
    hyperparameters,
)

Rule = Literal[
    "median",
    "trimmed-mean",
    "krum",
    "multi-krum",
    "geometric-median",
    "norm-bound",
    "centred-clipping",
]


@hyperparameters
class RobustMean(Transform):
    """Puts a robust average in the place of the mean of what clients send.

    The server replaces each reporter's vector by the robust average of all reporters'
    vectors, so that every weighted mean of them is this average:

    ================  ==================================================================
    median            the median of each coordinate (Yin et al. 2018)
    trimmed-mean      the mean of each coordinate without its f smallest and f largest
                      values (Yin et al. 2018)
    krum              the vector with the least sum of squared distances to its n - f - 2
                      nearest others (Blanchard et al. 2017)
    multi-krum        the mean of the n - f - 2 vectors of least such sums
    geometric-median  the vector with the least sum of distances to all, by Weiszfeld's
                      iteration (Pillutla et al. 2022)
    norm-bound        the mean of changes, scaled to norms of at most `radius` (Sun et
                      al. 2019)
    centred-clipping  the mean of differences from the average of the round before,
                      scaled likewise (Karimireddy et al. 2021)
    ================  ==================================================================

    n reporters may have up to f = `byzantine` n Byzantine clients among them, rounded up.
    A vector with a number that is NaN or infinite counts as theirs, and is left out first.

    Clients weigh alike, as a Byzantine client could claim any number of samples. It is for methods
    whose server takes sums only, of clients that start from one model: FedAvg, Ditto and
    all whose clients keep a part, but not those with a model for each cluster.

    Example:
        >>> from fedtailor.aggregation.pipelines import Byzantine, RobustMean
        >>> uplink = (RobustMean("median"), Byzantine("huge", share=0.2))
        >>> safe = ft.run(
        ...     ft.FedAvg(weights="uniform"),
        ...     federation,
        ...     ft.models.logistic(),
        ...     rounds=2,
        ...     uplink=uplink,
        ... )
        >>> bool(np.abs(safe.personal(federation.names[0]).theta).max() < 10)
        True
    """

    name: ClassVar[str] = "robust-mean"
    stage: ClassVar[Stage | None] = "mean"

    rule: Rule = "trimmed-mean"
    """What takes the place of the mean."""
    byzantine: float = 0.2
    """The share of the reporters that may lie, below 0.5."""
    bucket: int = 1
    """Reporters whose mean is one vector for the rule, drawn afresh in each round: 2 or more
    help where clients have different data (Karimireddy et al. 2022).
    """
    radius: float | None = None
    """The largest norm of norm-bound and centred-clipping; None = the median of the round's
    norms.
    """
    steps: int = 3
    """Steps of centred-clipping in a round."""

    def __post_init__(self) -> None:
        require(
            0 <= self.byzantine < 0.5,
            f"byzantine is {self.byzantine}; it must be a share from 0 to below 0.5, as no"
            " rule"
            " can stand more",
        )
        require_one_or_more("bucket", self.bucket)
        require(
            self.radius is None or self.radius > 0,
            f"radius is {self.radius}; it must be above 0",
        )
        require_one_or_more("steps", self.steps)

    def check(self, algorithm: Algorithm) -> None:
        name = algorithm.about.name
        require(
            algorithm.server_sees == "sums"
            and algorithm.about.models_received in ("one model", "a part"),
            f"a robust mean takes the place of one mean, and {name}'s server makes more"
            " of what clients send; choose a method with one averaged model (fedavg,"
            " ditto, mr-mtl, fedper, ...)",
        )
        require(
            not algorithm.probes,
            f"{name}'s clients answer a probe, which a robust mean does not cover;"
            " choose a method or settings without one",
        )
        weights = getattr(algorithm, "weights", "uniform")
        require(
            weights == "uniform",
            "a robust mean needs clients that weigh alike, as a Byzantine client"
            " could claim any"
            f" number of samples: set weights = 'uniform' of {name}, not {weights!r}",
        )

    def init_server(self, population: Population) -> PyTree:
        reporters = population.reporters_per_round
        vectors = math.ceil(reporters / self.bucket)
        byzantine = self._most_byzantine(reporters)
        needed = 2 * byzantine + (2 if self.rule in ("krum", "multi-krum") else 0)
        require(
            needed < vectors or self.rule == "norm-bound",
            f"{self.rule} of {vectors} vectors in a round cannot stand {byzantine} Byzantine"
            " clients,"
            f" for which it needs {needed + 1}; have more clients report, or lower"
            " byzantine" + (" or bucket" if self.bucket > 1 else ""),
        )
        # The average change of the round before, by kind, for centred-clipping.
        return {"centre": {}}

    def decode(
        self, update: Update, downlink: Downlink, cohort: Cohort, state: PyTree
    ) -> tuple[Update, PyTree]:
        if not cohort.reporting.any():
            return update, state
        decoded = dict(update)
        centres = dict(state["centre"])
        for kind in sorted(MODEL_KINDS.intersection(update)):
            rows = update[kind]
            require(
                len(rows.shape) == 2,
                f"clients send several vectors as {kind!r}, and a robust mean is one of"
                " one vector from each",
            )
            is_received = kind != "model" or "model" in downlink.streams
            require(
                is_received or self.rule != "norm-bound",
                "norm-bound measures changes of the model that clients receive, and"
                " this method's clients receive none when they answer; choose another"
                " rule",
            )
            start = np.zeros(())
            if is_received:
                start = np.asarray(common_start(kind, downlink, "a robust mean"))
            changes = rows.host()[cohort.reporting] - start
            centre = np.asarray(centres.get(kind, np.zeros(changes.shape[1])))
            change = self._average(changes, centre, cohort)
            if self.rule == "centred-clipping":
                centres[kind] = change
            average = jnp.asarray((start + change).astype(rows.dtype))
            decoded[kind] = ClientRows(
                jnp.broadcast_to(average, rows.values.shape), rows.row
            )
        return decoded, {"centre": centres}

    def _most_byzantine(self, reporters: int) -> int:
        """f: the number of reporters that may lie."""
        # 1e-9 makes 0.2 of 5 equal to 1 in floating point.
        return math.ceil(self.byzantine * reporters - 1e-9)

    def _average(
        self,
        changes: Float[np.ndarray, "n d"],
        centre: Float[np.ndarray, " d"],
        cohort: Cohort,
    ) -> Float[np.ndarray, " d"]:
        """The robust average of the reporters' changes.

        Args:
            changes: of the reporters, in the order of their ids.
            centre: the average of the round before, for centred-clipping.
            cohort: draws the buckets.

        Returns:
            The average; 0 if no vector is finite.
        """
        is_finite = np.isfinite(changes).all(axis=1)
        x: Any = changes[is_finite]
        if not len(x):
            return np.zeros(changes.shape[1])
        byzantine = max(self._most_byzantine(len(changes)) - int((~is_finite).sum()), 0)
        if self.bucket > 1:
            rng = cohort.rng("buckets", among_reporters=True)
            x = robust.bucket_means(x, self.bucket, rng.permutation(len(x)))
        # Fewer may have answered than were asked.
        byzantine = min(byzantine, (len(x) - 1) // 2)
        match self.rule:
            case "median":
                return robust.coordinate_median(x)
            case "trimmed-mean":
                return robust.trimmed_mean(x, byzantine)
            case "krum":
                return robust.krum(x, byzantine)
            case "multi-krum":
                return robust.krum(x, byzantine, keep=max(len(x) - byzantine - 2, 1))
            case "geometric-median":
                return robust.geometric_median(x)
            case "norm-bound":
                return robust.norm_bounded_mean(x, self.radius)
        return robust.centred_clipping(x, centre, self.radius, self.steps)

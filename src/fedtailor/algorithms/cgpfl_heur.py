"""CGPFL-Heur: CGPFL that chooses the number of contexts."""

from typing import ClassVar

import numpy as np
from jaxtyping import Array, Float, Real

from fedtailor._base.choice import require
from fedtailor.aggregation.clusters import costs_of_models
from fedtailor.algorithms.cgpfl import Contextual
from fedtailor.protocol import About, hyperparameters

_ROUNDING = 1e-9
"""Values of the bound that differ by less than this fraction count as equal."""


@hyperparameters
class CGPFLHeur(Contextual):
    """CGPFL whose number of contexts minimises a bound on the generalization error.

    Tang et al. 2022, section 4.4.

    After the first round, with m training samples in all and m_i of client i, K
    minimises eq. 11

        e(K) = sqrt( (d K / m) log(e m / d) ) + mu sum_i (m_i / m) min_k |w_i -
        omega_k|^2

    over 1 .. N/2 for N clients (above 100, K grows in steps of 10 %), where the w_i are
    the first uploads and the omega_k the means of their clusters. On ties the smallest
    K is chosen. Everything else is CGPFL.

    The default mu makes both terms change by the same amount from K = 1 to K = N/2, so
    that e(1) = e(N/2). The first term is concave in K. If the clients have no clusters,
    every further context lowers the second term by about the same amount. Then no K in
    between is better, and one context is chosen. If the first contexts lower it by more
    than later ones, the minimum is in between. (As in the paper, there is no term in
    sqrt(N log(K) / m) from a union bound over the assignments of clients to contexts,
    which would also grow with K.)
    """

    # How `fedtailor algorithms` describes this method; `About` explains the fields.
    about: ClassVar[About] = About(
        name="cgpfl-heur",
        paper=(
            "Tang et al. 2022, Personalized Federated Learning with Contextualized"
            " Generalization, section 4.4"
        ),
        down="1 model of its context",
        up="1 model",
        client_keeps="its personal model",
        unseen_clients_get=(
            "all contexts, of which it takes the one of lowest loss; then inner steps"
        ),
        models_received="one of several",
    )

    mu: float | None = None
    """Weight of the second term (not given in the paper). With None both terms change
    by the same amount from K = 1 to K = N/2, so that the choice depends neither on d
    nor on the scale of the models."""
    complexity: float | None = None
    """d, the complexity of the models; values above m count as m. None = the number of
    parameters.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.mu is None or self.mu >= 0, f"mu is {self.mu}; it must be 0 or more"
        )
        d = self.complexity
        require(d is None or d > 0, f"complexity is {d}; it must be above 0")

    def _number(
        self, models: Float[Array | np.ndarray, "c d"], sizes: Real[np.ndarray, " c"]
    ) -> int:
        # The second term of eq. 11 without mu, for the numbers K to compare. Clients
        # are weighted by their samples.
        share = sizes / sizes.sum()
        numbers, costs = costs_of_models(models, share, len(models) // 2)
        # The first term. d is at most m, because above e m the logarithm is negative.
        samples = float(sizes.sum())
        d = models.shape[1] if self.complexity is None else self.complexity
        d = min(d, samples)
        bound = np.sqrt(d * numbers / samples * np.log(np.e * samples / d))
        mu = self.mu
        if mu is None:
            # The first term increases from K = 1 to N/2 by as much as the second term
            # decreases.
            decrease = costs[0] - costs[-1]
            mu = (bound[-1] - bound[0]) / decrease if decrease > 0 else 0.0
        value = bound + mu * costs
        # e(1) and e(N/2) differ only by rounding. On such ties the smallest K is
        # chosen.
        is_minimal = value <= value.min() + _ROUNDING * value.max()
        return int(numbers[np.argmax(is_minimal)])

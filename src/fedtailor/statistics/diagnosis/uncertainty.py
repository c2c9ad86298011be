"""The gain from sharing, estimated from the uncertainty of models.

The two-level Gaussian model of Self-FL (Chen et al. 2022) has true models theta_m ~
N(theta_0, s_0) around a common model theta_0, and local estimates z_m ~ N(theta_m,
s_m). All variances must be of the same kind, either traces or means over coordinates.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float, Int

from fedtailor._base.choice import require

Posterior = Literal["paper", "exact"]
"""Which posterior of client m's model given the other clients' models to use.

`paper` (eq. 3) treats the common model as known; `exact` is the posterior of the model.
"""


@dataclass(frozen=True)
class PersonalizationGain:
    """Estimated gains from the other clients' models.

    Attributes:
        gain: [m] GAIN_m >= 1, the variance of the local estimate divided by the
            variance of the posterior given all clients.
        rho: [m] weight of the other clients in client m's posterior mean, in [0, 1).
        strength: [m] lambda* = s_m / s_0, the equivalent regularization strength of
            Ditto or pFedMe for curvature 1; infinite if clients do not differ.
        rate: largest rho, the convergence rate of Self-FL's fixed point (eq. 12).
    """

    gain: Float[np.ndarray, " m"]
    rho: Float[np.ndarray, " m"]
    strength: Float[np.ndarray, " m"]
    rate: float

    def steps(
        self, step_size: float, curvature: float = 1.0, largest: int = 40
    ) -> Int[np.ndarray, " m"]:
        """Local steps l_m that solve (1 - eta h)^l = rho_m (eq. 8), rounded up.

        Args:
            step_size: learning rate eta.
            curvature: curvature h of the loss.
            largest: maximum of the result; its minimum is 1.

        Raises:
            ValueError: eta h is not in (0, 1).
        """
        step = step_size * curvature
        require(
            0 < step < 1,
            f"rate times curvature is {step:g}; eq. 8 has a solution for numbers in"
            " (0, 1) only",
        )
        # A rounding error must not add a step to an integer solution.
        with np.errstate(divide="ignore"):
            steps = np.ceil(np.log(self.rho) / np.log1p(-step) - 1e-9)
        return np.clip(steps, 1, largest).astype(np.int64)


def personalization_gain(
    within: Float[np.ndarray, " m"], between: float, posterior: Posterior = "paper"
) -> PersonalizationGain:
    """GAIN_m = 1 + s_m A, where A is the information of the other clients' models.

    In the paper (eq. 3) it is A = sum_{k != m} 1 / (s_0 + s_k), and the exact
    information is 1 / (s_0 + 1/A). The paper's A grows with the number of clients
    without bound. The exact information is at most 1 / s_0, the information of a
    perfectly known common model.

    Args:
        within: variances s_m > 0 of the local estimates.
        between: variance s_0 of the clients' true models.
        posterior: whether A is the paper's or the exact information.

    Raises:
        ValueError: a variance is negative, or s_m is 0, or the posterior is unknown.
    """
    variances = np.asarray(within, np.float64)
    require(
        bool((variances > 0).all()),
        f"a client's variance is {variances.min(initial=np.inf):g}; it must be above 0",
    )
    require(
        between >= 0,
        f"the variance between clients is {between:g}; it must be 0 or more",
    )
    require(
        posterior in ("paper", "exact"),
        f"posterior is {posterior!r}; it must be 'paper' or 'exact'",
    )
    # The precision of each client's model as an estimate of the common model.
    precisions = 1.0 / (between + variances)
    information = np.array(
        [np.delete(precisions, m).sum() for m in range(len(variances))]
    )
    if posterior == "exact":
        information = np.divide(information, 1 + between * information)
    gain = 1 + variances * information
    rho = information / (1 / variances + information)
    strength = variances / between if between > 0 else np.full(len(variances), np.inf)
    return PersonalizationGain(gain, rho, strength, float(rho.max(initial=0.0)))


def local_variance_between(
    models: Float[np.ndarray, "m d"], within: Float[np.ndarray, " m"]
) -> float:
    """Estimates s_0 from the clients' local models.

    The estimate is the trace of their empirical covariance (eq. 14) minus the mean of
    s_m, and at least 0. Eq. 14 itself estimates s_0 plus the mean of s_m, since the
    estimation errors of the models also contribute to their empirical variance.

    Args:
        models: local estimates z_m.
        within: variances s_m, as traces.

    Raises:
        ValueError: there are fewer than two clients.
    """
    require(
        len(models) > 1,
        "one client alone has no variance between clients; give two models or more",
    )
    empirical_variance = np.asarray(models, np.float64).var(axis=0, ddof=1).sum()
    return float(max(empirical_variance - np.mean(within), 0.0))

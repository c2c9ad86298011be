"""Who gains from sharing, by the uncertainty of models.

The two-level Gaussian model of Self-FL (Chen et al. 2022): theta_m ~ N(theta_0, s_0)
around a common one, and what client m learns alone z_m ~ N(theta_m, s_m). Variances are
traces, or means over coordinates, but all of one kind.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float, Int

from fedtailor.protocol import require

Posterior = Literal["paper", "exact"]
"""What the others' models tell of client m's.

`paper` (eq. 3): as much as if it were the common one; `exact`: what the model says.
"""


@dataclass(frozen=True)
class PersonalizationGain:
    """What others' models are worth to each client.

    Attributes:
        gain: [m] GAIN_m, the variance of the model learned alone over that learned with
            the others; 1 or more.
        rho: [m] weight of the others in client m's best model, in [0, 1).
        strength: [m] lambda* = s_m / s_0, the pull of Ditto's or pFedMe's regulariser
            towards the common model that does the same (for curvature 1); infinite
            where clients do not differ.
        rate: largest rho, the rate of Self-FL's fixed point (eq. 12).
    """

    gain: Float[np.ndarray, " m"]
    rho: Float[np.ndarray, " m"]
    strength: Float[np.ndarray, " m"]
    rate: float

    def steps(
        self, step_size: float, curvature: float = 1.0, largest: int = 40
    ) -> Int[np.ndarray, " m"]:
        """Local steps l_m of eq. 8, (1 - eta h)^l = rho_m, rounded up.

        They are limited to 1 to `largest`.

        Raises:
            ValueError: eta h is not in (0, 1).
        """
        product = step_size * curvature
        require(
            0 < product < 1,
            f"rate times curvature is {product:g}; eq. 8 has a solution for numbers in"
            " (0, 1) only",
        )
        # Rounding must not add a step to a solution that is a whole number.
        with np.errstate(divide="ignore"):
            steps = np.ceil(np.log(self.rho) / np.log1p(-product) - 1e-9)
        return np.clip(steps, 1, largest).astype(np.int64)


def personalization_gain(
    within: Float[np.ndarray, " m"], between: float, posterior: Posterior = "paper"
) -> PersonalizationGain:
    """GAIN_m = 1 + s_m A, where A is what the others' models tell.

    In the paper (eq. 3) A = sum_{k != m} 1 / (s_0 + s_k); exact is 1 / (s_0 + 1/A). The
    paper's A grows with the number of clients however far apart they are; the exact one
    is at most 1 / s_0, for that is all that a common model known perfectly would tell.

    Args:
        within: s_m, variance of what client m learns alone, above 0.
        between: s_0, variance of clients' true models.
        posterior: which A.

    Raises:
        ValueError: a variance is negative, or s_m is 0, or the posterior is unknown.
    """
    own = np.asarray(within, np.float64)
    require(
        bool((own > 0).all()),
        f"a client's variance is {own.min(initial=np.inf):g}; it must be above 0",
    )
    require(
        between >= 0,
        f"the variance between clients is {between:g}; it must be 0 or more",
    )
    require(
        posterior in ("paper", "exact"),
        f"posterior is {posterior!r}; it must be 'paper' or 'exact'",
    )
    # What each other client's model tells of a common one, as a precision.
    precisions = 1.0 / (between + own)
    others = np.array([np.delete(precisions, m).sum() for m in range(len(own))])
    if posterior == "exact":
        others = np.divide(others, 1 + between * others)
    gain = 1 + own * others
    rho = others / (1 / own + others)
    strength = own / between if between > 0 else np.full(len(own), np.inf)
    return PersonalizationGain(gain, rho, strength, float(rho.max(initial=0.0)))


def variance_between(
    models: Float[np.ndarray, "m d"], within: Float[np.ndarray, " m"]
) -> float:
    """s_0 from clients' models.

    It is their empirical variance (eq. 14; the trace) less the mean of s_m, and 0 at
    least. As printed, eq. 14 estimates s_0 plus the mean of s_m: the models differ by
    what each of them has learned wrong, too.

    Args:
        models: what clients learn alone, z_m.
        within: s_m, traces.

    Raises:
        ValueError: there are fewer than two clients.
    """
    require(
        len(models) > 1,
        "one client alone has no variance between clients; give two models or more",
    )
    spread = np.asarray(models, np.float64).var(axis=0, ddof=1).sum()
    return float(max(spread - np.mean(within), 0.0))

"""What a client answers in a step of a regression: its log-likelihood, and the first two
derivatives, at coefficients that the server asks about.

Answers of clients are added up; nothing else of a client's rows is used.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float
from scipy.special import expit

from fedtailor.models.tasks.times import cox_sums

Model = Literal["linear", "logistic", "poisson", "cox"]
MODELS: tuple[Model, ...] = get_args(Model)

MOST_COUNTED = 10**8
"""The largest count that is a target."""

_SMALLEST, _LARGEST = -30.0, 20.0
"""A step can be too long. Beyond these, linear predictors count as these: no variance is 0,
and no mean so large that sums could not hold it.
"""


@dataclass(frozen=True)
class ClientRows:
    """The rows of a client.

    Attributes:
        x: inputs [n, p], without a column of ones.
        y: numbers; 0 and 1; counts; or times [n].
        seen: of times, whether the event was seen, 1 or 0 [n].
    """

    x: Float[np.ndarray, "n p"]
    y: Float[np.ndarray, " n"]
    seen: Float[np.ndarray, " n"] | None = None


@dataclass(frozen=True)
class Sums:
    """A log-likelihood and its derivatives.

    Attributes:
        log_likelihood: without terms that no coefficient changes.
        score: its gradient [p].
        information: minus its Hessian [p, p].
    """

    log_likelihood: float
    score: Float[np.ndarray, " p"]
    information: Float[np.ndarray, "p p"]

    def __add__(self, other: "Sums") -> "Sums":
        return Sums(
            self.log_likelihood + other.log_likelihood,
            self.score + other.score,
            self.information + other.information,
        )

    def without_intercept(self) -> "Sums":
        """The sums in which the first coefficient, the intercept, has been chosen best
        for any value of the others: a step of Newton's method then takes the others as
        far as one with the intercept in it does.
        """
        slopes = self.information[1:, 0] / self.information[0, 0]
        return Sums(
            self.log_likelihood,
            self.score[1:] - slopes * self.score[0],
            self.information[1:, 1:] - np.outer(slopes, self.information[0, 1:]),
        )


def sums_of(
    rows: ClientRows, model: Model, coefficients: Float[np.ndarray, " q"]
) -> Sums:
    """The sums of a client's rows.

    Args:
        rows: of the client.
        model: which; the likelihood of "linear" is that of errors of variance 1.
        coefficients: the intercept and p others; of "cox", which has no intercept, p.
    """
    if model == "cox":
        assert rows.seen is not None
        cox = cox_sums(rows.x, rows.y, rows.seen > 0, coefficients)
        return Sums(cox.log_likelihood, cox.gradient, cox.information)
    design = np.hstack([np.ones((len(rows.x), 1)), rows.x])
    linear, y = design @ coefficients, rows.y
    # Each link is the canonical one, so that the gradient is the sum of residuals times
    # inputs, and the Hessian that of variances times squares of inputs.
    if model == "linear":
        residuals, weights = y - linear, np.ones_like(y)
        log_likelihood = -(residuals @ residuals) / 2
    elif model == "logistic":
        linear = np.clip(linear, _SMALLEST, -_SMALLEST)
        residuals, weights = y - expit(linear), expit(linear) * expit(-linear)
        log_likelihood = y @ linear - np.logaddexp(0, linear).sum()
    else:
        linear = np.clip(linear, _SMALLEST, _LARGEST)
        weights = np.exp(linear)
        residuals = y - weights
        log_likelihood = y @ linear - weights.sum()
    information = (design * weights[:, None]).T @ design
    return Sums(float(log_likelihood), design.T @ residuals, information)

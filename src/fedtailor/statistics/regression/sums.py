"""What a client answers in a step of a regression: its log-likelihood, and the first two
derivatives, at coefficients that the server asks about.

Answers of clients are added up; nothing else of a client's rows is used.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float
from scipy.special import logit, logsumexp

from fedtailor.models.tasks.times import cox_sums
from fedtailor.statistics.portable import exp, expit, softplus

Model = Literal["linear", "logistic", "poisson", "cox"]
MODELS: tuple[Model, ...] = get_args(Model)

MOST_COUNTED = 10**8
"""The largest count that is a target."""

_FARTHEST, _LARGEST = 30.0, 20.0
"""A step can be too long. Linear predictors that are farther from 0 have the variance of this
one in a logistic model, as not all variances may be 0; and larger ones count as this one in
a Poisson model, so that sums can hold the means.
"""

_BLOCK = 2**20
"""Numbers of rows that are rounded at once."""

_MOST_STEPS = 100
"""To an own intercept; each halves the interval that has it, at least."""


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


def best_intercept(
    rows: ClientRows, model: Model, slopes: Float[np.ndarray, " p"]
) -> float:
    """The intercept of the largest likelihood beside other coefficients.

    Args:
        rows: of a client, whose targets are not all 0, nor (of "logistic") all 1.
        model: which, but "cox".
        slopes: the other coefficients.
    """
    offsets, y = rows.x @ slopes, rows.y
    if model == "linear":
        return float((y - offsets).mean())
    if model == "poisson":
        return float(np.log(y.sum()) - logsumexp(offsets))
    # Predicted means have the sum of targets. At one end none is above the mean of
    # these, at the other none is below.
    middle = float(logit(y.mean()))
    low, high = middle - float(offsets.max()), middle - float(offsets.min())
    found = (low + high) / 2
    for _ in range(_MOST_STEPS):
        means = expit(found + offsets)
        excess, weight = float((means - y).sum()), float(means @ (1 - means))
        low, high = (low, found) if excess > 0 else (found, high)
        step = excess / weight if weight > 0 else np.inf
        if abs(step) <= 1e-14 * max(1.0, abs(found)):
            break
        # Newton's step, or the middle if it leads out.
        inside = low < found - step < high
        found = found - step if inside else (low + high) / 2
    return found


@dataclass(frozen=True)
class RowTerms:
    """What rows add to `Sums`.

    Attributes:
        design: inputs, after a column of ones [n, q].
        log_likelihoods: of each row [n].
        residuals: the score is the sum of these times inputs [n].
        weights: the information is the sum of these times products of inputs [n].
    """

    design: Float[np.ndarray, "n q"]
    log_likelihoods: Float[np.ndarray, " n"]
    residuals: Float[np.ndarray, " n"]
    weights: Float[np.ndarray, " n"]

    def blocks(self) -> Iterator[Float[np.ndarray, "b m"]]:
        """The terms of each row in one vector: of the log-likelihood, the score, and the
        upper triangle of the information.
        """
        first, second = np.triu_indices(self.design.shape[1])
        each = max(_BLOCK // len(first), 1)
        for start in range(0, max(len(self.design), 1), each):
            block = slice(start, start + each)
            design = self.design[block]
            products = design[:, first] * design[:, second]
            yield np.hstack(
                [
                    self.log_likelihoods[block, None],
                    design * self.residuals[block, None],
                    products * self.weights[block, None],
                ]
            )


def terms_of(
    rows: ClientRows, model: Model, coefficients: Float[np.ndarray, " q"]
) -> RowTerms:
    """The terms of a client's rows.

    Args:
        rows: of the client.
        model: which, but "cox"; the likelihood of "linear" is that of errors of variance 1.
        coefficients: the intercept and p others.
    """
    design = np.hstack([np.ones((len(rows.x), 1)), rows.x])
    # One column after another: a product of matrices, or a sum over an axis, may add up a
    # row in another order beside other rows.
    linear, y = np.zeros(len(design)), rows.y
    for column, coefficient in zip(design.T, coefficients, strict=True):
        linear += column * coefficient
    # Each link is the canonical one, so that the gradient is the sum of residuals times
    # inputs, and the Hessian that of variances times squares of inputs.
    if model == "linear":
        residuals, weights = y - linear, np.ones_like(y)
        log_likelihoods = -(residuals**2) / 2
    elif model == "logistic":
        near = np.clip(linear, -_FARTHEST, _FARTHEST)
        residuals, weights = y - expit(linear), expit(near) * expit(-near)
        log_likelihoods = y * linear - softplus(linear)
    else:
        linear = np.minimum(linear, _LARGEST)
        weights = exp(linear)
        residuals = y - weights
        log_likelihoods = y * linear - weights
    return RowTerms(design, log_likelihoods, residuals, weights)


def sums_of(
    rows: ClientRows, model: Model, coefficients: Float[np.ndarray, " q"]
) -> Sums:
    """The sums of a client's rows; see `terms_of`. "cox" has no intercept."""
    if model == "cox":
        assert rows.seen is not None
        cox = cox_sums(rows.x, rows.y, rows.seen > 0, coefficients)
        return Sums(cox.log_likelihood, cox.gradient, cox.information)
    terms = terms_of(rows, model, coefficients)
    design = terms.design
    return Sums(
        float(terms.log_likelihoods.sum()),
        design.T @ terms.residuals,
        (design * terms.weights[:, None]).T @ design,
    )

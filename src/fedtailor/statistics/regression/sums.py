"""What a client answers in a step of a regression: its log-likelihood, and the first two
derivatives, at coefficients that the server asks about.

Answers of clients are added up; nothing else of a client's rows is used.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float
from scipy.special import expit

Model = Literal["linear", "logistic", "poisson", "cox"]
MODELS: tuple[Model, ...] = get_args(Model)


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
        return _cox_sums(rows, coefficients)
    design = np.hstack([np.ones((len(rows.x), 1)), rows.x])
    linear, y = design @ coefficients, rows.y
    # Each link is the canonical one, so that the gradient is the sum of residuals times
    # inputs, and the Hessian that of variances times squares of inputs.
    if model == "linear":
        residuals, weights = y - linear, np.ones_like(y)
        log_likelihood = -(residuals @ residuals) / 2
    elif model == "logistic":
        residuals, weights = y - expit(linear), expit(linear) * expit(-linear)
        log_likelihood = y @ linear - np.logaddexp(0, linear).sum()
    else:
        weights = np.exp(linear)
        residuals = y - weights
        log_likelihood = y @ linear - weights.sum()
    information = (design * weights[:, None]).T @ design
    return Sums(float(log_likelihood), design.T @ residuals, information)


def _cox_sums(rows: ClientRows, coefficients: Float[np.ndarray, " p"]) -> Sums:
    """Cox's partial likelihood among the rows of a client, with ties as in Efron (1977).

    Of d events at one time, number l = 0..d-1 happens among the rows at risk, of which
    those d count by 1 - l/d.
    """
    assert rows.seen is not None
    order = np.argsort(rows.y, kind="stable")
    x, time, seen = rows.x[order], rows.y[order], rows.seen[order] > 0
    linear = x @ coefficients
    linear -= linear.max(initial=-np.inf) if len(linear) else 0.0
    risk = np.exp(linear)
    # Of all rows from each on.
    risk_from = np.cumsum(risk[::-1])[::-1]
    x_from = np.cumsum((risk[:, None] * x)[::-1], axis=0)[::-1]
    # Of all events at one time.
    times, tie, counts = np.unique(time[seen], return_inverse=True, return_counts=True)
    risk_tied = np.bincount(tie, risk[seen], len(times))
    x_tied = np.zeros((len(times), x.shape[1]))
    np.add.at(x_tied, tie, risk[seen, None] * x[seen])
    # Of each event: its number among those at its time, and who is at risk.
    begin = np.cumsum(counts) - counts
    share = (np.arange(len(tie)) - begin[tie]) / counts[tie]
    first = np.searchsorted(time, times)[tie]
    at_risk = risk_from[first] - share * risk_tied[tie]
    means = (x_from[first] - share[:, None] * x_tied[tie]) / at_risk[:, None]
    # How often a row was at risk, by the chance that the event was its own.
    hazard = np.concatenate([[0.0], np.cumsum(1 / at_risk)])
    exposure = hazard[np.searchsorted(time[seen], time, side="right")]
    exposure[seen] -= np.bincount(tie, share / at_risk, len(times))[tie]
    return Sums(
        float(linear[seen].sum() - np.log(at_risk).sum()),
        x[seen].sum(axis=0) - means.sum(axis=0),
        (x * (risk * exposure)[:, None]).T @ x - means.T @ means,
    )

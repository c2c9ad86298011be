"""`Regression`: coefficients with what a table says about them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from fedtailor.statistics.regression.sums import Model


@dataclass(frozen=True)
class Regression:
    """A fitted regression.

    Attributes:
        model: "linear", "logistic", "poisson" or "cox".
        intercept: "common", "fixed" or "random"; of "cox", "fixed": each client has its
            own baseline hazard.
        errors: where standard errors come from: "model", "CR0" or "CR1".
        names: of the coefficients.
        coefficients: [p], in units of the target per unit of the input; logarithms of
            odds, rates or hazards. The intercept is the first, if it is common.
        covariance: of the coefficients [p, p].
        freedom: degrees of freedom of Student's t; infinite = the normal distribution.
        log_likelihood: at its maximum; partial for "cox", restricted for "random".
        rows: number of rows.
        events: of "cox", the number of rows whose event was seen.
        clients: number of clients.
        steps: of Newton's method.
        sigma2: of "linear", the variance of a row's error.
        client_variance: of "random", the variance of intercepts.
        left_out: numbers of clients whose rows say nothing about the coefficients.
    """

    model: Model
    intercept: str
    errors: str
    names: tuple[str, ...]
    coefficients: Float[np.ndarray, " p"]
    covariance: Float[np.ndarray, "p p"]
    freedom: float
    log_likelihood: float
    rows: int
    clients: int
    steps: int
    events: int | None = None
    sigma2: float | None = None
    client_variance: float | None = None
    left_out: tuple[int, ...] = ()

    @property
    def standard_errors(self) -> Float[np.ndarray, " p"]:
        """Standard errors of the coefficients."""
        return np.sqrt(np.diag(self.covariance))

    @property
    def test_statistics(self) -> Float[np.ndarray, " p"]:
        """Coefficients in standard errors: z, or t where freedom is finite."""
        return self.coefficients / self.standard_errors

    @property
    def p_values(self) -> Float[np.ndarray, " p"]:
        """Two-sided p values of coefficients of 0."""
        from scipy import stats  # takes 40 MB, which clients do not need

        return 2 * stats.t.sf(np.abs(self.test_statistics), self.freedom)

    def intervals(self, level: float = 0.95) -> Float[np.ndarray, "p 2"]:
        """Confidence intervals of the coefficients."""
        from scipy import stats

        half = stats.t.isf((1 - level) / 2, self.freedom) * self.standard_errors
        return np.stack([self.coefficients - half, self.coefficients + half], axis=1)

    def as_dict(self, level: float = 0.95) -> dict[str, Any]:
        """All numbers, for JSON."""
        columns = zip(
            self.names,
            self.coefficients.tolist(),
            self.standard_errors.tolist(),
            self.test_statistics.tolist(),
            self.p_values.tolist(),
            self.intervals(level).tolist(),
            strict=True,
        )
        terms = [
            {
                "term": name,
                "coefficient": coefficient,
                "standard_error": error,
                "statistic": statistic,
                "p": p,
                "interval": interval,
            }
            for name, coefficient, error, statistic, p, interval in columns
        ]
        return {
            "model": self.model,
            "intercept": self.intercept,
            "errors": self.errors,
            "rows": self.rows,
            "events": self.events,
            "clients": self.clients,
            "level": level,
            "freedom": self.freedom if np.isfinite(self.freedom) else None,
            "log_likelihood": self.log_likelihood,
            "sigma2": self.sigma2,
            "client_variance": self.client_variance,
            "terms": terms,
            "covariance": self.covariance.tolist(),
        }

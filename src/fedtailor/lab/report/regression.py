"""The table of a regression."""

import numpy as np

from fedtailor.lab.results.tables import Cell, Number, ReportTable
from fedtailor.statistics.regression import Regression

FEW_CLIENTS = 40
"""Clients below which cluster-robust errors are too small more often than not."""
RATIOS = {"logistic": "odds ratio", "poisson": "rate ratio", "cox": "hazard ratio"}
"""What the exponential of a coefficient is called."""
NAMES = {
    "linear": "Linear regression",
    "logistic": "Logistic regression",
    "poisson": "Poisson regression",
    "cox": "Cox regression",
}


def regression_table(
    fitted: Regression, target: str, level: float = 0.95
) -> ReportTable:
    """A line for each coefficient, with standard error, test and interval; the interval
    is that of the ratio where there is one.

    Args:
        fitted: the regression.
        target: name of the column.
        level: of the intervals.
    """
    ratio = RATIOS.get(fitted.model)
    intervals = fitted.intervals(level)
    columns = [fitted.coefficients, fitted.standard_errors, fitted.test_statistics]
    columns += [fitted.p_values]
    statistic = "z" if np.isinf(fitted.freedom) else "t"
    headers = ["coefficient", "std. error", statistic, "p"]
    if ratio is not None:
        with np.errstate(over="ignore"):
            intervals = np.exp(intervals)
            columns += [np.exp(fitted.coefficients)]
        headers += [ratio]
    tail = 50 * (1 - level)
    headers += [f"{tail:g} %", f"{100 - tail:g} %"]
    columns += [intervals[:, 0], intervals[:, 1]]
    rows: list[list[Cell]] = []
    values = np.stack(columns, axis=1).tolist()
    for name, row in zip(fitted.names, values, strict=True):
        cells = [
            _cell(header, value) for header, value in zip(headers, row, strict=True)
        ]
        rows.append([name, *cells])
    events = "" if fitted.events is None else f", {fitted.events:,} events"
    return ReportTable(
        f"{NAMES[fitted.model]} of {target}: {fitted.clients:,} clients,"
        f" {fitted.rows:,} rows{events}",
        ["term", *headers],
        rows,
    )


def regression_notes(fitted: Regression) -> list[str]:
    """What the numbers rest on, in sentences."""
    notes = []
    if fitted.model == "cox":
        notes.append("Each client has its own baseline hazard; ties as in Efron.")
    elif fitted.intercept == "fixed":
        notes.append("Each client has its own intercept (fixed effects).")
    elif fitted.intercept == "random":
        notes.append(
            f"Intercepts differ by client with variance {fitted.client_variance:.6g}"
            " (random effects, restricted maximum likelihood)."
        )
    if fitted.sigma2 is not None:
        notes.append(f"Variance of a row's error: {fitted.sigma2:.6g}.")
    kind = {"cox": "Partial log", "random": "Restricted log"}
    likelihood = kind.get(fitted.model, kind.get(fitted.intercept, "Log"))
    notes.append(f"{likelihood}-likelihood: {fitted.log_likelihood:.10g}.")
    if fitted.errors != "model":
        few = (
            f"; fewer than about {FEW_CLIENTS} clients make them too small"
            if fitted.clients < FEW_CLIENTS
            else ""
        )
        notes.append(
            f"Standard errors are robust to dependence within clients ({fitted.errors}),"
            f" with {fitted.freedom:.0f} degrees of freedom{few}."
        )
    return notes


def _cell(header: str, value: float) -> Number:
    if header == "p":
        return Number(value, "<0.001" if value < 0.001 else f"{value:.3f}")
    return Number(value, f"{value:.4g}")

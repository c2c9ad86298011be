"""Regression tables, as papers print them, from sums over clients."""

from fedtailor.statistics.regression.fit import (
    ERRORS,
    INTERCEPTS,
    MODELS,
    Errors,
    Intercept,
    Model,
    fit_regression,
)
from fedtailor.statistics.regression.result import Regression
from fedtailor.statistics.regression.sums import ClientRows
from fedtailor.statistics.regression.table import fit_table

__all__ = [
    "ERRORS",
    "INTERCEPTS",
    "MODELS",
    "ClientRows",
    "Errors",
    "Intercept",
    "Model",
    "Regression",
    "fit_regression",
    "fit_table",
]

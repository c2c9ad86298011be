"""Regression tables, as papers print them, from sums over clients."""

from fedtailor.statistics.regression.fit import (
    ERRORS,
    INTERCEPTS,
    MODELS,
    MOST_QUESTIONS,
    Errors,
    Fitted,
    Intercept,
    Model,
    check_targets,
    fit_from_sums,
    fit_regression,
)
from fedtailor.statistics.regression.result import Regression
from fedtailor.statistics.regression.rows import (
    RegressionRequest,
    RegressionRows,
    answer_size,
)
from fedtailor.statistics.regression.sums import ClientRows
from fedtailor.statistics.regression.table import fit_table

__all__ = [
    "ERRORS",
    "INTERCEPTS",
    "MODELS",
    "MOST_QUESTIONS",
    "ClientRows",
    "Errors",
    "Fitted",
    "Intercept",
    "Model",
    "Regression",
    "RegressionRequest",
    "RegressionRows",
    "answer_size",
    "check_targets",
    "fit_from_sums",
    "fit_regression",
    "fit_table",
]

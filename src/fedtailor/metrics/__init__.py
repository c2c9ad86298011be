"""Metrics of a model's quality, such as accuracy and loss, with one file for each.

`Metric.registry` holds them by name; `metric.py` explains how to write one.

Every module of this folder that defines a metric is found; the imports below only tell
type checkers and editors of those that come with fedtailor.
"""

from fedtailor.metrics.accuracy import Accuracy
from fedtailor.metrics.balanced_accuracy import BalancedAccuracy
from fedtailor.metrics.brier import Brier
from fedtailor.metrics.calibration import CalibrationError
from fedtailor.metrics.confusion import Confusion
from fedtailor.metrics.f1 import F1Macro
from fedtailor.metrics.log_loss import LogLoss
from fedtailor.metrics.loss import Loss
from fedtailor.metrics.mae import MAE
from fedtailor.metrics.metric import (
    Metric,
    Statistic,
    add_statistics,
    default_metrics,
    find_metric,
    find_metrics,
    zero_statistic,
)
from fedtailor.metrics.perplexity import Perplexity
from fedtailor.metrics.r2 import R2
from fedtailor.metrics.rmse import RMSE
from fedtailor.metrics.roc_auc import ROCAUC
from fedtailor.metrics.token_accuracy import TokenAccuracy
from fedtailor.protocol import import_modules

__all__ = [
    "MAE",
    "R2",
    "RMSE",
    "ROCAUC",
    "Accuracy",
    "BalancedAccuracy",
    "Brier",
    "CalibrationError",
    "Confusion",
    "F1Macro",
    "LogLoss",
    "Loss",
    "Metric",
    "Perplexity",
    "Statistic",
    "TokenAccuracy",
    "add_statistics",
    "default_metrics",
    "find_metric",
    "find_metrics",
    "zero_statistic",
]

import_modules(__name__)

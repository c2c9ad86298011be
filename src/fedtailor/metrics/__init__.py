"""Metrics of a model's quality, such as accuracy and loss, with one file for each.

`Metric.registry` holds them by name; `metric.py` explains how to write one.

`import_modules` finds every module of this folder that defines a metric. The imports below
are for type checkers and editors.
"""

from fedtailor.metrics.accuracy import Accuracy
from fedtailor.metrics.balanced_accuracy import BalancedAccuracy
from fedtailor.metrics.brier import Brier
from fedtailor.metrics.c_index import CIndex, UnoCIndex
from fedtailor.metrics.calibration import CalibrationError
from fedtailor.metrics.confusion import Confusion
from fedtailor.metrics.f1 import F1Macro
from fedtailor.metrics.integrated_brier import IntegratedBrier
from fedtailor.metrics.log_loss import LogLoss
from fedtailor.metrics.loss import Loss
from fedtailor.metrics.mae import MAE
from fedtailor.metrics.metric import (
    Metric,
    Statistic,
    default_metrics,
    find_metric,
    find_metrics,
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
    "CIndex",
    "CalibrationError",
    "Confusion",
    "F1Macro",
    "IntegratedBrier",
    "LogLoss",
    "Loss",
    "Metric",
    "Perplexity",
    "Statistic",
    "TokenAccuracy",
    "UnoCIndex",
    "default_metrics",
    "find_metric",
    "find_metrics",
]

import_modules(__name__)

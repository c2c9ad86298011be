"""Metrics of a model's quality, such as accuracy and loss, with one file for each.

`Metric.registry` holds them by name; `metric.py` explains how to write one.

`import_modules` finds every module of this folder that defines a metric. The imports below
are for type checkers and editors.
"""

from fedtailor._base.entry_points import import_modules
from fedtailor.models.metrics.accuracy import Accuracy
from fedtailor.models.metrics.balanced_accuracy import BalancedAccuracy
from fedtailor.models.metrics.brier import Brier
from fedtailor.models.metrics.c_index import CIndex, UnoCIndex
from fedtailor.models.metrics.calibration import CalibrationError
from fedtailor.models.metrics.confusion import Confusion
from fedtailor.models.metrics.f1 import F1Macro
from fedtailor.models.metrics.integrated_brier import IntegratedBrier
from fedtailor.models.metrics.log_loss import LogLoss
from fedtailor.models.metrics.loss import Loss
from fedtailor.models.metrics.mae import MAE
from fedtailor.models.metrics.metric import (
    Metric,
    Statistic,
    default_metrics,
    find_metric,
    find_metrics,
)
from fedtailor.models.metrics.perplexity import Perplexity
from fedtailor.models.metrics.r2 import R2
from fedtailor.models.metrics.rmse import RMSE
from fedtailor.models.metrics.roc_auc import ROCAUC
from fedtailor.models.metrics.token_accuracy import TokenAccuracy

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

"""Deployment of models.

Opens finished runs, predicts raw rows, enrolls newcomers, exports and describes models,
and retrains without a client.
"""

from fedtailor.deployment.card import model_card
from fedtailor.deployment.opening import OpenedRun, open_run
from fedtailor.deployment.unlearning import unlearn

__all__ = ["OpenedRun", "model_card", "open_run", "unlearn"]

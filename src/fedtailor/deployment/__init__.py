"""Models in use.

Runs are opened again, raw rows predicted, newcomers enrolled, models exported and
described, clients forgotten.
"""

from fedtailor.deployment.card import model_card
from fedtailor.deployment.forgetting import forget
from fedtailor.deployment.opening import OpenedRun, open_run

__all__ = ["OpenedRun", "forget", "model_card", "open_run"]

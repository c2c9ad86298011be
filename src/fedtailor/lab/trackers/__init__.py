"""Trackers: callbacks that log a run to an experiment tracker.

Each tracker is one file, and `Tracker.registry` holds them by name. All modules of this
folder are imported; the explicit imports below are for type checkers and editors. A
tracker imports its library when it is used.
"""

from fedtailor._base.entry_points import import_modules
from fedtailor.lab.trackers.mlflow import MLflow
from fedtailor.lab.trackers.tensorboard import TensorBoard
from fedtailor.lab.trackers.tracker import Tracker, find_tracker, find_trackers
from fedtailor.lab.trackers.wandb import WandB

__all__ = ["MLflow", "TensorBoard", "Tracker", "WandB", "find_tracker", "find_trackers"]

import_modules(__name__)

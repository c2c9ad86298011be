"""Trackers: callbacks that show a run in an experiment tracker. One file each;
`Tracker.registry` holds them by name.

Every module of this folder that defines a tracker is found; the imports below only tell
type checkers and editors of those that come with fedtailor. None of them imports its
library before it is used.
"""

from fedtailor.protocol import import_modules
from fedtailor.trackers.mlflow import MLflow
from fedtailor.trackers.tensorboard import TensorBoard
from fedtailor.trackers.tracker import Tracker, find_tracker, find_trackers
from fedtailor.trackers.wandb import WandB

__all__ = ["MLflow", "TensorBoard", "Tracker", "WandB", "find_tracker", "find_trackers"]

import_modules(__name__)

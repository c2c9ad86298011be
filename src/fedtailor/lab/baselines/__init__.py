"""Baselines: well-known models of scikit-learn on the rows that a comparison trains on.

They are what a personalized model has to beat. Each is trained on the training rows of a
split, and stored as a run is: its metrics, the outcome of every test row and a summary.
"""

from fedtailor.lab.baselines.baseline import (
    Baseline,
    KeptModels,
    Predict,
    Problem,
    baseline_names,
    default_baselines,
    find_baseline,
)
from fedtailor.lab.baselines.evaluation import CHOSEN, NAME_IN_MANIFEST, evaluate

__all__ = [
    "CHOSEN",
    "NAME_IN_MANIFEST",
    "Baseline",
    "KeptModels",
    "Predict",
    "Problem",
    "baseline_names",
    "default_baselines",
    "evaluate",
    "find_baseline",
]

"""Aggregation: the weighted mix of clients' models, and where its weights come from."""

from fedtailor.aggregation.best_rows import BestRows, best_rows
from fedtailor.aggregation.kernel import (
    Kernel,
    Probe,
    newcomer_weights,
    restrict_to_reporters,
    user_centric_weights,
)
from fedtailor.aggregation.mix import (
    cluster_averages,
    mix,
    reporter_weights,
    weighted_sums,
)
from fedtailor.aggregation.server_optimizer import ServerOptimizer

__all__ = [
    "BestRows",
    "Kernel",
    "Probe",
    "ServerOptimizer",
    "best_rows",
    "cluster_averages",
    "mix",
    "newcomer_weights",
    "reporter_weights",
    "restrict_to_reporters",
    "user_centric_weights",
    "weighted_sums",
]

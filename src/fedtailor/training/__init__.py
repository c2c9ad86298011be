"""The server's side of a run: rounds, participation, service of clients, measurements,
callbacks.
"""

from fedtailor.training.callbacks import (
    AfterRound,
    Callback,
    EarlyStopping,
    StandsStill,
)
from fedtailor.training.late import LateClients
from fedtailor.training.metrics import Metrics
from fedtailor.training.participation import Participation, Sampling, as_participation
from fedtailor.training.progress import ShowProgress
from fedtailor.training.spec import MOST_ROUNDS, Privacy, RoundCount, RunSpec
from fedtailor.training.training import Training

__all__ = [
    "MOST_ROUNDS",
    "AfterRound",
    "Callback",
    "EarlyStopping",
    "LateClients",
    "Metrics",
    "Participation",
    "Privacy",
    "RoundCount",
    "RunSpec",
    "Sampling",
    "ShowProgress",
    "StandsStill",
    "Training",
    "as_participation",
]

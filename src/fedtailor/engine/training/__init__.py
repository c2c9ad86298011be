"""The server's side of a run: rounds, participation, service of clients, measurements,
callbacks.
"""

from fedtailor.engine.training.asynchronous import AsynchronousServer
from fedtailor.engine.training.callbacks import (
    AfterRound,
    Callback,
    EarlyStopping,
    UntilConverged,
    UntilScore,
)
from fedtailor.engine.training.metrics import Metrics
from fedtailor.engine.training.participation import (
    Participation,
    Sampling,
    as_participation,
)
from fedtailor.engine.training.progress import ShowProgress
from fedtailor.engine.training.spec import MOST_ROUNDS, Privacy, RoundCount, RunSpec
from fedtailor.engine.training.training import Training

__all__ = [
    "MOST_ROUNDS",
    "AfterRound",
    "AsynchronousServer",
    "Callback",
    "EarlyStopping",
    "Metrics",
    "Participation",
    "Privacy",
    "RoundCount",
    "RunSpec",
    "Sampling",
    "ShowProgress",
    "Training",
    "UntilConverged",
    "UntilScore",
    "as_participation",
]

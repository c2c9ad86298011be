"""`run` and what it gives back: the way from a method and a federation to trained
personal models.
"""

from fedtailor.engine.runs.result import Run
from fedtailor.engine.runs.run import (
    Store,
    run,
    run_exchanges,
    run_on,
    simulate,
    train_until,
)
from fedtailor.engine.runs.summary import Summary

__all__ = [
    "Run",
    "Store",
    "Summary",
    "run",
    "run_exchanges",
    "run_on",
    "simulate",
    "train_until",
]

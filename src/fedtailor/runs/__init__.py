"""`run` and what it gives back: the way from a method and a federation to trained
personal models.
"""

from fedtailor.runs.result import Run
from fedtailor.runs.run import (
    Store,
    run,
    run_exchanges,
    run_on,
    simulate,
    train_until,
)
from fedtailor.runs.summary import Summary

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

"""A run that takes a tenth of a second, and what it must leave, whatever happens to it on the way."""

from pathlib import Path

from conformance.problems import classification, softmax_model
from fedtailor.algorithms import Local
from fedtailor.protocol import SGD
from fedtailor.runs import run
from fedtailor.storage.run_files import LEDGER, METRICS

ROUNDS = 3
FEDERATION = classification(unseen=[False, False, True, False, False])
METHOD = Local(sgd=SGD(lr=0.1, epochs=2, batch_size=8))
MODEL = softmax_model("float32")


def start(directory: Path, resume: bool = False, rounds: int = ROUNDS):
    """The run, saved after every round."""
    return run(METHOD, FEDERATION, MODEL, rounds, directory=directory, checkpoint_every=1, resume=resume)


def measured(directory: Path) -> dict[str, bytes]:
    """What must be the same to the byte."""
    return {name: (directory / name).read_bytes() for name in (METRICS, LEDGER)}

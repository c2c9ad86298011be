"""A run that takes a tenth of a second, and what it must leave, whatever happens to it
on the way.
"""

from pathlib import Path

import numpy as np

from conformance.problems import classification, softmax_model
from fedtailor.algorithms import UCFL, Local
from fedtailor.data.tables import from_table
from fedtailor.engine.runs import run
from fedtailor.engine.storage.run_files import LEDGER, METRICS
from fedtailor.engine.training.binding import bind
from fedtailor.lab.baselines import evaluate, find_baseline
from fedtailor.models import linear, logistic
from fedtailor.protocol import SGD

ROUNDS = 3
FEDERATION = classification(unseen=[False, False, True, False, False])
METHOD = Local(sgd=SGD(lr=0.1, epochs=2, batch_size=8))
MODEL = softmax_model("float32")


def start(directory: Path, resume: bool = False, rounds: int = ROUNDS):
    """The run, saved after every round."""
    return run(
        METHOD,
        FEDERATION,
        MODEL,
        rounds,
        directory=directory,
        checkpoint_every=1,
        resume=resume,
    )


def start_on_table(directory: Path):
    """A run on a table of three clients beside its directory, with all that a run can
    keep.
    """
    path = directory.with_name("table.csv")
    draw = np.random.default_rng(0)
    rows = [
        f"{ward},{draw.normal():.3f},{draw.choice(['m', 'f'])},{draw.choice(['ill', 'well'])}"
        for ward in "abc" * 12
    ]
    path.write_text("\n".join(["ward,age,sex,verdict", *rows]) + "\n")
    table = from_table(path, client="ward", target="verdict")
    run(
        UCFL(sgd=METHOD.sgd, streams=2),
        table,
        logistic(),
        1,
        directory=directory,
        keep_rows=True,
    )
    return path


def boost_table(path: Path, directory: Path) -> None:
    """Federated boosting of the same table, with the models that it keeps."""
    table = from_table(path, client="ward", target="verdict", keep_correlated=True)
    evaluate(find_baseline("trees-federated"), table, bind(linear(), table), directory)


def measured(directory: Path) -> dict[str, bytes]:
    """What must be the same to the byte."""
    return {name: (directory / name).read_bytes() for name in (METRICS, LEDGER)}

"""Every method continues exactly: stopped after two rounds and resumed, it measures what it would have measured.

In double precision, as the conformance suite runs the methods: the programs are the same.
"""

import pytest

from conformance.examples import example
from conformance.problems import classification, float64, softmax_model
from fedtailor.protocol import Algorithm
from fedtailor.runs import run
from fedtailor.storage.checkpoint import load_tree
from fedtailor.storage.run_directory import CHECKPOINT, LEDGER, METRICS


@pytest.mark.parametrize("name", sorted(Algorithm.registry))
def test_a_resumed_run_is_the_run_itself(name, tmp_path):
    federation = classification(groups=[0, 1, 0, 1, 0], unseen=[False, False, False, False, True])
    model = softmax_model()

    def start(directory, rounds, resume=False):
        algorithm = example(name, clients=4)
        run(algorithm, federation, model, rounds, directory=directory, checkpoint_every=2, resume=resume)
        return {file: (directory / file).read_bytes() for file in (METRICS, LEDGER)}

    with float64():
        whole = start(tmp_path / "whole", 4)
        start(tmp_path / "parts", 2)
        assert load_tree(tmp_path / "parts" / CHECKPOINT)["round"] == 2
        assert start(tmp_path / "parts", 4, resume=True) == whole

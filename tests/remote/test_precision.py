"""A federation in bfloat16: the models of its simulation to the bit, in half the bytes."""

import ml_dtypes
import numpy as np
import pytest

from fedtailor.remote.job.job import read_job
from remote.jobs import NAMES, Clients

HALF = 'precision = "bfloat16"'


@pytest.mark.parametrize("method", ["fedavg", "ditto"])
def test_a_federation_in_bfloat16_is_its_simulation_in_half_the_bytes(tmp_path, method):
    ours = Clients(tmp_path / "half", 2, method=method, model=HALF)
    training, simulation = ours.train(NAMES), ours.simulated(NAMES, 2)
    single = Clients(tmp_path / "single", 2, method=method).simulated(NAMES, 2)
    np.testing.assert_array_equal(
        np.asarray(training.server.model), np.asarray(simulation.training.server.model)
    )
    for name in NAMES:
        theta, expected = ours.personal(name).theta, simulation.personal(name).theta
        assert theta.dtype == expected.dtype == ml_dtypes.bfloat16
        np.testing.assert_array_equal(theta, expected)
        assert not np.array_equal(theta, single.personal(name).theta)
    sent = [
        {
            (entry.direction, entry.kind): entry.bytes_unicast
            for entry in ledger.entries
            if entry.phase == "round" and entry.round == 1
        }
        for ledger in (training.ledger, single.ledger)
    ]
    assert sent[0][("up", "model")] * 2 == sent[1][("up", "model")]
    assert sent[0].keys() == sent[1].keys()


def test_a_wrong_precision_of_a_job_is_told_with_its_line(tmp_path):
    with pytest.raises(ValueError, match=r"job.toml, line 14: precision is 'half'; it"):
        Clients(tmp_path / "job", model='precision = "half"')


@pytest.mark.usefixtures("exact_sums")
def test_sums_behind_masks_are_those_of_the_simulation_in_bfloat16(tmp_path):
    rest = "[privacy]\nsecure_aggregation = true"
    ours = Clients(tmp_path / "half", 2, method="fedavg", model=HALF, rest=rest)
    assert read_job(ours.path).spec.privacy.secure_aggregation
    training, simulation = ours.train(NAMES), ours.simulated(NAMES, 2)
    np.testing.assert_array_equal(
        np.asarray(training.server.model), np.asarray(simulation.training.server.model)
    )

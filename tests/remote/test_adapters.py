"""Adapters over machines: a rank for each client by name, and a local adapter after the
rounds, as in the simulation.
"""

import numpy as np
import pytest

from remote.jobs import NAMES, Clients

ROUNDS = 2


@pytest.mark.parametrize(
    ("method", "model"),
    [
        ('flexlora"\nranks = [1]\nnamed = ["b=2"]\nsplit = "both', "lora = 2"),
        ('feddpa"\nschedule = "after', "lora = 1\nlocal_rank = 1"),
    ],
    ids=["flexlora", "feddpa"],
)
def test_machines_give_the_models_of_the_simulation(method, model, tmp_path):
    clients = Clients(tmp_path / "wards", ROUNDS, method=method, model=model)
    trained = clients.train(NAMES)
    expected = clients.simulated(NAMES, ROUNDS)
    np.testing.assert_array_equal(trained.server.model, expected.training.server.model)
    for name in NAMES:
        own = clients.personal(name).theta
        np.testing.assert_array_equal(own, expected.personal(name).theta)
        assert np.abs(own - expected.training.initial(0)).max() > 1e-3

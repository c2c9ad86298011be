"""Batches larger than any client: all of a client's samples, and no room for more than
the largest one has.
"""

import numpy as np
import pytest

from conformance.problems import classification, predictors, softmax_model, train
from fedtailor.algorithms import DAPPER, FedAvg
from fedtailor.engine.client.client_data import ClientData
from fedtailor.protocol import SGD

SIZES = [5, 13, 9]
ROOM = 16
"""The largest client's 13 samples, rounded up to a power of two."""


def of_batches(size, **options):
    return SGD(lr=0.1, epochs=2, batch_size=size, **options)


METHODS = {
    "steps": lambda size: FedAvg(sgd=of_batches(size)),
    "private steps": lambda size: FedAvg(
        sgd=of_batches(size, dp_noise=1.0, dp_norm=1.0)
    ),
    "both data sets in each step": lambda size: DAPPER(
        tune=of_batches(size), r=3, cover=(0.5,)
    ),
    "a coin for each step": lambda size: DAPPER(
        tune=of_batches(size), r=3, cover=(0.5,), coin=True
    ),
}


@pytest.mark.parametrize("method", METHODS)
def test_a_batch_of_a_billion_has_room_for_the_largest_client(method, monkeypatch):
    widths, examples = set(), ClientData.examples

    def recorded(self, positions, weight, split):
        widths.add(len(positions))
        return examples(self, positions, weight, split)

    monkeypatch.setattr(ClientData, "examples", recorded)
    # Runs with other batches draw other noise; only their batches are compared here.
    monkeypatch.setattr(
        "fedtailor.engine.training.rounds.private_seed", lambda seed, what, data: seed
    )
    federation, model = classification(clients=3, sizes=SIZES), softmax_model("float32")
    # 48 is one batch of all that the largest client has, and of its share of others'
    # samples (3 for each of its own).
    billion, all_of_them = (
        predictors(train(METHODS[method](size), federation, model, 2))
        for size in (10**9, 48)
    )
    np.testing.assert_array_equal(billion, all_of_them)
    assert ROOM in widths and max(widths) <= 3 * ROOM

"""How many clients a device trains at once."""

import numpy as np
import pytest

from conformance.examples import TRAINED
from conformance.problems import ROUNDED, classification, softmax_model, train
from fedtailor.algorithms import Ditto
from fedtailor.engine import devices


@pytest.mark.parametrize(("free", "least", "most"), [(2**40, 12, 12), (8000, 2, 6), (1, 1, 1)])
def test_as_many_clients_as_the_free_memory_holds(monkeypatch, free, least, most):
    monkeypatch.setattr(devices, "free_memory", lambda _: free)
    ditto, model, clients = Ditto(sgd=TRAINED), softmax_model("float32"), classification(clients=12)
    training = train(ditto, clients, model, 2, devices=1)
    chunks = training.mapper.devices._chunks.values()
    assert len(chunks) == 1 and all(least <= chunk <= most for chunk in chunks)
    expected = train(ditto, clients, model, 2, devices=1, chunk=1)
    np.testing.assert_allclose(training.server["model"], expected.server["model"], **ROUNDED)


def test_a_cpu_trains_one_client_at_a_time():
    assert train(Ditto(sgd=TRAINED), classification(), softmax_model("float32"), 1).mapper.devices._chunks == {}

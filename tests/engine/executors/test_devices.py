"""Where examples lie, and how many clients a device trains at once."""

import time
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from conformance.examples import TRAINED
from conformance.problems import ROUNDED, classification, softmax_model, train
from fedtailor.algorithms import Ditto
from fedtailor.engine.client.pool import build_pool
from fedtailor.engine.executors import devices
from fedtailor.engine.runs import run
from fedtailor.models import lora, mlp
from fedtailor.protocol import SGD


class Planned:
    """`map_clients`, whose programs are said to need 1,000 bytes for every client at
    once.
    """

    def __init__(self, run):
        self.run = run

    def __call__(self, *arguments):
        return self.run(*arguments)

    def lower(self, program, *arguments):
        needed = SimpleNamespace(
            temp_size_in_bytes=600 * program.chunk,
            output_size_in_bytes=200 * program.chunk,
        )
        return SimpleNamespace(
            compile=lambda: SimpleNamespace(memory_analysis=lambda: needed)
        )


@pytest.mark.parametrize(
    ("free", "planned", "chunk"), [(2**40, False, 12), (1, False, 1), (6000, True, 4)]
)
def test_as_many_clients_as_the_free_memory_holds(monkeypatch, free, planned, chunk):
    """Of 5.4 clients that 90 % of 6,000 bytes hold, 4: three equal chunks."""
    monkeypatch.setattr(devices, "free_memory", lambda _: free)
    if planned:
        monkeypatch.setattr(devices, "map_clients", Planned(devices.map_clients))
    ditto, model, clients = (
        Ditto(sgd=TRAINED),
        softmax_model("float32"),
        classification(clients=12),
    )
    training = train(ditto, clients, model, 2, devices=1)
    assert list(training.executor.devices.chunks.values()) == [chunk]
    expected = train(ditto, clients, model, 2, devices=1, chunk=1)
    np.testing.assert_allclose(training.server.model, expected.server.model, **ROUNDED)


def test_a_cpu_trains_one_client_at_a_time():
    assert (
        train(
            Ditto(sgd=TRAINED), classification(), softmax_model("float32"), 1
        ).executor.devices.chunks
        == {}
    )


def test_examples_lie_where_cpu_devices_share_them():
    pool, starts = build_pool([classification(seed=seed) for seed in (0, 1)], "float32")
    assert all(leaf.ctypes.data % 64 == 0 for leaf in (pool.x, pool.y, pool.rows))
    second = classification(seed=1)
    first = second.x[second.train[2][0]].astype(np.float32)
    np.testing.assert_array_equal(pool.x[pool.rows[starts[1][2, 0]]], first)


def test_a_method_survives_being_compiled_ahead():
    """Placeholders, which JAX puts in the place of numbers meanwhile, tell no type."""
    compiled = jax.jit(lambda sgd: 2 * sgd.lr).lower(SGD(lr=0.25)).compile()
    assert float(compiled(SGD(lr=0.5))) == 1.0


def test_what_does_not_fit_is_told_before_anything_is_trained(monkeypatch):
    """Clients whose models need more than the free memory; of adapters they do not."""
    clients, network = classification(), mlp((60, 60, 60))
    monkeypatch.setattr(devices, "available_memory", lambda: 300_000)
    message = (
        r"^a round of training needs about \S+ GiB of memory and \S+ GiB are free"
        r" \(\d+ clients, .*\); .*train a part of the [\d,]+ parameters .*"
    )
    with pytest.raises(ValueError, match=message):
        run(Ditto(sgd=TRAINED), clients, network, rounds=1)
    run(Ditto(sgd=TRAINED), clients, lora(network, rank=1), rounds=1)


def test_a_slow_compilation_is_named_once(monkeypatch, caplog):
    compiled = devices.map_clients

    def slow(*arguments):
        time.sleep(0.1)
        return compiled(*arguments)

    monkeypatch.setattr(devices, "map_clients", slow)
    monkeypatch.setattr(devices, "SLOW_SECONDS", 0.001)
    train(Ditto(sgd=TRAINED), classification(), softmax_model("float32"), 2)
    (line,) = caplog.messages
    assert line.startswith("fedtailor: compiling a round of training for ")

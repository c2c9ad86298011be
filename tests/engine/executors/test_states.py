"""Client states: every store gives back what was written, and a training goes on from a
snapshot without a probe.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from conformance.problems import classification, predictors, softmax_model, train
from fedtailor.algorithms import UCFL, Ditto
from fedtailor.engine.executors import DeviceExecutor
from fedtailor.engine.executors.state_file import FileStates
from fedtailor.engine.executors.states import DeviceStates, HostStates
from fedtailor.engine.runs import run, simulate
from fedtailor.engine.training import Participation
from fedtailor.protocol import SGD, Diverged

TRAINED = SGD(lr=0.1, momentum=0.9, epochs=2, batch_size=8)
STATE = {"model": jnp.arange(3.0), "count": jnp.int32(7)}


@pytest.mark.parametrize(
    "store",
    [HostStates, DeviceStates, partial(FileStates, path=None)],
    ids=["host", "device", "file"],
)
def test_states_keep_what_was_written(store):
    states, expected = (
        store(STATE, 5),
        {
            "model": np.tile(np.arange(3, dtype=np.float32), (5, 1)),
            "count": np.full(5, 7),
        },
    )
    index = np.array([3, 1])  # the third row is padding
    rows = {
        "model": jnp.array([[1.0, 2, 3], [4, 5, 6], [7, 8, 9]]),
        "count": jnp.array([1, 2, 3]),
    }
    states.write(index, rows)
    for name in expected:
        expected[name][index] = rows[name][:2]
        np.testing.assert_array_equal(states.rows[name], expected[name])
        read = states.read(np.array([1, 4, 3]), 4)[name]
        assert read.shape == (4, *STATE[name].shape)
        np.testing.assert_array_equal(read[:3], expected[name][[1, 4, 3]])
    saved = states.snapshot()
    states.write(np.arange(5), jax.tree.map(jnp.zeros_like, states.rows))
    other = store(STATE, 5)
    other.restore(saved)
    for name in expected:
        np.testing.assert_array_equal(other.rows[name], expected[name])
        assert other.rows[name].dtype == STATE[name].dtype


def test_what_was_computed_for_all_clients_is_read_without_a_copy():
    states = HostStates(STATE, 3)
    order = np.array([2, 0, 1])
    rows = {
        "model": jnp.arange(12.0, dtype=jnp.float32).reshape(4, 3),
        "count": jnp.arange(4, dtype=jnp.int32),  # the last row is padding
    }
    states.write(order, rows)
    assert states.read(order, 4)["model"] is rows["model"]
    # Other rows, or another order, are the same states.
    assert states.read(order, 3)["count"].tolist() == [0, 1, 2]
    states.write(order, rows)
    assert states.read(np.array([0, 1]), 2)["count"].tolist() == [1, 2]
    states.write(order, rows)
    assert states.rows["count"].tolist() == [1, 2, 0]
    states.write(order, rows)
    states.write(np.array([1]), {"model": jnp.zeros((1, 3)), "count": jnp.array([9])})
    assert states.rows["count"].tolist() == [1, 9, 0]
    states.write(order, rows)
    states.restore(states.snapshot())
    assert (
        states.rows["model"].tolist() == np.asarray(rows["model"])[[1, 2, 0]].tolist()
    )


@pytest.mark.parametrize("canonical", [False, True])
def test_states_on_the_device_change_no_bit(monkeypatch, canonical):
    """As on accelerators."""
    federation, model = (
        classification(unseen=[False, False, True, False, False]),
        softmax_model("float32"),
    )

    def trained():
        participation = Participation(fraction=0.5)
        training = train(
            Ditto(sgd=TRAINED),
            federation,
            model,
            3,
            participation=participation,
            canonical=canonical,
        )
        return predictors(training)

    expected = trained()
    monkeypatch.setattr(
        "fedtailor.engine.executors.device_executor.HostStates", DeviceStates
    )
    for one, other in zip(trained(), expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_restored_training_makes_no_probe(monkeypatch):
    federation, model, algorithm = (
        classification(),
        softmax_model("float32"),
        UCFL(sgd=TRAINED, warm=0),
    )
    training = train(algorithm, federation, model, 1)
    tasks, answer = [], DeviceExecutor.exchange
    monkeypatch.setattr(
        DeviceExecutor,
        "exchange",
        lambda self, it: tasks.append(it.task) or answer(self, it),
    )
    restored = simulate(algorithm, federation, model)
    restored.restore(training.snapshot())
    for each in (training, restored):
        each.advance()
    assert tasks == ["client", "client"]
    for one, other in zip(predictors(training), predictors(restored), strict=True):
        np.testing.assert_array_equal(one, other)
    assert {entry.phase for entry in training.ledger.entries} == {"probe", "round"}


def test_a_run_whose_probe_diverged_is_not_resumed_as_probed(monkeypatch, tmp_path):
    federation, model = classification(), softmax_model("float32")

    def trained(directory, **options):
        method = UCFL(sgd=TRAINED, warm=0)
        return run(method, federation, model, rounds=1, directory=directory, **options)

    answer = DeviceExecutor.exchange

    def diverging(self, exchange):
        if exchange.task == "probe":
            raise Diverged("client 0", 0, doing="the probe")
        return answer(self, exchange)

    with monkeypatch.context() as patched:
        patched.setattr(DeviceExecutor, "exchange", diverging)
        for resume in (False, True):
            with pytest.raises(Diverged, match="the probe"):
                trained(tmp_path / "resumed", resume=resume)
    resumed = trained(tmp_path / "resumed", resume=True)
    expected = trained(tmp_path / "expected")
    assert resumed.ledger.frame().equals(expected.ledger.frame())
    for one, other in zip(
        predictors(resumed.training), predictors(expected.training), strict=True
    ):
        np.testing.assert_array_equal(one, other)

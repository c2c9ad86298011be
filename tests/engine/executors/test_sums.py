"""Answers that are added up while the clients train."""

import gc
import weakref
from typing import ClassVar

import jax
import numpy as np
import pytest

from conformance.examples import TRAINED
from conformance.problems import ROUNDED, classification, softmax_model, train
from fedtailor.aggregation import mix, reporter_weights, weighted_sums
from fedtailor.aggregation.pipelines import Clip, TopK
from fedtailor.algorithms import SCAFFOLD, UCFL, Ditto, FedAvg, FedFew, Local
from fedtailor.engine.executors import DeviceExecutor, state_file, states
from fedtailor.engine.executors.devices import Devices
from fedtailor.engine.runs import simulate
from fedtailor.protocol import (
    SGD,
    Answers,
    ClientRows,
    Exchange,
    SummedRows,
    WeightedSum,
    drive,
    hyperparameters,
)
from fedtailor.testing.conformance import states_of

CLIENTS = 12


@pytest.fixture
def added(monkeypatch):
    """What each round's program added up: (kind, streams); None = it returned rows."""
    rounds = []
    in_sums = DeviceExecutor.in_sums

    def noted(executor, request):
        request = in_sums(executor, request)
        if request.exchange.task == "client":
            sums = request.sums
            rounds.append(sums and [(each.kind, each.streams) for each, _ in sums])
        return request

    monkeypatch.setattr(DeviceExecutor, "in_sums", noted)
    return rounds


def trained(algorithm, rounds=2, **options):
    clients = classification(clients=CLIENTS)
    return train(algorithm, clients, softmax_model("float32"), rounds, **options)


def test_a_round_holds_sums_and_no_rows(added):
    fedavg = FedAvg(sgd=TRAINED)
    training = trained(fedavg)
    assert added == [[("model", 1)]] * 2
    (by_rows,) = [trained(fedavg, canonical=True)]
    np.testing.assert_allclose(
        training.server.model, by_rows.server.model, rtol=1e-6, atol=1e-7
    )
    # The ledger counts what clients send, not what is kept of it.
    assert training.ledger.totals() == by_rows.ledger.totals()


def test_sums_do_not_depend_on_chunks_and_devices(added):
    """Up to rounding; a chunk of 5 leaves clients over."""
    fedavg = FedAvg(sgd=TRAINED)
    models = [
        trained(fedavg, **settings).server.model
        for settings in ({}, {"devices": 1, "chunk": 5})
    ]
    assert None not in added
    np.testing.assert_allclose(*models, **ROUNDED)


def test_several_kinds_are_added_up_at_once(added):
    trained(SCAFFOLD(sgd=SGD(lr=0.1, epochs=2, batch_size=8)), rounds=1)
    trained(UCFL(sgd=TRAINED, streams=2, warm=0), rounds=1)
    assert added == [[("model", 1), ("control", 1)], [("model", 2)]]


def test_who_needs_more_than_sums_gets_rows(added):
    """Who needs nothing, numbers of clients, or changes that the server undoes."""
    trained(Local(sgd=TRAINED))
    trained(FedFew(sgd=TRAINED, models=2))
    fedavg = FedAvg(sgd=TRAINED)
    clients, model = classification(clients=CLIENTS), softmax_model("float32")
    simulate(fedavg, clients, model, uplink=(TopK(fraction=0.5),)).advance()
    assert not any(added)


def test_clipped_updates_are_added_up(added):
    clients, model = classification(clients=CLIENTS), softmax_model("float32")
    simulate(FedAvg(sgd=TRAINED), clients, model, uplink=(Clip(0.5),)).advance()
    assert added == [[("model", 1)]]


@pytest.mark.parametrize("in_file", [False, True])
def test_states_are_read_and_written_by_parts(monkeypatch, tmp_path, in_file):
    """The results are those of a cohort in one piece, and a round that fails leaves the
    states as they were.
    """
    ditto, limit = Ditto(sgd=TRAINED), 0 if in_file else 2**30
    whole = trained(ditto, state_limit=limit)
    most = []
    one = 8 * whole.model.size  # two clients of four bytes a number
    monkeypatch.setattr(states, "PART_BYTES", one)
    monkeypatch.setattr(state_file, "MAX_BYTES", one)
    run = Devices.run

    def noted(self, requests):
        most.extend(request.row_count for request in requests)
        return run(self, requests)

    monkeypatch.setattr(Devices, "run", noted)
    parts = trained(ditto, state_limit=limit)
    assert max(most) == 2
    for one_leaf, other in zip(*map(states_of, (parts, whole)), strict=True):
        np.testing.assert_allclose(one_leaf, other, **ROUNDED)
    assert parts.ledger.totals() == whole.ledger.totals()
    server, calls = FedAvg.server, []

    def fails(self, *arguments):
        calls.append(None)
        if len(calls) == 2:  # after the round; the first call asks for its sums
            raise KeyError
        return server(self, *arguments)

    parts.advance()
    before = states_of(parts)
    monkeypatch.setattr(FedAvg, "server", fails)
    with pytest.raises(KeyError):
        parts.advance()
    assert max(most) == 2
    for left, right in zip(states_of(parts), before, strict=True):
        np.testing.assert_array_equal(left, right)


@hyperparameters
class Moody(FedAvg):
    """Asks for other weights when it has the answers, and for a single row."""

    calls: ClassVar[int] = 0

    @property
    def server_sees(self):
        return "sums"

    def server(self, server, downlink, answers, cohort):
        type(self).calls += 1
        weights = reporter_weights(cohort, "uniform")[None]
        if type(self).calls == 2:
            weights = np.eye(1, len(cohort), 3)
        return server.replace(model=mix(server.model, answers["model"], weights))


def test_other_sums_than_expected_are_computed_from_rows(added):
    Moody.calls = 0
    training = trained(Moody(sgd=TRAINED), rounds=1)
    assert added == [[("model", 1)], None]
    assert not training._server_sums.may_be_enough

    def row(server, downlink, answers, cohort):
        return server.replace(model=answers["model"].take(np.array([3])))

    Moody.calls = 0
    single = simulate(
        Moody(sgd=TRAINED), classification(clients=CLIENTS), softmax_model("float32")
    )
    algorithm = single.algorithm
    object.__setattr__(algorithm, "server", row)
    single.advance()
    np.testing.assert_array_equal(training.server.model, single.server.model)


def test_a_client_without_weight_does_not_matter():
    """Its answer may be NaN, in the sums as in `mix`."""
    total = jax.device_put(np.ones((1, 2), np.float32))
    weights = np.array([[0.5, 0.0]])
    rows = SummedRows(
        (2, 2),
        np.dtype("float32"),
        [(WeightedSum("model", None, weights), total)],
        lambda: ClientRows(
            np.array([[2.0, 2.0], [np.nan, 0.0]], np.float32), np.r_[:2]
        ),
    )
    np.testing.assert_array_equal(weighted_sums(rows, weights), total)
    theta = np.array([[4.0, -2.0]], np.float32)
    np.testing.assert_array_equal(mix(theta, rows, weights), [[3.0, 0.0]])
    np.testing.assert_array_equal(mix(theta, rows, [[0.0, 0.0]]), theta)
    np.testing.assert_array_equal(mix(theta, rows, [[1.0, 0.0]]), [[2.0, 2.0]])
    with pytest.raises(ValueError, match="must be finite"):
        weighted_sums(rows, [[np.inf, 0.0]])


def test_nobody_holds_the_answers_of_the_round_before():
    """While the next exchange is computed, those of the last one are gone."""
    alive = []

    class Executor:
        last = None

        def exchange(self, exchange):
            gc.collect()
            alive.append(self.last is not None and self.last() is not None)
            answers = Answers(reporting=np.ones(1, bool))
            self.last = weakref.ref(answers)
            return answers

    def rounds():
        for _ in range(3):
            answers = yield Exchange("client", FedAvg(), None, None)
            assert len(answers.reporting)
            del answers

    drive(rounds(), Executor())
    assert alive == [False] * 3

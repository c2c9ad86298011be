"""Trainings whose exchanges are one: each ends as if it had been alone, whatever the others do."""

import threading
from dataclasses import replace

import jax
import numpy as np
import pytest

from conformance.examples import PLAIN, TRAINED
from conformance.problems import ROUNDED, classification, predictors, softmax_model
from fedtailor.algorithms import CFL, SCAFFOLD, UCFL, Ditto, FedAvg
from fedtailor.executors import Settings, devices
from fedtailor.executors.lockstep import together
from fedtailor.experiments import Interrupted
from fedtailor.protocol import SGD, Diverged
from fedtailor.runs import simulate
from fedtailor.training import Participation

SEEDS = (3, 4, 5)
UNSEEN = [False, True, False, False, False]
METHODS = {
    "states and sampling": Ditto(sgd=TRAINED, lam=0.5),
    "probes and streams": UCFL(sgd=TRAINED, streams=2),
    "controls": SCAFFOLD(sgd=PLAIN),
    "streams that differ in number": CFL(sgd=TRAINED, eps1=100.0, eps2=0.0, first_split=0),
}


def federation(seed):
    """Clients of other sizes, with other data, for every seed."""
    sizes = np.random.default_rng(seed).permutation([11, 17, 23, 29, 35])
    return classification(sizes=sizes, seed=seed, unseen=UNSEEN)


def trained(algorithm, seed, seat=None, rounds=3, **settings):
    everyone = algorithm.about.name == "cfl"
    training = simulate(
        algorithm, federation(seed), softmax_model("float32"), seed=seed, settings=Settings(**settings), seat=seat,
        participation=Participation() if everyone else Participation(count=3),
    )  # fmt: skip
    for _ in range(rounds):
        training.advance()
        training.evaluate()
    return training


def measured(training):
    found = [
        np.asarray(leaf) for leaf in jax.tree.leaves((training.server.get("model"), training.executor.states.rows))
    ]
    frame = training.metrics.frame(training.executor.federation.names)
    return found, predictors(training), frame.sort("round", "client", "split", "metric")["value"].to_numpy()


def assert_measured(training, expected, same=np.testing.assert_array_equal, **tolerance):
    for found, wanted in zip(measured(training), expected, strict=True):
        for one, other in zip(found, wanted, strict=True):
            same(one, other, **tolerance)


@pytest.fixture
def programs(monkeypatch):
    """Notes every program that is run, and with how many rows."""
    run, noted = devices.map_clients, []

    def noting(task, *arguments):
        noted.append((task, len(arguments[6].numbers)))
        return run(task, *arguments)

    monkeypatch.setattr(devices, "map_clients", noting)
    return noted


@pytest.mark.parametrize("name", METHODS)
def test_trainings_end_as_if_each_were_alone(name, programs):
    alone = [trained(METHODS[name], seed) for seed in SEEDS]
    each = len(programs) // len(SEEDS)
    alone = [measured(training) for training in alone]
    programs.clear()
    joint = together([lambda seat, seed=seed: trained(METHODS[name], seed, seat) for seed in SEEDS], threading.Event())
    if name != "streams that differ in number":
        assert len(programs) == each
    for training, expected in zip(joint, alone, strict=True):
        assert_measured(training, expected)


def test_lanes_of_one_chunk_come_from_several_trainings(programs):
    ditto = METHODS["states and sampling"]
    alone = [measured(trained(ditto, seed)) for seed in SEEDS]
    joint = together(
        [lambda seat, seed=seed: trained(ditto, seed, seat, devices=1, chunk=4) for seed in SEEDS], threading.Event()
    )
    assert ("client", 9) in programs
    for training, expected in zip(joint, alone, strict=True):
        assert_measured(training, expected, np.testing.assert_allclose, **ROUNDED)


def test_other_methods_other_rates_and_other_lengths_may_meet(programs):
    tasks = [(METHODS["states and sampling"], 3), (METHODS["controls"], 2), (FedAvg(sgd=TRAINED), 1)]
    tasks.append((FedAvg(sgd=replace(TRAINED, lr=0.05)), 3))
    alone = [measured(trained(algorithm, 3, rounds=rounds)) for algorithm, rounds in tasks]
    joint = together([lambda seat, it=it: trained(it[0], 3, seat, rounds=it[1]) for it in tasks], threading.Event())
    for training, expected in zip(joint, alone, strict=True):
        assert_measured(training, expected)


def test_a_training_that_diverges_leaves_the_others_alone():
    good, wild = FedAvg(sgd=PLAIN), FedAvg(sgd=SGD(lr=1e38, epochs=2, batch_size=8))
    expected = measured(trained(good, 3))

    def attempt(seat, algorithm):
        try:
            return trained(algorithm, 3, seat)
        except Diverged as error:
            return error

    tasks = [lambda seat, algorithm=algorithm: attempt(seat, algorithm) for algorithm in (wild, good)]
    error, training = together(tasks, threading.Event())
    assert isinstance(error, Diverged)
    assert_measured(training, expected)


def test_an_error_asks_the_others_to_stop():
    stop = threading.Event()

    def fail(seat):
        raise ValueError("the disk is full")

    def save_and_end(seat):
        assert seat.stopped.wait(60)
        raise Interrupted

    with pytest.raises(ValueError, match="the disk is full"):
        together([save_and_end, fail], stop)


@pytest.mark.parametrize("where", ["Devices", "run"])
def test_an_error_in_an_exchange_reaches_everybody(monkeypatch, where):
    def fail(*arguments):
        raise MemoryError("no room")

    monkeypatch.setattr(*((meetings, "Devices", fail) if where == "Devices" else (devices, "map_clients", fail)))
    told = []

    def attempt(seat, seed):
        try:
            return trained(METHODS["states and sampling"], seed, seat)
        except MemoryError as error:
            told.append(error)
            raise

    with pytest.raises(MemoryError, match="no room"):
        together([lambda seat, seed=seed: attempt(seat, seed) for seed in SEEDS], threading.Event())
    assert len(told) == len(SEEDS)


def test_federations_of_other_forms_and_the_debug_engine_may_meet():
    fedavg = FedAvg(sgd=PLAIN)
    wide = classification(seed=3, unseen=UNSEEN)
    wide = replace(wide, x=wide.x + 1, shift=1.0)
    tasks = [(federation(3), {}), (wide, {}), (federation(4), {"debug": True}), (federation(5), {"debug": True})]

    def start(it, seat=None):
        found = simulate(fedavg, it[0], softmax_model("float32"), settings=Settings(**it[1]), seat=seat)
        found.advance()
        return found

    alone = [measured(start(it)) for it in tasks]
    joint = together([lambda seat, it=it: start(it, seat) for it in tasks], threading.Event())
    for training, expected in zip(joint, alone, strict=True):
        assert_measured(training, expected)


def test_a_seat_is_for_one_training():
    def twice(seat):
        for _ in range(2):
            simulate(FedAvg(sgd=PLAIN), federation(3), softmax_model("float32"), seat=seat)

    with pytest.raises(ValueError, match="a seat is for one training"):
        together([twice], threading.Event())

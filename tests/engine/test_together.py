"""Trainings whose exchanges are one: each ends as if it had been alone, whatever the others do."""

import threading
from dataclasses import replace

import jax
import numpy as np
import pytest

from conformance.examples import PLAIN, TRAINED
from conformance.problems import ROUNDED, classification, predictors, softmax_model
from fedtailor.algorithms import CFL, SCAFFOLD, UCFL, Ditto, FedAvg
from fedtailor.engine import Diverged, Participation, Settings, Training, devices
from fedtailor.engine.together import together
from fedtailor.experiments import Interrupted
from fedtailor.protocol import SGD

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
    training = Training(
        algorithm, federation(seed), softmax_model("float32"), seed=seed, settings=Settings(**settings), seat=seat,
        participation=Participation() if everyone else Participation(count=3),
    )  # fmt: skip
    for _ in range(rounds):
        training.advance()
        training.evaluate()
    return training


def measured(training):
    found = [np.asarray(leaf) for leaf in jax.tree.leaves((training.server.get("model"), training.states.rows))]
    frame = training.metrics.frame(training.federation.names)
    return found, predictors(training), frame.sort("round", "client", "split", "metric")["value"].to_numpy()


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
        for found, wanted in zip(measured(training), expected, strict=True):
            for one, other in zip(found, wanted, strict=True):
                np.testing.assert_array_equal(one, other)


def test_lanes_of_one_chunk_come_from_several_trainings(programs):
    ditto = METHODS["states and sampling"]
    alone = [measured(trained(ditto, seed)) for seed in SEEDS]
    joint = together(
        [lambda seat, seed=seed: trained(ditto, seed, seat, devices=1, chunk=4) for seed in SEEDS], threading.Event()
    )
    assert ("client", 9) in programs
    for training, expected in zip(joint, alone, strict=True):
        for found, wanted in zip(measured(training), expected, strict=True):
            for one, other in zip(found, wanted, strict=True):
                np.testing.assert_allclose(one, other, **ROUNDED)


def test_other_methods_other_rates_and_other_lengths_may_meet(programs):
    tasks = [(METHODS["states and sampling"], 3), (METHODS["controls"], 2), (FedAvg(sgd=TRAINED), 1)]
    tasks.append((FedAvg(sgd=replace(TRAINED, lr=0.05)), 3))
    alone = [measured(trained(algorithm, 3, rounds=rounds)) for algorithm, rounds in tasks]
    joint = together([lambda seat, it=it: trained(it[0], 3, seat, rounds=it[1]) for it in tasks], threading.Event())
    for training, expected in zip(joint, alone, strict=True):
        for found, wanted in zip(measured(training), expected, strict=True):
            for one, other in zip(found, wanted, strict=True):
                np.testing.assert_array_equal(one, other)


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
    for found, wanted in zip(measured(training), expected, strict=True):
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(one, other)


def test_an_error_asks_the_others_to_stop():
    stop = threading.Event()

    def fail(seat):
        raise ValueError("the disk is full")

    def run_until_stopped(seat):
        assert stop.wait(60)
        raise Interrupted

    with pytest.raises(ValueError, match="the disk is full"):
        together([run_until_stopped, fail], stop)

"""Trainings whose exchanges are one: each ends as if it had been alone, whatever the
others do.
"""

import threading
from dataclasses import replace

import jax
import numpy as np
import pytest

from conformance.examples import PLAIN, TRAINED
from conformance.problems import ROUNDED, classification, predictors, softmax_model
from fedtailor.algorithms import CFL, SCAFFOLD, UCFL, Ditto, FedAvg
from fedtailor.engine.executors import DeviceExecutor, LockstepGroup, Settings, devices
from fedtailor.engine.runs import train_until
from fedtailor.engine.runs.run import create_training
from fedtailor.engine.storage import Interrupted
from fedtailor.engine.training import Participation, RunSpec, Training
from fedtailor.protocol import SGD, Diverged, drive

SEEDS = (3, 4, 5)
UNSEEN = [False, True, False, False, False]
METHODS = {
    "states and sampling": Ditto(sgd=TRAINED, lam=0.5),
    "probes and streams": UCFL(sgd=TRAINED, streams=2, warm=0),
    "probes in a warm-up": UCFL(sgd=TRAINED, streams=2),
    "controls": SCAFFOLD(sgd=PLAIN),
    "streams that differ in number": CFL(
        sgd=TRAINED, eps1=100.0, eps2=0.0, first_split=0
    ),
}


def federation(seed):
    """Clients of other sizes, with other data, for every seed."""
    sizes = np.random.default_rng(seed).permutation([11, 17, 23, 29, 35])
    return classification(sizes=sizes, seed=seed, unseen=UNSEEN)


def exchanges(algorithm, executor, seed, rounds=3):
    """A run as exchanges; returns the training."""
    everyone = algorithm.about.name == "cfl"
    participation = Participation() if everyone else Participation(count=3)
    spec = RunSpec(
        algorithm, executor.model, rounds, seed=seed, participation=participation
    )
    training = Training(spec, executor)
    yield from train_until(training, rounds)
    return training


def trained(algorithm, seed, rounds=3, **settings):
    executor = DeviceExecutor(
        federation(seed), softmax_model("float32"), Settings(**settings)
    )
    return drive(exchanges(algorithm, executor, seed, rounds), executor)


def group_of(seeds, **settings):
    """A group of the clients of several seeds."""
    federations = [federation(seed) for seed in seeds]
    return group_over(federations, **settings)


def group_over(federations, **settings):
    models, directories = (
        [softmax_model("float32")] * len(federations),
        [None] * len(federations),
    )
    return LockstepGroup(federations, models, Settings(**settings), directories)


def together(algorithms, seeds, rounds=None, **settings):
    """Runs of algorithms on seeds, in lock-step."""
    group, rounds = group_of(seeds, **settings), rounds or [3] * len(seeds)
    members = zip(algorithms, group.executors, seeds, rounds, strict=True)
    return group.drive([exchanges(*member) for member in members], threading.Event())


def measured(training):
    found = [
        np.asarray(leaf)
        for leaf in jax.tree.leaves((training.server, training.executor.client_states))
    ]
    frame = training.metrics.frame(training.client_names)
    return (
        found,
        predictors(training),
        frame.sort("round", "client", "split", "metric")["value"].to_numpy(),
    )


def assert_measured(
    training, expected, same=np.testing.assert_array_equal, **tolerance
):
    for found, wanted in zip(measured(training), expected, strict=True):
        for one, other in zip(found, wanted, strict=True):
            same(one, other, **tolerance)


@pytest.fixture
def programs(monkeypatch):
    """Notes every program that is run, and with how many rows."""
    run, noted = devices.map_clients, []

    def noting(program, *arguments):
        noted.append((program.task, len(arguments[-1].packed.numbers)))
        return run(program, *arguments)

    monkeypatch.setattr(devices, "map_clients", noting)
    return noted


@pytest.mark.as_shipped
@pytest.mark.parametrize("name", METHODS)
def test_trainings_end_as_if_each_were_alone(name, programs):
    alone = [trained(METHODS[name], seed) for seed in SEEDS]
    each = len(programs) // len(SEEDS)
    alone = [measured(training) for training in alone]
    programs.clear()
    joint = together([METHODS[name]] * len(SEEDS), SEEDS)
    # whom nobody sampled yet differs from seed to seed, and so does what evaluations
    # need; clusters, too
    whole = name == "probes and streams"
    assert each == len(programs) if whole else each <= len(programs) < len(SEEDS) * each
    for training, expected in zip(joint, alone, strict=True):
        assert_measured(training, expected)


def test_runs_that_end_earlier_and_runs_alone_share_programs(programs):
    """Programs have rows for all federations of their devices, however few train."""
    ditto = METHODS["states and sampling"]
    alone = [measured(trained(ditto, seed, n)) for seed, n in ((3, 1), (4, 2), (5, 3))]
    programs.clear()
    group = group_of(SEEDS)
    run = exchanges(ditto, group.executors[2], SEEDS[2], 3)
    assert_measured(drive(run, group.executors[2]), alone[2])
    assert {rows for task, rows in programs if task == "client"} == {4 * len(SEEDS)}
    joint = together([ditto] * len(SEEDS), SEEDS, rounds=[1, 2, 3])
    for training, expected in zip(joint, alone, strict=True):
        assert_measured(training, expected)
    assert {rows for task, rows in programs if task == "client"} == {4 * len(SEEDS)}


def test_lanes_of_one_chunk_come_from_several_trainings(programs):
    ditto = METHODS["states and sampling"]
    alone = [measured(trained(ditto, seed)) for seed in SEEDS]
    joint = together([ditto] * len(SEEDS), SEEDS, devices=1, chunk=4)
    assert ("client", 9) in programs
    for training, expected in zip(joint, alone, strict=True):
        assert_measured(training, expected, np.testing.assert_allclose, **ROUNDED)


def test_other_methods_other_rates_and_other_lengths_may_meet():
    slower = FedAvg(sgd=replace(TRAINED, lr=0.05))
    algorithms = [
        METHODS["states and sampling"],
        METHODS["controls"],
        FedAvg(sgd=TRAINED),
        slower,
    ]
    rounds = [3, 2, 1, 3]
    alone = [
        measured(trained(algorithm, 3, number))
        for algorithm, number in zip(algorithms, rounds, strict=True)
    ]
    joint = together(algorithms, [3] * 4, rounds)
    for training, expected in zip(joint, alone, strict=True):
        assert_measured(training, expected)


def test_a_training_that_diverges_leaves_the_others_alone():
    good, wild = FedAvg(sgd=PLAIN), FedAvg(sgd=SGD(lr=1e38, epochs=2, batch_size=8))
    expected = measured(trained(good, 3))

    def attempt(*member):
        try:
            return (yield from exchanges(*member))
        except Diverged as error:
            return error

    group = group_of([3, 3])
    members = zip((wild, good), group.executors, strict=True)
    error, training = group.drive(
        [attempt(algorithm, it, 3) for algorithm, it in members], threading.Event()
    )
    assert isinstance(error, Diverged)
    assert_measured(training, expected)


def test_an_error_asks_the_others_to_save_and_end():
    stopped, saved = threading.Event(), []

    def failing(*member):
        yield from exchanges(*member, rounds=1)
        raise ValueError("the disk is full")

    def saving(algorithm, executor, seed):
        training = Training(RunSpec(algorithm, executor.model, 1, seed=seed), executor)
        try:
            yield from train_until(training, 50, stopped=stopped)
        except Interrupted:
            saved.append(training.round)
            raise

    group, algorithm = group_of([3, 4]), FedAvg(sgd=PLAIN)
    runs = [
        saving(algorithm, group.executors[0], 3),
        failing(algorithm, group.executors[1], 4),
    ]
    with pytest.raises(ValueError, match="the disk is full"):
        group.drive(runs, stopped)
    assert len(saved) == 1 and saved[0] < 50


def test_an_interrupt_reaches_whoever_drives_and_closes_all():
    closed = []

    def interrupted(*member):
        yield from exchanges(*member, rounds=1)
        raise KeyboardInterrupt

    def patient(*member):
        try:
            return (yield from exchanges(*member, rounds=50))
        finally:
            closed.append(True)

    group, algorithm = group_of([3, 4]), FedAvg(sgd=PLAIN)
    runs = [
        patient(algorithm, group.executors[0], 3),
        interrupted(algorithm, group.executors[1], 4),
    ]
    with pytest.raises(KeyboardInterrupt):
        group.drive(runs, threading.Event())
    assert closed == [True]


def test_an_error_in_an_exchange_reaches_everybody(monkeypatch):
    def fail(*arguments):
        raise MemoryError("no room")

    monkeypatch.setattr(devices, "map_clients", fail)
    reached = []

    def attempt(*member):
        try:
            return (yield from exchanges(*member))
        except MemoryError as error:
            reached.append(error)
            raise

    group = group_of(SEEDS)
    runs = [
        attempt(METHODS["states and sampling"], it, seed)
        for it, seed in zip(group.executors, SEEDS, strict=True)
    ]
    with pytest.raises(MemoryError, match="no room"):
        group.drive(runs, threading.Event())
    assert len(reached) == len(SEEDS)


def test_runs_share_the_time_of_those_that_have_not_ended():
    group = group_of([3, 4])
    seen = []

    def counting(executor, rounds):
        training = Training(RunSpec(FedAvg(sgd=PLAIN), executor.model, 1), executor)
        for _ in range(rounds):
            yield from training.next_round()
            seen.append(executor.concurrency)

    group.drive(
        [counting(group.executors[0], 3), counting(group.executors[1], 1)],
        threading.Event(),
    )
    assert seen[:2] == [2, 2] and seen[-1] == 1


@pytest.mark.parametrize("debug", [False, True])
def test_federations_of_other_forms_may_meet(debug):
    fedavg = FedAvg(sgd=SGD(lr=0.1, batch_size=128))
    shifted = replace(federation(3), x=federation(3).x + 1, shift=1.0)
    # Batches of all that a client has have other room there, and so another order of
    # their sums.
    larger = classification(sizes=[11, 17, 23, 29, 70])
    federations = [federation(3), shifted, larger]

    def start(executor):
        training = Training(RunSpec(fedavg, executor.model, 1), executor)
        yield from training.next_round()
        return training

    alone = []
    for it in federations:
        executor = DeviceExecutor(it, softmax_model("float32"))
        alone.append(measured(drive(start(executor), executor)))
    group = group_over(federations, debug=debug)
    joint = group.drive(
        [start(executor) for executor in group.executors], threading.Event()
    )
    tolerance = {"same": np.testing.assert_allclose, **ROUNDED} if debug else {}
    for training, expected in zip(joint, alone, strict=True):
        assert_measured(training, expected, **tolerance)


def test_private_runs_in_lock_step_have_their_noise():
    """Each draws from its own settings and data, as if it were alone."""
    sgd = SGD(lr=0.1, steps=2, batch_size=8, dp_noise=1.0, dp_norm=0.5)
    algorithm = Ditto(sgd=sgd, lam=0.5)
    clients = [classification(sizes=[11, 17, 23, 29, 35], seed=seed) for seed in SEEDS]
    together = group_over(clients)

    def begun(seed, executor):
        return create_training(RunSpec(algorithm, executor.model, 2, seed), executor)

    def steps(training):
        yield from train_until(training, 2)
        return training

    trainings = [
        begun(seed, executor)
        for seed, executor in zip(SEEDS, together.executors, strict=True)
    ]
    found = together.drive([steps(it) for it in trainings], threading.Event())
    for seed, data, training in zip(SEEDS, clients, found, strict=True):
        alone = DeviceExecutor(data, softmax_model("float32"))
        expected = drive(steps(begun(seed, alone)), alone)
        np.testing.assert_array_equal(training.server.model, expected.server.model)

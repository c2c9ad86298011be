"""Late clients: against a simulation by hand, event by event; equal to rounds that wait
where nobody is late; weights of the papers; each answer counted once.
"""

import heapq
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from conformance.problems import (
    EXACT,
    classification,
    float64,
    predictors,
    quadratic_model,
    quadratics,
    softmax_model,
    train,
)
from fedtailor import models
from fedtailor.aggregation import ServerOptimizer
from fedtailor.aggregation.accounting import WIRELESS_PRESETS, Wireless
from fedtailor.aggregation.pipelines import Clip, GaussianNoise, Quantize, RobustMean
from fedtailor.algorithms import (
    APFL,
    SCAFFOLD,
    UCFL,
    Ditto,
    FedALA,
    FedAvg,
    FedPer,
    FedProx,
    FineTune,
    Local,
    PerFedAvg,
    SelfFL,
    Then,
)
from fedtailor.engine.runs import run, simulate
from fedtailor.engine.storage import Interrupted
from fedtailor.engine.training import (
    AsynchronousServer,
    Callback,
    Participation,
    Privacy,
    RunSpec,
)
from fedtailor.engine.training.asynchronous import Arrivals
from fedtailor.protocol import SGD, Clients, client_ids, draw_uniform

NETWORK = models.mlp(hidden=5).bind((4,), 3)
GD = SGD(lr=0.2, steps=3, batch_size=100)
NAMES = [f"c{i}" for i in range(6)]
CENTRES = np.array([[1.0, -2.0], [3.0, 0.5], [-4.0, 2.0], [0.0, 7.0], [5, 5], [-1, 1]])
SPEEDS = {"c0": 4.0, "c1": 1.0, "c2": 2.5, "c3": 1.0, "c4": 9.0, "c5": 0.7}
RANDOM = Wireless(rho=2, t_min=1, mean_delay=1.5, t_dl=0.25)


def table(names, sizes=None):
    """A table of clients, sorted by id."""
    ids = client_ids(names)
    order = np.argsort(ids)
    sizes = np.ones(len(names), int) if sizes is None else sizes
    return Clients(
        ids[order], tuple(names[i] for i in order), sizes[order], None, order
    )


def by_hand(late, places, steps, seed=0):
    """FedBuff and FedAsync on quadratics, one event after another.

    Returns:
        The model after each step, and the time of each step.
    """
    federation = quadratics(CENTRES, names=NAMES)
    ids = np.sort(federation.ids)
    order_of_names = [NAMES[int(np.flatnonzero(federation.ids == i)[0])] for i in ids]
    centres = [CENTRES[NAMES.index(name)] for name in order_of_names]
    participation = Participation(count=places)
    model, models, times = np.zeros(2), [], []
    events, buffer, training, now, step = [], [], {}, 0.0, 0
    while len(models) < steps:
        # whoever is free begins, in the order in which this round's clients are drawn
        for client in participation.order(ids, seed, step):
            waits = any(client == other for other, *_ in buffer)
            if len(training) < places and client not in training and not waits:
                uniform = draw_uniform(seed, "delay", step, ids)[client]
                computing = late.clock.t_min - late.clock.mean_delay * np.log1p(
                    -uniform
                )
                speed = dict(late.slowness)[order_of_names[client]]
                clock = late.clock
                arrival = now + speed * computing + clock.t_dl + clock.rho * clock.t_dl
                training[client] = (model, step)
                heapq.heappush(events, (arrival, client))
        now, client = heapq.heappop(events)
        start, began = training.pop(client)
        # three steps of rate 0.2 towards the client's centre
        answer = centres[client] + 0.8**3 * (start - centres[client])
        buffer.append((client, answer, start, began))
        if len(buffer) < late.buffer:
            continue
        total = np.zeros(2)
        for _, answer, start, began in buffer:
            tau = step - began
            fall = {
                "constant": 1.0,
                "polynomial": 1 / (1 + tau) ** late.a,
                "hinge": 1.0 if tau <= late.b else 1 / (late.a * (tau - late.b) + 1),
            }[late.weight]
            base = start if late.step == "change" else model
            total += late.alpha * fall * (answer - base)
        model = model + total / late.buffer
        buffer = []
        step += 1
        models.append(model)
        times.append(now)
    return np.array(models), np.array(times)


@pytest.mark.parametrize("step", ["change", "model"])
@pytest.mark.parametrize(
    ("weight", "a", "b"), [("constant", 0, 0), ("hinge", 3, 1), ("polynomial", 0.5, 0)]
)
@pytest.mark.parametrize(("buffer", "places"), [(1, 4), (3, 4), (2, 6)])
def test_as_a_simulation_by_hand(step, weight, a, b, buffer, places):
    late = AsynchronousServer(
        buffer,
        weight,
        a=a,
        b=b,
        alpha=0.7,
        step=step,
        clock=RANDOM,
        slowness=SPEEDS,
    )
    models, times = by_hand(late, places, steps=12)
    with float64():
        training = simulate(
            FedAvg(sgd=GD, weights="uniform"),
            quadratics(CENTRES, names=NAMES),
            quadratic_model(2),
            participation=places,
            asynchronous=late,
        )
        for model in models:
            training.advance()
            np.testing.assert_allclose(training.server.model[0], model, **EXACT)
    np.testing.assert_allclose(training.times, times, **EXACT)


@pytest.mark.as_shipped
@pytest.mark.parametrize("count", [3, 5])
@pytest.mark.parametrize(
    "algorithm",
    [
        FedAvg(),
        FedAvg(optimizer=ServerOptimizer("adam", lr=0.1)),
        Ditto(),
        FedPer(),
        FineTune(),
        APFL(),
    ],
    ids=lambda algorithm: algorithm.about.name,
)
def test_if_nobody_is_late_it_is_the_method_itself_to_the_bit(algorithm, count):
    federation = classification()
    waits = train(
        algorithm, federation, NETWORK, 4, participation=Participation(count=count)
    )
    late = train(
        algorithm,
        federation,
        NETWORK,
        4,
        participation=Participation(count=count),
        asynchronous=AsynchronousServer(buffer=count),
    )
    for one, other in zip(predictors(waits), predictors(late), strict=True):
        np.testing.assert_array_equal(one, other)
    assert waits.ledger.frame().equals(late.ledger.frame())


def test_weights_of_the_papers():
    """FedAsync, section 5.2, figure 1: s_a with a = .5; s_a,b with a = 10, b = 4. FedBuff:
    1 / sqrt(1 + tau).
    """
    age = np.array([0, 1, 3, 4, 5, 14])
    constant = AsynchronousServer(1, "constant", alpha=0.6).weights(age)
    np.testing.assert_allclose(constant, 0.6)
    fedbuff = AsynchronousServer(1).weights(age)
    np.testing.assert_allclose(fedbuff, 1 / np.sqrt(1 + age))
    hinge = AsynchronousServer(1, "hinge", a=10, b=4).weights(age)
    np.testing.assert_allclose(hinge, [1, 1, 1, 1, 1 / 11, 1 / 101])


@pytest.mark.parametrize(("buffer", "places"), [(1, 2), (4, 4), (3, 9), (9, 2), (7, 9)])
def test_each_answer_is_counted_once(buffer, places):
    clients = table([f"c{i}" for i in range(9)], sizes=np.arange(1, 10))
    late = AsynchronousServer(buffer, clock=RANDOM, slowness="samples")
    arrivals = Arrivals(late, Participation(count=places), clients, seed=3)
    counted, last = Counter(), np.full(9, -1)
    for step in range(300):
        rows, age = arrivals.next_step()
        assert len(np.unique(rows)) == len(rows) == buffer
        began = step - age
        # A client begins after the step that took its last answer.
        assert (age >= 0).all() and (began > last[rows]).all()
        last[rows] = step
        counted.update(zip(rows.tolist(), began.tolist(), strict=True))
    assert max(counted.values()) == 1
    assert np.all(np.diff(arrivals.times) >= 0)
    # at most `places` train at any time; those that began are more than were counted
    assert arrivals.oldest <= 300


def test_fast_clients_answer_more_often():
    clients = table(["a", "b", "c", "d"])
    late = AsynchronousServer(
        1, clock=Wireless(rho=1, t_min=1, mean_delay=0, t_dl=1e-9), slowness={"a": 10}
    )
    arrivals = Arrivals(late, Participation(), clients, seed=0)
    answers = Counter()
    for _ in range(310):
        rows, _ = arrivals.next_step()
        answers.update(clients.names[row] for row in rows)
    assert answers == {"a": 10, "b": 100, "c": 100, "d": 100}


def test_a_server_that_waits_takes_the_time_of_the_network():
    """With a buffer of all, the mean time of a round is that of `Wireless`."""
    federation = classification(clients=8)
    system = WIRELESS_PRESETS["slow uplink, unreliable clients"]
    training = train(
        FedAvg(sgd=SGD(lr=0.1, steps=1, batch_size=1)),
        federation,
        softmax_model("float32"),
        1,
    )
    (expected,) = system.times(training.ledger.frame(), [1])
    arrivals = Arrivals(
        AsynchronousServer(8, clock=system),
        Participation(),
        training.executor.seen,
        seed=1,
    )
    for _ in range(4000):
        arrivals.next_step()
    durations = np.diff(np.array([0.0, *arrivals.times]))
    error = durations.std() / np.sqrt(len(durations))
    assert abs(durations.mean() - expected) < 4 * error


class _Stop(Callback):
    def __init__(self, at):
        self.at = at

    def after_round(self, training, evaluated):
        if training.round == self.at:
            raise KeyboardInterrupt


@pytest.mark.parametrize("algorithm", [FedAvg(), Ditto()])
def test_a_killed_run_ends_with_the_same_bits(algorithm, tmp_path):
    federation = classification()
    late = AsynchronousServer(2, clock=RANDOM, slowness="samples")
    options = {"participation": 4, "asynchronous": late, "checkpoint_every": 2}
    whole = run(
        algorithm,
        federation,
        softmax_model("float32"),
        9,
        directory=tmp_path / "a",
        **options,
    )
    with pytest.raises((KeyboardInterrupt, Interrupted)):
        run(
            algorithm,
            federation,
            softmax_model("float32"),
            9,
            directory=tmp_path / "b",
            callbacks=[_Stop(5)],
            **options,
        )
    again = run(
        algorithm,
        federation,
        softmax_model("float32"),
        9,
        directory=tmp_path / "b",
        resume=True,
        **options,
    )
    for file in ("metrics.parquet", "ledger.parquet"):
        assert (tmp_path / "a" / file).read_bytes() == (
            tmp_path / "b" / file
        ).read_bytes()
    for one, other in zip(
        predictors(whole.training), predictors(again.training), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(whole.training.times, again.training.times)


def test_personal_parts_change_only_when_their_client_answers():
    federation = classification()
    training = train(
        Ditto(),
        federation,
        softmax_model("float32"),
        0,
        participation=Participation(),
        asynchronous=AsynchronousServer(1, clock=RANDOM, slowness="samples"),
    )
    for _ in range(8):
        before = np.array(training.executor.client_states["model"])
        training.advance()
        after = np.array(training.executor.client_states["model"])
        changed = (before != after).any(axis=1)
        assert changed.sum() == 1
    assert training.phase.participated.any()


@pytest.mark.parametrize(
    "algorithm", [FedProx(), FedALA(), PerFedAvg(), FedPer(), FineTune(), Ditto()]
)
def test_methods_train_with_late_clients(algorithm):
    training = train(
        algorithm,
        classification(),
        NETWORK,
        6,
        participation=Participation(count=4),
        asynchronous=AsynchronousServer(2, clock=RANDOM, slowness="samples"),
    )
    assert all(np.isfinite(leaf).all() for leaf in predictors(training))


def test_transforms_of_each_clients_message_apply():
    training = simulate(
        FedAvg(),
        classification(),
        softmax_model("float32"),
        participation=4,
        asynchronous=AsynchronousServer(2, clock=RANDOM, slowness="samples"),
        uplink=(Clip(0.5), Quantize(8)),
    )
    for _ in range(5):
        training.advance()
    assert np.isfinite(np.asarray(training.server.model)).all()


def test_private_steps_are_counted_with_their_answers():
    private = SGD(lr=0.1, steps=2, batch_size=4, dp_norm=1.0, dp_noise=1.0)
    training = train(
        FedAvg(sgd=private),
        classification(),
        softmax_model("float32"),
        4,
        participation=Participation(),
        asynchronous=AsynchronousServer(2, clock=RANDOM, slowness="samples"),
    )
    assert training.privacy is not None
    # two steps in each of the two answers of each of four server's steps
    assert training.privacy.steps.sum() == 2 * 2 * 4
    assert len(np.unique(training.privacy.steps)) > 1


@pytest.mark.parametrize(
    ("algorithm", "options", "message"),
    [
        (SelfFL(), {}, "self-fl is not defined for late clients"),
        (SCAFFOLD(), {}, "scaffold is not defined for late clients"),
        (UCFL(), {}, "ucfl is not defined for late clients"),
        (Local(), {}, "local is not defined for late clients"),
        (FineTune(best=True), {}, "finetune is not defined for late clients"),
        (
            Then(FedAvg(), rounds=1, next=Ditto()),
            {},
            "one method from beginning to end",
        ),
        (FedAvg(), {"privacy": Privacy(secure_aggregation=True)}, "secure sums"),
        (FedAvg(weights="uniform"), {"uplink": (RobustMean(),)}, "robust mean"),
        (
            FedAvg(weights="uniform"),
            {"uplink": (GaussianNoise(1.0, norm=1.0),)},
            "noise on updates",
        ),
        (
            FedAvg(),
            {"participation": Participation(0.5, sampling="poisson")},
            "poisson",
        ),
        (FedAvg(), {"asynchronous": AsynchronousServer(50)}, "only 5 clients train"),
        (
            FedAvg(),
            {"asynchronous": AsynchronousServer(2, slowness={"nobody": 2.0})},
            "slowness names",
        ),
        (FedAvg(), {"asynchronous": 3}, "asynchronous is 3"),
    ],
)
def test_what_late_clients_exclude(algorithm, options, message):
    with pytest.raises(ValueError, match=message) as refused:
        run(
            algorithm,
            classification(),
            softmax_model("float32"),
            1,
            **{"asynchronous": AsynchronousServer(2), **options},
        )
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"buffer": 0},
        {"buffer": 1.5},
        {"buffer": True},
        {"weight": "square"},
        {"alpha": 0.0},
        {"alpha": 2.0},
        {"a": -1.0},
        {"b": "4"},
        {"clock": 3},
        {"step": "both"},
        {"slowness": "slow"},
        {"slowness": {"a": 0.0}},
        {"slowness": {"a": float("nan")}},
        {"clock": Wireless(rho=1, t_min=1, mean_delay=0, uplink="sequential")},
    ],
)
def test_wrong_settings_are_told(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        AsynchronousServer(**{"buffer": 2, **wrong})


def test_a_run_is_read_from_its_manifest():
    late = AsynchronousServer(2, "hinge", slowness={"a": 2.0, "b": 0.5}, clock=RANDOM)
    spec = RunSpec(FedAvg(), softmax_model("float32"), 3, asynchronous=late)
    plain = replace(spec, metrics=("accuracy",)).to_plain()
    assert (
        RunSpec.from_plain(plain, 3, model=softmax_model("float32")).asynchronous
        == late
    )

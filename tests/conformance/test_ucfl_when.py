"""UCFL that chooses itself after how many rounds of FedAvg it asks who resembles whom."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest

from conformance.problems import (
    EXACT,
    answers_of,
    by_place,
    classification,
    float64,
    personal,
    predictors,
    quadratic_model,
    quadratics,
    softmax_model,
    train,
)
from fedtailor.aggregation import Probe
from fedtailor.algorithms import UCFL, FedAvg, UCFLParallel
from fedtailor.algorithms.helpers import warm_up
from fedtailor.algorithms.helpers.user_centric import Trial, UCFLState
from fedtailor.algorithms.helpers.warm_up import ASKED_AFTER, WarmUp, differ, sketch
from fedtailor.protocol import SGD, Exchange, drive
from fedtailor.runs import run
from fedtailor.storage.run_files import LEDGER, METRICS
from fedtailor.testing.conformance import CHECKS
from fedtailor.training import Participation

SLOW = SGD(lr=0.05, steps=1, batch_size=64)
TRAINED = SGD(lr=0.1, momentum=0.9, epochs=2, batch_size=8)
GROUPS = np.array([0, 1, 1, 0, 1, 0, 0, 1])
CLIENTS, SAMPLES = len(GROUPS), 40


def hidden_groups(groups=GROUPS, unseen=None, curvatures=(1.0, 3.0)):
    """Clients whose gradients at theta^0 = 0 do not show their groups.

    F_i(x) = A_i (x - 3 / A_i)^2 / 2, with noise: the gradient A_i x - 3 has the same
    expectation and variance for everybody at x = 0, and differs by (A_i - A_j) x
    elsewhere.
    """
    A = np.array(curvatures)[groups]
    federation = quadratics(3.0 / A, A, [SAMPLES] * len(groups), unseen=unseen)
    y = federation.y.copy()
    # equally noisy gradients A_i (x - y), and no noise in their means
    noise = np.random.default_rng(0).normal(size=(len(groups), SAMPLES))
    noise -= noise.mean(axis=1, keepdims=True)
    noise += np.random.default_rng(1).normal(size=(len(groups), 1)) / SAMPLES**0.5
    y[:, 1] += noise.ravel() / y[:, 0]
    return replace(federation, y=y)


def found_groups(training):
    """The clients' streams in the federation's order, numbered by first members."""
    streams = by_place(training, training.server.stream)
    return streams if streams[0] == 0 else 1 - streams


# the rule
# --------------------------------------------------------------------------------------


@pytest.mark.parametrize("streams", [2, "auto"])
def test_groups_that_gradients_hide_at_the_initial_model_are_found_later(streams):
    with float64():
        federation, model = hidden_groups(), quadratic_model(1)
        at_once = train(UCFL(SLOW, streams=2, warm=0), federation, model, 0)
        assert (found_groups(at_once) != GROUPS).any()
        later = train(UCFL(SLOW, streams=streams), federation, model, 21)
        np.testing.assert_array_equal(found_groups(later), GROUPS)
        # What counts is the last probe, at FedAvg's model of that round.
        asked = int(later.server.asked[-1, 0])
        assert ASKED_AFTER[2] <= asked < ASKED_AFTER[-1]
        average = train(FedAvg(SLOW), federation, model, asked).server.model[0]
        np.testing.assert_array_equal(later.server.initial, average)
        A = np.array([1.0, 3.0])[GROUPS]
        centres = np.array([federation.y[rows, 1].mean() for rows in federation.train])
        np.testing.assert_allclose(
            by_place(later, later.server.gradients)[:, 0],
            A * (average[0] - centres),
            **EXACT,
        )


def test_the_silhouettes_that_decide_are_those_of_warm_as_a_number():
    """Each probe of "auto" has the weights of a run that asks once, in that round."""
    with float64():
        federation, model = hidden_groups(), quadratic_model(1)
        auto = train(UCFL(SLOW, streams="auto"), federation, model, 21).server
        for rounds, best in auto.asked:
            given = UCFL(SLOW, streams="auto", warm=int(rounds))
            state = train(given, federation, model, int(rounds) + 1).server
            _, silhouettes = state.silhouettes.T
            assert best == 0 or best == pytest.approx(silhouettes.max(), rel=1e-10)
        np.testing.assert_allclose(state.rows, auto.rows, **EXACT)
    # Two probes in a row are clear.
    clear = auto.asked[:, 1] >= warm_up.CLEAR
    assert clear[-2:].all() and not auto.asked[0, 1]


@pytest.mark.parametrize("kind", [UCFL, UCFLParallel])
@pytest.mark.parametrize("streams", [None, 2, "auto"])
def test_one_group_is_fedavg_at_no_more_than_the_cost_of_the_probes(kind, streams):
    rounds = ASKED_AFTER[-1] + 3
    with float64():
        federation = hidden_groups(np.zeros(CLIENTS, int))
        model = quadratic_model(1)
        average = train(FedAvg(SLOW), federation, model, rounds)
        ours = train(kind(SLOW, streams=streams), federation, model, rounds)
        np.testing.assert_allclose(personal(ours), personal(average), **EXACT)
    assert ours.server.model.shape == (1, 1)
    costs = ["round", "direction", "kind", "bytes_unicast", "bytes_multicast"]
    frame, other = ours.ledger.frame(), average.ledger.frame()
    # Rounds send what FedAvg's send, but where clients hold the model from a probe.
    is_round = (pl.col("phase") == "round") & (pl.col("kind") == "model")
    of_rounds = frame.filter(is_round).select(costs)
    expected = other.filter(is_round).select(costs)
    is_sent = (pl.col("direction") == "up") | ~pl.col("round").is_in(ASKED_AFTER)
    assert of_rounds.equals(expected.filter(is_sent))
    probes = frame.filter(pl.col("phase") == "probe")
    assert set(probes["round"]) == set(ASKED_AFTER)
    down = probes.filter(pl.col("direction") == "down")
    assert down.select(costs).equals(
        expected.filter(
            (pl.col("direction") == "down") & pl.col("round").is_in(ASKED_AFTER)
        )
    )


def test_candidates_of_a_batch_start_where_the_warm_up_ends():
    with float64():
        federation = classification(clients=8, sizes=[20] * 8, val=10)
        y = federation.y.copy()
        for client in range(0, 8, 2):
            rows = np.concatenate([federation.train[client], federation.val[client]])
            y[rows] = (y[rows] + 1) % 3
        federation = replace(federation, y=y)
        method = UCFL(TRAINED, sigma_batch="auto", trial=2)
        training = train(method, federation, softmax_model(), 0)
        while isinstance(training.server, WarmUp):
            before = training.server.model
            training.advance()
        assert isinstance(training.server, Trial)
        for candidate in training.server.candidates:
            np.testing.assert_array_equal(candidate.initial, before[0])


def test_clients_that_differ_without_groups_have_a_stream_each():
    """Centres at equal distances, far apart."""
    with float64():
        federation = hidden_groups(np.zeros(CLIENTS, int))
        y = federation.y.copy()
        y[:, 1] += np.repeat(np.linspace(-40, 40, CLIENTS), SAMPLES)
        federation, model = replace(federation, y=y), quadratic_model(1)
        auto, each, literal = (
            train(method, federation, model, 21)
            for method in (
                UCFL(SLOW, streams="auto"),
                UCFL(SLOW),
                UCFL(SLOW, streams="auto", warm=0),
            )
        )
        np.testing.assert_array_equal(personal(auto), personal(each))
    assert auto.server.one_for_each and not literal.server.one_for_each


# the overall test
# --------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [1, 20])
def test_clients_that_are_alike_are_told_apart_in_at_most_a_twentieth_of_cases(rank):
    rng, wrong, times = np.random.default_rng(0), 0, 2_000
    for _ in range(times):
        noise = rng.uniform(0.5, 2.0)
        scale = np.sqrt(noise / rank)
        gradients = rng.normal(size=(10, rank)) * scale
        probe = Probe(gradients, np.ones(10), np.full(10, 50))
        wrong += differ(probe, np.full(10, noise))
    # three standard errors above the level
    assert wrong / times <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / times)


def test_clients_that_no_pair_tells_apart_are_told_apart_together():
    """Differences of 1.5 times the noise of a pair, in 20 clients."""
    rng = np.random.default_rng(0)
    gradients = rng.normal(size=(20, 50)) * np.sqrt(2.5 / 50)
    probe = Probe(gradients, np.ones(20), np.full(20, 50))
    assert differ(probe, np.ones(20))
    assert not differ(probe, np.full(20, 2.5))


def test_clients_of_one_sample_say_nothing_about_differences():
    gradients = np.array([[0.0], [1.0], [100.0]])
    probe = Probe(gradients, np.array([1.0, np.nan, np.nan]), np.array([9, 1, 1]))
    assert not differ(probe, np.array([1.0, np.nan, np.nan]))


# sketches
# --------------------------------------------------------------------------------------


def test_a_sketch_keeps_squared_lengths_in_expectation():
    """The mean over seeds is |x|^2, and the variance at most 2 |x|^4 / size."""
    with float64():
        x = jnp.asarray(np.random.default_rng(0).normal(size=5_000) ** 3)
        lengths = jax.vmap(lambda seed: jnp.square(sketch(x, seed)).sum())(
            jnp.arange(400, dtype=jnp.int32)
        )
        ratio = np.asarray(lengths / jnp.square(x).sum())
        linear = sketch(2 * x, jnp.int32(7)) - 2 * sketch(x, jnp.int32(7))
    spread = np.sqrt(2 / warm_up.SKETCH_SIZE)
    assert abs(ratio.mean() - 1) < 4 * spread / np.sqrt(400)
    assert ratio.std() < 1.15 * spread
    np.testing.assert_allclose(linear, 0, **EXACT)


def test_large_models_send_sketches_that_are_charged(monkeypatch):
    """A softmax model of 15 numbers, with sketches of 8."""
    monkeypatch.setattr(warm_up, "SKETCH_SIZE", 8)
    with float64():
        federation, model = classification(unseen=np.arange(5) == 3), softmax_model()
        training = train(UCFL(TRAINED), federation, model, 22)
        asked = int(training.server.asked[-1, 0])
        whole = train(UCFL(TRAINED, warm=asked), federation, model, asked + 1).server
        seed = jnp.int32(training.server.sketch)
        expected = [sketch(jnp.asarray(row), seed) for row in whole.gradients]
        np.testing.assert_allclose(training.server.gradients, expected, **EXACT)
        # A newcomer answers with the same projection.
        assert np.isfinite(training.predictors(training.serve(unseen=True))).all()
    probes = training.ledger.frame().filter(pl.col("phase") == "probe")
    up = probes.filter((pl.col("direction") == "up") & (pl.col("bytes_unicast") > 0))
    assert set(up["kind"]) == {"sketch"}
    assert set(up["bytes_unicast"]) == {4 * 8 * 8}


# what it may look at, partial participation, interruptions
# --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in CHECKS if name != "order"])
def test_conformance(name):
    streams = None if name == "one client" else 2
    CHECKS[name](UCFL(TRAINED, streams=streams))


@pytest.mark.slow
def test_conformance_order():
    CHECKS["order"](UCFL(TRAINED, streams=2))


def test_the_rule_reads_neither_other_splits_nor_unseen_clients():
    with float64():
        unseen = np.arange(8) == 7
        federation = classification(clients=8, sizes=[20] * 8, val=5, unseen=unseen)
        x, y = federation.x.copy(), federation.y.copy()
        rows = np.concatenate(
            [federation.val.rows, federation.test.rows, federation.train[7]]
        )
        x[rows], y[rows] = 1e3, (y[rows] + 1) % 3
        garbled = replace(federation, x=x, y=y)
        states = []
        for clients in (federation, garbled):
            training = train(UCFL(TRAINED, streams=2), clients, softmax_model(), 22)
            training.serve(unseen=True)
            assert isinstance(training.server, UCFLState)
            states.append(jax.tree.leaves(training.server))
    for one, other in zip(*states, strict=True):
        np.testing.assert_array_equal(one, other)


def test_probes_ask_everybody_where_rounds_ask_some():
    with float64():
        method = UCFL(SLOW, streams=2)
        training = train(
            method,
            hidden_groups(),
            quadratic_model(1),
            24,
            participation=Participation(count=3),
        )
        np.testing.assert_array_equal(found_groups(training), GROUPS)
    frame = training.ledger.frame()
    up = frame.filter((pl.col("direction") == "up") & (pl.col("bytes_unicast") > 0))
    asked = up.filter(pl.col("phase") == "probe")
    assert set(asked["unicasts"]) == {CLIENTS}
    assert set(up.filter(pl.col("phase") == "round")["unicasts"]) == {3}


@pytest.mark.parametrize("stop", [1, 2, 3, 5])
def test_a_run_killed_in_the_warm_up_ends_with_the_same_bytes(stop, tmp_path):
    with float64():
        federation, model = hidden_groups(), quadratic_model(1)

        def files(name, rounds, **options):
            where = tmp_path / name
            done = run(
                UCFL(SLOW, streams="auto"),
                federation,
                model,
                rounds,
                directory=where,
                **options,
            )
            assert isinstance(done.training.server, WarmUp) == (rounds < 10)
            return [(where / file).read_bytes() for file in (METRICS, LEDGER)]

        whole = files("whole", 12)
        files("parts", stop)
        assert files("parts", 12, resume=True) == whole


def answer_of(training, clients):
    """One more probe, which only some clients answer in time."""
    server, cohort = training.server, None

    def ask():
        nonlocal cohort
        cohort = training._cohort(training.executor.seen, np.arange(CLIENTS), seen=True)
        downlink = training.algorithm.probe_downlink(server, cohort)
        answers = yield Exchange("probe", training.algorithm, cohort, downlink)
        return answers

    answers = drive(ask(), training.executor)
    # Answers of late clients are zeros.
    late = ~clients
    update = {}
    for kind, rows in answers.update.items():
        values = rows.host().copy()
        values[late] = 0
        update[kind] = values
    cohort = replace(cohort, reporting=clients)
    return training.algorithm.aggregate_probe(
        server, answers_of(cohort, **update), cohort
    )


def test_while_machines_are_late_fedavg_goes_on_and_all_are_asked_again():
    with float64():
        training = train(UCFL(SLOW, streams=2), hidden_groups(), quadratic_model(1), 0)
        everybody = np.ones(CLIENTS, bool)
        late = np.arange(CLIENTS) == 3
        while training.round < 14:
            training.advance()
            if training.server.asks:
                before = training.server
                after = answer_of(training, everybody & ~late)
                assert isinstance(after, WarmUp) and not after.asks
                np.testing.assert_array_equal(after.groups == -1, late)
                np.testing.assert_array_equal(after.model, before.model)
                training.server = after
        # Groups are clear, and every round ends with a probe until all are at hand.
        assert training.server.knows_enough
        training.advance()
        assert training.server.asks
        training.advance()
        np.testing.assert_array_equal(found_groups(training), GROUPS)
        # what the late client answered last, not its zeros
        A = np.array([1.0, 3.0])[GROUPS]
        centres = np.array(
            [
                training.executor.federation.y[rows, 1].mean()
                for rows in training.executor.federation.train
            ]
        )
        np.testing.assert_allclose(
            by_place(training, training.server.gradients)[:, 0],
            A * (training.server.initial[0] - centres),
            **EXACT,
        )


def test_newcomers_are_asked_at_the_model_of_the_last_probe():
    with float64():
        unseen = np.arange(CLIENTS) >= 6
        training = train(
            UCFL(SLOW, streams=2), hidden_groups(unseen=unseen), quadratic_model(1), 22
        )
        (found,) = predictors(training)
    # 3 / A of their groups is nearer to the model that they are served.
    assert found[6, 0] == found[0, 0] and found[7, 0] == found[1, 0]
    assert found[0, 0] > found[1, 0]


def test_the_round_of_the_probe_is_a_number_or_auto():
    for wrong in (-1, "later", 1.5, None):
        with pytest.raises(ValueError, match="warm is"):
            UCFL(warm=wrong)

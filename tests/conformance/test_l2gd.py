"""L2GD: its expected step, its trajectory, its traffic, its limits."""

import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest

from conformance.problems import (
    BATCH,
    EXACT,
    by_place,
    float64,
    personal,
    predictors,
    quadratic_model,
    quadratics,
    train,
)
from fedtailor.algorithms import Local
from fedtailor.algorithms.l2gd import L2GD
from fedtailor.engine.training import Participation
from fedtailor.protocol import SGD

A = np.array([0.5, 1.0, 2.0, 3.0])
a = np.array([-1.0, 0.5, 2.0, 4.0])
SIZES = np.array([3, 8, 13, 18])
LR, LAM, PROB = 0.1, 1.5, 0.4
PLAIN = SGD(lr=LR, steps=1, batch_size=BATCH)
METHOD = L2GD(sgd=PLAIN, lam=LAM, p=PROB)


def start(method=METHOD, participation=None):
    return train(
        method,
        quadratics(a, A, SIZES),
        quadratic_model(1),
        0,
        participation=participation,
    )


def coins(training, rounds):
    """Which rounds are averaging rounds, by the server's own coin."""
    cohort = training.round_cohort(np.ones(len(training.population), bool))
    return [
        training.algorithm._is_averaging(cohort, offset) for offset in range(rounds)
    ]


def test_the_optimum_is_the_fixed_point_of_the_expected_round():
    """Which is also pFedMe's with one local round and equal weights."""
    c = A / (A + LAM)
    w = (c * a).sum() / c.sum()
    x = (A * a + LAM * w) / (A + LAM)
    after = {}
    with float64():
        for averaging in (True, False):
            run = start()
            run.round = coins(run, 50).index(averaging)
            run.server = run.server.replace(model=jnp.array([[w]]))
            optima = jnp.asarray(x[run.executor.seen.original_index, None])
            run.executor.states.write(np.arange(len(x)), ({"model": optima}, ()))
            run.advance()
            after[averaging] = by_place(run, run.executor.states.rows[0]["model"])[:, 0]
    assert np.abs(after[True] - x).max() > 1e-2 < np.abs(after[False] - x).max()
    np.testing.assert_allclose(
        PROB * after[True] + (1 - PROB) * after[False], x, **EXACT
    )


def test_the_trajectory_is_the_papers_although_the_mean_travels_only_after_local_rounds():
    x, tau = np.zeros(4), LR * LAM * (1 - PROB) / PROB
    with float64():
        run = start()
        for averaging in coins(run, 40):
            x = (1 - tau) * x + tau * x.mean() if averaging else x - LR * A * (x - a)
            run.advance()
            np.testing.assert_allclose(personal(run)[:, 0], x, **EXACT)


def test_traffic_only_where_the_coin_turns():
    rounds = 300
    with float64():
        run = start()
        coin = coins(run, rounds + 1)
        for _ in range(rounds):
            run.advance()
    frame = run.ledger.frame()
    down, up = (
        frame.filter(pl.col("direction") == direction) for direction in ("down", "up")
    )
    turns = [t for t in range(rounds) if not coin[t] and coin[t + 1]]
    assert up["round"].to_list() == turns
    assert up["unicasts"].to_list() == [4] * len(turns)
    assert down["round"].to_list() == [t + 1 for t in turns if t + 1 < rounds]
    assert (down["streams"] == 1).all() and (down["unicasts"] == 4).all()
    assert run.ledger.totals().scalars_down == run.ledger.totals().scalars_up == 0
    assert abs(len(turns) / rounds - PROB * (1 - PROB)) < 3 * 0.5 / np.sqrt(rounds)


def test_without_lam_it_is_local_training_in_the_local_rounds():
    with float64():
        run = start(L2GD(sgd=PLAIN, lam=0.0, p=PROB))
        averaging = sum(coins(run, 30))
        for _ in range(30):
            run.advance()
        expected = train(
            Local(sgd=PLAIN),
            quadratics(a, A, SIZES),
            quadratic_model(1),
            30 - averaging,
        )
        np.testing.assert_array_equal(personal(run), personal(expected))


def test_a_whole_averaging_step_makes_all_models_the_mean_of_the_reporters():
    whole = L2GD(sgd=PLAIN, lam=1 / (LR * (1 - PROB) / PROB), p=PROB)
    with float64():
        run = start(whole, Participation(count=2))
        coin = coins(run, 50)
        turn = next(t for t in range(49) if not coin[t] and coin[t + 1])
        for _ in range(turn + 1):
            run.advance()
        sent = personal(run)[:, 0]
        run.advance()
        reporters = by_place(run, run.participation.sample(run.population.ids, 0, turn))
        np.testing.assert_allclose(personal(run)[:, 0], sent[reporters].mean(), **EXACT)
        assert reporters.sum() == 2 and np.ptp(sent) > 1e-2


def test_a_newcomer_minimises_its_own_part_of_the_objective():
    with float64():
        federation = quadratics(a, A, SIZES, unseen=[False, False, True, False])
        run = train(METHOD, federation, quadratic_model(1), 150)
        (found,) = predictors(run)
        mean = np.asarray(run.server.model)[0, 0]
    np.testing.assert_allclose(
        found[2, 0], (A[2] * a[2] + LAM * mean) / (A[2] + LAM), **EXACT
    )


def test_a_newcomers_rounds_are_those_of_the_others():
    """Each with a velocity of its own, and with a learning rate of the rounds done."""
    sgd = SGD(lr=LR, steps=3, batch_size=BATCH, momentum=0.9, lr_decay=0.1)
    with float64():
        federation = quadratics(a, A, SIZES, unseen=[False, False, True, False])
        run = train(L2GD(sgd=sgd, lam=LAM, p=PROB), federation, quadratic_model(1), 7)
        (found,) = predictors(run)
        mean = np.asarray(run.server.model)[0, 0]
        run.round = 0
        local_rounds = 7 - sum(coins(run, 7))
    assert 2 <= local_rounds <= 6 and mean != 0
    x = mean
    for k in range(local_rounds):
        velocity, rate = 0.0, LR * 0.9 ** (k * 7 // local_rounds)
        for _ in range(3):
            velocity = 0.9 * velocity + A[2] * (x - a[2]) + LAM * (x - mean)
            x -= rate * velocity
    np.testing.assert_allclose(found[2, 0], x, **EXACT)


@pytest.mark.parametrize(
    "wrong", [{"p": 0.0}, {"p": 1.0}, {"lam": -1.0}, {"lam": 2.0, "p": 0.1}]
)
def test_impossible_requests_are_refused(wrong):
    with pytest.raises(ValueError, match=r"p is|lam is|beyond it"):
        L2GD(**wrong)

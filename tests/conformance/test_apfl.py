"""APFL: its two limits, its fixed point, the adaptive share, mixing of outputs."""

import jax
import numpy as np
import pytest

from conformance.problems import (
    BATCH,
    EXACT,
    assert_absent_keep_their_state,
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
from fedtailor.algorithms import FedAvg, Local
from fedtailor.algorithms.apfl import APFL
from fedtailor.engine.training import Participation
from fedtailor.protocol import SGD

A = np.array([0.5, 1.0, 2.0, 3.0])
a = np.array([-1.0, 0.5, 2.0, 4.0])
SIZES = np.array([3, 8, 13, 18])
P = SIZES / SIZES.sum()
LR = 0.2
TRAINED = SGD(lr=0.2, epochs=2, batch_size=BATCH, weight_decay=0.01, drop_last=True)


def plain(steps):
    return SGD(lr=LR, steps=steps, batch_size=BATCH)


@pytest.mark.parametrize("mix", ["parameters", "logits"])
def test_the_global_model_is_fedavgs_whatever_alpha_bit_for_bit(mix):
    with float64():
        federation, model = classification(), softmax_model()
        expected = train(FedAvg(sgd=TRAINED, weights="uniform"), federation, model, 3)
        for alpha in (0.0, 0.3, 1.0):
            found = train(APFL(sgd=TRAINED, alpha=alpha, mix=mix), federation, model, 3)
            np.testing.assert_array_equal(
                *(np.asarray(run.server.model) for run in (found, expected))
            )


@pytest.mark.parametrize(("alpha", "limit"), [(0.0, FedAvg), (1.0, Local)])
def test_fixed_alpha_of_0_is_fedavg_and_of_1_is_local(alpha, limit):
    with float64():
        federation, model = classification(), softmax_model()
        expected = personal(train(limit(sgd=TRAINED), federation, model, 3))
        found = personal(
            train(
                APFL(sgd=TRAINED, alpha=alpha, alpha_lr=0.0, weights="samples"),
                federation,
                model,
                3,
            )
        )
    np.testing.assert_allclose(found, expected, **EXACT)


@pytest.mark.parametrize("steps", [1, 3])
def test_fixed_point(steps):
    """After one step a round, the mixture is each client's own optimum; after more, v
    repeats itself every round.
    """
    alpha, rate = 0.8, LR * A
    M = 1 - (1 - rate) ** steps
    w = (P * M * a).sum() / (P * M).sum()
    contraction = 1 - rate * alpha**2
    pushes = [
        contraction ** (steps - 1 - s)
        * rate
        * alpha
        * (a - (1 - alpha) * (a + (1 - rate) ** s * (w - a)))
        for s in range(steps)
    ]
    v = sum(pushes) / (1 - contraction**steps)
    with float64():
        method = APFL(sgd=plain(steps), alpha=alpha, alpha_lr=0.0, weights="samples")
        found = personal(
            train(method, quadratics(a, A, SIZES), quadratic_model(1), 420 // steps)
        )[:, 0]
    np.testing.assert_allclose(found, alpha * v + (1 - alpha) * w, **EXACT)
    if steps == 1:
        np.testing.assert_allclose(found, a, **EXACT)


def paper(rounds, steps, alpha, alpha_lr):
    """The method in plain arithmetic on quadratics: v, alpha [m] and w."""
    v, w, alpha = np.zeros(4), 0.0, np.full(4, alpha)
    for _ in range(rounds):
        w_i = np.full(4, w)
        for s in range(steps):
            g = A * (alpha * v + (1 - alpha) * w_i - a)
            adapted = (
                np.clip(alpha - alpha_lr * g * (v - w_i), 0, 1) if s == 0 else alpha
            )
            v, w_i, alpha = v - LR * alpha * g, w_i - LR * A * (w_i - a), adapted
        w = P @ w_i
    return v, w, alpha


@pytest.mark.parametrize("mix", ["parameters", "logits"])
@pytest.mark.parametrize(("rounds", "alpha_lr"), [(2, 0.3), (6, 0.3), (6, 40.0)])
def test_the_adaptive_share_follows_the_paper(rounds, alpha_lr, mix):
    v, w, alpha = paper(rounds, 3, 0.5, alpha_lr)
    assert np.ptp(alpha) > 1e-3
    if alpha_lr > 1:
        assert alpha.max() == 1
    with float64():
        method = APFL(sgd=plain(3), alpha_lr=alpha_lr, mix=mix, weights="samples")
        run = train(method, quadratics(a, A, SIZES), quadratic_model(1), rounds)
        np.testing.assert_allclose(
            by_place(run, run.executor.client_states["alpha"]), alpha, **EXACT
        )
        np.testing.assert_allclose(
            by_place(run, run.executor.client_states["model"])[:, 0], v, **EXACT
        )
        np.testing.assert_allclose(np.asarray(run.server.model), [[w]], **EXACT)


def test_mixing_outputs_is_mixing_parameters_of_linear_models():
    with float64():
        federation, model = classification(), softmax_model()
        expected = personal(train(APFL(sgd=TRAINED), federation, model, 3))
        weights, models = predictors(
            train(APFL(sgd=TRAINED, mix="logits"), federation, model, 3)
        )
    np.testing.assert_allclose(
        np.einsum("mk,mkd->md", weights, models), expected, **EXACT
    )
    np.testing.assert_allclose(weights.sum(1), 1, **EXACT)


def test_absent_clients_keep_model_and_share_and_newcomers_train():
    with float64():
        federation = classification(unseen=[False, True, False, False, False])
        run = train(
            APFL(sgd=TRAINED),
            federation,
            softmax_model(),
            1,
            participation=Participation(count=2),
        )
        assert_absent_keep_their_state(run)
        newcomer = predictors(run)[0][1]
        assert np.abs(newcomer - np.asarray(run.server.model)[0]).max() > 1e-3
        states = jax.tree.leaves(run.executor.states.rows)
        assert all(np.isfinite(np.asarray(leaf)).all() for leaf in states)


def test_work_is_counted():
    with float64():
        federation, model = (
            classification(clients=1, sizes=[2 * BATCH]),
            softmax_model(),
        )
        work = {
            mix: (
                train(APFL(sgd=plain(3), mix=mix), federation, model, 1).ledger.totals()
            )
            for mix in ("parameters", "logits")
        }
    assert work["parameters"].gradients == work["logits"].gradients == 2 * 3 * BATCH
    assert (work["parameters"].forwards, work["logits"].forwards) == (0, 3 * BATCH)


@pytest.mark.parametrize(
    "wrong",
    [{"alpha": 1.5}, {"alpha_lr": -0.1}, {"mix": "both"}, {"sgd": SGD(momentum=0.9)}],
)
def test_impossible_requests_are_refused(wrong):
    with pytest.raises(
        ValueError, match="plain SGD" if "sgd" in wrong else next(iter(wrong))
    ):
        APFL(**wrong)

"""MR-MTL: personal models near their own mean, which is what travels."""

import numpy as np
import pytest

from conformance.problems import (
    EXACT,
    assert_absent_keep_their_state,
    classification,
    float64,
    personal,
    predictors,
    quadratic_model,
    quadratics,
    shifted,
    softmax_model,
    train,
)
from fedtailor.algorithms import MRMTL, Local
from fedtailor.engine.training import Participation
from fedtailor.protocol import SGD

SIZES = np.array([3, 8, 13, 18])
A = np.array([[0.5, 2.0], [1.0, 0.3], [2.0, 1.0], [3.0, 0.7]])
a = np.array([[-1.0, 2.0], [0.5, 0.0], [2.0, -1.0], [4.0, 3.0]])
LR, STEPS, LAM = 0.2, 3, 0.8
PLAIN = SGD(lr=LR, steps=STEPS, batch_size=8)
MOMENTUM = SGD(lr=0.1, momentum=0.9, epochs=2, batch_size=8)


def solved(lam):
    """One step that ends at the minimum of |v - z|^2 / 2 + lam/2 |v - vbar|^2."""
    return MRMTL(sgd=SGD(lr=1 / (1 + lam), steps=1, batch_size=8), lam=lam)


@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_three_rounds_by_hand(weights):
    p = SIZES[:, None] / SIZES.sum() if weights == "samples" else np.full((4, 1), 0.25)
    with float64():
        method = MRMTL(sgd=PLAIN, lam=LAM, weights=weights)
        training = train(
            method, quadratics(a, A, SIZES), quadratic_model(2, shifted), 3
        )
        mean = np.asarray(training.initial(0))
        v = np.tile(mean, (4, 1))
        for _ in range(3):
            for _ in range(STEPS):
                v = v - LR * (A * (v - a) + LAM * (v - mean))
            mean = (p * v).sum(axis=0)
        np.testing.assert_allclose(personal(training), v, **EXACT)
        np.testing.assert_allclose(training.server.model[0], mean, **EXACT)


def test_fixed_point_of_solved_problems():
    with float64():
        training = train(
            solved(LAM), quadratics(a, 1.0, SIZES), quadratic_model(2, shifted), 60
        )
        np.testing.assert_allclose(training.server.model[0], a.mean(axis=0), **EXACT)
        np.testing.assert_allclose(
            personal(training), (a + LAM * a.mean(axis=0)) / (1 + LAM), **EXACT
        )


def test_a_strong_pull_makes_all_models_the_mean():
    """The mean does not move while the pull holds it: 1e12 rounds would bring it to the
    mean of the targets.
    """
    with float64():
        training = train(
            solved(1e12), quadratics(a, 1.0, SIZES), quadratic_model(2, shifted), 3
        )
        found = personal(training)
        np.testing.assert_allclose(
            found, np.broadcast_to(training.server.model, found.shape), **EXACT
        )


def test_without_a_pull_clients_train_alone():
    with float64():
        alone, apart = (
            personal(train(algorithm, classification(), softmax_model(), 3))
            for algorithm in (Local(sgd=MOMENTUM), MRMTL(sgd=MOMENTUM, lam=0.0))
        )
        np.testing.assert_array_equal(alone, apart)


def test_absent_clients_keep_their_models():
    with float64():
        federation = quadratics(a[:, :1], A[:, :1], SIZES)
        training = train(
            MRMTL(sgd=PLAIN),
            federation,
            quadratic_model(1),
            0,
            participation=Participation(count=2),
        )
        assert_absent_keep_their_state(training)


def test_newcomers_train_once_from_the_mean():
    with float64():
        federation = quadratics(
            a[:, :1], A[:, :1], SIZES, unseen=[False, False, True, False]
        )
        training = train(MRMTL(sgd=PLAIN, lam=LAM), federation, quadratic_model(1), 4)
        mean = float(training.server.model[0, 0])
        optimum = (A[2, 0] * a[2, 0] + LAM * mean) / (A[2, 0] + LAM)
        expected = optimum + (1 - LR * (A[2, 0] + LAM)) ** STEPS * (mean - optimum)
        np.testing.assert_allclose(predictors(training)[0][2, 0], expected, **EXACT)


def test_errors():
    with pytest.raises(ValueError, match=r"lam is -1\.0; it must be 0 or more"):
        MRMTL(lam=-1)
    with pytest.raises(
        ValueError, match=r"the learning rate 0\.01 times lam 200\.0 is 2; from 2 on"
    ):
        MRMTL(lam=200)

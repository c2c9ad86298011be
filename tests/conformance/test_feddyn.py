"""FedDyn: its recursion, and a fixed point that FedAvg does not have."""

import numpy as np
import pytest

from conformance.problems import (
    EXACT,
    assert_absent_keep_their_state,
    by_place,
    float64,
    quadratic_model,
    quadratics,
    shifted,
    train,
)
from fedtailor.algorithms import FedAvg, FedDyn
from fedtailor.engine.training import Participation
from fedtailor.protocol import SGD, hyperparameters

SIZES = np.array([3, 8, 13, 18])
A = np.array([[0.5, 2.0], [1.0, 0.3], [2.0, 1.0], [3.0, 0.7]])
a = np.array([[-1.0, 2.0], [0.5, 0.0], [2.0, -1.0], [4.0, 3.0]])
LR, STEPS, ALPHA = 0.2, 3, 0.7
PLAIN = SGD(lr=LR, steps=STEPS, batch_size=8)
SOLVED = SGD(lr=0.2, steps=200, batch_size=8)


@hyperparameters
class EverybodyTrains(FedDyn):
    """Also clients that do not report train, as they do in a deployment whose answers
    come too late.
    """

    participants = "all"


@pytest.mark.parametrize(
    ("method", "count"), [(FedDyn, 4), (FedDyn, 2), (EverybodyTrains, 2)]
)
def test_rounds_by_hand(method, count):
    with float64():
        participation = Participation(count=count)
        training = train(
            method(sgd=PLAIN, alpha=ALPHA),
            quadratics(a, A, SIZES),
            quadratic_model(2, shifted),
            0,
            participation=participation,
        )
        theta, g, c = np.asarray(training.initial(0)), np.zeros((4, 2)), np.zeros(2)
        for _ in range(3):
            ids = training.population.ids
            there = by_place(
                training, participation.sample(ids, training.seed, training.round)
            )
            assert there.sum() == count
            w = np.tile(theta, (4, 1))
            for _ in range(STEPS):
                w = w - LR * (A * (w - a) - g + ALPHA * (w - theta))
            moved = (w - theta)[there]
            g[there] -= ALPHA * moved
            c = c - ALPHA / 4 * moved.sum(axis=0)
            theta = w[there].mean(axis=0) - c / ALPHA
            training.advance()
        np.testing.assert_allclose(training.server.model[0], theta, **EXACT)
        np.testing.assert_allclose(training.server.drift[0], c, **EXACT)
        own = by_place(training, training.executor.client_states["gradient"])
        np.testing.assert_allclose(own, g, **EXACT)


def test_the_drift_is_minus_the_mean_of_all_clients_terms():
    with float64():
        training = train(
            FedDyn(sgd=PLAIN, alpha=ALPHA),
            quadratics(a, A, SIZES),
            quadratic_model(2),
            5,
            participation=Participation(count=2),
        )
        terms = np.asarray(training.executor.client_states["gradient"])
        np.testing.assert_allclose(
            training.server.drift[0], terms.mean(axis=0), **EXACT
        )


def test_exact_local_solves_end_at_the_minimum_of_the_mean_loss():
    minimum = (A * a).sum(axis=0) / A.sum(axis=0)
    with float64():
        federation, model = quadratics(a, A, SIZES), quadratic_model(2)
        training = train(FedDyn(sgd=SOLVED, alpha=ALPHA), federation, model, 200)
        np.testing.assert_allclose(training.server.model[0], minimum, **EXACT)
        plain = train(FedAvg(sgd=SOLVED, weights="uniform"), federation, model, 2)
        assert np.abs(plain.server.model[0] - minimum).min() > 0.1


def test_weighted_by_samples_it_ends_at_the_minimum_of_the_loss_of_all_samples():
    """As the released code: alpha / (m q_i) for the client with the share q_i."""
    q = (SIZES / SIZES.sum())[:, None]
    minimum = (q * A * a).sum(axis=0) / (q * A).sum(axis=0)
    with float64():
        training = train(
            FedDyn(sgd=SOLVED, alpha=ALPHA, weights="samples"),
            quadratics(a, A, SIZES),
            quadratic_model(2),
            300,
        )
        np.testing.assert_allclose(training.server.model[0], minimum, **EXACT)


def test_a_round_weighted_by_samples_by_hand():
    alpha = ALPHA * SIZES.mean() / SIZES[:, None]
    with float64():
        training = train(
            FedDyn(sgd=PLAIN, alpha=ALPHA, weights="samples"),
            quadratics(a, A, SIZES),
            quadratic_model(2, shifted),
            0,
        )
        theta, g = np.asarray(training.initial(0)), np.zeros((4, 2))
        mean_moved = np.zeros(2)
        for _ in range(3):
            w = np.tile(theta, (4, 1))
            for _ in range(STEPS):
                w = w - LR * (A * (w - a) - g + alpha * (w - theta))
            g -= alpha * (w - theta)
            mean_moved += (w - theta).mean(axis=0)
            theta = w.mean(axis=0) + mean_moved
            training.advance()
        np.testing.assert_allclose(training.server.model[0], theta, **EXACT)


def test_absent_clients_keep_their_terms():
    with float64():
        for kind in (FedDyn, EverybodyTrains):
            training = train(
                kind(sgd=PLAIN),
                quadratics(a, A, SIZES),
                quadratic_model(2),
                0,
                participation=Participation(count=2),
            )
            assert_absent_keep_their_state(training)


def test_errors():
    with pytest.raises(ValueError, match=r"alpha is 0\.0; it must be above 0 \(fedavg"):
        FedDyn(alpha=0)
    with pytest.raises(
        ValueError, match=r"the learning rate 0\.1 times alpha 20\.0 is 2"
    ):
        FedDyn(alpha=20)
    with pytest.raises(ValueError, match="weights is 'all'; it must be 'uniform' or"):
        FedDyn(weights="all")
    with pytest.raises(ValueError, match="for the fewest samples,"):
        # 3.5 for the mean number of samples is 12.25 for the fewest
        train(
            FedDyn(sgd=PLAIN, alpha=3.5, weights="samples"),
            quadratics(a, A, SIZES),
            quadratic_model(2),
            0,
        )

"""Server momentum: reductions, one step by hand, absent clients."""

import numpy as np

from conformance.problems import (
    EXACT,
    classification,
    float64,
    personal,
    quadratic_model,
    quadratics,
    softmax_model,
    train,
)
from fedtailor.aggregation import ServerOptimizer
from fedtailor.algorithms import FedAvg, FedAvgM
from fedtailor.engine.training import Participation
from fedtailor.protocol import SGD

TRAINED = SGD(lr=0.1, momentum=0.9, epochs=2, batch_size=8)
A = np.array([0.5, 1.0, 2.0, 3.0])
a = np.array([-1.0, 0.5, 2.0, 4.0])
SIZES = np.array([3, 8, 13, 18])


def test_without_momentum_it_is_fedavg():
    with float64():
        federation, model = classification(), softmax_model()
        plain = FedAvgM(
            sgd=TRAINED, optimizer=ServerOptimizer("momentum", lr=1.0, momentum=0.0)
        )
        np.testing.assert_allclose(
            personal(train(plain, federation, model, 3)),
            personal(train(FedAvg(sgd=TRAINED), federation, model, 3)),
            **EXACT,
        )


def test_the_recursion_by_hand():
    """Delta = theta - mean, v <- 0.9 v + Delta, theta <- theta - v, over three rounds
    with known local models.
    """
    lr, steps = 0.05, 2
    p = SIZES / SIZES.sum()
    shrink = (1 - lr * A) ** steps
    theta, v = 0.0, 0.0
    for _ in range(3):
        v = 0.9 * v + (theta - (p * (a + shrink * (theta - a))).sum())
        theta = theta - v
    with float64():
        algorithm = FedAvgM(sgd=SGD(lr=lr, steps=steps, batch_size=8))
        found = personal(
            train(algorithm, quadratics(a, A, SIZES), quadratic_model(1), 3)
        )
    np.testing.assert_allclose(found[:, 0], theta, **EXACT)


def test_the_fixed_point_is_fedavgs():
    lr, steps = 0.05, 2
    p = SIZES / SIZES.sum() * (1 - (1 - lr * A) ** steps)
    with float64():
        algorithm = FedAvgM(sgd=SGD(lr=lr, steps=steps, batch_size=8))
        found = personal(
            train(algorithm, quadratics(a, A, SIZES), quadratic_model(1), 500)
        )
    np.testing.assert_allclose(found[:, 0], (p * a).sum() / p.sum(), **EXACT)


def test_weights_are_those_of_the_reporters():
    with float64():
        training = train(
            FedAvgM(),
            quadratics(a, A, SIZES),
            quadratic_model(1),
            0,
            participation=Participation(count=1),
        )
        report = training.participation.sample(training.population.ids, 0, 0)
        training.advance()
        place = training.executor.seen.original_index[np.flatnonzero(report)[0]]
        steps = 2 * -(-SIZES[place] // 20)
        expected = a[place] * (1 - (1 - 0.01 * A[place]) ** steps)
        np.testing.assert_allclose(
            np.asarray(training.server.model)[0, 0], expected, **EXACT
        )

"""Adaptive server optimisers: FedAvg where nothing is scaled, and their recursions by
hand.
"""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

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
from fedtailor.algorithms import FedAdagrad, FedAdam, FedAvg, FedYogi
from fedtailor.protocol import SGD

TRAINED = SGD(lr=0.1, momentum=0.9, epochs=2, batch_size=8)
A = np.array([0.5, 1.0, 2.0, 3.0])
a = np.array([-1.0, 0.5, 2.0, 4.0])
SIZES = np.array([3, 8, 13, 18])
KINDS = {FedAdam: "adam", FedYogi: "yogi", FedAdagrad: "adagrad"}
B1, B2, TAU, RATE = 0.9, 0.99, 1e-3, 0.1


@pytest.mark.parametrize("method", KINDS)
def test_without_momentum_and_scaling_it_is_fedavg(method):
    """A rate as large as tau: lr / (sqrt(v) + tau) is 1."""
    with float64():
        optimizer = ServerOptimizer(KINDS[method], lr=1e12, momentum=0.0, epsilon=1e12)
        federation, model = classification(), softmax_model()
        found = personal(
            train(method(sgd=TRAINED, optimizer=optimizer), federation, model, 3)
        )
        expected = personal(train(FedAvg(sgd=TRAINED), federation, model, 3))
        np.testing.assert_allclose(found, expected, **EXACT)


def adam(m, v, delta, t):
    m, v = B1 * m + (1 - B1) * delta, B2 * v + (1 - B2) * delta**2
    return m, v, m / (1 - B1**t) / (np.sqrt(v / (1 - B2**t)) + TAU)


def yogi(m, v, delta, t):
    m, v = B1 * m + (1 - B1) * delta, v - (1 - B2) * delta**2 * np.sign(v - delta**2)
    return m, v, m / (1 - B1**t) / (np.sqrt(v / (1 - B2**t)) + TAU)


def adagrad(m, v, delta, t):
    v = v + delta**2
    return m, v, delta / np.sqrt(v)


def algorithm_2(b1, second):
    """Reddi et al. 2021, algorithm 2, with a rule for the second moment."""

    def rule(m, v, delta, t):
        m, v = b1 * m + (1 - b1) * delta, second(v, delta**2)
        return m, v, m / (np.sqrt(v) + TAU)

    return rule


PAPER = {
    FedAdam: algorithm_2(B1, lambda v, square: B2 * v + (1 - B2) * square),
    FedYogi: algorithm_2(
        B1, lambda v, square: v - (1 - B2) * square * np.sign(v - square)
    ),
    FedAdagrad: algorithm_2(0.0, lambda v, square: v + square),
}


@pytest.mark.parametrize(
    ("method", "rule", "start", "paper"),
    [
        (FedAdam, adam, (0.0, 0.0), False),
        (FedYogi, yogi, (1e-6, 1e-6), False),
        (FedAdagrad, adagrad, (0.0, TAU**2), False),
        *((method, rule, (0.0, TAU**2), True) for method, rule in PAPER.items()),
    ],
)
def test_the_recursion_by_hand(method, rule, start, paper):
    """Five rounds of the defaults, with local models that are known."""
    lr, steps = 0.05, 2
    p, shrink = SIZES / SIZES.sum(), (1 - lr * A) ** steps
    theta, (m, v) = 0.0, start
    for t in range(1, 6):
        delta = theta - (p * (a + shrink * (theta - a))).sum()
        m, v, direction = rule(m, v, delta, t)
        theta = theta - RATE * direction
    with float64():
        algorithm = method(sgd=SGD(lr=lr, steps=steps, batch_size=8))
        optimizer = replace(algorithm.optimizer, paper=paper)
        algorithm = replace(algorithm, optimizer=optimizer)
        found = personal(
            train(algorithm, quadratics(a, A, SIZES), quadratic_model(1), 5)
        )
    np.testing.assert_allclose(found[:, 0], theta, **EXACT)


def test_yogi_remembers_large_updates_longer_than_adam():
    """After 50 rounds at rest: v fades by a factor of 0.99 a round in Adam, and not at
    all in Yogi.
    """
    left = {}
    with float64():
        for kind in ("adam", "yogi"):
            optimizer = ServerOptimizer(kind, lr=0.1)
            theta, still = jnp.zeros((1, 1)), np.array([True])
            state, _ = optimizer.apply(optimizer.init(theta), theta, theta - 1.0, still)
            before = np.asarray(state[2])[0, 0]
            for _ in range(50):
                state, _ = optimizer.apply(state, theta, theta, still)
            left[kind] = np.asarray(state[2])[0, 0] / before
    np.testing.assert_allclose(left["adam"], B2**50, **EXACT)
    np.testing.assert_allclose(left["yogi"], 1.0, **EXACT)

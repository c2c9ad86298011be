"""Fixed points on quadratics f_i(x) = A_i (x - a_i)^2 / 2 that are known in closed
form: FedAvg and its relatives.
"""

from dataclasses import replace

import numpy as np
import pytest

from conformance.problems import (
    EXACT,
    float64,
    personal,
    predictors,
    quadratic_model,
    quadratics,
    train,
)
from fedtailor.algorithms import FedAvg, Local, Then
from fedtailor.protocol import SGD

A = np.array([0.5, 1.0, 2.0, 3.0])
a = np.array([-1.0, 0.5, 2.0, 4.0])
SIZES = np.array([3, 8, 13, 18])
LR, STEPS = 0.2, 3
SGD_STEPS = SGD(lr=LR, steps=STEPS, batch_size=8)
M = 1 - (1 - LR * A) ** STEPS


def converged(algorithm, federation, rounds=120):
    return personal(train(algorithm, federation, quadratic_model(1), rounds))[:, 0]


@pytest.mark.parametrize("weights", ["samples", "uniform"])
def test_fedavg_converges_to_the_inconsistent_mean(weights):
    p = SIZES / SIZES.sum() if weights == "samples" else np.full(4, 0.25)
    with float64():
        found = converged(
            FedAvg(sgd=SGD_STEPS, weights=weights), quadratics(a, A, SIZES)
        )
    np.testing.assert_allclose(found, (p * M * a).sum() / (p * M).sum(), **EXACT)


@pytest.mark.parametrize(
    ("epochs", "rounds"), [(2, 1), (1, 2)], ids=["two epochs", "two rounds"]
)
def test_every_pass_over_the_data_has_an_order_of_its_own(epochs, rounds):
    """Two samples, one in a batch: of the four ways in which two passes can go, each is
    some client's.

    Of seen clients, and of newcomers that make up for the rounds of the others."""
    clients, sample = 48, np.array([-1.0, 2.0])
    ways = [
        [first, 1 - first, second, 1 - second] for first in (0, 1) for second in (0, 1)
    ]
    ends = []
    for way in ways:
        x = 0.0
        for number in way:
            x -= LR * (x - sample[number])
        ends.append(x)
    with float64():
        federation = quadratics(
            np.zeros(clients), 1.0, [2] * clients, unseen=np.arange(clients) % 2 == 0
        )
        y = federation.y.copy()
        y[:, 1] = np.tile(sample, clients)
        method = Local(sgd=SGD(lr=LR, epochs=epochs, batch_size=1))
        (found,) = predictors(
            train(method, replace(federation, y=y), quadratic_model(1), rounds)
        )
    for some in (found[::2], found[1::2]):
        apart = np.abs(some - np.array(ends))
        np.testing.assert_allclose(apart.min(axis=1), 0, atol=1e-12)
        assert set(apart.argmin(axis=1)) == {0, 1, 2, 3}


def test_a_newcomer_of_local_training_makes_up_for_every_round_as_the_others_did():
    """With each round's learning rate and a velocity of its own; of a schedule, for the
    rounds of this method.
    """
    sgd = SGD(lr=LR, steps=STEPS, batch_size=8, momentum=0.9, lr_decay=0.2)
    newcomer = np.arange(4) == 2
    curvature, minimum, sizes = A.copy(), a.copy(), SIZES.copy()
    curvature[2], minimum[2], sizes[2] = (
        A[1],
        a[1],
        SIZES[1],
    )  # the newcomer holds what client 1 does
    with float64():
        federation = quadratics(minimum, curvature, sizes, unseen=newcomer)
        alone = Local(sgd=sgd)
        for method in (alone, Then(FedAvg(sgd=SGD_STEPS), rounds=2, next=alone)):
            (found,) = predictors(train(method, federation, quadratic_model(1), 5))
            np.testing.assert_allclose(found[2], found[1], **EXACT)
            assert np.abs(found[1] - found[0]).max() > 0.1

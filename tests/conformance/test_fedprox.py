"""FedProx against FedAvg, and its fixed points."""

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
from fedtailor.algorithms import FedAvg, FedProx
from fedtailor.engine.training import Participation
from fedtailor.protocol import SGD

SIZES = np.array([3, 8, 13, 18])
A = np.array([[0.5, 2.0], [1.0, 0.3], [2.0, 1.0], [3.0, 0.7]])
a = np.array([[-1.0, 2.0], [0.5, 0.0], [2.0, -1.0], [4.0, 3.0]])
LR, STEPS = 0.2, 3


@pytest.mark.parametrize(
    ("mu", "sgd"),
    [
        (0.0, SGD(lr=0.1, momentum=0.9, epochs=2, batch_size=8)),
        (0.7, SGD(lr=0.1, steps=1, batch_size=8)),
    ],
    ids=["no pull", "one local step"],
)
def test_is_fedavg(mu, sgd):
    with float64():
        models = [
            train(
                algorithm,
                classification(),
                softmax_model(),
                3,
                participation=Participation(count=3),
            ).server.model
            for algorithm in (FedProx(sgd=sgd, mu=mu), FedAvg(sgd=sgd))
        ]
        np.testing.assert_array_equal(*models)


@pytest.mark.parametrize("weights", ["samples", "uniform"])
@pytest.mark.parametrize("mu", [0.3, 2.0])
def test_fixed_point(weights, mu):
    p = SIZES / SIZES.sum() if weights == "samples" else np.full(4, 0.25)
    c = p[:, None] * (1 - (1 - LR * (A + mu)) ** STEPS) * A / (A + mu)
    method = FedProx(sgd=SGD(lr=LR, steps=STEPS, batch_size=8), mu=mu, weights=weights)
    with float64():
        for k in (1, 2):
            found = personal(
                train(
                    method,
                    quadratics(a[:, :k], A[:, :k], SIZES),
                    quadratic_model(k),
                    100,
                )
            )
            expected = (c * a).sum(axis=0) / c.sum(axis=0)
            np.testing.assert_allclose(
                found, np.broadcast_to(expected[:k], (4, k)), **EXACT
            )


def test_unseen_clients_get_the_global_model():
    federation = classification(unseen=[False, True, False, False, False])
    training = train(
        FedProx(sgd=SGD(batch_size=8)), federation, softmax_model("float32"), 2
    )
    service = training.serve(unseen=True)
    found = training.predictors(service)
    np.testing.assert_array_equal(
        np.asarray(found)[0], np.asarray(training.server.model)[0]
    )


def test_errors():
    with pytest.raises(ValueError, match=r"mu is -1\.0; it must be 0 or more"):
        FedProx(mu=-1)
    with pytest.raises(
        ValueError,
        match=(
            r"the learning rate 0\.1 times mu 20\.0 is 2; from 2 on the iterates"
            r" diverge"
        ),
    ):
        FedProx(mu=20, sgd=SGD(lr=0.1))

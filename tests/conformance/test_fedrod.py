"""FedRoD: balanced softmax, a residual head that moves nothing else, NumPy-like steps
by hand.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from conformance.problems import (
    EXACT,
    classification,
    float64,
    personal,
    predictors,
    quadratic_model,
    quadratics,
    train,
)
from fedtailor import models
from fedtailor.algorithms import FedAvg, FedRoD
from fedtailor.protocol import SGD

PLAIN = SGD(lr=0.1, epochs=2, batch_size=8)
FULL = SGD(lr=0.1, steps=2, batch_size=64)
UNSEEN = np.array([False, True, False, False, False])


def mlp():
    return models.mlp(5).bind((4,), 3, dtype="float64")


def balanced():
    """Clients of 9, 12, 15 training samples, equally many of each class."""
    federation = classification(clients=3, sizes=[9, 12, 15])
    y = federation.y.copy()
    for i in range(3):
        rows = federation.train[i]
        y[rows] = np.arange(len(rows)) % 3
    return replace(federation, y=y)


def test_with_equal_class_counts_the_balanced_softmax_is_the_softmax():
    with float64():
        ours, expected = (
            train(it(sgd=PLAIN), balanced(), mlp(), 3).server.model
            for it in (FedRoD, FedAvg)
        )
        np.testing.assert_allclose(ours, expected, **EXACT)
        uneven = train(FedRoD(sgd=PLAIN), classification(), mlp(), 3).server.model
        assert (
            np.abs(
                uneven
                - train(FedAvg(sgd=PLAIN), classification(), mlp(), 3).server.model
            ).max()
            > 1e-3
        )


def test_with_gamma_0_the_generic_model_is_fedavgs():
    with float64():
        ours, expected = (
            train(it, classification(), mlp(), 3).server.model
            for it in (FedRoD(sgd=PLAIN, gamma=0), FedAvg(sgd=PLAIN))
        )
        np.testing.assert_allclose(ours, expected, **EXACT)


def test_training_residual_heads_moves_no_bit_of_the_generic_model():
    with float64():
        slow, fast = (
            train(FedRoD(sgd=PLAIN, head_lr=lr), classification(), mlp(), 3)
            for lr in (0.0, 0.3)
        )
        np.testing.assert_array_equal(slow.server.model, fast.server.model)
        assert (personal(slow) == np.asarray(slow.server.model)).all()
        assert (personal(fast) != personal(slow)).any()
        head = mlp().part("head")
        np.testing.assert_array_equal(
            head.complement.take(personal(fast)), head.complement.take(personal(slow))
        )


def test_rounds_are_those_of_the_papers_losses():
    """One client that lacks a class: full-batch steps by hand."""
    with float64():
        federation, model = classification(clients=1), mlp()
        y = federation.y.copy()
        y[federation.train[0]] = np.where(
            y[federation.train[0]] == 2, 0, y[federation.train[0]]
        )
        federation = replace(federation, y=y)
        x, y = map(jnp.asarray, federation.client(0).train)
        counts = np.bincount(y, minlength=3)
        assert counts[2] == 0
        training = train(FedRoD(sgd=FULL, gamma=0.5), federation, model, 2)
        head, theta = model.part("head"), training.initial(0)
        residual = jnp.zeros(head.size)

        def generic(theta):
            scores = model.logits(model.params(theta), x)[:, :2] + 0.5 * np.log(
                counts[:2]
            )
            return -jax.nn.log_softmax(scores)[np.arange(len(y)), y].mean()

        def own(residual, theta):
            return model.losses(
                model.logits(
                    model.params(head.put(theta, head.take(theta) + residual)), x
                ),
                y,
            ).mean()

        of_residual, of_theta = jax.jit(jax.grad(own)), jax.jit(jax.grad(generic))
        for _ in range(4):
            residual, theta = (
                residual - 0.1 * of_residual(residual, theta),
                theta - 0.1 * of_theta(theta),
            )
        np.testing.assert_allclose(training.server.model[0], theta, **EXACT)
        np.testing.assert_allclose(
            personal(training)[0], head.put(theta, head.take(theta) + residual), **EXACT
        )


def test_a_newcomer_is_served_the_generic_model_or_trains_a_head_on_it():
    with float64():
        federation, head = classification(unseen=UNSEEN), mlp().part("head")
        for epochs in (0, 2):
            training = train(
                FedRoD(sgd=PLAIN, newcomer_epochs=epochs), federation, mlp(), 2
            )
            (found,), generic = (
                predictors(training),
                np.asarray(training.server.model[0]),
            )
            np.testing.assert_array_equal(
                head.complement.take(found[1]), head.complement.take(generic)
            )
            assert (head.take(found[1]) == head.take(generic)).all() == (epochs == 0)


def test_models_without_classes_and_momentum_are_refused():
    with pytest.raises(ValueError, match="fedrod's coupled steps are plain SGD"):
        FedRoD(sgd=SGD(momentum=0.9))
    with float64():
        with pytest.raises(ValueError, match="'head' is nothing of this model"):
            train(FedRoD(), quadratics([0.0, 1.0]), quadratic_model(2), 0)
        with pytest.raises(ValueError, match="it needs a model of classes"):
            regression = models.mlp(2).bind(
                (4,), 1, loss=models.squared_error, dtype="float64"
            )
            train(FedRoD(), classification(), regression, 0)

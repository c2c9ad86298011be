"""MOON: its limit, its contrast by hand, the model it keeps."""

import jax
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
    train,
)
from fedtailor import models
from fedtailor.algorithms import MOON, FedAvg
from fedtailor.protocol import SGD, hyperparameters

TRAINED = SGD(lr=0.1, momentum=0.9, epochs=2, batch_size=8)
FULL = SGD(lr=0.1, steps=2, batch_size=64)


def mlp():
    return models.mlp(5).bind((4,), 3, dtype="float64")


def test_without_the_contrast_it_is_fedavg():
    with float64():
        ours, expected = (
            train(it, classification(), mlp(), 3).server.model
            for it in (MOON(sgd=TRAINED, mu=0), FedAvg(sgd=TRAINED))
        )
        np.testing.assert_array_equal(ours, expected)


def by_hand(model, x, y, received, previous, mu, tau):
    """Two full-batch steps of the paper's loss, written with exponentials."""

    def normed(z):
        return z / jnp.linalg.norm(z, axis=1, keepdims=True)

    def loss(theta):
        z = model.features(theta, x)
        near, far = (
            jnp.exp((normed(z) * normed(model.features(other, x))).sum(1) / tau)
            for other in (received, previous)
        )
        losses = model.losses(model.logits(model.params(theta), x), y)
        return (losses - mu * jnp.log(near / (near + far))).mean()

    gradient = jax.jit(jax.grad(loss))
    theta = received
    for _ in range(2):
        theta = theta - 0.1 * gradient(theta)
    return theta


@hyperparameters
class Forgetful(MOON):
    """The model trained last is not kept: the contrast is to the initial one for
    ever.
    """

    def client(self, state, inbox, local):
        return state, super().client(state, inbox, local)[1]


@hyperparameters
class Aliased(MOON):
    """The model trained last is overwritten by the one received, as where both are one
    object.
    """

    def client(self, state, inbox, local):
        return {"previous": inbox.only("model")}, super().client(state, inbox, local)[1]


@pytest.mark.parametrize("mutant", [Forgetful, Aliased])
def test_mutants_are_caught(mutant):
    with pytest.raises(AssertionError):
        check_rounds(mutant)


def test_rounds_are_those_of_the_papers_loss_and_the_model_trained_last_is_kept():
    check_rounds(MOON)


def check_rounds(kind):
    with float64():
        federation, model = (
            classification(clients=2, sizes=[12, 20]),
            models.mlp(5).bind((4,), 3, dtype="float64"),
        )
        training = train(kind(sgd=FULL, mu=2.0, tau=0.3), federation, model, 3)
        theta = training.initial(0) + 0
        previous = [theta, theta]
        for _ in range(3):
            previous = [
                by_hand(
                    model,
                    *map(jnp.asarray, federation.client(i).train),
                    theta,
                    previous[i],
                    2.0,
                    0.3,
                )
                for i in range(2)
            ]
            theta = (12 * previous[0] + 20 * previous[1]) / 32
        np.testing.assert_allclose(training.server.model[0], theta, **EXACT)
        plain = train(FedAvg(sgd=FULL), federation, model, 3).server.model[0]
        assert np.abs(plain - theta).max() > 1e-3
        np.testing.assert_allclose(personal(training), np.tile(theta, (2, 1)), **EXACT)


def test_the_first_round_is_fedavg_as_both_models_are_one():
    with float64():
        ours, expected = (
            train(it, classification(), mlp(), 1).server.model
            for it in (MOON(sgd=FULL), FedAvg(sgd=FULL))
        )
        np.testing.assert_allclose(ours, expected, **EXACT)


def test_features_of_zero_give_no_nan():
    with float64():
        dead = classification(clients=1)
        dead = type(dead)(**{**vars(dead), "x": 0 * dead.x})
        assert np.isfinite(train(MOON(sgd=FULL), dead, mlp(), 2).server.model).all()


def test_wrong_settings_and_a_model_without_a_head_are_refused():
    for wrong in ({"mu": -1.0}, {"tau": 0.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            MOON(**wrong)
    with float64(), pytest.raises(ValueError, match="'head' is nothing of this model"):
        train(MOON(), quadratics([0.0, 1.0]), quadratic_model(2), 0)

"""`SGD.clip`: the gradient of a step has a bounded norm."""

from dataclasses import replace

import numpy as np
import pytest

from fedtailor.algorithms import CFL, SCAFFOLD, Ditto, FedAvg, FedEM, Local, PFedMe
from fedtailor.protocol import SGD, Diverged, hyperparameters
from fedtailor.testing.problems import (
    EXACT,
    classification,
    float64,
    mlp_model,
    normalized_model,
    personal,
    quadratic_model,
    quadratics,
    shifted,
    softmax_model,
    train,
)

MINIMA = np.array([[3.0, -4.0], [0.2, 0.1], [-5.0, 1.0]])
CURVATURE = np.array([1.0, 2.0, 0.5])
ONE_STEP = SGD(lr=0.5, steps=1, batch_size=64, clip=1e-3)
TOO_FAST = SGD(lr=1.0, steps=1500, batch_size=64)
"""With a curvature of 3 each step doubles the distance from the minimum."""


def test_steps_are_those_of_numpy():
    """The pull towards the received model counts in the norm, weight decay does not."""
    sgd = SGD(lr=0.3, momentum=0.5, weight_decay=0.1, steps=4, batch_size=8, clip=2.0)
    is_clipped = []
    with float64():
        model = quadratic_model(2, shifted)
        training = train(
            Ditto(sgd=sgd, lam=0.4), quadratics(MINIMA, CURVATURE), model, 1
        )
        start = np.asarray(training.initial(0))
        for a, c, found in zip(MINIMA, CURVATURE, personal(training), strict=True):
            w, v = start, 0.0
            for _ in range(4):
                g = c * (w - a) + 0.4 * (w - start)
                is_clipped.append(np.linalg.norm(g) > 2)
                g = g * min(1, 2 / np.linalg.norm(g))
                v = 0.5 * v + g + 0.1 * w
                w = w - 0.3 * v
            np.testing.assert_allclose(found, w, **EXACT)
    assert any(is_clipped) and not all(is_clipped)


def moved(algorithm, model):
    """How far a round of one client moves the global model."""
    training = train(algorithm, classification(clients=1), model, 1)
    change = np.asarray(training.server.model[0]) - np.asarray(training.initial(0))
    return model, change


@hyperparameters
class OnlyBiases(FedAvg):
    """`FedAvg` of biases."""

    def client(self, state, inbox, local):
        theta, part = inbox.only("model"), local.part_of_model("bias")
        return state, {"model": local.sgd(theta, self.sgd, train_only=part)}


def test_what_is_frozen_does_not_count():
    with float64():
        model, change = moved(OnlyBiases(sgd=ONE_STEP), mlp_model())
    biases = model.part("bias").mask
    np.testing.assert_allclose(np.linalg.norm(change[biases]), 0.5e-3, **EXACT)
    assert (change[~biases] == 0).all()


def test_running_statistics_do_not_count():
    with float64():
        model, change = moved(FedAvg(sgd=ONE_STEP), normalized_model())
    statistics = model.statistics.mask
    np.testing.assert_allclose(np.linalg.norm(change[~statistics]), 0.5e-3, **EXACT)
    assert (change[statistics] != 0).any()


def test_a_training_that_diverges_without_a_bound_does_not_with_one():
    with float64():
        federation, model = quadratics(MINIMA, 3.0), quadratic_model(2)
        with pytest.raises(Diverged, match=r"or bound gradients by sgd\.clip 10"):
            train(Local(sgd=TOO_FAST), federation, model, 1)
        bounded = replace(TOO_FAST, clip=1.0)
        found = personal(train(Local(sgd=bounded), federation, model, 1))
    # A step is no longer than lr * clip = 1, so that a model stays this near.
    assert (np.linalg.norm(found - MINIMA, axis=1) <= 1).all()


@pytest.mark.as_shipped
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_steps_within_the_bound_are_the_same_to_the_bit(weight_decay):
    sgd = SGD(lr=0.1, momentum=0.9, weight_decay=weight_decay, epochs=3, batch_size=8)
    models = [
        personal(
            train(
                Ditto(sgd=replace(sgd, clip=clip), lam=0.0),
                classification(),
                softmax_model("float32"),
                3,
            )
        )
        for clip in (None, 1e6, 0.1)
    ]
    np.testing.assert_array_equal(models[1], models[0])
    assert np.abs(models[2] - models[0]).max() > 0.1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SGD(clip=0.0), r"clip is 0\.0; it must be above 0"),
        (
            lambda: SGD(clip=1.0, dp_noise=1.0, dp_norm=1.0),
            r"\(dp_norm\); leave out clip",
        ),
        (
            lambda: PFedMe(sgd=SGD(clip=1.0)),
            "pfedme's inner steps do not clip gradients",
        ),
        (lambda: SCAFFOLD(sgd=SGD(clip=1.0)), "scaffold's steps do not clip gradients"),
        (
            lambda: FedEM(sgd=SGD(clip=1.0)),
            "fedem's .* do not clip gradients; leave out",
        ),
        (
            lambda: CFL(sgd=SGD(clip=1.0, momentum=0.9), persist=True),
            "cfl's steps with persist do not clip gradients",
        ),
    ],
)
def test_settings_that_cannot_be_are_told(make, message):
    with pytest.raises(ValueError, match=message):
        make()

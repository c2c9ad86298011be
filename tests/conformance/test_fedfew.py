"""FedFew: rounds in NumPy, the gradient that its weights belong to, its two limits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from conformance.least_squares import FULL, SIZES, float64, personal, trained
from conformance.problems import EXACT
from fedtailor.algorithms import FedAvg, FedFew
from fedtailor.protocol import SGD

ONE_STEP = SGD(lr=0.05, steps=1, batch_size=64)


def loss_of(by_hand, client, theta):
    x, y = by_hand.federation.client(client).train
    return np.mean((x @ theta[~by_hand.bias] + theta[by_hand.bias] - y) ** 2)


def starts(training, models):
    return [np.array(training.initial(k)) for k in range(models)]


@pytest.mark.parametrize("scaled", [False, True])
def test_three_rounds_are_those_of_numpy(scaled):
    with float64():
        method = FedFew(sgd=FULL, models=2, mu=3.0, scaled=scaled)
        training, by_hand = trained(method)
        models = starts(training, 2)
        for _ in range(3):
            losses = np.array(
                [[loss_of(by_hand, i, theta) for theta in models] for i in range(4)]
            )
            if scaled:
                losses *= (SIZES / SIZES.sum())[:, None]
            fits = np.exp(-losses / 3.0)
            s = fits.sum(axis=1)
            alpha, w = 1 / s / (1 / s).sum(), fits / s[:, None]
            models = [
                theta
                + sum(
                    alpha[i] * w[i, k] * (by_hand.descend(i, theta) - theta)
                    for i in range(4)
                )
                for k, theta in enumerate(models)
            ]
        np.testing.assert_allclose(training.server.model, models, **EXACT)
        picked = [
            models[np.argmin([loss_of(by_hand, i, theta) for theta in models])]
            for i in range(4)
        ]
        np.testing.assert_allclose(personal(training), picked, **EXACT)


def test_one_step_descends_the_smooth_largest_loss_of_the_best_model():
    """With a single step on all data, a round is a step of gradient descent on g."""
    mu, rate = 2.0, 0.05
    with float64():
        training, by_hand = trained(FedFew(sgd=ONE_STEP, models=3, mu=mu), rounds=1)
        data = [by_hand.federation.client(i).train for i in range(4)]

        def g(models):
            losses = jnp.stack(
                [
                    jnp.square(
                        models[:, ~by_hand.bias] @ x.T + models[:, by_hand.bias] - y
                    ).mean(axis=1)
                    for x, y in data
                ]
            )
            s = jnp.exp(-losses / mu).sum(axis=1)
            return mu * jnp.log((1 / s).sum())

        models = jnp.asarray(starts(training, 3))
        expected = models - rate * jax.grad(g)(models)
        np.testing.assert_allclose(training.server.model, expected, **EXACT)


def test_one_very_smooth_model_is_the_equal_mean_of_fedavg():
    with float64():
        ours, _ = trained(FedFew(sgd=FULL, models=1, mu=1e12))
        theirs, _ = trained(FedAvg(sgd=FULL, weights="uniform"))
        np.testing.assert_allclose(ours.server.model, theirs.server.model, **EXACT)


def test_a_sharp_model_learns_from_the_client_of_the_largest_loss_only():
    with float64():
        training, by_hand = trained(FedFew(sgd=FULL, models=1, mu=1e-9), rounds=1)
        theta = by_hand.start
        worst = int(np.argmax([loss_of(by_hand, i, theta) for i in range(4)]))
        expected = by_hand.descend(worst, theta)
        np.testing.assert_allclose(training.server.model[0], expected, **EXACT)


def test_losses_of_any_size_have_weights_that_add_up_to_1():
    method, sizes = FedFew(mu=1e-3), np.array([3, 8])
    losses = np.array([[900.0, 901.0, 950.0], [900.0, 1e6, 900.0]])
    weights = method._weights(losses, sizes)
    assert np.isfinite(weights).all() and weights.sum() == pytest.approx(1)
    np.testing.assert_allclose(weights[1], [1 / 6, 0, 1 / 6], atol=1e-12)


def test_equal_losses_share_equally():
    weights = FedFew(scaled=True)._weights(np.ones((4, 3)), np.full(4, 5))
    np.testing.assert_allclose(weights, np.full((4, 3), 1 / 12), **EXACT)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"models": 0}, "models is 0"), ({"mu": 0.0}, "mu is 0.0")],
)
def test_wrong_settings_are_told(arguments, message):
    with pytest.raises(ValueError, match=message):
        FedFew(**arguments)

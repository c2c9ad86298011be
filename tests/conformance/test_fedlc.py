"""FedLC: rounds in NumPy, margins that vanish, a loss without a lower bound."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import softmax

from conformance.problems import EXACT, float64, quadratic_model, quadratics, train
from conformance.two_layers import (
    FULL,
    RATE,
    STEPS,
    TwoLayers,
    clients,
    data_of,
    network,
)
from fedtailor.algorithms import FedAvg, FedLC
from fedtailor.protocol import Batch


def by_hand(method, theta, rounds=3):
    """FedLC on full batches of `clients()`."""
    net, (data, shares) = TwoLayers(), data_of(clients())
    for _ in range(rounds):
        trained = []
        for x, y in data:
            own, counts = theta.copy(), np.bincount(y, minlength=3)
            there = counts > 0
            margins = -method.tau * counts[there] ** -0.25
            for _ in range(STEPS):
                scores = net.scores(own, x)
                slope = np.zeros_like(scores)
                if method.denominator == "all":
                    p = softmax(scores[:, there] + margins, axis=1)
                    slope[:, there] = p
                else:
                    for row, label in enumerate(y):
                        others = [k for k in range(3) if there[k] and k != label]
                        kept = [list(np.flatnonzero(there)).index(k) for k in others]
                        slope[row, others] = softmax(
                            scores[row, others] + margins[kept]
                        )
                slope = (slope - np.eye(3)[y]) / len(y)
                own -= RATE * net.gradient(own, x, slope)
            trained.append(own)
        theta = shares @ np.array(trained)
    return theta


@pytest.mark.parametrize("denominator", ["all", "others"])
def test_three_rounds_are_those_of_numpy(denominator):
    with float64():
        method = FedLC(sgd=FULL, tau=1.5, denominator=denominator)
        training = train(method, clients(), network(), 3)
        expected = by_hand(method, np.array(training.initial(0)))
        np.testing.assert_allclose(training.server.model[0], expected, **EXACT)


def test_without_margins_only_absent_classes_tell_it_from_fedavg():
    with float64():
        ours, theirs = (
            train(it, clients(), network(), 2).server.model
            for it in (FedLC(sgd=FULL, tau=0.0), FedAvg(sgd=FULL))
        )
        expected = by_hand(FedLC(tau=0.0), np.array(network_start()), rounds=2)
        np.testing.assert_allclose(ours[0], expected, **EXACT)
        assert np.abs(ours - theirs).max() > 1e-4


def network_start():
    return train(FedAvg(sgd=FULL), clients(), network(), 0).initial(0)


def test_the_printed_loss_of_two_classes_is_linear_and_has_no_lower_bound():
    """log exp(s_1) - s_0 falls for ever, and the loss over all classes does not."""
    method = FedLC(denominator="others")

    class Local:
        def count_work(self, gradients):
            pass

        def logits(self, params, x):
            return params * x

    batch = Batch(jnp.array([[1.0, -1.0]]), jnp.array([0]), jnp.ones(1))
    slope = method._gradient(jnp.zeros(2), Local())
    found = [float(slope(jnp.float32(w), batch, jnp.int32(0))) for w in (0.0, 9.0)]
    assert found == [-2, -2]


def test_a_single_class_trains_nothing_with_either_sum():
    with float64():
        federation = clients()
        federation.y[:] = 1
        for denominator in ("all", "others"):
            method = FedLC(sgd=FULL, denominator=denominator)
            training = train(method, federation, network(), 1)
            np.testing.assert_allclose(
                training.server.model[0], training.initial(0), **EXACT
            )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tau": -1.0}, "tau is -1.0"),
        ({"denominator": "none"}, "denominator is 'none'"),
    ],
)
def test_wrong_settings_are_told(arguments, message):
    with pytest.raises(ValueError, match=message):
        FedLC(**arguments)


def test_models_without_classes_are_refused():
    with float64(), pytest.raises(ValueError, match="this model has no classes"):
        train(FedLC(), quadratics([0.0, 1.0]), quadratic_model(1), 0)

"""FedEM: expectation maximization over clients, against NumPy and against mixtures that
are known.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from conformance.problems import (
    EXACT,
    by_place,
    classification,
    float64,
    predictors,
    quadratic_model,
    shifted,
    softmax_model,
    train,
)
from fedtailor import models
from fedtailor.algorithms import FedAvg, FedEM
from fedtailor.data.federation import Federation, Ragged
from fedtailor.protocol import SGD

PLAIN = SGD(lr=0.1, epochs=2, batch_size=8)
FULL = SGD(lr=0.5, steps=1, batch_size=64)
SIZES = np.array([7, 12, 9])
TARGETS = np.random.default_rng(3).normal(size=(28, 2)) + np.repeat(
    [[-2, 0], [2, 0], [0, 1]], SIZES, axis=0
)
"""Samples of three clients for the loss |theta - a_s|^2 / 2: a mixture of Gaussians."""


def clients_of(x, y, sizes, classes=None, unseen=None):
    rows, count = np.split(np.arange(len(y)), np.cumsum(sizes)[:-1]), len(sizes)
    none = Ragged.empty(count)
    names = tuple(f"client {i}" for i in range(count))
    unseen = np.zeros(count, bool) if unseen is None else np.asarray(unseen)
    return Federation(
        x, y, Ragged.of(rows), none, none, names, None, unseen, classes=classes
    )


def gaussians():
    return clients_of(
        np.zeros((28, 0)),
        np.concatenate([np.ones_like(TARGETS), TARGETS], axis=1),
        SIZES,
    )


def responsibilities(theta, pi):
    """r [k, s] of all samples, and the log-likelihood of the data up to a constant."""
    client = np.repeat(np.arange(3), SIZES)
    joint = pi[client].T * np.exp(-0.5 * ((theta[:, None] - TARGETS) ** 2).sum(-1))
    return joint / joint.sum(axis=0), np.log(joint.sum(axis=0)).sum()


def proportions(training):
    return by_place(training, training.executor.client_states["weights"])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_one_model_is_fedavg_to_the_bit(momentum):
    sgd = replace(PLAIN, momentum=momentum, weight_decay=0.01)
    with float64():
        single, plain = (
            train(algorithm, classification(), softmax_model(), 3).server.model
            for algorithm in (FedEM(sgd=sgd, components=1), FedAvg(sgd=sgd))
        )
        np.testing.assert_array_equal(single, plain)


@pytest.mark.parametrize(("steps", "momentum"), [(1, 0.0), (3, 0.0), (3, 0.9)])
def test_three_rounds_by_hand(steps, momentum):
    """With several steps a round, r stay those of the models that were received."""
    client, lr = np.repeat(np.arange(3), SIZES), 0.5
    with float64():
        method = FedEM(
            sgd=SGD(lr=lr, steps=steps, batch_size=64, momentum=momentum), components=2
        )
        training = train(method, gaussians(), quadratic_model(2, shifted), 3)
        theta, pi = (
            np.stack([training.initial(k) for k in range(2)]),
            np.full((3, 2), 0.5),
        )
        for _ in range(3):
            r, _ = responsibilities(theta, pi)
            local = np.repeat(theta[None], 3, axis=0)
            for i in range(3):
                mine, n, velocity = client == i, SIZES[i], 0
                for _ in range(steps):
                    away = local[i][:, None] - TARGETS[mine]
                    velocity = (
                        momentum * velocity + (r[:, mine, None] * away).sum(axis=1) / n
                    )
                    local[i] -= lr * velocity
                pi[i] = r[:, mine].mean(axis=1)
            theta = np.einsum("i,ikd->kd", SIZES / SIZES.sum(), local)
        np.testing.assert_allclose(training.server.model, theta, **EXACT)
        np.testing.assert_allclose(proportions(training), pi, **EXACT)


def test_the_likelihood_never_falls():
    """Full batches, and one step of rate 1: each model's quadratic bound descends."""
    with float64():
        method = FedEM(sgd=SGD(lr=1.0, steps=1, batch_size=64), components=2)
        training = train(method, gaussians(), quadratic_model(2, shifted), 0)
        found = []
        for _ in range(30):
            found.append(
                responsibilities(
                    np.asarray(training.server.model), proportions(training)
                )[1]
            )
            training.advance()
        assert (np.diff(found) >= -1e-12).all()
        assert found[-1] > found[0] + 1


POINTS = clients_of(
    np.zeros((24, 0)),
    np.repeat([0, 1, 0, 1, 0], [6, 6, 3, 3, 6]),
    [6, 6, 6, 6],
    classes=2,
    unseen=[False, False, False, True],
)
"""Two clients of one symbol each, one with three of either, and a newcomer with the
data of the first.
"""


def extreme(key):
    """A start at which each of two models is near one of the two point masses."""
    sign = jax.random.bernoulli(key)
    return jax.numpy.where(
        sign, jax.numpy.array([1.0, -1.0]), jax.numpy.array([-1.0, 1.0])
    )


def density(seed):
    found = models.from_function(
        extreme, lambda theta, x: jax.numpy.broadcast_to(theta, (len(x), 2))
    )
    model = found.bind((0,), 2, dtype="float64")
    method = FedEM(
        sgd=SGD(lr=20.0, epochs=10, batch_size=8), components=2, newcomer_steps=80
    )
    return train(method, POINTS, model, 12, seed=seed)


def test_point_masses_are_told_apart():
    with float64():
        seed = next(s for s in range(20) if len(np.unique(_starts(s), axis=0)) == 2)
        training = density(seed)
        first = int(np.argmax(np.asarray(training.server.model)[:, 0]))
        pi = predictors(training)[0]
        expected = np.array([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5], [1.0, 0.0]])[
            :, [first, 1 - first]
        ]
        np.testing.assert_allclose(pi, expected, atol=1e-6)
        np.testing.assert_allclose(pi[3], pi[0], atol=1e-6)


def _starts(seed):
    return [
        np.asarray(extreme(jax.random.fold_in(jax.random.key(seed), k)))
        for k in range(2)
    ]


def test_a_newcomer_with_a_clients_data_gets_its_proportions():
    """A rate of almost nothing leaves the models where they are, so that E steps of
    both are on one mixture.
    """
    with float64():
        base = classification(sizes=[8] * 5, unseen=[False, False, False, True, False])
        twins = np.array([0, 1, 2, 1, 4])
        clients = Federation(
            base.x,
            base.y,
            base.train.take(twins),
            base.val,
            base.test,
            base.names,
            None,
            base.unseen,
            classes=3,
        )
        method = FedEM(
            sgd=SGD(lr=1e-300, epochs=1, batch_size=8), components=2, newcomer_steps=30
        )
        pi = predictors(train(method, clients, softmax_model(), 30))[0]
        np.testing.assert_allclose(pi[3], pi[1], **EXACT)
        assert np.abs(pi[1] - 0.5).max() > 0.01
        assert np.abs(pi[0] - pi[1]).max() > 0.01


def test_predictions_are_mixtures_of_probabilities():
    with float64():
        training = train(
            FedEM(sgd=PLAIN, components=2), classification(), softmax_model(), 2
        )
        training.evaluate()
        pi, theta = predictors(training)
        federation, model = classification(), softmax_model()
        client = federation.client(0).test
        outputs = [
            np.asarray(
                model.logits(model.params(jnp.asarray(one)), jnp.asarray(client.x))
            )
            for one in theta[0]
        ]
        mixed = sum(
            w * np.exp(o) / np.exp(o).sum(1, keepdims=True)
            for w, o in zip(pi[0], outputs, strict=True)
        )
        expected = -np.log(mixed[np.arange(len(client.y)), client.y]).mean()
        np.testing.assert_allclose(
            np.ravel(training.metrics.values("loss"))[0], expected, rtol=1e-6
        )


def test_errors():
    with pytest.raises(ValueError, match=r"components is 0; it must be 1 or more"):
        FedEM(components=0)
    with pytest.raises(ValueError, match=r"newcomer_steps is 0; it must be 1 or more"):
        FedEM(newcomer_steps=0)
    with pytest.raises(ValueError, match=r"SGD's; train without an optimizer"):
        FedEM(sgd=SGD(optimizer=optax.adam(0.1)))

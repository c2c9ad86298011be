"""CCVR: moments from sums, rounds in NumPy, when the moments travel."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from conformance.problems import EXACT, float64, personal, train
from conformance.two_layers import (
    FULL,
    RATE,
    STEPS,
    TwoLayers,
    by_scores,
    clients,
    data_of,
    network,
)
from fedtailor import models
from fedtailor.algorithms import CCVR, FedAvg
from fedtailor.algorithms.ccvr import draw_normal, moments_of, with_products
from fedtailor.protocol import SGD, server_rng

METHOD = CCVR(sgd=FULL, draws=20, server_lr=0.1, server_epochs=2)


def test_moments_of_sums_are_those_of_all_examples():
    rng = np.random.default_rng(0)
    examples = [rng.normal(size=(n, 3)) @ rng.normal(size=(3, 3)) for n in (9, 4, 1)]
    sums = np.array(
        [
            [*np.asarray(with_products(jnp.asarray(z))).sum(axis=0), len(z)]
            for z in examples
        ]
    )
    counts, means, covariances = moments_of(sums.astype(float), 3)
    np.testing.assert_array_equal(counts, [9, 4, 1])
    np.testing.assert_allclose(means, [z.mean(axis=0) for z in examples], rtol=1e-5)
    for z, covariance in zip(examples[:2], covariances[:2], strict=True):
        np.testing.assert_allclose(covariance, np.cov(z.T), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(covariances[2], 0, atol=1e-5)


def test_draws_have_the_moments_also_of_a_plane():
    rng = np.random.default_rng(1)
    root = rng.normal(size=(3, 2))
    mean, covariance = np.array([1.0, -2.0, 3.0]), root @ root.T
    drawn = draw_normal(np.random.default_rng(2), mean, covariance, 20_000)
    np.testing.assert_allclose(drawn.mean(axis=0), mean, atol=0.1)
    np.testing.assert_allclose(np.cov(drawn.T), covariance, rtol=0.1, atol=0.1)
    normal = np.linalg.svd(covariance)[0][:, 2]
    assert np.abs((drawn - mean) @ normal).max() < 1e-6


def by_hand(method, theta, rounds):
    """CCVR on full batches of `clients()`: the model that is served."""
    net, (data, shares) = TwoLayers(), data_of(clients())
    for _ in range(rounds):
        received, trained = theta, []
        for x, y in data:
            own = theta
            for _ in range(STEPS):
                own = own - RATE * net.fit_gradient(own, x, y)
            trained.append(own)
        theta = shares @ np.array(trained)
    x, y = (np.concatenate(parts) for parts in zip(*data, strict=True))
    rng, z, labels = server_rng(0, "ccvr", rounds - 1), [], []
    for k in range(3):
        of_class = net.features(received, x[y == k])
        values, vectors = np.linalg.eigh(np.cov(of_class.T))
        values[values < 1e-10 * values.max()] = 0
        root = vectors @ np.diag(values) ** 0.5 @ vectors.T
        z.append(of_class.mean(axis=0) + rng.normal(size=(method.draws, 5)) @ root)
        labels.append(np.full(method.draws, k))
    z, labels = np.concatenate(z), np.concatenate(labels)
    order = np.tile(np.arange(len(z)), (method.server_epochs, 1))
    _, _, v, c = net.split(received)
    for epoch in rng.permuted(order, axis=1):
        for start in range(0, len(z), method.server_batch):
            rows = epoch[start : start + method.server_batch]
            slope = by_scores(z[rows] @ v + c, labels[rows])
            v = v - method.server_lr * z[rows].T @ slope
            c = c - method.server_lr * slope.sum(axis=0)
    return np.concatenate([received[~net.head], v.reshape(-1), c])


def test_three_rounds_are_those_of_numpy():
    with float64():
        training = train(METHOD, clients(), network(), 3)
        expected = by_hand(METHOD, np.array(training.initial(0)), 3)
        np.testing.assert_allclose(personal(training), [expected] * 5, **EXACT)
        fedavg = train(FedAvg(sgd=FULL), clients(), network(), 3)
        np.testing.assert_array_equal(training.server.model, fedavg.server.model)


def test_moments_travel_from_the_round_that_is_asked_for():
    with float64():
        training = train(replace(METHOD, after=2), clients(), network(), 3)
        frame = training.ledger.frame()
    frame = frame.filter((frame["kind"] == "moments") & (frame["direction"] == "up"))
    # 5 features, 15 products and a number of examples of 3 classes, from 5 clients
    assert frame["round"].unique().to_list() == [2]
    assert frame["bytes_unicast"].sum() == 5 * 3 * 21 * 8


def test_without_steps_of_the_server_the_received_model_is_served():
    with float64():
        still = train(replace(METHOD, server_lr=0.0), clients(), network(), 2)
        before = train(FedAvg(sgd=FULL), clients(), network(), 1)
        np.testing.assert_allclose(personal(still), personal(before), **EXACT)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"after": -1}, "after is -1"),
        ({"draws": 0}, "draws is 0"),
        ({"server_lr": -1.0}, "server_lr is -1.0"),
        ({"server_batch": 0}, "server_batch is 0"),
        ({"sgd": SGD(dp_noise=1.0, dp_norm=1.0)}, "ccvr.*private steps"),
    ],
)
def test_wrong_settings_are_told(arguments, message):
    with pytest.raises(ValueError, match=message):
        CCVR(**arguments)


def test_models_without_classes_are_refused():
    regression = models.mlp(2).bind((4,), 1, loss=models.squared_error)
    with pytest.raises(ValueError, match="this model has none; choose another"):
        train(CCVR(), clients(), regression, 0)

"""FedPAC: rounds in NumPy, combinations of heads against all supports, limits."""

from itertools import combinations

import numpy as np
import pytest

from conformance.problems import EXACT, float64, personal, predictors, train
from conformance.two_layers import (
    FULL,
    RATE,
    STEPS,
    TwoLayers,
    clients,
    data_of,
    network,
)
from fedtailor import models
from fedtailor.algorithms import FedPAC, FedRep
from fedtailor.algorithms.fedpac import head_weights
from fedtailor.protocol import SGD


def by_all_supports(apart, variance):
    """The minimiser of the quadratic form over the simplex: of all supports whose
    stationary point has no negative weight, the one of least value.
    """
    form = apart @ apart.T + np.diag(variance)
    best, found = np.inf, None
    for size in range(1, len(form) + 1):
        for rows in map(list, combinations(range(len(form)), size)):
            inner = form[np.ix_(rows, rows)]
            a = np.linalg.lstsq(inner, np.ones(size), rcond=None)[0]
            if a.sum() <= 0 or (a < 0).any():
                continue
            a = a / a.sum()
            if a @ inner @ a < best:
                best, found = a @ inner @ a, np.zeros(len(form))
                found[rows] = a
    return found


def by_hand(theta, lam, rounds=3):
    """FedPAC on full batches of `clients()`: each client's model as served."""
    net, (data, shares) = TwoLayers(), data_of(clients())
    heads, body, centroids = [theta] * len(data), theta, None
    for _ in range(rounds):
        own, before, after, variance = [], [], [], []
        for i, (x, y) in enumerate(data):
            trained = np.where(net.head, heads[i], body)
            z, p = net.features(trained, x), np.bincount(y, minlength=3) / len(y)
            mu = p[:, None] * net.class_means(trained, x, y)
            before.append(mu.reshape(-1))
            spread = np.square(z).sum(axis=1).mean() - np.square(mu).sum()
            variance.append(spread / len(y))
            for _ in range(STEPS):
                slope = net.fit_gradient(trained, x, y)
                trained = trained - RATE * np.where(net.head, slope, 0)
            for _ in range(STEPS):
                slope = net.fit_gradient(trained, x, y)
                if centroids is not None:
                    apart = net.features(trained, x) - centroids[y]
                    pull = 2 * lam * apart / 5 / len(y)
                    slope += net.gradient(trained, x, np.zeros((len(y), 3)), pull)
                trained = trained - RATE * np.where(net.head, 0, slope)
            own.append(trained)
            z = net.features(trained, x)
            after.append([[*z[y == k].sum(axis=0), (y == k).sum()] for k in range(3)])
        own, before, total = np.array(own), np.array(before), np.sum(after, axis=0)
        body, centroids = shares @ own, total[:, :-1] / total[:, -1:]
        heads = [
            by_all_supports(before - mu, np.array(variance)) @ own for mu in before
        ]
    return np.array([np.where(net.head, head, body) for head in heads])


def test_three_rounds_are_those_of_numpy():
    with float64():
        method = FedPAC(sgd=FULL, head=FULL, lam=2.0)
        training = train(method, clients(), network(), 3)
        expected = by_hand(np.array(training.initial(0)), 2.0)
        np.testing.assert_allclose(personal(training), expected, **EXACT)


def test_combinations_are_the_minimum_over_the_simplex():
    """With few and many dimensions, and values of any size."""
    rng = np.random.default_rng(0)
    for trial in range(60):
        size = 1 + trial % 7
        apart = rng.normal(size=(6, size)) * 10.0 ** rng.integers(-3, 3)
        apart[0] = 0
        variance = np.abs(apart).max() ** 2 * rng.uniform(0.01, 1, size=6)
        found, expected = (
            head_weights(apart, variance),
            by_all_supports(apart, variance),
        )
        form = apart @ apart.T + np.diag(variance)
        assert found.min() >= 0 and found.sum() == pytest.approx(1)
        np.testing.assert_allclose(
            found @ form @ found, expected @ form @ expected, rtol=1e-8, atol=1e-12
        )


def test_equal_clients_share_by_precision():
    """With no bias, weights are in proportion to 1 / V_j."""
    variance = np.array([1.0, 2.0, 4.0])
    np.testing.assert_allclose(
        head_weights(np.zeros((3, 2)), variance), np.array([4, 2, 1]) / 7, **EXACT
    )


def test_far_clients_and_small_weights_do_not_count():
    apart = np.array([[0.0], [0.01], [1e3]])
    weights = head_weights(apart, np.ones(3))
    assert weights[2] == 0 and weights[:2] == pytest.approx([0.5, 0.5], abs=1e-3)
    assert head_weights(np.zeros((2, 1)), np.zeros(2)).sum() == pytest.approx(1)


def test_a_single_client_without_a_pull_is_fedrep():
    with float64():
        single = clients().only(clients().names[:1])
        ours, theirs = (
            personal(train(method, single, network(), 2))
            for method in (
                FedPAC(sgd=FULL, head=FULL, lam=0.0),
                FedRep(sgd=FULL, head=FULL),
            )
        )
        np.testing.assert_allclose(ours, theirs, **EXACT)


def test_a_newcomer_trains_a_head_on_the_shared_body():
    with float64():
        federation, net = clients(), TwoLayers()
        federation.unseen[1] = True
        training = train(FedPAC(sgd=FULL, head=FULL), federation, network(), 1)
        body = np.asarray(training.server.model[0])[~net.head]
        found = predictors(training)[0][1]
        np.testing.assert_array_equal(found[~net.head], body)
        assert (found[net.head] != np.array(training.initial(0))[net.head]).any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lam": -1.0}, "lam is -1.0"),
        ({"least": 1.0}, "least is 1.0"),
        ({"sgd": SGD(dp_noise=1.0, dp_norm=1.0)}, "fedpac.*private steps"),
    ],
)
def test_wrong_settings_are_told(arguments, message):
    with pytest.raises(ValueError, match=message):
        FedPAC(**arguments)


def test_models_without_classes_are_refused():
    regression = models.mlp(2).bind((4,), 1, loss=models.squared_error)
    with pytest.raises(ValueError, match="this model has none; choose another"):
        train(FedPAC(), clients(), regression, 0)

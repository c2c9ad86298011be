"""The density task of Mansour et al. 2020 (section 6.1, appendix F.1) and its exact
values.

100 clients, 100 symbols, D_k = 0.5 P_{k % 4} + 0.25 U + 0.25 P_{k % 96}. Losses are
expected ones, in nats: the test split of the data set is the population.
"""

from dataclasses import replace
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from conformance.problems import by_place, predictors, train
from fedtailor import models
from fedtailor.aggregation import ServerOptimizer
from fedtailor.algorithms import DAPPER, MAPPER, FedAvg, HypCluster
from fedtailor.data.datasets import density
from fedtailor.data.federation import Ragged
from fedtailor.protocol import SGD

K = np.arange(100)
D = np.full((100, 100), 0.0025)
D[K, K % 4] += 0.5
D[K, K % 96] += 0.25
"""[client, symbol]"""
MODEL = models.density().bind((0,), 100)
APART = models.from_function(
    lambda key: jax.random.normal(key, (100,)),
    lambda theta, x: jnp.broadcast_to(theta, (len(x), 100)),
).bind((0,), 100)
"""The same model from random logits: uniform ones would tie."""
MOMENTUM = ServerOptimizer("momentum", lr=1.0, momentum=0.7)
DESCENT = SGD(
    lr=6.0, steps=1, batch_size=400
)  # all data in one batch: a step of exact gradient descent


def cross_entropy(q):
    """Expected losses [100] of the clients that predict with q [100] or [100, 100]."""
    return -(D * np.log(q)).sum(axis=1)


def clustered(labels):
    """The least mean loss of a clustering: every client predicts with the mean of its
    cluster.
    """
    means = np.stack([D[labels == label].mean(axis=0) for label in labels])
    return cross_entropy(means).mean()


def optimum(q):
    """The best clustering into q unions of the four groups."""
    return min(
        clustered(np.array(unions)[K % 4]) for unions in product(range(q), repeat=4)
    )


def population():
    """Clients that train on the whole population."""
    federation = density(samples=1)
    return replace(federation, train=federation.test, test=Ragged.empty(100))


def distributions(training):
    """What the clients predict [100, 100]."""
    return np.asarray(jax.nn.softmax(predictors(training)[0].astype(np.float64)))


def losses(training):
    training.evaluate()
    return training.metrics.values("loss")


def test_the_floor_is_the_entropy():
    assert cross_entropy(D).mean() == pytest.approx(2.12, abs=0.005)


def test_the_test_split_is_the_population():
    federation = density(samples=10)
    for k in (0, 3, 50, 99):
        np.testing.assert_allclose(
            np.bincount(federation.client(k).test.y, minlength=100) / 400, D[k]
        )


@pytest.mark.parametrize(
    ("q", "value", "start"),
    [(1, 3.57, "random"), (2, 3.17, "random"), (4, 2.74, "farthest")],
)
def test_hypcluster_on_the_population_reaches_the_best_clustering(q, value, start):
    """From these starts (others may end in a clustering that is stable and worse)."""
    assert optimum(q) == pytest.approx(value, abs=0.005)
    algorithm = HypCluster(sgd=DESCENT, clusters=q, start=start, optimizer=MOMENTUM)
    training = train(algorithm, population(), APART, q + 40)
    assert cross_entropy(distributions(training)).mean() == pytest.approx(
        optimum(q), abs=0.004
    )
    if q > 1:
        assert clustered(by_place(training, training.server.cluster)) == pytest.approx(
            optimum(q)
        )


@pytest.mark.parametrize(
    ("samples", "rounds", "value", "error"),
    [(10, 160, 3.73, 0.12), (100, 40, 3.57, 0.01), (1000, 40, 3.57, 0.005)],
)
def test_one_global_model_of_finite_samples(samples, rounds, value, error):
    """Of ten samples a client some symbols are never drawn; the value depends on how
    far descent goes towards 0.
    """
    descent = replace(DESCENT, batch_size=samples)
    training = train(
        FedAvg(sgd=descent, optimizer=MOMENTUM), density(samples), MODEL, rounds
    )
    assert losses(training).mean() == pytest.approx(value, abs=error)


@pytest.mark.parametrize(
    ("samples", "fit", "worse"),
    [
        (100, SGD(lr=4.0, epochs=12, batch_size=50), 0.05),
        (1000, SGD(lr=2.0, epochs=4, batch_size=100), 0.015),
    ],
)
def test_mapper_comes_close_to_the_floor(samples, fit, worse):
    """It finds D_k: the global model becomes the uniform part, the local one the two
    peaks, lambda about 3/4.
    """
    algorithm = MAPPER(
        sgd=SGD(lr=4.0, epochs=4, batch_size=50), fit=fit, optimizer=ServerOptimizer()
    )
    training = train(algorithm, density(samples), MODEL, 2)
    floor = cross_entropy(D).mean()
    assert floor < losses(training).mean() < floor + worse
    np.testing.assert_allclose(
        jax.nn.softmax(training.server.model[0]), 0.01, atol=0.002
    )


def test_dapper_is_as_good_as_the_best_interpolation():
    """Mixtures of a client's frequencies and the population's, lambda chosen by an
    oracle, have 2.35 at 100 samples (and 2.19 at 1000); steps that stop early are a
    little better."""
    value = {}
    for samples in (100, 1000):
        clients = (density(samples).client(k).train.y for k in K)
        own = np.stack([np.bincount(y, minlength=100) / samples for y in clients])
        mixtures = [
            cross_entropy(lam * own + (1 - lam) * D.mean(axis=0))
            for lam in np.linspace(0, 0.99, 100)
        ]
        value[samples] = np.min(mixtures, axis=0).mean()
    assert value == pytest.approx({100: 2.35, 1000: 2.19}, abs=0.01)
    algorithm = DAPPER(
        tune=SGD(lr=4.0, epochs=60, batch_size=100), cover=(0.25, 0.5, 0.75)
    )
    training = train(algorithm, density(100), MODEL, 0)
    assert cross_entropy(D).mean() < losses(training).mean() < value[100] + 0.02

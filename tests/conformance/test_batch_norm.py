"""MOON, FedRoD and FedDBE, which train through features, on a model with batch
normalisation.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from conformance.normal import normal
from conformance.problems import (
    EXACT,
    classification,
    float64,
    personal,
    predictors,
    train,
)
from fedtailor.algorithms import MOON, FedAvg, FedDBE, FedRoD
from fedtailor.protocol import SGD

PLAIN = SGD(lr=0.1, epochs=2, batch_size=8, weight_decay=0.01)
FULL = SGD(lr=0.1, steps=2, batch_size=64)
UNSEEN = np.array([False, True, False, False, False])


@pytest.mark.parametrize(
    "algorithm",
    [
        FedRoD(sgd=PLAIN, gamma=0),
        FedDBE(sgd=PLAIN, kappa=0, vector=False),
        MOON(sgd=PLAIN, mu=1e-300),
    ],
    ids=lambda algorithm: algorithm.about.name,
)
def test_the_limit_is_fedavg_statistics_included(algorithm):
    """Clients of padded batches; weight decay must leave the statistics alone."""
    with float64():
        ours, expected = (
            train(it, classification(), normal(), 2).server.model
            for it in (algorithm, FedAvg(sgd=PLAIN))
        )
        np.testing.assert_allclose(ours, expected, **EXACT)
        statistics = normal().statistics.take(np.asarray(ours))
        assert (
            statistics
            != normal().statistics.take(np.asarray(normal().init(jax.random.key(0))))
        ).all()


def test_moons_contrast_compares_training_features_with_those_of_evaluation():
    """Two clients, two rounds by hand; the released code calls `eval()` on both other
    models.
    """
    with float64():
        federation, model = classification(clients=2, sizes=[12, 20]), normal()
        training = train(MOON(sgd=FULL, mu=2.0, tau=0.3), federation, model, 2)
        theta = training.initial(0)
        previous = [theta, theta]

        def cosine(a, b):
            return (
                (a * b).sum(1) / jnp.linalg.norm(a, axis=1) / jnp.linalg.norm(b, axis=1)
            )

        def loss(theta, x, y, others):
            weight = jnp.ones(len(x))
            z = model.train_features(model.params(theta), x, weight)
            near, far = (cosine(z, model.features(other, x)) / 0.3 for other in others)
            outputs, renewed = model.train_outputs(model.params(theta), x, weight)
            return (
                model.losses(outputs, y) + 2 * jnp.logaddexp(0, far - near)
            ).mean(), model.vector(renewed)

        gradient = jax.jit(jax.grad(loss, has_aux=True))
        for _ in range(2):
            for i in range(2):
                x, y = map(jnp.asarray, federation.client(i).train)
                own = theta
                for _ in range(2):
                    g, renewed = gradient(own, x, y, (theta, previous[i]))
                    own = model.statistics.put(
                        own - 0.1 * g, model.statistics.take(renewed)
                    )
                previous[i] = own
            theta = (12 * previous[0] + 20 * previous[1]) / 32
        np.testing.assert_allclose(training.server.model[0], theta, **EXACT)


def test_feddbe_draws_training_features_to_the_mean_of_training_features():
    """Of one client with one batch the mean is its own, so that nothing pulls in the
    first step.
    """
    with float64():
        alone, sgd = classification(clients=1), SGD(lr=0.1, steps=1, batch_size=64)
        ours, expected = (
            train(it, alone, normal(), 1).server.model
            for it in (FedDBE(sgd=sgd, kappa=5.0, vector=False), FedAvg(sgd=sgd))
        )
        np.testing.assert_allclose(ours, expected, **EXACT)


def test_a_newcomer_of_feddbe_leaves_statistics_as_they_are():
    with float64():
        training = train(FedDBE(sgd=PLAIN), classification(unseen=UNSEEN), normal(), 2)
        statistics = normal().statistics
        found, shared = (
            predictors(training)[0],
            statistics.take(np.asarray(training.server.model)),
        )
        np.testing.assert_array_equal(statistics.take(found), np.tile(shared, (5, 1)))


def test_fedrods_residual_heads_learn_and_share_the_statistics():
    with float64():
        training = train(FedRoD(sgd=PLAIN), classification(), normal(), 2)
        head, found = normal().part("head"), personal(training)
        rest = head.complement.take(found)
        np.testing.assert_array_equal(rest, np.tile(rest[:1], (5, 1)))
        assert len(np.unique(head.take(found), axis=0)) == 5

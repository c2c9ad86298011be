"""Batch normalisation: running statistics are averaged and never optimised, batches have
two rows, and MOON, FedRoD and FedDBE train through features.
"""

from dataclasses import replace

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
from fedtailor.aggregation import ServerOptimizer
from fedtailor.aggregation.pipelines import Quantize, TopK
from fedtailor.algorithms import MOON, FedAdam, FedAvg, FedDBE, FedDyn, FedRoD
from fedtailor.engine.runs import simulate
from fedtailor.engine.training.single_rows import _say
from fedtailor.protocol import SGD, Diverged, drive

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


def test_a_last_batch_of_one_row_is_left_out_of_the_epoch(caplog):
    """PyTorch refuses it: there is no variance of one row. Of 17 rows in batches of 8 an
    epoch has two steps; 16 of the rows are those of the permutation.
    """
    sgd = SGD(lr=0.1, batch_size=8)
    _say.cache_clear()
    with float64():
        odd = classification(clients=2, sizes=[17, 16])
        ours, expected = (
            train(FedAvg(sgd=it), odd, normal(), 2).server.model
            for it in (sgd, replace(sgd, drop_last=True))
        )
        np.testing.assert_array_equal(ours, expected)
    assert "1 of 2 clients would have a last batch of one row" in caplog.text


def test_a_client_with_one_row_does_not_train(caplog):
    _say.cache_clear()
    with float64():
        alone = classification(clients=2, sizes=[1, 16])
        training = train(FedAvg(sgd=PLAIN), alone, normal(), 0)
        received = np.asarray(training.server.model)
        training.advance(np.array([True, False]))
        np.testing.assert_array_equal(training.server.model, received)
    assert "clients with one do not train: client 0" in caplog.text


@pytest.mark.parametrize(
    "algorithm",
    [FedAdam(sgd=PLAIN, optimizer=ServerOptimizer("adam", lr=5.0)), FedDyn(sgd=FULL)],
    ids=["fedadam", "feddyn"],
)
def test_servers_average_statistics_whatever_their_step(algorithm):
    with float64():
        clients = classification(clients=2, sizes=[16, 16])
        training = train(algorithm, clients, normal(), 1)
        expected = train(FedAvg(sgd=algorithm.sgd), clients, normal(), 1)
        part = normal().statistics
        averaged = part.take(np.asarray(expected.server.model))
        np.testing.assert_allclose(
            part.take(np.asarray(training.server.model)), averaged, **EXACT
        )
        assert np.abs(training.server.model - expected.server.model).max() > 0.01


def test_what_is_not_sent_of_statistics_is_not_sent_later():
    """The memory of top-k would take from a running variance what it has fallen by
    already.
    """
    with float64():
        training = simulate(
            FedAvg(sgd=PLAIN), classification(), normal(), uplink=(TopK(0.1),)
        )
        training.advance()
        (memory,) = map(np.asarray, jax.tree.leaves(training.executor.states.rows[1]))
        assert not normal().statistics.take(memory).any()
        assert normal().statistics.complement.take(memory).any()


def test_a_divergence_names_the_variance_that_is_negative():
    with float64():
        clients = classification()
        training = train(FedAvg(sgd=PLAIN), clients, normal(), 1)
        model = np.array(training.server.model)
        model[:, normal().statistics.indices] = -1.0
        training.server = training.server.replace(model=jnp.asarray(model))
        with pytest.raises(Diverged, match=r"running variance layers\.1\.running_var"):
            drive(training.evaluation(), training.executor)


@pytest.mark.parametrize(
    "uplink", [(Quantize(),), (TopK(0.9), Quantize())], ids=["all", "after top-k"]
)
def test_rounding_to_integers_leaves_variances_above_0(uplink):
    """Inputs of .001, whose variances fall below the steps of the integers."""
    federation = classification()
    federation = replace(federation, x=federation.x * 1e-3)
    method = FedAvg(sgd=SGD(lr=0.1, steps=20, batch_size=64))
    with float64():
        training = simulate(method, federation, normal(), uplink=uplink)
        for _ in range(5):
            training.advance()
        model = np.asarray(training.server.model[0])
    assert normal().negative_variance(model) is None


def test_batches_of_one_row_are_refused():
    with pytest.raises(
        ValueError, match="batch_size 1, and batch normalisation has no"
    ):
        train(FedAvg(sgd=SGD(batch_size=1)), classification(), normal(), 0)

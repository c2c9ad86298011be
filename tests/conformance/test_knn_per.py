"""kNN-Per: its limits, scikit-learn's neighbours, the choice of lambda, newcomers."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier

from conformance.problems import (
    EXACT,
    classification,
    float64,
    predictors,
    quadratic_model,
    quadratics,
    served_to,
    train,
)
from fedtailor import models
from fedtailor.algorithms import FedAvg, KNNPer
from fedtailor.algorithms.knn_per import NearestNeighbors
from fedtailor.engine.client.losses import outputs
from fedtailor.protocol import SGD, Batch

TRAINED = SGD(lr=0.1, momentum=0.9, epochs=2, batch_size=8)
UNSEEN = np.array([False, True, False, False, False])
ALL_CLASSES = [20, 30, 40, 70, 80]
LESS_THAN_A_BLOCK = [20, 30, 31, 25, 28]


def mlp():
    return models.mlp(5).bind((4,), 3, dtype="float64")


def served(algorithm, federation, rounds=2):
    """A training and what each of its clients predicts with, by place in the
    federation.
    """
    training = train(algorithm, federation, mlp(), rounds)
    return training, served_to(training, federation.names)


def test_with_lambda_0_it_is_the_base_model():
    with float64():
        federation = classification()
        training, found = served(KNNPer(sgd=TRAINED, lam=0.0), federation)
        base = train(FedAvg(sgd=TRAINED), federation, mlp(), 2)
        np.testing.assert_array_equal(training.server.model, base.server.model)
        for i, predictor in enumerate(found):
            x, _ = federation.client(i).test
            expected = jax.nn.log_softmax(
                mlp().logits(mlp().params(base.server.model[0]), jnp.asarray(x))
            )
            np.testing.assert_allclose(
                outputs(mlp(), predictor)(jnp.asarray(x)), expected, **EXACT
            )


@pytest.mark.parametrize(
    "k, scale, sizes",
    [
        (10, 1.0, ALL_CLASSES),
        (3, 0.5, ALL_CLASSES),
        (500, 2.0, ALL_CLASSES),
        (3, 0.5, LESS_THAN_A_BLOCK),
    ],
)
def test_with_lambda_1_it_is_scikit_learns_neighbours(k, scale, sizes):
    """On clients of one block, of several, and of less; with more neighbours than
    samples, all of them.
    """
    with float64():
        federation, model = classification(sizes=sizes), mlp()
        training, found = served(
            KNNPer(sgd=TRAINED, lam=1.0, k=k, scale=scale), federation
        )
        theta = training.server.model[0]
        for i, predictor in enumerate(found):
            (x, y), (test, _) = federation.client(i).train, federation.client(i).test
            z, z_test = (
                np.asarray(model.features(theta, jnp.asarray(it))) for it in (x, test)
            )
            judge = KNeighborsClassifier(
                min(k, len(y)), weights=lambda d: np.exp(-d / scale), algorithm="brute"
            )
            expected = np.zeros((len(test), 3))
            expected[:, np.unique(y)] = judge.fit(z, y).predict_proba(z_test)
            np.testing.assert_allclose(
                np.exp(outputs(model, predictor)(jnp.asarray(test))), expected, **EXACT
            )


@pytest.mark.parametrize("logits", [False, True])
def test_the_nearest_of_the_held_examples_vote(logits):
    """By loops over examples; rows of padding are as near as can be."""
    rng = np.random.default_rng(0)
    features, z = rng.normal(size=(40, 3)), rng.normal(size=(20, 3))
    features[30:] = z[:10]
    labels, held = rng.integers(0, 3, 40), np.arange(40) < 30
    scores = rng.normal(size=(20, 3))
    votes = np.zeros((20, 3))
    for row, one in zip(votes, z, strict=True):
        distances = np.linalg.norm(features[held] - one, axis=1)
        for neighbor in np.argsort(distances)[:4]:
            row[labels[neighbor]] += np.exp(-distances[neighbor] / 0.5)
    expected = votes / votes.sum(axis=1, keepdims=True)
    with float64():
        predictor = NearestNeighbors(
            model=jnp.zeros(1),
            features=jnp.asarray(features),
            labels=jnp.asarray(labels),
            held=jnp.asarray(held),
            share=jnp.asarray(0.3),
            scale=jnp.asarray(0.5),
            k=4,
            logits=logits,
        )
        found = predictor.probabilities(jnp.asarray(z), 3)
        np.testing.assert_allclose(found, expected, **EXACT)
        mixed = predictor.combine(found, jnp.asarray(scores), predictor.share)
        if logits:
            expected = 0.3 * expected + 0.7 * scores
        else:
            shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
            expected = np.log(0.3 * expected + 0.7 * shares)
        np.testing.assert_allclose(mixed, expected, **EXACT)


def test_probabilities_are_mixed_or_logits():
    with float64():
        federation, model = classification(), mlp()
        for mix in ("probabilities", "logits"):
            _, (predictor, *_) = served(
                KNNPer(sgd=TRAINED, lam=0.3, mix=mix), federation
            )
            x = jnp.asarray(federation.client(0).test[0])
            theta = predictor.model
            neighbors = predictor.probabilities(model.features(theta, x), 3)
            logits = model.logits(model.params(theta), x)
            expected = jnp.log(0.3 * neighbors + 0.7 * jax.nn.softmax(logits))
            expected = (
                expected if mix == "probabilities" else 0.3 * neighbors + 0.7 * logits
            )
            np.testing.assert_allclose(outputs(model, predictor)(x), expected, **EXACT)


def test_lambda_is_the_best_on_validation_samples():
    with float64():
        federation, model = classification(sizes=ALL_CLASSES, val=20), mlp()
        _, found = served(KNNPer(sgd=TRAINED), federation)
        shares = []
        for i, predictor in enumerate(found):
            x, y = map(jnp.asarray, federation.client(i).val)
            neighbors = np.asarray(
                predictor.probabilities(model.features(predictor.model, x), 3)
            )
            p = np.asarray(
                jax.nn.softmax(model.logits(model.params(predictor.model), x))
            )
            grid = np.linspace(0, 1, 11)
            mixed = np.array([lam * neighbors + (1 - lam) * p for lam in grid])[
                :, np.arange(len(y)), y
            ]
            losses = -np.log(np.maximum(mixed, np.finfo(float).tiny)).mean(axis=1)
            assert predictor.share == pytest.approx(grid[losses.argmin()])
            shares.append(float(predictor.share))
        assert len(set(shares)) > 1


def test_of_shares_with_equal_losses_the_smallest_is_taken():
    """Losses that do not depend on lambda, or on the upper half of the grid only."""

    def best(loss_of):
        batch = Batch(jnp.zeros((2, 3)), jnp.zeros(2), jnp.ones(2))
        local = SimpleNamespace(
            count_work=lambda **work: None,
            features=lambda params, x, training: x,
            head_outputs=lambda params, z: z,
            losses=lambda lam, y, weight: jnp.full(2, loss_of(lam)),
            count=lambda split: 2,
            loop=lambda carry, body, steps, size, **options: body(
                carry, batch, jnp.int32(0)
            ),
        )
        predictor = SimpleNamespace(
            model=jnp.zeros(1),
            probabilities=lambda z, classes: z,
            combine=lambda neighbors, outputs, lam: lam,
        )
        return float(KNNPer()._best_share(predictor, None, local))

    assert best(lambda lam: 1.0) == 0.0
    assert best(lambda lam: jnp.where(lam > 0.45, 0.3, 1.0)) == pytest.approx(0.5)
    assert best(lambda lam: 1.0 - lam) == 1.0


def test_clients_without_validation_samples_take_the_share_that_is_set():
    with float64():
        _, found = served(
            KNNPer(sgd=TRAINED, lam_without_validation=0.2), classification(val=0)
        )
        assert [float(it.share) for it in found] == [0.2] * 5


def test_no_more_is_stored_than_the_capacity_and_all_of_it_are_own_samples():
    with float64():
        federation, model = classification(sizes=ALL_CLASSES), mlp()
        _, found = served(KNNPer(sgd=TRAINED, capacity=50), federation)
        for i, predictor in enumerate(found):
            x, y = federation.client(i).train
            assert predictor.held.sum() == min(len(y), 50)
            own = np.column_stack([model.features(predictor.model, jnp.asarray(x)), y])
            stored = np.column_stack([predictor.features, predictor.labels])[
                np.asarray(predictor.held)
            ]
            nearest = np.abs(stored[:, None] - own).max(axis=2)
            assert nearest.min(axis=1).max() < 1e-12
            assert len(np.unique(nearest.argmin(axis=1))) == len(stored)


def test_newcomers_are_served_as_everybody_and_evaluation_is_finite():
    with float64():
        federation = classification(unseen=UNSEEN)
        training, found = served(KNNPer(sgd=TRAINED, lam=1.0), federation)
        np.testing.assert_array_equal(found[1].model, training.server.model[0])
        assert found[1].held.sum() == len(federation.train[1])
        training.evaluate()
        assert np.isfinite(training.metrics.values("loss", unseen=True)).all()
        assert all(np.isfinite(leaf).all() for leaf in predictors(training))


def test_wrong_settings_and_models_are_refused():
    for wrong in (
        {"k": 0},
        {"scale": 0.0},
        {"lam": 1.5},
        {"lam_without_validation": -1.0},
        {"capacity": 0},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            KNNPer(**wrong)
    with float64(), pytest.raises(ValueError, match="'head' is nothing of this model"):
        train(KNNPer(), quadratics([0.0, 1.0]), quadratic_model(2), 0)

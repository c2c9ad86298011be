"""Weights of rows in training: twice the weight is the row twice."""

from dataclasses import fields, replace

import jax
import numpy as np
import pytest

from conformance.examples import example
from fedtailor.algorithms import APFL, SCAFFOLD, Ditto, FedAvg, FineTune, SelfFL
from fedtailor.data.federation import Ragged
from fedtailor.protocol import SGD, Algorithm
from fedtailor.testing import classification, predictors, softmax_model, train
from fedtailor.testing.problems import EXACT, float64

WHOLE = SGD(lr=0.1, steps=3, batch_size=4096, ridge=1.0)
METHODS = [
    FedAvg(sgd=WHOLE),
    Ditto(sgd=WHOLE, lam=0.5, weights="samples"),
    APFL(sgd=WHOLE),
    SCAFFOLD(sgd=WHOLE, weights="samples"),
]


def name_of(algorithm):
    return algorithm.about.name


def repeated(federation, counts):
    """The federation with each row as often as `counts` [N] says."""
    ends = np.cumsum(counts)
    splits = {}
    for split in ("train", "val", "test"):
        parts = getattr(federation, split)
        splits[split] = Ragged.of(
            [
                np.concatenate(
                    [np.arange(ends[row] - counts[row], ends[row]) for row in rows]
                )
                for rows in (parts[client] for client in range(len(federation)))
            ]
        )
    rows = np.repeat(np.arange(len(counts)), counts)
    return replace(federation, x=federation.x[rows], y=federation.y[rows], **splits)


def models_of(algorithm, federation, rounds=2):
    with float64():
        training = train(algorithm, federation, softmax_model(), rounds)
        leaves = jax.tree.leaves(predictors(training))
    return np.concatenate([np.ravel(leaf) for leaf in leaves])


def counts_of(federation):
    return np.random.default_rng(3).integers(0, 4, len(federation.x))


@pytest.mark.parametrize("algorithm", METHODS, ids=name_of)
def test_twice_the_weight_is_the_row_twice(algorithm):
    federation = classification()
    counts = counts_of(federation)
    weighted = models_of(algorithm, replace(federation, weights=counts.astype(float)))
    np.testing.assert_allclose(
        weighted, models_of(algorithm, repeated(federation, counts)), **EXACT
    )
    assert np.abs(weighted - models_of(algorithm, federation)).max() > 1e-3


@pytest.mark.parametrize("algorithm", METHODS, ids=name_of)
def test_weights_of_one_change_no_bit(algorithm):
    federation = classification()
    ones = replace(federation, weights=np.ones(len(federation.x)))
    np.testing.assert_array_equal(
        models_of(algorithm, ones), models_of(algorithm, federation)
    )


def test_only_ratios_of_weights_matter_to_means():
    # Sums of weights far below 1, too, are what means divide by.
    federation = classification()
    weights = counts_of(federation) * 1.0
    algorithm = FedAvg(sgd=replace(WHOLE, ridge=None))
    first = models_of(algorithm, replace(federation, weights=weights))
    for factor in (2.0, 2.0**-10):
        other = models_of(algorithm, replace(federation, weights=factor * weights))
        np.testing.assert_array_equal(other, first)
    third = models_of(algorithm, replace(federation, weights=weights / 3))
    np.testing.assert_allclose(third, first, **EXACT)


def test_class_weights_are_weights_of_training_rows():
    federation = classification()
    of_classes = (1.0, 3.0, 0.5)
    by_row = np.asarray(of_classes)[federation.y]
    np.testing.assert_array_equal(
        models_of(METHODS[0], replace(federation, class_weights=of_classes)),
        models_of(METHODS[0], replace(federation, weights=by_row)),
    )


def evaluated(federation):
    with float64():
        plain = FedAvg(sgd=replace(WHOLE, ridge=None))
        training = train(plain, federation, softmax_model(), 1)
        training.evaluate()
    return {(it.split, it.metric): it.values for it in training.metrics.evaluations}


def test_metrics_are_weighted_by_rows_and_not_by_classes():
    federation = classification()
    counts = counts_of(federation)
    weighted = evaluated(replace(federation, weights=counts.astype(float)))
    expected = evaluated(repeated(federation, counts))
    for key, values in expected.items():
        np.testing.assert_allclose(weighted[key], values, **EXACT)
    # The same model for all classes weighed the same.
    alike = evaluated(replace(federation, class_weights=(2.0, 2.0, 2.0)))
    for key, values in evaluated(federation).items():
        np.testing.assert_allclose(alike[key], values, **EXACT)


def test_the_steps_of_self_fl_follow_from_weights():
    # Variances of models, and with them the steps, are known after some rounds.
    federation = classification()
    counts = 1 + 3 * counts_of(federation)
    algorithm = SelfFL(sgd=WHOLE, curvature="fisher", l_max=200)
    weighted = replace(federation, weights=counts.astype(float))
    np.testing.assert_allclose(
        models_of(algorithm, weighted, rounds=6),
        models_of(algorithm, repeated(federation, counts), rounds=6),
        **EXACT,
    )


def test_the_best_round_is_that_of_weighted_validation_losses():
    federation = classification()
    counts = counts_of(federation)
    losses = []
    for given in (
        replace(federation, weights=counts.astype(float)),
        repeated(federation, counts),
        federation,
    ):
        with float64():
            best = FineTune(sgd=WHOLE, best=True)
            losses.append(train(best, given, softmax_model(), 3).server.loss)
    np.testing.assert_allclose(losses[0], losses[1], **EXACT)
    assert abs(losses[0] - losses[2]) > 1e-3


COUNTING = [
    "ccvr",
    "dapper",
    "fedala",
    "fedas",
    "fedfomo",
    "knn-per",
    "mapper",
    "ucfl",
    "ucfl-parallel",
]


@pytest.mark.parametrize("name", COUNTING)
def test_a_method_that_counts_rows_is_refused(name):
    weighted = replace(classification(), class_weights=(1.0, 2.0, 3.0))
    with float64(), pytest.raises(ValueError, match=f"{name} counts rows and takes no"):
        train(example(name), weighted, softmax_model(), 1)


def test_private_steps_are_refused():
    weighted = replace(classification(), class_weights=(1.0, 2.0, 3.0))
    private = FedAvg(sgd=replace(WHOLE, ridge=None, dp_noise=1.0, dp_norm=1.0))
    with float64(), pytest.raises(ValueError, match="leave out weights"):
        train(private, weighted, softmax_model(), 1)


def full_batch(algorithm):
    """The method with steps on all rows."""
    changes = {
        field.name: replace(getattr(algorithm, field.name), batch_size=4096)
        for field in fields(algorithm)
        if isinstance(getattr(algorithm, field.name), SGD)
    }
    return replace(algorithm, **changes)


TAKING = sorted(name for name in Algorithm.registry if example(name).takes_weights)


@pytest.mark.repeated
@pytest.mark.parametrize("name", TAKING)
def test_every_method_that_takes_weights_is_right(name):
    federation = classification(groups=np.array([0, 1, 0, 1, 1]))
    counts = np.random.default_rng(3).integers(1, 4, len(federation.x))
    algorithm = full_batch(example(name))
    weighted = models_of(algorithm, replace(federation, weights=counts.astype(float)))
    np.testing.assert_allclose(
        weighted, models_of(algorithm, repeated(federation, counts)), **EXACT
    )

"""PACFL: singular vectors on the client, angles, clusters of rotated digits, and FedAvg
inside clusters.
"""

from dataclasses import replace

import numpy as np
import pytest

from conformance.problems import (
    EXACT,
    by_place,
    classification,
    float64,
    predictors,
    quadratic_model,
    quadratics,
    softmax_model,
    train,
)
from conformance.test_weights import repeated
from fedtailor import models
from fedtailor.aggregation.accounting import Ledger
from fedtailor.algorithms import PACFL, FedAvg, Oracle
from fedtailor.algorithms.helpers.subspaces import principal_angles
from fedtailor.data.federation import Ragged
from fedtailor.lab.scenarios.digits import digits_rotated
from fedtailor.protocol import SGD

PLAIN = SGD(lr=0.1, epochs=2, batch_size=8)


def subspaces(features=12, unseen=None, sizes=(20, 26, 32, 38)):
    """Clients 0 and 2 have inputs near one pair of planes (for classes 0 and 1),
    clients 1 and 3 near another. Nobody has class 2."""
    rng = np.random.default_rng(5)
    planes = np.linalg.qr(rng.normal(size=(4, features, 3)))[0].transpose(0, 2, 1)
    base = classification(
        clients=4, sizes=list(sizes), unseen=unseen, groups=[0, 1, 0, 1]
    )
    x, y = np.zeros((len(base.y), features)), np.zeros(len(base.y), np.int64)
    for client in range(4):
        for split in ("train", "val", "test"):
            rows = getattr(base, split)[client]
            y[rows] = rng.integers(0, 2, len(rows))
            of = planes[2 * (client % 2) + y[rows]]
            strength = rng.normal(size=(len(rows), 3)) * [8.0, 4.0, 2.0]
            x[rows] = np.einsum("np,npf->nf", strength, of) + 0.4 * rng.normal(
                size=(len(rows), features)
            )
    return replace(base, x=x, y=y, public=None)


def softmax(features=12):
    return models.logistic().bind((features,), 3, dtype="float64")


def angle_between(u, v):
    """Mean principal angle in degrees, from the definition."""
    return np.degrees(np.arccos(np.clip(np.linalg.svd(u @ v.T)[1], 0, 1))).mean()


def test_bases_are_the_singular_vectors_of_each_class():
    with float64():
        data = subspaces()
        training = train(PACFL(sgd=PLAIN, clusters=2), data, softmax(), 0)
        bases = by_place(training, training.server.bases)
        assert bases.shape == (4, 3, 3, 12)
        for client in range(4):
            own = data.client(client).train
            for label in (0, 1):
                _, _, expected = np.linalg.svd(
                    np.asarray(own.x)[np.asarray(own.y) == label], full_matrices=False
                )
                cosines = np.abs((bases[client, label] * expected[:3]).sum(axis=1))
                np.testing.assert_allclose(cosines, 1.0, **EXACT)
            np.testing.assert_array_equal(bases[client, 2], 0.0)


def test_twice_the_weight_is_the_row_twice():
    with float64():
        data = subspaces()
        counts = np.random.default_rng(3).integers(1, 4, len(data.x))
        bases = [
            by_place(training, training.server.bases)
            for training in (
                train(PACFL(sgd=PLAIN, clusters=2), clients, softmax(), 0)
                for clients in (
                    replace(data, weights=counts.astype(float)),
                    repeated(data, counts),
                )
            )
        ]
        cosines = np.abs((bases[0] * bases[1]).sum(axis=-1))[:, :2]
        np.testing.assert_allclose(cosines, 1.0, **EXACT)


@pytest.mark.parametrize(
    ("vectors", "rows", "sends"),
    [(3, 4, False), (3, 5, True), (5, 5, False), (5, 6, True), (1, 4, False)],
)
def test_a_small_class_sends_no_directions(vectors, rows, sends):
    """The direction of a class of one row is this row, and four have four directions."""
    with float64():
        data = subspaces()
        y = np.array(data.y)
        y[data.train[0]] = np.where(np.arange(len(data.train[0])) < rows, 1, 0)
        y[data.train[2]] = np.arange(len(data.train[2])) % 10  # four of a class at most
        data = replace(data, y=y, classes=10)
        model = models.logistic().bind((12,), 10, dtype="float64")
        method = PACFL(sgd=PLAIN, clusters=2, vectors=vectors)
        training = train(method, data, model, 1)
        bases = by_place(training, training.server.bases)
        found = (bases != 0).any(axis=-1).sum(axis=-1)
        assert found[0, :2].tolist() == [vectors, vectors if sends else 0]
        # A client without directions is as far from all others as can be.
        assert not found[2].any()
        angles = training.server.angles
        place = np.flatnonzero(~(training.server.bases != 0).any(axis=(1, 2, 3)))
        np.testing.assert_array_equal(angles[place], 90.0)


def test_angles_are_the_mean_over_shared_classes():
    with float64():
        training = train(PACFL(sgd=PLAIN, clusters=2), subspaces(), softmax(), 0)
        bases, angles = training.server.bases, training.server.angles
        for i in range(4):
            for j in range(4):
                if i != j:
                    expected = np.mean(
                        [angle_between(bases[i, c], bases[j, c]) for c in (0, 1)]
                    )
                    np.testing.assert_allclose(angles[i, j], expected, **EXACT)


def test_the_smallest_angle_between_all_vectors():
    with float64():
        training = train(
            PACFL(sgd=PLAIN, clusters=2, angle="smallest"), subspaces(), softmax(), 0
        )
        spans = [
            np.linalg.qr(own.reshape(-1, 12)[:6].T)[0] for own in training.server.bases
        ]
        expected = np.degrees(
            np.arccos(np.clip(np.linalg.svd(spans[0].T @ spans[1])[1].max(), 0, 1))
        )
        np.testing.assert_allclose(
            training.server.angles[0, 1], expected, rtol=1e-6, atol=1e-5
        )


def test_clients_without_a_common_class_are_orthogonal():
    eye = np.eye(4)
    one, other = np.zeros((2, 2, 4)), np.zeros((2, 2, 4))
    one[0], other[1, :1] = eye[:2], eye[:1]
    half = np.zeros((2, 2, 4))
    half[0, 0] = [1, 0, 1, 0] / np.sqrt(2)
    found = principal_angles(one, np.stack([other, one, half]))
    np.testing.assert_allclose(np.nanmean(found, axis=1), [90.0, 0.0, 45.0], **EXACT)


def test_angles_do_not_depend_on_the_order_of_samples():
    with float64():
        data, rng = subspaces(), np.random.default_rng(0)
        mixed = replace(
            data, train=Ragged.of([rng.permutation(data.train[i]) for i in range(4)])
        )
        one, other = (
            train(PACFL(sgd=PLAIN), clients, softmax(), 0).server.angles
            for clients in (data, mixed)
        )
        np.testing.assert_allclose(
            one[~np.eye(4, dtype=bool)], other[~np.eye(4, dtype=bool)], **EXACT
        )


@pytest.mark.parametrize(
    "how", [{"clusters": 2}, {"threshold": 30.0}, {}, {"angle": "smallest"}], ids=str
)
def test_clusters_train_apart(how):
    """Two clusters are the true groups, and each runs FedAvg."""
    with float64():
        data, sgd = subspaces(), SGD(lr=0.01, epochs=2, batch_size=8)
        training = train(PACFL(sgd=sgd, **how), data, softmax(), 3)
        np.testing.assert_array_equal(
            np.sort(np.unique(training.server.cluster, return_counts=True)[1]), [2, 2]
        )
        expected = predictors(train(Oracle(sgd=sgd), data, softmax(), 3))[0]
        np.testing.assert_allclose(predictors(training)[0], expected, **EXACT)


def test_one_cluster_is_fedavg_to_the_bit():
    with float64():
        one, plain = (
            train(method, classification(), softmax_model(), 3).server.model
            for method in (PACFL(sgd=PLAIN, clusters=1), FedAvg(sgd=PLAIN))
        )
        np.testing.assert_array_equal(one, plain)


def test_newcomers_get_the_cluster_of_the_nearest_client_for_their_vectors():
    with float64():
        data = subspaces(unseen=[False, False, False, True])
        training = train(
            PACFL(sgd=SGD(lr=0.01, epochs=2, batch_size=8), threshold=30.0),
            data,
            softmax(),
            2,
        )
        found = predictors(training)[0]
        np.testing.assert_array_equal(found[3], found[1])
        assert (found[3] != found[0]).any()
        ledger = Ledger()
        training.serve(unseen=True, ledger=ledger)
        sent = [
            (entry.direction, entry.kind)
            for entry in ledger.entries
            if entry.direction != "compute"
        ]
        assert sent == [("up", "bases"), ("down", "model")]
        probe = [
            entry
            for entry in training.ledger.entries
            if entry.phase == "probe" and entry.direction == "up"
        ]
        assert [entry.bytes_unicast for entry in probe] == [
            3 * 3 * 3 * 12 * 8
        ]  # 3 clients, classes and vectors


@pytest.mark.parametrize("seed", range(5))
def test_groups_of_rotated_digits_are_found(seed):
    data = digits_rotated(seed)
    training = train(PACFL(), data, models.logistic().bind((8, 8), 10), 0)
    groups = training.population.groups
    pairs = {
        (int(group), int(label))
        for group, label in zip(groups, training.server.cluster, strict=True)
    }
    assert len(pairs) == len(training.server.model) == 4


def test_errors():
    with float64():
        with pytest.raises(
            ValueError, match=r"these data have none that are real numbers"
        ):
            train(PACFL(), quadratics(np.zeros((4, 2))), quadratic_model(2), 1)
        with pytest.raises(
            ValueError,
            match=r"clusters is 9, and there are 5 clients; ask for at most as many",
        ):
            train(PACFL(clusters=9), classification(), softmax_model(), 0)
    with pytest.raises(ValueError, match=r"leave one of them out"):
        PACFL(clusters=2, threshold=10)
    for wrong in (
        {"vectors": 0},
        {"clusters": 0},
        {"threshold": 91},
        {"angle": "largest"},
        {"linkage": "ward"},
    ):
        with pytest.raises(ValueError, match=rf"{next(iter(wrong))} is "):
            PACFL(**wrong)

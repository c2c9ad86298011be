"""HypCluster and IFCA: choices, reductions, closed forms, starts, frozen clusters,
newcomers.
"""

from dataclasses import replace

import numpy as np
import pytest

from conformance.problems import (
    EXACT,
    by_place,
    classification,
    float64,
    personal,
    predictors,
    quadratic_model,
    quadratics,
    shifted,
    softmax_model,
    train,
)
from fedtailor.aggregation import ServerOptimizer
from fedtailor.algorithms import IFCA, FedAvg, FedAvgM, HypCluster, Local
from fedtailor.engine.training import Participation
from fedtailor.protocol import SGD

TRAINED = SGD(lr=0.1, momentum=0.9, epochs=2, batch_size=8)
PLAIN = ServerOptimizer()
SIZES = np.array([3, 8, 13, 18])
A = np.array([0.5, 1.0, 2.0, 3.0])
a = np.array([-1.0, 6.0, -2.0, 5.0])
GROUPS = np.array([0, 1, 0, 1])
LR, STEPS = 0.2, 3
STEPPED = SGD(lr=LR, steps=STEPS, batch_size=8)
M = 1 - (1 - LR * A) ** STEPS
EXACT_STEP = SGD(
    lr=1.0, steps=1, batch_size=8
)  # of a quadratic of curvature 1: the client's optimum
"""A cluster's mean is then the exact minimiser of the cluster's loss."""


def choices(training):
    """The last choice of every client, in the federation's order."""
    return by_place(training, training.server.cluster)


def centres(training):
    return np.asarray(training.server.model)[:, 0]


# reductions
# --------------------------------------------------------------------------------------


def test_one_cluster_is_fedavgm_bit_for_bit():
    with float64():
        federation, model = classification(), softmax_model()
        one = train(HypCluster(sgd=TRAINED, clusters=1), federation, model, 3)
        np.testing.assert_array_equal(
            personal(one), personal(train(FedAvgM(sgd=TRAINED), federation, model, 3))
        )
        assert (
            one.ledger.totals()
            == train(FedAvgM(sgd=TRAINED), federation, model, 3).ledger.totals()
        )


def test_of_equal_models_the_first_is_fedavg_and_the_others_stay():
    with float64():
        federation, model = (
            quadratics(a, A, SIZES),
            quadratic_model(1),
        )  # all initial models are 0
        training = train(
            HypCluster(sgd=STEPPED, clusters=3, optimizer=PLAIN), federation, model, 1
        )
        fedavg = train(FedAvg(sgd=STEPPED), federation, model, 1)
        np.testing.assert_array_equal(centres(training)[0], centres(fedavg)[0])
        np.testing.assert_array_equal(centres(training)[1:], 0)
        assert (choices(training) == 0).all()


def test_ifca_is_hypcluster_with_equal_weights():
    with float64():
        federation, model = classification(), softmax_model()
        ifca = train(IFCA(sgd=TRAINED, clusters=2), federation, model, 3)
        uniform = HypCluster(
            sgd=TRAINED, clusters=2, weights="uniform", optimizer=PLAIN
        )
        np.testing.assert_array_equal(
            personal(ifca), personal(train(uniform, federation, model, 3))
        )


# fixed points
# --------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", ["samples", "uniform"])
def test_each_cluster_converges_to_its_own_fedavg(weights):
    p = SIZES * M if weights == "samples" else M
    expected = np.array(
        [(p * a)[g == GROUPS].sum() / p[g == GROUPS].sum() for g in GROUPS]
    )
    algorithm = HypCluster(
        sgd=STEPPED, clusters=2, start="farthest", weights=weights, optimizer=PLAIN
    )
    with float64():
        training = train(algorithm, quadratics(a, A, SIZES), quadratic_model(1), 80)
        np.testing.assert_allclose(personal(training)[:, 0], expected, **EXACT)
    assert len(set(zip(choices(training), GROUPS, strict=True))) == 2


def test_gradients_are_divided_by_all_reporters():
    """theta_j <- theta_j - (eta / |S|) sum of A_i (theta_j - a_i) over the cluster,
    with |S| = 4.
    """
    with float64():
        federation, model = quadratics(a, A, SIZES), quadratic_model(1, shifted)
        algorithm = IFCA(sgd=SGD(lr=LR), clusters=2, averaging="gradients")
        training = train(algorithm, federation, model, 0)
        theta = centres(training).copy()
        for _ in range(3):
            chosen = (A * np.square(theta[:, None] - a)).argmin(axis=0)
            for j in range(2):
                mine = chosen == j
                theta[j] -= LR / 4 * (A * (theta[j] - a))[mine].sum()
            training.advance()
            np.testing.assert_array_equal(choices(training), chosen)
        np.testing.assert_allclose(centres(training), theta, **EXACT)


def test_one_cluster_of_averaged_gradients_is_gradient_descent():
    with float64():
        algorithm = IFCA(sgd=SGD(lr=LR), clusters=1, averaging="gradients")
        found = personal(
            train(algorithm, quadratics(a, A, SIZES), quadratic_model(1), 200)
        )
    np.testing.assert_allclose(found[:, 0], (A * a).sum() / A.sum(), **EXACT)


def test_exact_rounds_never_raise_the_objective():
    """sum_k m_k min_i F_k(h_i) does not grow when every cluster's model is minimised
    exactly (as Lloyd's algorithm).
    """
    rng = np.random.default_rng(3)
    points, sizes = rng.normal(size=(12, 2)), rng.integers(3, 9, 12)
    with float64():
        algorithm = HypCluster(sgd=EXACT_STEP, clusters=3, optimizer=PLAIN)
        training = train(
            algorithm, quadratics(points, sizes=sizes), quadratic_model(2, shifted), 0
        )
        objectives = []
        for _ in range(8):
            distances = np.square(
                np.asarray(training.server.model)[:, None] - points
            ).sum(-1)
            objectives.append((sizes * distances.min(axis=0)).sum())
            training.advance()
            chosen = distances.argmin(axis=0)
            np.testing.assert_array_equal(choices(training), chosen)
            for k in np.unique(chosen):
                mean = np.average(
                    points[chosen == k], axis=0, weights=sizes[chosen == k]
                )
                np.testing.assert_allclose(training.server.model[k], mean, **EXACT)
    assert (np.diff(objectives) <= 1e-12).all()
    assert objectives[-1] < objectives[0]


# starts
# --------------------------------------------------------------------------------------


def test_farthest_first_takes_the_clients_that_are_served_worst():
    points = np.array([0.0, 0.1, 5.0, 5.2, -9.0])
    with float64():
        algorithm = HypCluster(
            sgd=EXACT_STEP, clusters=3, start="farthest", optimizer=PLAIN
        )
        training = train(algorithm, quadratics(points), quadratic_model(1), 3)
        found = centres(training)
        assert found[0] in points
        for k in (1, 2):
            distance = np.abs(found[:k, None] - points).min(axis=0)
            assert found[k] == points[distance.argmax()]
        frame = training.ledger.frame()
        sent = frame.filter((frame["direction"] == "down") & (frame["kind"] == "model"))
        assert sent["streams"].to_list() == [
            1,
            2,
            3,
        ]  # the models found so far, and the initial one
        training.advance()
        assert training.ledger.last_streams() == 3


def test_farthest_first_under_sampling_takes_reporters_only():
    points = np.array([0.0, 0.1, 5.0, 5.2, -9.0])
    with float64():
        algorithm = HypCluster(
            sgd=EXACT_STEP, clusters=2, start="farthest", optimizer=PLAIN
        )
        training = train(
            algorithm,
            quadratics(points),
            quadratic_model(1),
            0,
            participation=Participation(count=2),
        )
        for k in range(2):
            report = training.participation.sample(training.population.ids, 0, k)
            training.advance()
            assert (
                centres(training)[k]
                in points[training.executor.seen.original_index[report]]
            )


def test_warm_rounds_train_one_model_after_another():
    with float64():
        federation, model = quadratics(a, A, SIZES), quadratic_model(1, shifted)
        algorithm = HypCluster(sgd=STEPPED, clusters=2, warm=2, optimizer=PLAIN)
        training = train(algorithm, federation, model, 0)
        p = SIZES / SIZES.sum()
        theta = centres(training).copy()
        assert theta[0] != theta[1]
        for k in (0, 0, 1, 1):
            theta[k] = (p * (a + (1 - M) * (theta[k] - a))).sum()
            training.advance()
            np.testing.assert_allclose(centres(training), theta, **EXACT)
        totals = training.ledger.totals()
        assert (totals.models_down, totals.models_up, totals.scalars_up) == (4, 16, 0)
        training.advance()
        totals = training.ledger.totals()
        assert (totals.models_down, totals.models_up, totals.scalars_up) == (
            4 + 2,
            16 + 4,
            4,
        )


# who is absent, who is new
# --------------------------------------------------------------------------------------


def test_a_model_that_nobody_picks_keeps_its_parameters_and_its_momentum():
    far = replace(quadratics(a, A, SIZES), names=tuple("abcd"))
    with float64():
        training = train(
            HypCluster(sgd=STEPPED, clusters=2, start="farthest"),
            far,
            quadratic_model(1),
            4,
        )
        before = [
            np.asarray(training.server.model),
            *map(np.asarray, training.server.optimizer),
        ]
        assert all((leaf != 0).all() for leaf in before)
        lonely = 1 - choices(training)[0]
        training.advance(by_id(training, np.array([True, False, True, False])))
        after = training.server
        for old, new in zip(before, [after.model, *after.optimizer], strict=True):
            np.testing.assert_array_equal(np.asarray(new)[lonely], old[lonely])
            assert (np.asarray(new)[1 - lonely] != old[1 - lonely]).all()


def test_only_reporters_count_and_the_others_keep_their_choice():
    with float64():
        training = train(
            HypCluster(sgd=STEPPED, clusters=2, optimizer=PLAIN),
            quadratics(a, A, SIZES),
            quadratic_model(1),
            0,
        )
        training.advance(by_id(training, np.array([False, True, False, True])))
        after = training.server
        weight = SIZES * [0, 1, 0, 1]
        np.testing.assert_allclose(
            np.asarray(after.model)[0, 0],
            (weight * M * a).sum() / weight.sum(),
            **EXACT,
        )
        np.testing.assert_array_equal(by_place(training, after.cluster), [-1, 0, -1, 0])


@pytest.mark.parametrize(
    "algorithm",
    [
        HypCluster(),
        HypCluster(warm=1),
        HypCluster(start="farthest"),
        IFCA(averaging="gradients"),
    ],
)
def test_nobody_reporting_changes_nothing(algorithm):
    with float64():
        training = train(algorithm, quadratics(a, A, SIZES), quadratic_model(1), 0)
        before = training.server
        training.advance(np.zeros(4, bool))
    assert training.server is before


def test_seen_and_new_clients_pick_the_model_that_fits_their_training_data():
    unseen = np.array([False, False, False, False, True, True])
    points, sizes = np.append(a, [5.4, -1.6]), np.append(SIZES, [4, 9])
    with float64():
        federation = quadratics(points, sizes=sizes, unseen=unseen)
        training = train(
            HypCluster(sgd=EXACT_STEP, clusters=2, start="farthest", optimizer=PLAIN),
            federation,
            quadratic_model(1),
            6,
        )
        found = predictors(training)[0][:, 0]
    low, high = (-3 - 2 * 13) / 16, (6 * 8 + 5 * 18) / 26
    np.testing.assert_allclose(found, [low, high, low, high, high, low], **EXACT)


def test_hyper_parameters_are_checked():
    for wrong in (
        {"clusters": 0},
        {"start": "k-means"},
        {"warm": -1},
        {"warm": 2, "start": "farthest"},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            HypCluster(**wrong)
    with pytest.raises(ValueError, match="averaging"):
        IFCA(averaging="models and gradients")
    with pytest.raises(ValueError, match="start='random'"):
        IFCA(averaging="gradients", start="farthest")


def by_id(training, mask):
    """A mask over the federation's clients, in the order of the population."""
    return mask[training.executor.seen.original_index]


def test_the_last_choices_are_a_diagnostic():
    with float64():
        training = train(
            HypCluster(sgd=STEPPED, clusters=2, optimizer=PLAIN),
            quadratics(a, A, SIZES),
            quadratic_model(1, shifted),
            0,
        )
        training.advance(by_id(training, np.array([True, False, True, True])))
        (found,) = training.algorithm.diagnostics(training.server)
    assert found.name == "cluster" and len(found.x) == 3
    np.testing.assert_array_equal(
        choices(training)[training.executor.seen.original_index[found.x]], found.y
    )
    assert (training.server.cluster[np.setdiff1d(np.arange(4), found.x)] == -1).all()


def test_of_one_client_each_the_models_are_local_ones():
    with float64():
        federation, model = quadratics(a, sizes=SIZES), quadratic_model(1)
        training = train(
            HypCluster(sgd=EXACT_STEP, clusters=4, start="farthest", optimizer=PLAIN),
            federation,
            model,
            6,
        )
        np.testing.assert_allclose(
            personal(training),
            personal(train(Local(sgd=EXACT_STEP), federation, model, 2)),
            **EXACT,
        )

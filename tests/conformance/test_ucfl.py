"""User-centric aggregation: reductions, closed forms, streams, newcomers."""

from dataclasses import replace

import numpy as np
import pytest

from conformance.problems import (
    EXACT,
    by_place,
    classification,
    float64,
    personal,
    quadratic_model,
    quadratics,
    shifted,
    softmax_model,
    train,
)
from fedtailor.algorithms import UCFL, FedAvg, Local, Oracle, UCFLParallel
from fedtailor.protocol import SGD
from fedtailor.training import Participation
from fedtailor.training.personal import newcomer

LR, STEPS = 0.2, 3
PLAIN = SGD(lr=LR, steps=STEPS, batch_size=8)
TRAINED = SGD(lr=0.1, momentum=0.9, epochs=2, batch_size=8)
A = np.array([0.5, 1.0, 2.0, 3.0])
a = np.array([-1.0, 0.5, 2.0, 4.0])
SIZES = np.array([3, 8, 13, 18])
W = np.array([[0.7, 0.1, 0.1, 0.1], [0.2, 0.5, 0.2, 0.1], [0.0, 0.3, 0.4, 0.3], [0.25, 0.25, 0.0, 0.5]])


def in_id_order(training, rows):
    """A matrix over the federation's clients, as `rows` wants it: sorted by client id."""
    order = training.executor.seen.listed
    return rows[np.ix_(order, order)]


def with_rows(kind, rows, federation, model, rounds=3, **fields):
    probe = train(Local(), federation, model, 0)
    return train(kind(rows=in_id_order(probe, rows), **fields), federation, model, rounds)


def test_fixed_point_of_user_centric_aggregation():
    with float64():
        run = with_rows(UCFL, W, quadratics(a, A, SIZES), quadratic_model(1), 150, sgd=PLAIN)
        found = personal(run)[:, 0]
    D = np.diag((1 - LR * A) ** STEPS)
    np.testing.assert_allclose(found, np.linalg.solve(np.eye(4) - W @ D, W @ (np.eye(4) - D) @ a), **EXACT)


def test_fixed_point_of_the_parallel_variant():
    with float64():
        run = with_rows(UCFLParallel, W, quadratics(a, A, SIZES), quadratic_model(1), 150, sgd=PLAIN)
        found = personal(run)[:, 0]
    M = 1 - (1 - LR * A) ** STEPS
    np.testing.assert_allclose(found, W @ (M * a) / (W @ M), **EXACT)


def test_equal_rows_are_fedavg():
    with float64():
        federation, model = classification(), softmax_model()
        p = federation.train.sizes / federation.train.sizes.sum()
        expected = personal(train(FedAvg(sgd=TRAINED), federation, model, 3))
        for kind in (UCFL, UCFLParallel):
            run = with_rows(kind, np.tile(p, (5, 1)), federation, model, sgd=TRAINED)
            np.testing.assert_allclose(personal(run), expected, **EXACT)


@pytest.mark.parametrize("kind", [UCFL, UCFLParallel])
def test_identity_rows_are_local_training_bit_for_bit(kind):
    with float64():
        federation, model = classification(), softmax_model()
        run = with_rows(kind, np.eye(5), federation, model, sgd=TRAINED)
        np.testing.assert_array_equal(personal(run), personal(train(Local(sgd=TRAINED), federation, model, 3)))


def test_block_rows_are_oracle():
    with float64():
        groups = np.array([0, 1, 0, 1, 1])
        federation, model = classification(groups=groups), softmax_model()
        block = (groups[:, None] == groups) * federation.train.sizes
        run = with_rows(UCFL, block / block.sum(1, keepdims=True), federation, model, sgd=TRAINED)
        expected = personal(train(Oracle(sgd=TRAINED), federation, model, 3))
        np.testing.assert_allclose(personal(run), expected, **EXACT)


def test_parallel_is_sequential_in_the_first_round_only():
    with float64():
        federation, model = quadratics(a, A, SIZES), quadratic_model(1, shifted)
        one, two = (
            [personal(with_rows(kind, W, federation, model, rounds, sgd=PLAIN)) for kind in (UCFL, UCFLParallel)]
            for rounds in (1, 2)
        )
    np.testing.assert_allclose(one[0], one[1], **EXACT)
    assert np.abs(two[0] - two[1]).max() > 1e-3


def test_as_many_streams_as_clients_are_one_for_each_and_one_stream_has_the_mean_row():
    with float64():
        federation, model = classification(), softmax_model()
        full = train(UCFL(sgd=TRAINED), federation, model, 2)
        same = train(UCFL(sgd=TRAINED, streams=5), federation, model, 2)
        np.testing.assert_array_equal(personal(full), personal(same))
        one = train(UCFL(sgd=TRAINED, streams=1), federation, model, 2)
        np.testing.assert_allclose(one.server["weights"], full.server["rows"].mean(0, keepdims=True), **EXACT)
        two = train(UCFL(sgd=TRAINED, streams=2), federation, model, 2)
        np.testing.assert_allclose(two.server["weights"].sum(1), 1, **EXACT)


def test_the_probe_is_the_papers():
    """g_i and sigma_i^2 against a direct computation on quadratics with sample-dependent gradients."""
    rng = np.random.default_rng(0)
    with float64():
        federation = quadratics(a, A, SIZES)
        y = federation.y.copy()
        y[:, 1] += rng.normal(size=len(y))
        federation = replace(federation, y=y)
        run = train(UCFL(sgd=PLAIN, sigma_batch=1), federation, quadratic_model(1), 0)
        gradients = -y[:, 0] * y[:, 1]  # at theta = 0
        per_client = [gradients[federation.train[i]] for i in range(4)]
        found = by_place(run, run.server["gradients"])[:, 0]
        np.testing.assert_allclose(found, [part.mean() for part in per_client], **EXACT)
        # batches of one sample: the partition does not matter, and the mean square is the plain variance
        sigma2 = by_place(run, run.server["sigma2"])
        np.testing.assert_allclose(sigma2, [part.var() for part in per_client], **EXACT)


def test_a_single_batch_or_a_single_sample_does_not_end_in_nan():
    with float64():
        run = train(UCFL(sgd=PLAIN), quadratics(a, A, [1, 2, 13, 1]), quadratic_model(1), 2)
        assert np.isfinite(run.server["rows"]).all()
        assert np.isfinite(personal(run)).all()


def test_identical_clients_share_one_stream():
    with float64():
        federation = classification(sizes=[20] * 5, same=True)
        run = train(UCFL(sgd=TRAINED, streams="auto"), federation, softmax_model(), 2)
        np.testing.assert_array_equal(run.server["stream"], 0)


def test_a_newcomer_with_a_clients_data_gets_its_stream():
    with float64():
        federation = classification(clients=6, sizes=[30] * 6, groups=[0, 0, 0, 1, 1, 1])
        y = federation.y.copy()
        mine = np.concatenate([federation.train[i] for i in (3, 4, 5)])
        y[mine] = (y[mine] + 1) % 3
        federation = replace(federation, y=y)
        run = train(UCFL(sgd=TRAINED, streams=2, sigma_batch=0.5), federation, softmax_model(), 2)
        rows = federation.train[1]
        model = newcomer(run, federation.x[rows], federation.y[rows], "somebody", None)
        np.testing.assert_array_equal(model.theta, personal(run)[1])


def test_absent_clients_leave_streams_alone():
    with float64():
        federation, model = classification(), softmax_model()
        training = train(UCFL(sgd=TRAINED), federation, model, 0)
        before = np.asarray(training.server["model"])
        weights = training.server["weights"].copy()
        some = train(UCFL(sgd=TRAINED), federation, model, 1, participation=Participation(count=2))
        report = Participation(count=2).sample(some.population.ids, 0, 0)
        mass = weights[:, report].sum(1) / some.population.sizes[report].sum() * some.population.sizes.sum()
        untouched = mass < 0.1
        np.testing.assert_array_equal(np.asarray(some.server["model"])[untouched], before[untouched])
        assert (np.asarray(some.server["model"])[~untouched] != before[~untouched]).any(axis=1).all()


def test_impossible_requests_are_refused():
    with float64():
        for wrong in (dict(streams=6), dict(rows=np.ones((5, 5)))):
            with pytest.raises(ValueError, match=r"streams|rows"):
                train(UCFL(**wrong), classification(), softmax_model(), 0)
    for wrong in (dict(streams=0), dict(streams="many"), dict(kernel="eq1"), dict(sigma_batch=0.9)):
        with pytest.raises(ValueError):
            UCFL(**wrong)

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
    predictors,
    quadratic_model,
    quadratics,
    shifted,
    softmax_model,
    train,
)
from fedtailor.algorithms import UCFL, FedAvg, Local, Oracle, UCFLParallel
from fedtailor.protocol import SGD

LR, STEPS = 0.2, 3
PLAIN = SGD(lr=LR, steps=STEPS, batch_size=8)
TRAINED = SGD(lr=0.1, momentum=0.9, epochs=2, batch_size=8)
A = np.array([0.5, 1.0, 2.0, 3.0])
a = np.array([-1.0, 0.5, 2.0, 4.0])
SIZES = np.array([3, 8, 13, 18])
W = np.array(
    [
        [0.7, 0.1, 0.1, 0.1],
        [0.2, 0.5, 0.2, 0.1],
        [0.0, 0.3, 0.4, 0.3],
        [0.25, 0.25, 0.0, 0.5],
    ]
)


def in_id_order(training, rows):
    """A matrix over the federation's clients, as `rows` wants it: sorted by client
    id.
    """
    order = training.executor.seen.original_index
    return rows[np.ix_(order, order)]


def with_rows(kind, rows, federation, model, rounds=3, **fields):
    probe = train(Local(), federation, model, 0)
    return train(
        kind(rows=in_id_order(probe, rows), **fields), federation, model, rounds
    )


def advance_with(training, report):
    """A round in which these clients report, in the federation's order."""
    training.advance(
        reporting=np.asarray(report, bool)[training.executor.seen.original_index]
    )


def test_fixed_point_of_user_centric_aggregation():
    with float64():
        run = with_rows(
            UCFL, W, quadratics(a, A, SIZES), quadratic_model(1), 150, sgd=PLAIN
        )
        found = personal(run)[:, 0]
    D = np.diag((1 - LR * A) ** STEPS)
    np.testing.assert_allclose(
        found, np.linalg.solve(np.eye(4) - W @ D, W @ (np.eye(4) - D) @ a), **EXACT
    )


def test_fixed_point_of_the_parallel_variant():
    with float64():
        run = with_rows(
            UCFLParallel, W, quadratics(a, A, SIZES), quadratic_model(1), 150, sgd=PLAIN
        )
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
        np.testing.assert_array_equal(
            personal(run), personal(train(Local(sgd=TRAINED), federation, model, 3))
        )


def test_block_rows_are_oracle():
    with float64():
        groups = np.array([0, 1, 0, 1, 1])
        federation, model = classification(groups=groups), softmax_model()
        block = (groups[:, None] == groups) * federation.train.sizes
        run = with_rows(
            UCFL, block / block.sum(1, keepdims=True), federation, model, sgd=TRAINED
        )
        expected = personal(train(Oracle(sgd=TRAINED), federation, model, 3))
        np.testing.assert_allclose(personal(run), expected, **EXACT)


def test_parallel_is_sequential_in_the_first_round_only():
    with float64():
        federation, model = quadratics(a, A, SIZES), quadratic_model(1, shifted)
        one, two = (
            [
                personal(with_rows(kind, W, federation, model, rounds, sgd=PLAIN))
                for kind in (UCFL, UCFLParallel)
            ]
            for rounds in (1, 2)
        )
    np.testing.assert_allclose(one[0], one[1], **EXACT)
    assert np.abs(two[0] - two[1]).max() > 1e-3


def test_as_many_streams_as_clients_are_one_for_each_and_one_stream_has_the_mean_row():
    with float64():
        federation, model = classification(), softmax_model()
        full = train(UCFL(warm=0, sgd=TRAINED), federation, model, 2)
        same = train(UCFL(warm=0, sgd=TRAINED, streams=5), federation, model, 2)
        np.testing.assert_array_equal(personal(full), personal(same))
        one = train(UCFL(warm=0, sgd=TRAINED, streams=1), federation, model, 2)
        np.testing.assert_allclose(
            one.server.weights, full.server.rows.mean(0, keepdims=True), **EXACT
        )
        two = train(UCFL(warm=0, sgd=TRAINED, streams=2), federation, model, 2)
        np.testing.assert_allclose(two.server.weights.sum(1), 1, **EXACT)


def test_the_probe_is_the_papers():
    """g_i and sigma_i^2 against a direct computation on quadratics with
    sample-dependent gradients.
    """
    rng = np.random.default_rng(0)
    with float64():
        federation = quadratics(a, A, SIZES)
        y = federation.y.copy()
        y[:, 1] += rng.normal(size=len(y))
        federation = replace(federation, y=y)
        run = train(
            UCFL(warm=0, sgd=PLAIN, sigma_batch=1), federation, quadratic_model(1), 0
        )
        gradients = -y[:, 0] * y[:, 1]  # at theta = 0
        per_client = [gradients[federation.train[i]] for i in range(4)]
        found = by_place(run, run.server.gradients)[:, 0]
        np.testing.assert_allclose(found, [part.mean() for part in per_client], **EXACT)
        # batches of one sample: the partition does not matter, and the mean square is
        # the plain variance
        sigma2 = by_place(run, run.server.sigma2)
        np.testing.assert_allclose(sigma2, [part.var() for part in per_client], **EXACT)


def test_a_single_batch_or_a_single_sample_does_not_end_in_nan():
    with float64():
        run = train(
            UCFL(warm=0, sgd=PLAIN),
            quadratics(a, A, [1, 2, 13, 1]),
            quadratic_model(1),
            2,
        )
        assert np.isfinite(run.server.rows).all()
        assert np.isfinite(personal(run)).all()


def test_identical_clients_share_one_stream():
    with float64():
        federation = classification(sizes=[20] * 5, same=True)
        run = train(
            UCFL(warm=0, sgd=TRAINED, streams="auto"), federation, softmax_model(), 2
        )
        np.testing.assert_array_equal(run.server.stream, 0)


def test_a_newcomer_with_a_clients_data_gets_its_stream():
    with float64():
        federation = classification(clients=7, sizes=[30] * 7, unseen=np.arange(7) == 6)
        y = federation.y.copy()
        mine = np.concatenate([federation.train[i] for i in (3, 4, 5)])
        y[mine] = (y[mine] + 1) % 3
        twin = federation.train.take(
            np.array([0, 1, 2, 3, 4, 5, 1])
        )  # the newcomer's data are client 1's
        run = train(
            UCFL(warm=0, sgd=TRAINED, streams=2, sigma_batch=0.5),
            replace(federation, y=y, train=twin),
            softmax_model(),
            2,
        )
        (found,) = predictors(run)
        np.testing.assert_array_equal(found[6], found[1])
        assert np.abs(found[1] - found[3]).max() > 1e-3


@pytest.mark.parametrize("kind", [UCFL, UCFLParallel])
def test_absent_clients_leave_streams_alone(kind):
    """Streams of whose weights a hundredth, or nothing, is on the reporters."""
    rows = np.array(
        [[0.5, 0.5, 0, 0], [0.3, 0.7, 0, 0], [0.01, 0, 0.49, 0.5], [0, 0, 0.2, 0.8]]
    )
    with float64():
        training = with_rows(
            kind, rows, quadratics(a, A, SIZES), quadratic_model(1), 1, sgd=PLAIN
        )
        before = by_place(training, training.server.model)
        assert np.unique(before).size == 4
        advance_with(training, [1, 1, 0, 0])
        after = by_place(training, training.server.model)
        np.testing.assert_array_equal(after[2:], before[2:])
        assert (after[:2] != before[:2]).all()


# newcomers
# --------------------------------------------------------------------------------------


NEWCOMER = 2
EVERYBODY, SOME, OTHERS = (
    np.array([1, 1, 1, 1]),
    np.array([1, 0, 1, 0]),
    np.array([0, 0, 1, 1]),
)


def noisy_quadratics(unseen=None):
    """Samples differ, so that sigma_i^2 is not 0; batches of all samples still give a
    closed form.
    """
    noise = np.random.default_rng(0).normal(size=SIZES.sum())
    federation = quadratics([-1.0, -0.5, 0.0, 0.5], 1.0, SIZES, unseen=unseen)
    y = federation.y.copy()
    y[:, 1] += noise
    return replace(federation, y=y)


def newcomers_model_by_hand(federation, reports, parallel):
    """What `NEWCOMER` is served after rounds in which `reports` [t, 4] take part, from
    eq. 9, 8 and 12.
    """
    seen = np.arange(4) != NEWCOMER
    parts = [federation.y[federation.train[i], 1] for i in range(4)]
    center, sigma2 = (
        np.array([part.mean() for part in parts]),
        np.array([part.var() for part in parts]),
    )
    # F_i(x) = (x - center_i)^2 / 2 + a constant: gradients -center_i at theta^0 = 0
    weights = (
        SIZES
        * np.exp(-np.square(center[:, None] - center) / (2 * sigma2[:, None]))
        * seen
    )
    weights /= weights.sum(axis=1, keepdims=True)
    kept = (1 - LR) ** STEPS
    stream, last, useful = np.zeros(4), np.zeros(4), np.zeros(4, bool)
    for report in reports:
        report = (report == 1) & seen
        rows = weights * report
        mass = rows.sum(axis=1)
        moved = mass >= 0.1 * SIZES[report].sum() / SIZES[seen].sum()
        upload = center + kept * (
            stream[:, None] - center if parallel else (stream - center)[None]
        )
        last[report] = upload[0][report]
        stream = np.where(moved, (rows * upload).sum(axis=1) / mass, stream)
        useful |= moved if parallel else report
    row = weights[NEWCOMER] * useful * seen
    return row @ (stream if parallel else last) / row.sum()


@pytest.mark.parametrize("kind", [UCFL, UCFLParallel])
@pytest.mark.parametrize(
    "reports",
    [[EVERYBODY, EVERYBODY], [SOME], [SOME, OTHERS]],
    ids=["full", "sampled", "sampled twice"],
)
def test_a_newcomers_own_mix_is_of_what_clients_sent(kind, reports):
    """Of the last uploads (not of the streams), and of no client that has never sent
    one.
    """
    with float64():
        federation = noisy_quadratics(np.arange(4) == NEWCOMER)
        method = kind(warm=0, sgd=SGD(lr=LR, steps=STEPS, batch_size=32), sigma_batch=1)
        training = train(method, federation, quadratic_model(1), 0)
        for report in reports:
            advance_with(training, report)
        found = training.predictors(training.serve(unseen=True))[0, 0]
        expected = newcomers_model_by_hand(federation, reports, kind is UCFLParallel)
    np.testing.assert_allclose(found, expected, **EXACT)


def test_before_anybody_sent_a_model_a_newcomer_gets_the_initial_one():
    with float64():
        federation = noisy_quadratics(np.arange(4) == NEWCOMER)
        for streams in (None, 1):
            training = train(
                UCFL(warm=0, streams=streams),
                federation,
                quadratic_model(1, shifted),
                0,
            )
            found = training.predictors(training.serve(unseen=True))
            np.testing.assert_array_equal(found, training.initial(0)[None])


@pytest.mark.parametrize("kind", [UCFL, UCFLParallel])
def test_a_newcomer_gets_the_nearest_stream_that_was_ever_mixed(kind):
    with float64():
        federation = quadratics(
            [-50.0, -50.0, 50.0, 50.0], 1.0, SIZES, unseen=[False, False, False, True]
        )
        y = federation.y.copy()
        y[:, 1] += np.random.default_rng(0).normal(size=len(y))
        method = kind(warm=0, sgd=PLAIN, streams=2, sigma_batch=1)
        training = train(method, replace(federation, y=y), quadratic_model(1), 0)
        advance_with(training, [1, 1, 0, 0])
        assert np.count_nonzero(training.server.model) == 1
        assert training.predictors(training.serve(unseen=True))[0, 0] < -1
        advance_with(training, [1, 1, 1, 0])
        assert training.predictors(training.serve(unseen=True))[0, 0] > 1


@pytest.mark.parametrize("kind", [UCFL, UCFLParallel])
def test_a_client_whose_stream_is_still_the_initial_model_is_served_as_a_newcomer(kind):
    """With a stream for each, by its own row over what the others sent; else from the
    nearest stream.
    """
    own, sent = 0.98, a * (1 - (1 - LR * A) ** STEPS)  # the uploads, from theta^0 = 0
    rows = np.array(
        [
            [0.5, 0.5, 0, 0],
            [0.5, 0.5, 0, 0],
            [0, 0.01, own, 0.01],
            [0.015, 0.005, 0, own],
        ]
    )
    with float64():
        training = with_rows(
            kind, rows, quadratics(a, A, SIZES), quadratic_model(1), 0, sgd=PLAIN
        )
        advance_with(training, [1, 1, 0, 0])
        mean = sent[:2].mean()
        late = (
            [mean, mean]
            if kind is UCFLParallel
            else [sent[1], 0.75 * sent[0] + 0.25 * sent[1]]
        )
        np.testing.assert_allclose(
            personal(training)[:, 0], [mean, mean, *late], **EXACT
        )
        shared = with_rows(
            kind,
            rows,
            quadratics(a, A, SIZES),
            quadratic_model(1),
            0,
            sgd=PLAIN,
            streams=3,
        )
        assert np.unique(shared.server.stream).size == 3
        advance_with(shared, [1, 1, 0, 0])
        np.testing.assert_allclose(personal(shared)[:, 0], np.full(4, mean), **EXACT)


def test_with_rows_of_your_own_there_are_no_newcomers():
    rows, unseen = np.full((3, 3), 1 / 3), [False, False, True, False]
    with float64():
        training = train(
            UCFL(rows=rows),
            quadratics(a, A, SIZES, unseen=unseen),
            quadratic_model(1),
            1,
        )
        with pytest.raises(
            ValueError, match="clients that have no row: an unseen client"
        ):
            training.serve(unseen=True)


# the probe, the number of streams, reports
# ------------------------------------------------------------------------


def test_the_batches_of_sigma_are_drawn_at_random():
    """Of samples -1, ..., -1, 1, ..., 1 the halves in the data's order have means -1
    and 1; random ones, near 0.
    """
    with float64():
        federation = quadratics([0.0, 0.0], 1.0, [100, 100])
        y = federation.y.copy()
        y[:, 1] = np.tile(np.repeat([-1.0, 1.0], 50), 2)
        run = train(
            UCFL(warm=0, sigma_batch=0.5),
            replace(federation, y=y),
            quadratic_model(1),
            0,
        )
        assert (run.server.sigma2 < 0.3).all()
        assert (
            len(set(run.server.sigma2.tolist())) == 2
        )  # and in another order on each client


def test_auto_gives_two_clients_one_stream():
    with float64():
        federation = quadratics([-50.0, 50.0], 1.0, [8, 13])
        y = federation.y + np.random.default_rng(0).normal(size=federation.y.shape) * [
            0,
            1,
        ]
        run = train(
            UCFL(warm=0, sgd=PLAIN, streams="auto"),
            replace(federation, y=y),
            quadratic_model(1),
            0,
        )
        assert run.server.model.shape == (1, 1) and np.ptp(run.server.rows[:, 0]) > 0.5


def test_weights_and_silhouettes_are_drawn():
    with float64():
        model = softmax_model()
        run = train(
            UCFL(warm=0, sgd=TRAINED, streams="auto"), classification(), model, 1
        )
        weights, line = run.algorithm.diagnostics(run.server)
        given = train(UCFL(warm=0, sgd=TRAINED, streams=2), classification(), model, 1)
        (alone,) = given.algorithm.diagnostics(
            given.server
        )  # whose number of streams was not chosen
    assert (weights.name, line.name) == ("collaboration", "silhouette")
    np.testing.assert_allclose(weights.values.sum(axis=1), 1, **EXACT)
    np.testing.assert_array_equal(weights.values, alone.values)
    np.testing.assert_array_equal(line.x, [2, 3, 4])
    best = line.x[line.y.argmax()] if line.y.max() > 0 else 1
    assert line.chosen == best == len(run.server.model)


# errors
# --------------------------------------------------------------------------------------


def test_impossible_requests_are_refused():
    with float64():
        for wrong in (dict(streams=6), dict(rows=np.ones((5, 5)))):
            with pytest.raises(ValueError, match=r"streams|rows"):
                train(UCFL(**wrong), classification(), softmax_model(), 0)
    for wrong in (
        dict(streams=0),
        dict(streams="many"),
        dict(kernel="eq1"),
        dict(sigma_batch=0.9),
    ):
        with pytest.raises(ValueError):
            UCFL(**wrong)

"""Agnostic federated learning: reductions, the recursion by hand, the saddle point,
sampling, skewness.
"""

from dataclasses import replace

import numpy as np
import pytest

from conformance.problems import (
    EXACT,
    answers_of,
    by_place,
    classification,
    float64,
    personal,
    predictors,
    quadratic_model,
    quadratics,
    softmax_model,
    train,
)
from fedtailor.aggregation.simplex import project_onto_simplex
from fedtailor.algorithms import AFL, FedAvg
from fedtailor.algorithms.afl import mixture_skewness
from fedtailor.engine.training import Participation
from fedtailor.protocol import SGD

A = np.array([0.5, 1.0, 2.0, 3.0])
a = np.array([-1.0, 0.5, 2.0, 4.0])
SIZES = np.array([3, 8, 13, 18])
TRAINED = SGD(lr=0.1, momentum=0.9, epochs=2, batch_size=8)


def last(training):
    return np.asarray(training.server.model)[0]


def recursion(reports, lr=0.2, lambda_lr=0.02, curvature=A):
    """theta, its average and lambda after rounds in which `reports` [t, 4] take part,
    on scalar quadratics.
    """
    theta, average, mixture = 0.0, 0.0, np.full(4, 0.25)
    for t, report in enumerate(reports):
        loss, gradient = curvature * (theta - a) ** 2 / 2, curvature * (theta - a)
        scale = report * 4 / report.sum()
        theta, mixture = (
            theta - lr * (mixture * scale * gradient).sum(),
            project_onto_simplex(mixture + lambda_lr * scale * loss),
        )
        average += (theta - average) / (t + 1)
    return theta, average, mixture


@pytest.mark.parametrize("update", ["gradient", "model"])
def test_with_a_fixed_mixture_by_samples_it_is_fedsgd(update):
    with float64():
        federation, model = quadratics(a, A, SIZES), quadratic_model(1)
        sgd = SGD(lr=0.2, steps=1, batch_size=8)
        afl = AFL(lr=0.2, lambda_lr=0.0, initial="samples", update=update, sgd=sgd)
        found = train(afl, federation, model, 3)
        np.testing.assert_allclose(
            last(found),
            personal(train(FedAvg(sgd=sgd), federation, model, 3))[0],
            **EXACT,
        )
        np.testing.assert_allclose(
            by_place(found, found.server.mixture), SIZES / SIZES.sum(), **EXACT
        )
        assert found.server.skewness == pytest.approx(1, abs=1e-12)


def test_trained_models_with_a_fixed_mixture_are_fedavg():
    with float64():
        federation, model = classification(), softmax_model()
        afl = AFL(
            lambda_lr=0.0, initial="samples", update="model", sgd=TRAINED, average=False
        )
        expected = personal(train(FedAvg(sgd=TRAINED), federation, model, 3))
        np.testing.assert_allclose(
            personal(train(afl, federation, model, 3)), expected, **EXACT
        )


def test_both_steps_are_taken_at_the_old_point():
    with float64():
        training = train(
            AFL(lr=0.2, lambda_lr=0.02), quadratics(a, A, SIZES), quadratic_model(1), 5
        )
        theta, average, mixture = recursion(np.ones((5, 4)))
        np.testing.assert_allclose(last(training), theta, **EXACT)
        np.testing.assert_allclose(
            by_place(training, training.server.mixture), mixture, **EXACT
        )
        np.testing.assert_allclose(personal(training)[:, 0], average, **EXACT)
        assert mixture.min() > 0  # no corner of the simplex, where many steps end alike
        assert training.server.skewness == pytest.approx(
            np.sum(mixture**2 * SIZES.sum() / SIZES)
        )


def test_the_average_reaches_the_saddle_point_while_the_last_iterate_cycles():
    """With F_i = (x - a_i)^2 / 2 the best worst case is the middle of the two outermost
    clients.
    """
    with float64():
        training = train(
            AFL(lr=0.2, lambda_lr=0.2),
            quadratics(a, sizes=SIZES),
            quadratic_model(1),
            300,
        )
        np.testing.assert_allclose(
            personal(training)[:, 0], (a.min() + a.max()) / 2, atol=5e-3
        )
        assert abs(last(training)[0] - (a.min() + a.max()) / 2) > 0.1
        mixture = by_place(training, training.server.mixture)
    np.testing.assert_allclose(mixture[1:3], 0, atol=1e-12)


def test_equal_losses_leave_the_mixture():
    with float64():
        training = train(
            AFL(), quadratics(np.full(4, 2.0), sizes=SIZES), quadratic_model(1), 4
        )
        np.testing.assert_allclose(training.server.mixture, 0.25, **EXACT)


def test_under_sampling_reporters_stand_for_all():
    with float64():
        federation = quadratics(a, A, SIZES)
        training = train(
            AFL(lr=0.2, lambda_lr=0.02),
            federation,
            quadratic_model(1),
            0,
            participation=Participation(0.5),
        )
        reports = []
        for t in range(4):
            report = training.participation.sample(training.population.ids, 0, t)
            reports.append(by_place(training, report.astype(float)))
            training.advance()
        theta, average, mixture = recursion(reports)
        np.testing.assert_allclose(last(training), theta, **EXACT)
        np.testing.assert_allclose(
            by_place(training, training.server.mixture), mixture, **EXACT
        )
        np.testing.assert_allclose(training.server.average, average, **EXACT)
        totals = training.ledger.totals()
        assert (totals.models_down, totals.models_up, totals.scalars_up) == (4, 8, 8)


def advance_with(training, reporting):
    """A round in which these clients report, in the federation's order."""
    training.advance(
        reporting=np.asarray(reporting, bool)[training.executor.seen.original_index]
    )


@pytest.mark.parametrize(
    ("reporting", "share"), [([0, 0, 1, 1], 1.0), ([1, 1, 0, 0], 2 * 11 / 42)]
)
def test_trained_models_are_not_overshot_when_heavy_clients_report(reporting, share):
    """Clients that train to their minimum a_k, from w = 0: w goes at most the whole way
    to their weighted mean.
    """
    with float64():
        afl = AFL(
            lambda_lr=0.0,
            initial="samples",
            update="model",
            sgd=SGD(lr=1.0, steps=1, batch_size=32),
        )
        training = train(afl, quadratics(a, sizes=SIZES), quadratic_model(1), 0)
        advance_with(training, reporting)
        mean = np.average(a, weights=SIZES * np.asarray(reporting))
        np.testing.assert_allclose(last(training), share * mean, **EXACT)


def test_the_mixture_is_drawn():
    with float64():
        training = train(AFL(), quadratics(a, A, SIZES), quadratic_model(1), 2)
        (line,) = training.algorithm.diagnostics(training.server)
    assert (line.name, line.x_label) == ("mixture", "client")
    np.testing.assert_array_equal(line.x, np.arange(4))
    np.testing.assert_array_equal(line.y, training.server.mixture)
    assert np.ptp(line.y) > 0


def test_averages_are_served_to_all_or_the_last_iterate():
    unseen = [False, False, True, False]
    with float64():
        federation = quadratics(a, A, SIZES, unseen=unseen)
        for average in (True, False):
            training = train(AFL(average=average), federation, quadratic_model(1), 3)
            expected = np.asarray(
                training.server.average if average else training.server.model
            )[0, 0]
            np.testing.assert_array_equal(predictors(training)[0][:, 0], expected)
        assert last(training) != training.server.average


def test_nobody_reporting_changes_nothing():
    with float64():
        training = train(AFL(), quadratics(a, A, SIZES), quadratic_model(1), 1)
        cohort = training.round_cohort(np.zeros(4, bool))
        cohort = replace(cohort, rows=np.arange(4), reporting=np.zeros(4, bool))
        answers = answers_of(cohort, gradient=np.ones((4, 1)), loss=np.ones(4))
        downlink = training.algorithm.broadcast(training.server, cohort)
        assert (
            training.algorithm.server(training.server, downlink, answers, cohort)
            is training.server
        )


def test_skewness():
    shares = SIZES / SIZES.sum()
    assert mixture_skewness(shares, shares) == pytest.approx(1)
    assert mixture_skewness(np.array([1.0, 0, 0, 0]), shares) == pytest.approx(
        SIZES.sum() / 3
    )


def test_hyper_parameters_are_checked():
    for wrong in (
        {"lr": 0.0},
        {"lambda_lr": -0.1},
        {"initial": "zero"},
        {"update": "loss"},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            AFL(**wrong)

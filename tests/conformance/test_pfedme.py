"""pFedMe against FedAvg, and its fixed points: what is solved around which model, how
often, and who sends what.
"""

import numpy as np
import optax
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
from fedtailor.aggregation.accounting import Ledger
from fedtailor.algorithms import FedAvg, PFedMe
from fedtailor.engine.training import Participation
from fedtailor.protocol import SGD

SIZES = np.array([3, 8, 13, 18])
A = np.array([[0.5, 2.0], [1.0, 0.3], [2.0, 1.0], [3.0, 0.7]])
a = np.array([[-1.0, 2.0], [0.5, 0.0], [2.0, -1.0], [4.0, 3.0]])
LAM, GAMMA = 2.0, 0.7
"""The pull, and the share outer_lr * lam of the way that a step of w takes."""


def exact(rounds_of_inner=3, **changes):
    """Inner problems solved to rounding: theta contracts by at most 0.45 a step."""
    sgd = SGD(lr=0.25, steps=rounds_of_inner, batch_size=8)
    return PFedMe(
        **{
            "sgd": sgd,
            "inner_steps": 45,
            "lam": LAM,
            "outer_lr": GAMMA / LAM,
            **changes,
        }
    )


def scalars(curvature=A[:, :1], unseen=None):
    return quadratics(a[:, :1], curvature, SIZES, unseen=unseen)


def test_one_inner_step_from_w_is_fedavg():
    with float64():
        epochs = {"epochs": 2, "batch_size": 8}
        algorithm = PFedMe(
            sgd=SGD(lr=0.1, **epochs),
            inner_steps=1,
            lam=4.0,
            outer_lr=0.1,
            warm_start=False,
        )
        envelopes, plain = (
            train(method, classification(), softmax_model(), 3).server.model
            for method in (
                algorithm,
                FedAvg(sgd=SGD(lr=0.4 * 0.1, **epochs), weights="uniform"),
            )
        )
        np.testing.assert_allclose(envelopes, plain, **EXACT)


def test_a_strong_pull_is_fedavg_of_the_outer_rate():
    lam = 1e6
    with float64():
        algorithm = exact(
            sgd=SGD(lr=1 / lam, steps=3, batch_size=8), lam=lam, outer_lr=GAMMA / lam
        )
        sgd = SGD(lr=GAMMA / lam, steps=3, batch_size=8)
        envelopes, plain = (
            train(method, scalars(), quadratic_model(1), 2).server.model
            for method in (algorithm, FedAvg(sgd=sgd, weights="uniform"))
        )
        np.testing.assert_allclose(envelopes, plain, rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("R", "weights"), [(1, "uniform"), (3, "uniform"), (3, "samples")]
)
def test_fixed_points(R, weights):
    p = SIZES / SIZES.sum() if weights == "samples" else np.full(4, 0.25)
    left = 1 - GAMMA * A / (A + LAM)
    c = p[:, None] * (1 - left**R)
    w = (c * a).sum(axis=0) / c.sum(axis=0)
    last = a + left ** (R - 1) * (
        w - a
    )  # w_{R-1}, around which the last inner problem is solved
    theta = (A * a + LAM * last) / (A + LAM)
    with float64():
        for k in (1, 2):
            federation = quadratics(a[:, :k], A[:, :k], SIZES)
            training = train(
                exact(R, weights=weights), federation, quadratic_model(k), 120
            )
            np.testing.assert_allclose(training.server.model[0], w[:k], **EXACT)
            np.testing.assert_allclose(personal(training), theta[:, :k], **EXACT)


def test_one_mean_problem():
    mean = a[:, :1].mean()
    with float64():
        found = personal(train(exact(1), scalars(1.0), quadratic_model(1), 120))
        np.testing.assert_allclose(found, (a[:, :1] + LAM * mean) / (1 + LAM), **EXACT)


@pytest.mark.parametrize("warm", [True, False])
def test_a_round_by_hand(warm):
    """Few inner steps, so that their number and their starting point show."""
    with float64():
        sgd = SGD(lr=0.1, steps=3, batch_size=8, weight_decay=0.05, lr_decay=0.5)
        algorithm = PFedMe(
            sgd=sgd, inner_steps=2, lam=LAM, outer_lr=GAMMA / LAM, warm_start=warm
        )
        training = train(algorithm, scalars(), quadratic_model(1, shifted), 2)
        w = float(training.initial(0)[0])
        for rate in (0.1, 0.05):
            theta, own = np.full(4, w), np.full(4, w)
            for _ in range(3):
                theta = theta if warm else own
                for _ in range(2):
                    gradient = A[:, 0] * (theta - a[:, 0]) + 0.05 * theta
                    theta = theta - rate * (gradient + LAM * (theta - own))
                own = own - GAMMA * (own - theta)
            w = own.mean()
        np.testing.assert_allclose(training.server.model, [[w]], **EXACT)
        np.testing.assert_allclose(personal(training)[:, 0], theta, **EXACT)


def test_beta_is_a_step_towards_the_average_that_moves_no_fixed_point():
    with float64():
        model = quadratic_model(1, shifted)
        one, two = (train(exact(beta=beta), scalars(), model, 1) for beta in (1.0, 2.0))
        start = np.asarray(one.initial(0))
        np.testing.assert_allclose(
            two.server.model[0], -start + 2 * np.asarray(one.server.model)[0], **EXACT
        )
        for training in (one, two):
            for _ in range(80):
                training.advance()
        np.testing.assert_allclose(one.server.model, two.server.model, **EXACT)


def test_all_clients_train_and_reporters_upload():
    with float64():
        training = train(
            exact(),
            scalars(),
            quadratic_model(1),
            0,
            participation=Participation(count=2),
        )
        report = training.participation.sample(
            training.population.ids, training.seed, 0
        )
        training.advance()
        left = (1 - GAMMA * A / (A + LAM))[:, 0]
        sent = (1 - left**3) * a[:, 0]
        np.testing.assert_allclose(
            training.server.model, [[sent[by_place(training, report)].mean()]], **EXACT
        )
        theta = (A[:, 0] * a[:, 0] + LAM * (1 - left**2) * a[:, 0]) / (A[:, 0] + LAM)
        np.testing.assert_allclose(personal(training)[:, 0], theta, **EXACT)
        totals = training.ledger.totals()
        assert (totals.models_down, totals.models_down_unicast, totals.models_up) == (
            1,
            4,
            2,
        )


def test_the_global_model_can_be_evaluated_instead():
    with float64():
        for choice, streams in (("personal", 0), ("global", 1)):
            training, ledger = (
                train(exact(predict_with=choice), scalars(), quadratic_model(1), 2),
                Ledger(),
            )
            training.serve(ledger=ledger)
            assert ledger.totals().models_down == streams
        np.testing.assert_array_equal(
            personal(training), np.broadcast_to(training.server.model, (4, 1))
        )


@pytest.mark.parametrize("choice", ["personal", "global"])
def test_newcomers_solve_their_problem_around_the_final_model(choice):
    with float64():
        federation = scalars(unseen=[False, False, True, False])
        training = train(exact(predict_with=choice), federation, quadratic_model(1), 3)
        w = np.asarray(training.server.model)[0, 0]
        solved = (A[2, 0] * a[2, 0] + LAM * w) / (A[2, 0] + LAM)
        found = predictors(training)[0][2, 0]
        np.testing.assert_allclose(
            found, solved if choice == "personal" else w, **EXACT
        )


@pytest.mark.parametrize("debug", [False, True])
def test_every_inner_step_is_accounted(debug):
    with float64():
        algorithm = exact(sgd=SGD(lr=0.25, steps=2, batch_size=8), inner_steps=2)
        training = train(algorithm, scalars(), quadratic_model(1), 1, debug=debug)
        examples = (3 + 3) + (8 + 8) + (8 + 5) + (8 + 8)
        assert training.ledger.totals().gradients == 2 * examples


def test_errors():
    for sgd in (SGD(momentum=0.5), SGD(optimizer=optax.sgd(0.1))):
        with pytest.raises(
            ValueError,
            match=r"plain SGD; train without momentum and without an optimizer",
        ):
            PFedMe(sgd=sgd)
    with pytest.raises(
        ValueError, match=r"the learning rate 0\.1 times lam 20\.0 is 2; from 2 on"
    ):
        PFedMe(lam=20)
    with pytest.raises(
        ValueError, match=r"outer_lr times lam is 3; it must be above 0 and below 2"
    ):
        PFedMe(outer_lr=0.2)
    with pytest.raises(ValueError, match=r"lam 0\.0 and beta 1\.0 must be above 0"):
        PFedMe(lam=0)
    with pytest.raises(ValueError, match=r"inner_steps is 0; it must be 1 or more"):
        PFedMe(inner_steps=0)
    with pytest.raises(ValueError, match=r"predict_with is 'both'"):
        PFedMe(predict_with="both")

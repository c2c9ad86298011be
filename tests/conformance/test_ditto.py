"""Ditto: the global model is FedAvg's, the personal one solves the proximal problem
around the received model.
"""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from conformance.problems import (
    EXACT,
    assert_absent_keep_their_state,
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
from fedtailor.algorithms import Ditto, FedAvg, Local
from fedtailor.data.federation import Ragged
from fedtailor.engine.training import Participation
from fedtailor.protocol import SGD

SIZES = np.array([3, 8, 13, 18])
A = np.array([[0.5, 2.0], [1.0, 0.3], [2.0, 1.0], [3.0, 0.7]])
a = np.array([[-1.0, 2.0], [0.5, 0.0], [2.0, -1.0], [4.0, 3.0]])
LR, STEPS, LAM = 0.2, 3, 0.8
PLAIN = SGD(lr=LR, steps=STEPS, batch_size=8)
MOMENTUM = SGD(lr=0.1, momentum=0.9, epochs=2, batch_size=8)


@pytest.mark.parametrize("lam", [0.0, 1.0])
def test_the_global_model_is_fedavgs(lam):
    with float64():
        models = [
            train(
                algorithm,
                classification(),
                softmax_model(),
                3,
                participation=Participation(count=3),
            ).server.model
            for algorithm in (
                Ditto(sgd=MOMENTUM, lam=lam, weights="samples"),
                FedAvg(sgd=MOMENTUM),
            )
        ]
        np.testing.assert_array_equal(*models)


def test_without_a_pull_clients_train_alone():
    with float64():
        alone, apart = (
            personal(train(algorithm, classification(), softmax_model(), 3))
            for algorithm in (Local(sgd=MOMENTUM), Ditto(sgd=MOMENTUM, lam=0.0))
        )
        np.testing.assert_array_equal(alone, apart)


@pytest.mark.parametrize("weights", ["samples", "uniform"])
def test_fixed_points(weights):
    p = SIZES / SIZES.sum() if weights == "samples" else np.full(4, 0.25)
    c = p[:, None] * (1 - (1 - LR * A) ** STEPS)
    w = (c * a).sum(axis=0) / c.sum(axis=0)
    with float64():
        for k in (1, 2):
            method = Ditto(sgd=PLAIN, lam=LAM, weights=weights)
            training = train(
                method, quadratics(a[:, :k], A[:, :k], SIZES), quadratic_model(k), 100
            )
            np.testing.assert_allclose(training.server.model[0], w[:k], **EXACT)
            np.testing.assert_allclose(
                personal(training), ((A * a + LAM * w) / (A + LAM))[:, :k], **EXACT
            )


def test_one_mean_problem():
    mean = a[:, :1].mean()
    with float64():
        training = train(
            Ditto(sgd=PLAIN, lam=LAM),
            quadratics(a[:, :1], 1.0, SIZES),
            quadratic_model(1),
            80,
        )
        np.testing.assert_allclose(
            personal(training), (a[:, :1] + LAM * mean) / (1 + LAM), **EXACT
        )


def test_the_anchor_is_the_received_model():
    """Three rounds by hand, with a personal training of its own: neither w_i nor the
    next w attracts v_i.
    """
    own = SGD(lr=0.1, steps=2, batch_size=8)
    with float64():
        federation, model = (
            quadratics(a[:, :1], A[:, :1], SIZES),
            quadratic_model(1, shifted),
        )
        training = train(
            Ditto(sgd=PLAIN, lam=LAM, personal_sgd=own), federation, model, 3
        )
        w = float(training.initial(0)[0])
        v = np.full(4, w)
        for _ in range(3):
            for _ in range(2):
                v = v - 0.1 * (A[:, 0] * (v - a[:, 0]) + LAM * (v - w))
            w = (a[:, 0] + (1 - LR * A[:, 0]) ** STEPS * (w - a[:, 0])).mean()
        np.testing.assert_allclose(personal(training)[:, 0], v, **EXACT)


def test_absent_clients_keep_their_personal_models():
    with float64():
        federation = quadratics(a[:, :1], A[:, :1], SIZES)
        training = train(
            Ditto(sgd=PLAIN),
            federation,
            quadratic_model(1),
            0,
            participation=Participation(count=2),
        )
        assert_absent_keep_their_state(training)


def test_newcomers_start_from_the_global_model():
    steps = 5
    with float64():
        federation = quadratics(
            a[:, :1], A[:, :1], SIZES, unseen=[False, False, True, False]
        )
        training = train(
            Ditto(sgd=PLAIN, lam=LAM, newcomer_steps=steps),
            federation,
            quadratic_model(1),
            4,
        )
        w = np.asarray(training.server.model)[0, 0]
        optimum = (A[2, 0] * a[2, 0] + LAM * w) / (A[2, 0] + LAM)
        expected = optimum + (1 - LR * (A[2, 0] + LAM)) ** steps * (w - optimum)
        np.testing.assert_allclose(predictors(training)[0][2, 0], expected, **EXACT)


def test_nothing_is_delivered_to_clients_that_took_part():
    with float64():
        federation = quadratics(
            a[:, :1], A[:, :1], SIZES, unseen=[False, False, True, False]
        )
        training, ledger = (
            train(Ditto(sgd=PLAIN), federation, quadratic_model(1), 1),
            Ledger(),
        )
        training.serve(ledger=ledger)
        assert ledger.totals().models_down == 0
        training.serve(unseen=True, ledger=ledger)
        assert [
            entry.unicasts for entry in ledger.entries if entry.direction == "down"
        ] == [1]


def test_errors():
    with pytest.raises(ValueError, match=r"lam is -1\.0; it must be 0 or more"):
        Ditto(lam=-1)
    with pytest.raises(
        ValueError, match=r"the learning rate 0\.05 times lam 40\.0 is 2; from 2 on"
    ):
        Ditto(lam=40)
    with pytest.raises(ValueError, match=r"the learning rate 0\.5 times lam 4\.0 is 2"):
        Ditto(lam=4, personal_sgd=SGD(lr=0.5))
    with pytest.raises(ValueError, match="newcomer_steps is -1"):
        Ditto(newcomer_steps=-1)


def test_pulls_are_chosen_by_validation_samples_client_by_client():
    """In a round from common models, each client keeps the best of what single pulls
    give; without samples `lam`.
    """
    sgd, pulls = SGD(lr=0.3, epochs=2, batch_size=8), (1.0, 0.0, 3.0)
    with float64():
        federation, model = classification(), softmax_model()
        empty = [np.arange(0) if i == 2 else federation.val[i] for i in range(5)]
        federation = replace(federation, val=Ragged.of(empty))
        start = {"sgd": sgd, "personal_sgd": SGD(lr=0.3, epochs=6, batch_size=8)}
        single = [
            personal(train(Ditto(lam=lam, **start), federation, model, 1))
            for lam in pulls
        ]
        found = personal(
            train(Ditto(lam=pulls[0], lams=pulls[1:], **start), federation, model, 1)
        )
        choices = []
        for i in range(5):
            x, y = map(jnp.asarray, federation.client(i).val)
            losses = [
                float(
                    model.losses(
                        model.logits(model.params(jnp.asarray(it[i])), x), y
                    ).sum()
                )
                for it in single
            ]
            choices.append(int(np.argmin(losses)))
            np.testing.assert_allclose(found[i], single[choices[-1]][i], **EXACT)
        assert choices[2] == 0 and len(set(choices)) > 1

"""FedAMP: its attention, its rounds by hand, and what is left without messages."""

import numpy as np
import pytest

from conformance.problems import (
    EXACT,
    assert_absent_keep_their_state,
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
from fedtailor.algorithms import FedAMP, Local
from fedtailor.engine.training import Participation
from fedtailor.protocol import SGD

SIZES = np.array([3, 8, 13, 18])
A = np.array([[0.5, 2.0], [1.0, 0.3], [2.0, 1.0], [3.0, 0.7]])
a = np.array([[-1.0, 2.0], [0.5, 0.0], [2.0, -1.0], [4.0, 3.0]])
LR, STEPS = 0.2, 3
PLAIN = SGD(lr=LR, steps=STEPS, batch_size=8)
ALPHA, LAM, SIGMA = 0.3, 0.6, 1.5


def attention(w, heur=False, alpha=ALPHA, sigma=SIGMA, own=0.25):
    m = len(w)
    xi = np.zeros((m, m))
    for i in range(m):
        for j in range(m):
            if heur:
                xi[i, j] = np.exp(
                    sigma
                    * (w[i] @ w[j])
                    / (np.linalg.norm(w[i]) * np.linalg.norm(w[j]))
                )
            else:
                xi[i, j] = alpha / sigma * np.exp(-((w[i] - w[j]) ** 2).sum() / sigma)
        xi[i, i] = 0
        if heur:
            xi[i] *= (1 - own) / xi[i].sum()
        xi[i, i] = 1 - xi[i].sum()
    return xi


@pytest.mark.parametrize(
    ("heur", "start"), [(False, "own"), (False, "mean"), (True, "own")]
)
def test_three_rounds_by_hand(heur, start):
    with float64():
        method = FedAMP(
            sgd=PLAIN, alpha=ALPHA, lam=LAM, sigma=SIGMA, heur=heur, start=start
        )
        training = train(
            method, quadratics(a, A, SIZES), quadratic_model(2, shifted), 3
        )
        w = np.tile(training.initial(0), (4, 1))
        for _ in range(3):
            u = attention(w, heur) @ w
            w = w if start == "own" else u
            for _ in range(STEPS):
                w = w - LR * (A * (w - a) + LAM / ALPHA * (w - u))
        np.testing.assert_allclose(personal(training), w, **EXACT)
        order = np.argsort(training.population.original_index)
        np.testing.assert_allclose(
            training.server.attention[np.ix_(order, order)], attention(w, heur), **EXACT
        )


def test_the_mean_pulls_and_models_differ():
    """The trap of code that builds the pull from a copy without a gradient: that is
    training alone.
    """
    with float64():
        pulled, alone = (
            personal(train(method, quadratics(a, A, SIZES), quadratic_model(2), 3))
            for method in (FedAMP(sgd=PLAIN, alpha=ALPHA, lam=LAM), Local(sgd=PLAIN))
        )
        assert np.abs(pulled - alone).max(axis=1).min() > 0.01


@pytest.mark.parametrize("heur", [False, True])
def test_equal_models_get_equal_attention(heur):
    with float64():
        method = FedAMP(sgd=PLAIN, alpha=ALPHA, sigma=SIGMA, heur=heur)
        weights = train(
            method, quadratics(a, A, SIZES), quadratic_model(2, shifted), 0
        ).server.attention
        expected = (1 - 0.25) / 3 if heur else ALPHA / SIGMA
        np.testing.assert_allclose(weights[~np.eye(4, dtype=bool)], expected, **EXACT)


@pytest.mark.parametrize("heur", [False, True])
def test_rows_are_distributions(heur):
    with float64():
        for sigma in (None, 2.0):
            method = FedAMP(sgd=PLAIN, alpha=0.6, sigma=sigma, heur=heur)
            training = train(
                method, quadratics(a, A, SIZES), quadratic_model(2, shifted), 0
            )
            for _ in range(4):
                weights = training.server.attention
                np.testing.assert_allclose(weights.sum(axis=1), 1.0, **EXACT)
                assert (weights >= 0).all()
                training.advance()


def test_the_default_scale_leaves_many_clients_a_weight_of_their_own():
    with float64():
        many = quadratics(np.arange(20.0))
        weights = train(FedAMP(sgd=PLAIN), many, quadratic_model(1), 0).server.attention
        np.testing.assert_allclose(
            weights, np.full((20, 20), 0.05), **EXACT
        )  # sigma = 0.1 * 20: all equal
        few = train(
            FedAMP(sgd=PLAIN), quadratics(a, A, SIZES), quadratic_model(2), 0
        ).server.attention
        np.testing.assert_allclose(few[0, 1], 0.1, **EXACT)


def test_with_a_vanishing_step_clients_train_alone():
    """Without messages u_i is the client's own model, from which it then starts."""
    sgd = SGD(lr=0.1, momentum=0.9, epochs=2, batch_size=8)
    with float64():
        quiet = FedAMP(sgd=sgd, alpha=1e-14, lam=0.0, start="mean")
        found, alone = (
            personal(train(method, classification(), softmax_model(), 3))
            for method in (quiet, Local(sgd=sgd))
        )
        np.testing.assert_allclose(found, alone, **EXACT)


def test_absent_clients_keep_their_models_and_are_still_attended_to():
    with float64():
        federation, participation = quadratics(a, A, SIZES), Participation(count=2)
        training = train(
            FedAMP(sgd=PLAIN),
            federation,
            quadratic_model(2),
            0,
            participation=participation,
        )
        assert_absent_keep_their_state(training)
        sent = training.server.sent
        own = np.asarray(training.executor.client_states["model"])
        np.testing.assert_array_equal(training.server.models[sent], own[sent])


@pytest.mark.parametrize("heur", [False, True])
def test_newcomers_attend_to_all_models(heur):
    unseen = [False, False, True, False]
    with float64():
        method = FedAMP(sgd=PLAIN, alpha=ALPHA, lam=LAM, sigma=SIGMA, heur=heur)
        training = train(
            method,
            quadratics(a, A, SIZES, unseen=unseen),
            quadratic_model(2, shifted),
            2,
        )
        ledger = Ledger()
        training.serve(unseen=True, ledger=ledger)
        assert [
            entry.streams for entry in ledger.entries if entry.direction == "down"
        ] == [3]
        w = by_place_of(training)
        own = w.mean(axis=0)
        for _ in range(STEPS):
            own = own - LR * A[2] * (own - a[2])
        u = (attention(np.stack([own, *w]), heur) @ np.stack([own, *w]))[0]
        v = own
        for _ in range(STEPS):
            v = v - LR * (A[2] * (v - a[2]) + LAM / ALPHA * (v - u))
        np.testing.assert_allclose(predictors(training)[0][2], v, **EXACT)


def test_a_newcomer_counts_in_the_default_scale():
    """Of three clients and a newcomer sigma is four times alpha."""
    unseen, alpha = [False, False, True, False], 2.0
    with float64():
        training = train(
            FedAMP(sgd=PLAIN, alpha=alpha, lam=LAM),
            quadratics(a, A, SIZES, unseen=unseen),
            quadratic_model(2, shifted),
            2,
        )
        w = by_place_of(training)
        own = w.mean(axis=0)
        for _ in range(STEPS):
            own = own - LR * A[2] * (own - a[2])
        sigma = 4 * alpha
        xi = alpha / sigma * np.exp(-np.square(w - own).sum(axis=1) / sigma)
        u = xi @ w + (1 - xi.sum()) * own
        v = own
        for _ in range(STEPS):
            v = v - LR * (A[2] * (v - a[2]) + LAM / alpha * (v - u))
        np.testing.assert_allclose(predictors(training)[0][2], v, **EXACT)


def test_a_newcomer_s_attention_never_exceeds_one():
    """alpha is allowed for three clients; to a fourth one of equal models it is 3/2."""
    unseen, alpha = [False, False, True, False], 0.5
    same = np.tile(a[:1], (4, 1)), np.tile(A[:1], (4, 1))
    with float64():
        training = train(
            FedAMP(sgd=PLAIN, alpha=alpha, lam=LAM, sigma=1.0),
            quadratics(*same, np.full(4, 8), unseen=unseen),
            quadratic_model(2, shifted),
            40,
        )
        w = by_place_of(training)
        u = v = w.mean(axis=0)
        own = u
        for _ in range(STEPS):
            own = own - LR * A[0] * (own - a[0])
        assert 3 * alpha * np.exp(-np.square(w - own).sum(axis=1).max()) > 1
        v = own
        for _ in range(STEPS):
            v = v - LR * (A[0] * (v - a[0]) + LAM / alpha * (v - u))
        np.testing.assert_allclose(predictors(training)[0][2], v, **EXACT)


def by_place_of(training):
    return by_place(training, training.server.models)


def test_errors():
    with pytest.raises(
        ValueError,
        match=(
            r"alpha 0\.4 with sigma 1 gives .* 4 clients .* alpha for them is 0\.3333"
        ),
    ):
        train(
            FedAMP(alpha=0.4, sigma=1.0), quadratics(a, A, SIZES), quadratic_model(2), 0
        )
    with pytest.raises(ValueError, match=r"alpha is 0\.0; it must be above 0"):
        FedAMP(alpha=0)
    with pytest.raises(ValueError, match=r"sigma is 0\.0; it must be above 0"):
        FedAMP(sigma=0)
    with pytest.raises(ValueError, match=r"times lam / alpha 20\.0 is 2"):
        FedAMP(lam=2)
    with pytest.raises(ValueError, match=r"own_weight is 2\.0; it must be in \[0, 1\]"):
        FedAMP(heur=True, own_weight=2)
    with pytest.raises(ValueError, match=r"own_weight belongs to heur"):
        FedAMP(own_weight=0.5)
    with pytest.raises(ValueError, match=r"start is 'zero'"):
        FedAMP(start="zero")

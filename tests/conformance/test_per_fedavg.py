"""Per-FedAvg: fixed points of its three variants, its reduction to FedAvg, its
batches.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from conformance.problems import (
    BATCH,
    EXACT,
    classification,
    float64,
    personal,
    quadratic_model,
    quadratics,
    shifted,
    softmax_model,
    train,
)
from fedtailor.algorithms import FedAvg
from fedtailor.algorithms.per_fedavg import PerFedAvg
from fedtailor.engine.training import Participation
from fedtailor.protocol import SGD

A = np.array([0.5, 1.0, 2.0, 3.0])
a = np.array([-1.0, 0.5, 2.0, 4.0])
SIZES = np.array([3, 8, 13, 18])
ALPHA, BETA, STEPS = 0.1, 0.2, 3
META = SGD(lr=BETA, steps=STEPS, batch_size=BATCH)


@pytest.mark.parametrize("weights", ["samples", "uniform"])
@pytest.mark.parametrize(
    ("variant", "power"), [("hf", 2), ("hf-difference", 2), ("fo", 1)]
)
def test_fixed_points(variant, power, weights):
    """A local step contracts by 1 - beta A (1 - alpha A)^2 (FO: by 1 - beta A (1 -
    alpha A)).
    """
    p = SIZES / SIZES.sum() if weights == "samples" else np.full(4, 0.25)
    moved = 1 - (1 - BETA * A * (1 - ALPHA * A) ** power) ** STEPS
    w = (p * moved * a).sum() / (p * moved).sum()
    with float64():
        method = PerFedAvg(sgd=META, alpha=ALPHA, variant=variant, weights=weights)
        found = personal(
            train(method, quadratics(a, A, SIZES), quadratic_model(1), 120)
        )[:, 0]
    tolerance = EXACT if variant != "hf-difference" else {"rtol": 1e-8}
    np.testing.assert_allclose(found, w - ALPHA * A * (w - a), **tolerance)


def test_fixed_point_of_one_step_is_the_minimum_of_the_meta_objective_for_vectors():
    curvature = np.array([[0.5, 3.0], [1.0, 1.0], [2.0, 0.5]])
    optima = np.array([[-1.0, 2.0], [0.5, 0.0], [2.0, -3.0]])
    c = curvature * (1 - ALPHA * curvature) ** 2
    w = (c * optima).sum(0) / c.sum(0)
    with float64():
        method = PerFedAvg(sgd=replace(META, steps=1), alpha=ALPHA, adapt_steps=2)
        found = personal(
            train(method, quadratics(optima, curvature), quadratic_model(2), 200)
        )
    np.testing.assert_allclose(
        found, optima + (1 - ALPHA * curvature) ** 2 * (w - optima), **EXACT
    )


@pytest.mark.parametrize("drop_last", [False, True])
def test_without_a_personal_step_it_is_fedavg_on_the_same_batches_bit_for_bit(
    drop_last,
):
    sgd = SGD(
        lr=0.2,
        momentum=0.5,
        epochs=2,
        batch_size=BATCH,
        weight_decay=0.01,
        drop_last=drop_last,
    )
    with float64():
        federation, model = classification(), softmax_model()
        expected = personal(
            train(FedAvg(sgd=sgd, weights="uniform"), federation, model, 3)
        )
        found = personal(train(PerFedAvg(sgd=sgd, alpha=0.0), federation, model, 3))
    np.testing.assert_array_equal(found, expected)


def test_first_order_is_second_order_where_the_loss_has_no_curvature():
    with float64():
        federation, model = quadratics(a, 0.0, SIZES), quadratic_model(1, shifted)
        runs = [
            personal(train(PerFedAvg(sgd=META, variant=v), federation, model, 2))
            for v in ("hf", "fo")
        ]
    np.testing.assert_array_equal(*runs)


@pytest.mark.parametrize("relative", [True, False])
def test_differences_of_gradients_approach_the_exact_hessian(relative):
    with float64():
        federation, model = classification(), softmax_model()
        sgd = SGD(lr=0.5, epochs=2, batch_size=BATCH)
        exact, difference, first = (
            personal(
                train(
                    PerFedAvg(sgd=sgd, alpha=0.5, variant=v, relative=relative),
                    federation,
                    model,
                    3,
                )
            )
            for v in ("hf", "hf-difference", "fo")
        )
    np.testing.assert_allclose(difference, exact, atol=1e-6)
    assert np.abs(first - exact).max() > 1e-3


def test_a_step_descends_along_the_gradient_of_the_meta_objective():
    """By automatic differentiation of F(w - alpha grad F(w)), where F is not a quadratic
    and one batch is all data.
    """
    with float64():
        federation, model = classification(clients=1, sizes=[BATCH]), softmax_model()
        rows = federation.train[0]
        x, y = jnp.asarray(federation.x[rows]), jnp.asarray(federation.y[rows])

        def loss(w):
            return model.losses(model.logits(model.params(w), x), y).mean()

        run = train(
            PerFedAvg(sgd=SGD(lr=BETA, steps=1, batch_size=BATCH), alpha=2.0),
            federation,
            model,
            2,
        )
        w = run.server.model[0]
        expected = w - BETA * jax.grad(lambda w: loss(w - 2.0 * jax.grad(loss)(w)))(w)
        run.advance()
        np.testing.assert_allclose(np.asarray(run.server.model)[0], expected, **EXACT)


def test_the_three_batches_of_a_step_are_disjoint():
    """A client's first half of samples has the optimum +1, the other -1: of two batches
    one is always +1, one -1.
    """
    with float64():
        federation = quadratics([[0.0]], 1.0, [2 * BATCH])
        y = federation.y.copy()
        order = seen_in_first_batch(federation)
        y[:, 1] = np.where(order, 1.0, -1.0)
        method = PerFedAvg(sgd=replace(META, steps=1), alpha=ALPHA, variant="fo")
        training = train(method, replace(federation, y=y), quadratic_model(1), 1)
    # D' is the first batch, so D is the second: w~ = alpha (-1), g' = w~ - 1
    np.testing.assert_allclose(
        np.asarray(training.server.model), [[BETA * (1 + ALPHA)]], **EXACT
    )


def seen_in_first_batch(federation):
    """Which samples FedAvg's first batch holds: those that move the model when their
    optimum alone is not 0.
    """
    found = np.zeros(len(federation.y), bool)
    for i in range(len(found)):
        y = federation.y.copy()
        y[i, 1] = 1.0
        one = train(
            FedAvg(sgd=replace(META, steps=1)),
            replace(federation, y=y),
            quadratic_model(1),
            1,
        )
        found[i] = np.asarray(one.server.model)[0, 0] != 0
    assert found.sum() == BATCH
    return found


def test_work_is_counted():
    """A step of `hf` takes four gradients and a Hessian product worth two; `fo` two;
    the adaptation is not training.
    """
    with float64():
        federation, model = (
            classification(clients=1, sizes=[2 * BATCH]),
            softmax_model(),
        )
        sgd = SGD(steps=3, batch_size=BATCH)
        found = {
            variant: (
                train(PerFedAvg(sgd=sgd, variant=variant), federation, model, 1)
                .ledger.totals()
                .gradients
            )
            for variant in ("fo", "hf", "hf-difference")
        }
    assert found == {
        "fo": 2 * 3 * BATCH,
        "hf": 4 * 3 * BATCH,
        "hf-difference": 4 * 3 * BATCH,
    }


def test_newcomers_and_sampling():
    with float64():
        federation = classification(unseen=[False, False, False, True, False])
        twin = replace(
            federation, train=federation.train.take(np.array([0, 1, 2, 1, 4]))
        )
        method = PerFedAvg(sgd=META, alpha=0.5)
        run = train(
            method, twin, softmax_model(), 3, participation=Participation(count=2)
        )
        assert np.isfinite(personal(run)).all()
        models = run.predictors(run.serve(unseen=True))
        np.testing.assert_array_equal(models[0], personal(run)[1])


@pytest.mark.parametrize(
    "wrong",
    [{"variant": "second"}, {"alpha": -1.0}, {"delta": 0.0}, {"adapt_steps": -1}],
)
def test_impossible_requests_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        PerFedAvg(**wrong)

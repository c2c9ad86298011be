"""`SGD.ridge` and `SGD.lr_halves_after`: clients come to the optimum of ridge and logistic
regression, and averaged models to that of all rows together.
"""

import jax
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge

import fedtailor as ft
from fedtailor.engine.executors import Settings
from fedtailor.models import cross_entropy, squared_error

SIZES = (12, 20, 37)


def clients(*, classes: bool):
    """Clients of different sizes, inputs and models."""
    rng = np.random.default_rng(0)
    xs, ys = [], []
    for size in SIZES:
        x = rng.normal(size=(size, 3)) + rng.normal(size=3)
        y = x @ rng.normal(size=3) + rng.normal() + 0.3 * rng.normal(size=size)
        xs.append(x)
        ys.append((y > y.mean()).astype(np.int32) if classes else y)
    names = np.repeat(["a", "b", "c"], SIZES)
    return ft.federation.from_arrays(
        np.concatenate(xs), np.concatenate(ys), names, test=0, val=0
    )


def linear_model(*, classes: bool):
    outputs, loss = (2, cross_entropy) if classes else (1, squared_error)
    return ft.models.logistic().bind((3,), outputs, loss=loss, dtype="float64")


def trained(algorithm, rounds, *, classes, settings=Settings()):  # noqa: B008 (frozen)
    federation = clients(classes=classes)
    model = linear_model(classes=classes)
    run = ft.run(algorithm, federation, model, rounds, settings=settings)
    return federation, {name: run.personal(name) for name in federation.names}


@pytest.mark.parametrize("ridge", [1.0, 4.0])
def test_local_training_comes_to_ridge_regression(ridge):
    # |y - Xw|^2 + alpha |w|^2 has the gradient of sum loss + ridge/2 |w|^2 at ridge = 2
    # alpha; biases are not penalised.
    with jax.enable_x64(True):
        sgd = ft.SGD(lr=0.1, steps=1500, batch_size=64, ridge=ridge)
        federation, models = trained(ft.Local(sgd=sgd), 2, classes=False)
        for client in federation:
            x, y = client.train.x.astype(np.float64), client.train.y
            exact = Ridge(alpha=ridge / 2).fit(x, y).predict(x)
            found = models[client.name].outputs(x).ravel()
            np.testing.assert_allclose(found, exact, rtol=0, atol=1e-6)


def test_local_training_comes_to_logistic_regression():
    # The weights of two classes are u and -u, with the penalty ridge |u|^2 for w = 2 u.
    with jax.enable_x64(True):
        sgd = ft.SGD(lr=0.4, steps=3000, batch_size=64, ridge=2.0)
        federation, models = trained(ft.Local(sgd=sgd), 2, classes=True)
        for client in federation:
            x, y = client.train.x.astype(np.float64), client.train.y
            exact = LogisticRegression(C=1.0, tol=1e-10, max_iter=1000).fit(x, y)
            found = models[client.name].probabilities(x)[:, 1]
            np.testing.assert_allclose(
                found, exact.predict_proba(x)[:, 1], rtol=0, atol=1e-6
            )


STEPS = ft.SGD(lr=0.02, steps=3, batch_size=64, ridge=3.0)
METHODS = (
    ft.FedAvg(sgd=STEPS),
    ft.PFedMe(sgd=STEPS),
    ft.APFL(sgd=STEPS),
    ft.FedEM(sgd=STEPS),
    ft.FedRoD(sgd=STEPS),
    ft.FedDBE(sgd=STEPS),
)


@pytest.mark.parametrize("algorithm", METHODS, ids=lambda method: method.about.name)
def test_methods_with_steps_of_their_own_are_penalised_too(algorithm):
    # As weight decay is: what one penalises, the other one penalises.
    from dataclasses import replace

    with jax.enable_x64(True):
        free = replace(algorithm, sgd=replace(STEPS, ridge=None))
        decayed = replace(algorithm, sgd=replace(STEPS, ridge=None, weight_decay=0.2))
        x = clients(classes=True).x.astype(np.float64)
        outputs = [
            trained(method, 2, classes=True)[1]["a"].outputs(x)
            for method in (free, decayed, algorithm)
        ]
        assert np.abs(outputs[1] - outputs[0]).max() > 1e-4
        assert np.abs(outputs[2] - outputs[0]).max() > 1e-4


def test_the_debug_executor_takes_the_same_penalty():
    with jax.enable_x64(True):
        _, fast = trained(ft.FedAvg(sgd=STEPS), 2, classes=False)
        _, slow = trained(
            ft.FedAvg(sgd=STEPS), 2, classes=False, settings=Settings(debug=True)
        )
        np.testing.assert_allclose(fast["a"].theta, slow["a"].theta, rtol=1e-10)


def pooled_gap(sgd, rounds):
    """The distance of FedAvg's outputs from those of ridge regression on all rows."""
    federation, models = trained(ft.FedAvg(sgd=sgd), rounds, classes=False)
    x, y = federation.x.astype(np.float64), federation.y
    # Each of three clients brings alpha = 1.
    exact = Ridge(alpha=len(SIZES) * 1.0).fit(x, y).predict(x)
    return np.abs(models["a"].outputs(x).ravel() - exact).max()


@pytest.mark.slow
def test_a_falling_rate_brings_averages_of_several_steps_to_the_pooled_optimum():
    with jax.enable_x64(True):
        steps = ft.SGD(lr=0.05, steps=10, batch_size=64, ridge=2.0)
        constant = pooled_gap(steps, 1500)
        falling = pooled_gap(
            ft.SGD(lr=0.05, steps=10, batch_size=64, ridge=2.0, lr_halves_after=20),
            1500,
        )
        assert constant > 0.02
        assert falling < constant / 20


def test_the_rate_is_halved_after_as_many_rounds_as_it_says():
    sgd = ft.SGD(lr=0.4, lr_halves_after=20)
    assert [sgd.rate(t) for t in (0, 20, 60)] == [0.4, 0.2, 0.1]
    assert ft.SGD(lr=0.4).rate(7) == 0.4
    both = ft.SGD(lr=0.4, lr_decay=0.5, lr_halves_after=1)
    assert both.rate(2) == 0.4 * 0.25 / 3


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"ridge": -1.0}, "ridge is -1.0; it must be 0 or more"),
        ({"lr_halves_after": 0.0}, "lr_halves_after is 0.0; it must be above 0"),
        ({"ridge": float("nan")}, "ridge is nan"),
    ],
)
def test_what_is_no_penalty_or_schedule_is_refused(setting, message):
    with pytest.raises(ValueError, match=message):
        ft.SGD(**setting)

"""The synthetic task of Chen et al. 2022: 20 clients estimate scalars drawn from a
two-level Gaussian model.

With known variances every round of Self-FL, its limit and its distance to what can be
known are exact.
"""

from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest

from conformance.problems import EXACT, constant, float64, personal, train, zeros
from fedtailor import models
from fedtailor.algorithms import FedAvg, Local
from fedtailor.algorithms.self_fl import SelfFL
from fedtailor.data import datasets
from fedtailor.models import squared_error
from fedtailor.protocol import SGD

LR, ROUNDS, CLIENTS = 0.005, 40, 20
CURVATURE = 2.0
"""Of the squared error (theta - y)^2."""
SCALAR = models.from_function(lambda key: zeros(key, 1), constant)
FAR = 2.0
NEAR = 0.1
"""Deviations between clients of the heterogeneous and the homogeneous set; within a
client it is 1.
"""


@cache
def task(sigma_0):
    """Data and everything the model says about them: true and local parameters, eq. 2,
    eq. 3, exact posterior.
    """
    federation = datasets.gaussian(sigma_0=sigma_0, theta_0=1.0)
    s = 1 / federation.train.sizes
    mean = lambda split: np.array([federation.y[rows].mean() for rows in split])  # noqa: E731
    z, a = mean(federation.train), 1 / (sigma_0**2 + s)
    others = a.sum() - a
    mean_of_others = (a @ z - a * z) / others
    found = SimpleNamespace(
        federation=federation, s=s, z=z, a=a, others=others, truth=mean(federation.test)
    )
    for name, precision in (
        ("paper", others),
        ("exact", 1 / (sigma_0**2 + 1 / others)),
    ):
        best = (z / s + precision * mean_of_others) / (1 / s + precision)
        setattr(
            found, name, SimpleNamespace(best=best, rho=precision / (1 / s + precision))
        )
    found.common = a @ z / a.sum()
    return found


@cache
def errors(sigma_0, posterior):
    """A run with known variances: the personal models of every round [t, m], and the
    common one [t].
    """
    known = task(sigma_0)
    with float64():
        model = SCALAR.bind((0,), 1, loss=squared_error, dtype="float64")
        order = train(Local(), known.federation, model, 0).population.original_index
        method = SelfFL(
            sgd=SGD(lr=LR, batch_size=128),
            l_max=10_000,
            curvature=CURVATURE,
            posterior=posterior,
            inter_variance=sigma_0**2,
            intra_variances=known.s[order],
        )
        run = train(method, known.federation, model, 0)
        models_of_rounds, common = [], []
        for _ in range(ROUNDS):
            run.advance()
            models_of_rounds.append(personal(run)[:, 0])
            common.append(float(run.server.model[0, 0]))
    return np.array(models_of_rounds), np.array(common)


def contraction(rho):
    """Of the whole number of steps nearest above eq. 8."""
    return (1 - LR * CURVATURE) ** np.ceil(np.log(rho) / np.log(1 - LR * CURVATURE))


CASES = [
    (sigma_0, posterior) for sigma_0 in (NEAR, FAR) for posterior in ("paper", "exact")
]
every_case = pytest.mark.parametrize(("sigma_0", "posterior"), CASES)


@every_case
def test_every_round_is_the_generic_iteration_and_contracts_by_the_largest_rho(
    sigma_0, posterior
):
    known, (found, _) = task(sigma_0), errors(sigma_0, posterior)
    rho = getattr(known, posterior).rho
    R = contraction(rho)[:, None]
    over_others = (
        np.where(np.eye(CLIENTS, dtype=bool), 0, known.a) / known.others[:, None]
    )
    limit = np.linalg.solve(np.eye(CLIENTS) - R * over_others, (1 - R[:, 0]) * known.z)
    before = np.zeros(CLIENTS)
    for t, theta in enumerate(found):
        np.testing.assert_allclose(
            theta, (1 - R[:, 0]) * known.z + R[:, 0] * (over_others @ before), **EXACT
        )
        assert (
            np.abs(theta - limit).max()
            <= rho.max() ** (t + 1) * np.abs(limit).max() + 1e-12
        )
        before = theta


@every_case
def test_the_limit_is_near_the_best_estimate(sigma_0, posterior):
    """Proposition 3.1: the distance to eq. 3 falls by rho a round, down to what
    vanishes with many clients.
    """
    known, (found, common) = task(sigma_0), errors(sigma_0, posterior)
    best, rho = getattr(known, posterior).best, getattr(known, posterior).rho
    distance = np.sqrt(np.mean((found - best) ** 2, axis=1))
    bound = rho.max() ** np.arange(1, ROUNDS + 1) * np.abs(best).max() + 0.02
    assert (distance <= bound).all()
    assert distance[-1] < 0.02
    assert abs(common[-1] - known.common) < 0.05


def deviation(estimate, truth):
    return float(np.sqrt(np.mean((estimate - truth) ** 2)))


def test_estimates_are_as_good_as_the_better_of_learning_alone_and_together():
    """With the exact posterior; eq. 3 takes clients that are many and far apart for one
    (client m is the common model itself), and loses to learning alone."""
    for sigma_0 in (NEAR, FAR):
        known = task(sigma_0)
        alone, together = (
            deviation(known.z, known.truth),
            deviation(known.common, known.truth),
        )
        found = {
            p: deviation(errors(sigma_0, p)[0][-1], known.truth)
            for p in ("paper", "exact")
        }
        assert found["exact"] < 1.1 * min(alone, together)
        if sigma_0 == NEAR:
            assert found["paper"] < 0.7 * alone
        else:
            assert alone < found["paper"] < 0.3 * together


def test_the_gains_tell_who_profits():
    """GAIN_m = v_m(alone) / v_m(together): large for clients near each other, with few
    samples most.
    """
    near, far = task(NEAR), task(FAR)
    with float64():
        model = SCALAR.bind((0,), 1, loss=squared_error, dtype="float64")
        gains = []
        for known, sigma_0 in ((near, NEAR), (far, FAR)):
            order = train(Local(), known.federation, model, 0).population.original_index
            method = SelfFL(inter_variance=sigma_0**2, intra_variances=known.s[order])
            run = train(method, known.federation, model, 0)
            gain = np.empty(CLIENTS)
            gain[order] = method.personalization_gain(run.server)
            np.testing.assert_allclose(
                gain, (1 / known.s + known.others) * known.s, **EXACT
            )
            gains.append(gain)
    assert (gains[0] > gains[1]).all() and (gains[1] > 1).all()
    assert np.argmax(gains[0]) == np.argmin(near.federation.train.sizes)


def test_variances_that_are_not_known_are_learned_well_enough():
    """With eqs. 13 and 14 from models of mini-batches, near clients still gain on
    learning alone and far ones do not fall back to the common model."""
    with float64():
        model = SCALAR.bind((0,), 1, loss=squared_error, dtype="float64")
        for sigma_0 in (NEAR, FAR):
            known = task(sigma_0)
            method = SelfFL(
                sgd=SGD(lr=0.05, batch_size=10),
                curvature=CURVATURE,
                l_max=100,
                posterior="exact",
            )
            found = deviation(
                personal(train(method, known.federation, model, 40))[:, 0], known.truth
            )
            fedavg = FedAvg(sgd=SGD(lr=0.05, batch_size=10, steps=20))
            together = deviation(
                personal(train(fedavg, known.federation, model, 40))[:, 0], known.truth
            )
            alone = deviation(known.z, known.truth)
            assert found < 1.15 * alone and (sigma_0 == NEAR or found < 0.2 * together)

"""With lam = "auto", Ditto and MR-MTL on linear models are a linear mixed model."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from conformance.least_squares import SIZES, least_squares, linear_model
from conformance.problems import (
    EXACT,
    classification,
    float64,
    personal,
    softmax_model,
    train,
)
from fedtailor.algorithms import MRMTL, Ditto
from fedtailor.algorithms.helpers.automatic_pull import components
from fedtailor.data.federation import Ragged
from fedtailor.protocol import SGD, drive
from fedtailor.statistics.mixed import ClientMoments, mixed_model_at, with_intercept

LOCAL = SGD(lr=0.05, steps=10, batch_size=64)


def noisy(federation=None, noise=3.0, seed=4):
    """Clients with laws of their own, and errors of rows."""
    federation = federation or least_squares()
    error = np.random.default_rng(seed).normal(size=len(federation.y))
    return replace(federation, y=federation.y + noise * error)


def total_moments(designs, targets):
    """What the clients' messages add up to, written out."""
    total = 0
    for z, y in zip(designs, targets, strict=True):
        gram = z.T @ z
        fitted = z @ np.linalg.lstsq(z, y)[0]
        freedom = len(y) - np.linalg.matrix_rank(z)
        residual = ((y - fitted) ** 2).sum() if freedom else 0.0
        parts = [gram.ravel(), (gram @ gram).ravel(), z.T @ y]
        total += np.concatenate([*parts, [y @ y, residual, freedom, len(y)]])
    return total


def test_the_variances_are_unbiased():
    """The estimates are quadratic in y, so the sum over y_j = sqrt(l_j) q_j of the
    eigenvectors of Cov(y) is their expectation; one client has fewer rows than
    parameters.
    """
    sigma2, tau2 = 0.7, 2.3
    federation = least_squares()
    designs = [with_intercept(federation.client(k).train.x) for k in range(len(SIZES))]
    n, ends = sum(SIZES), np.cumsum(SIZES)[:-1]
    covariance = sigma2 * np.eye(n)
    for rows, z in zip(np.split(np.arange(n), ends), designs, strict=True):
        covariance[np.ix_(rows, rows)] += tau2 * z @ z.T
    values, vectors = np.linalg.eigh(covariance)
    expected = np.zeros(2)
    for value, vector in zip(values, vectors.T, strict=True):
        y = np.split(np.sqrt(value) * vector, ends)
        expected += components(total_moments(designs, y), 4)[:2]
    # The cut between directions that clients have and rounding is made for single
    # precision, which costs nothing here.
    np.testing.assert_allclose(expected, [sigma2, tau2], rtol=1e-9)


def test_a_target_far_from_zero_has_the_same_variances_in_single_precision():
    """Of a mean of 3,000 deviations sigma^2 was 2.37 in place of .99, and tau^2 0."""
    near = noisy()
    far = replace(near, y=near.y + 3000.0 * near.y.std())
    model = replace(linear_model(), dtype="float32")
    found = []
    for federation in (near, far):
        training = train(MRMTL(sgd=LOCAL, lam="auto"), federation, model, 0)
        again = training.algorithm.asks_again(training.server)
        assert again == (federation is far)
        if again:
            drive(training._probe(), training.executor)
            assert not training.algorithm.asks_again(training.server)
        found.append([training.server.sigma2, training.server.tau2])
    np.testing.assert_allclose(found[1], found[0], rtol=0.01)


def test_clients_send_these_moments():
    federation, model = noisy(), linear_model()
    with float64():
        training = train(MRMTL(sgd=LOCAL, lam="auto"), federation, model, 0)
        targets = [federation.client(k).train.y for k in range(len(SIZES))]
        designs = [
            with_intercept(federation.client(k).train.x) for k in range(len(SIZES))
        ]
        sigma2, tau2, _ = components(total_moments(designs, targets), 4)
        server = training.server
        np.testing.assert_allclose(
            [server.sigma2, server.tau2], [sigma2, tau2], rtol=1e-9
        )
        assert tau2 > 0


def mixed_model(federation, server):
    """The mixed model with the variances of a training: fixed effects and BLUPs, in the
    order of theta (weights, bias).
    """
    moments = [ClientMoments.of(*client.train) for client in federation]
    relative = server.tau2 / server.sigma2 * np.eye(4)
    fitted = mixed_model_at(moments, relative, "isotropic")
    models = np.stack([fitted.coefficients(k) for k in range(len(federation))])
    return fitted, in_order_of_theta(models), in_order_of_theta(fitted.beta)


def in_order_of_theta(coefficients):
    is_bias = linear_model().part("bias").mask
    theta = np.empty_like(coefficients)
    theta[..., is_bias] = coefficients[..., :1]
    theta[..., ~is_bias] = coefficients[..., 1:]
    return theta


def test_mr_mtl_is_the_mixed_model():
    """Henderson's equations: its mean is the GLS estimate, its clients the BLUPs."""
    federation = noisy()
    with float64():
        training = train(MRMTL(sgd=LOCAL, lam="auto"), federation, linear_model(), 300)
        _, models, mean = mixed_model(federation, training.server)
        np.testing.assert_allclose(personal(training), models, **EXACT)
        np.testing.assert_allclose(training.server.model[0], mean, **EXACT)


def test_dittos_clients_are_the_blups_of_its_global_model():
    """The global model is put at the GLS estimate before each round."""
    federation = noisy()
    with float64():
        method = Ditto(sgd=LOCAL, lam="auto")
        training = train(method, federation, linear_model(), 0)
        _, models, mean = mixed_model(federation, training.server)
        for _ in range(120):
            training.server = replace(training.server, model=jnp.asarray(mean[None]))
            training.advance()
        np.testing.assert_allclose(personal(training), models, **EXACT)


def test_a_newcomer_is_pulled_by_its_own_rows():
    unseen = np.array([False, False, False, True])
    federation = replace(noisy(), unseen=unseen)
    with float64():
        method = MRMTL(sgd=LOCAL, lam="auto")
        training = train(method, federation, linear_model(), 1)
        server = training.server
    seen = [federation.client(k).train for k in range(3)]
    designs = [with_intercept(split.x) for split in seen]
    total = total_moments(designs, [split.y for split in seen])
    sigma2, tau2, _ = components(total, 4)
    np.testing.assert_allclose([server.sigma2, server.tau2], [sigma2, tau2], rtol=1e-9)


def test_clients_that_do_not_differ_are_pulled_as_far_as_steps_allow():
    """One law for all, without noise between clients: tau^2 is not positive, and the
    models are the mean's neighbours.
    """
    federation = least_squares()
    same = replace(federation, y=federation.x @ np.array([1.0, -1.0, 0.5]))
    federation = noisy(same, noise=1.0, seed=1)
    with float64():
        training = train(MRMTL(sgd=LOCAL, lam="auto"), federation, linear_model(), 400)
        assert training.server.tau2 == 0
        models, mean = personal(training), np.asarray(training.server.model[0])
        assert np.isfinite(models).all()
        # lam = 1 / lr: v = w - lr * gradient(v)
        assert np.abs(models - mean).max() < 0.2


@pytest.mark.parametrize("method", [Ditto, MRMTL])
def test_errors(method):
    with pytest.raises(ValueError, match="lam is 'automatic'"):
        method(lam="automatic")
    with pytest.raises(ValueError, match="this model is not one; name a number"):
        train(method(lam="auto"), classification(), softmax_model(), 0)
    few = least_squares(sizes=np.array([2, 3, 3, 2]))
    with float64(), pytest.raises(ValueError, match="with more rows than the 4"):
        train(method(lam="auto"), few, linear_model(), 0)
    alone = replace(least_squares(sizes=np.array([9])), train=Ragged.of([np.arange(9)]))
    with float64(), pytest.raises(ValueError, match="needs two clients or more"):
        train(method(lam="auto"), alone, linear_model(), 0)


def test_other_lams_do_not_go_with_auto():
    with pytest.raises(ValueError, match="leave lams empty"):
        Ditto(lam="auto", lams=(1.0,))

"""Self-FL's gains against the Gaussian posterior, and estimates of its variances."""

import numpy as np
import pytest

from fedtailor.statistics.diagnosis import local_variance_between, personalization_gain

WITHIN, BETWEEN = np.array([0.5, 2.0, 1.0, 4.0]), 0.7


def posterior(m, within, between):
    """Variance of theta_m given z, and weights of z [m] in its mean, under a flat prior
    of theta_0.
    """
    clients = len(within)
    precision = np.diag([clients / between, *(1 / between + 1 / within)])
    precision[0, 1:] = precision[1:, 0] = -1 / between
    covariance = np.linalg.inv(precision)
    return covariance[m + 1, m + 1], covariance[m + 1, 1:] / within


@pytest.mark.parametrize("m", range(4))
def test_the_exact_gain_is_that_of_the_gaussian_model(m):
    found = personalization_gain(WITHIN, BETWEEN, "exact")
    variance, weights = posterior(m, WITHIN, BETWEEN)
    np.testing.assert_allclose(found.gain[m], WITHIN[m] / variance, rtol=1e-10)
    np.testing.assert_allclose(found.rho[m], 1 - weights[m], rtol=1e-10)
    assert found.gain[m] <= 1 + WITHIN[m] / BETWEEN


def test_the_paper_s_gain_grows_with_clients_that_have_nothing_in_common():
    many = np.ones(1001)
    printed, exact = (
        personalization_gain(many, 10.0, kind).gain[0] for kind in ("paper", "exact")
    )
    np.testing.assert_allclose(printed, 1 + 1000 / 11, rtol=1e-12)
    np.testing.assert_allclose(exact, 1 + 1 / (10 + 11 / 1000), rtol=1e-12)


def test_both_agree_where_clients_do_not_differ():
    printed, exact = (
        personalization_gain(WITHIN, 0.0, kind) for kind in ("paper", "exact")
    )
    np.testing.assert_allclose(printed.gain, exact.gain, rtol=1e-12)
    np.testing.assert_allclose(printed.gain, WITHIN * (1 / WITHIN).sum(), rtol=1e-12)
    assert np.isinf(printed.strength).all() and printed.rate == printed.rho.max()


def test_strength_and_steps():
    found = personalization_gain(WITHIN, BETWEEN)
    np.testing.assert_allclose(found.strength, WITHIN / BETWEEN, rtol=1e-12)
    steps = found.steps(0.1, largest=10_000)
    assert ((0.9**steps <= found.rho) & (0.9 ** (steps - 1) > found.rho)).all()
    assert found.steps(0.1, largest=2).max() == 2 and found.steps(0.999).min() == 1
    alone = personalization_gain(np.ones(1), 1.0)
    assert (
        alone.gain[0] == 1 and alone.steps(0.1)[0] == 40
    )  # nobody to learn from: as many steps as allowed
    with pytest.raises(ValueError, match=r"eq\. 8 has a solution"):
        found.steps(2.0)


def test_the_variance_between_clients_is_not_inflated_by_that_within():
    rng, estimates, printed = np.random.default_rng(0), [], []
    for _ in range(400):
        within = rng.uniform(1, 5, 12)
        models = (
            rng.normal(0, np.sqrt(2.0), (12, 20))
            + rng.normal(size=(12, 20)) * np.sqrt(within / 20)[:, None]
        )
        estimates.append(local_variance_between(models, within))
        printed.append(models.var(axis=0, ddof=1).sum())
    np.testing.assert_allclose(np.mean(estimates), 40, rtol=0.02)
    assert np.mean(printed) > 42
    assert local_variance_between(np.zeros((3, 2)), np.ones(3)) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.array([1.0, 0.0]), 1.0), "a client's variance is 0; it must be above 0"),
        ((WITHIN, -1.0), "between clients is -1"),
        ((WITHIN, 1.0, "bayes"), "posterior is 'bayes'"),
    ],
)
def test_variances_that_are_none_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        personalization_gain(*arguments)
    with pytest.raises(ValueError, match="one client alone"):
        local_variance_between(np.zeros((1, 2)), np.ones(1))

"""Mixed models beside their definition, and beside statsmodels."""

import gzip

import numpy as np
import polars as pl
import pytest
from scipy.optimize import approx_fprime

import published
from fedtailor.statistics.mixed import (
    EFFECTS,
    ClientMoments,
    fit_mixed_model,
    mixed_model_at,
    with_intercept,
)
from fedtailor.statistics.mixed.model import _profile, _Sums

SIZES = (2, 5, 9, 14, 6)
EXACT = {"rtol": 1e-10, "atol": 1e-10}
RELATIVE = np.array([[0.8, 0.1, -0.2], [0.1, 0.5, 0.05], [-0.2, 0.05, 0.3]])
"""D / sigma^2."""


def clients(seed=0):
    rng = np.random.default_rng(seed)
    inputs = [rng.normal(size=(n, 2)) for n in SIZES]
    targets = [
        with_intercept(x) @ rng.normal([1, 2, -1], 0.7) + rng.normal(size=len(x))
        for x in inputs
    ]
    return inputs, targets


def moments():
    return [ClientMoments.of(x, y) for x, y in zip(*clients(), strict=True)]


def dense(relative, random):
    """Beta, sigma^2, BLUPs and the restricted log-likelihood by their definitions, with
    the covariance matrix of all rows.
    """
    inputs, targets = clients()
    x = with_intercept(np.concatenate(inputs))
    y = np.concatenate(targets)
    v = np.eye(len(y))
    parts = np.split(np.arange(len(y)), np.cumsum(SIZES)[:-1])
    for rows in parts:
        z = x[rows][:, random]
        v[np.ix_(rows, rows)] += z @ relative @ z.T
    inverse = np.linalg.inv(v)
    information = x.T @ inverse @ x
    beta = np.linalg.solve(information, x.T @ inverse @ y)
    residual = y - x @ beta
    freedom = len(y) - len(beta)
    sigma2 = residual @ inverse @ residual / freedom
    blups = [
        relative @ x[rows][:, random].T @ (inverse @ residual)[rows] for rows in parts
    ]
    deviance = (
        freedom * (np.log(2 * np.pi * sigma2) + 1)
        + np.linalg.slogdet(v)[1]
        + np.linalg.slogdet(information)[1]
    )
    return beta, sigma2, np.stack(blups), -deviance / 2


@pytest.mark.parametrize("effects", ["intercept", "full"])
def test_estimates_are_those_of_all_rows(effects):
    random = np.arange(1 if effects == "intercept" else 3)
    relative = RELATIVE[: len(random), : len(random)]
    beta, sigma2, blups, log_likelihood = dense(relative, random)
    fitted = mixed_model_at(moments(), relative, effects)
    np.testing.assert_allclose(fitted.beta, beta, **EXACT)
    np.testing.assert_allclose(fitted.sigma2, sigma2, **EXACT)
    np.testing.assert_allclose(fitted.covariance, sigma2 * relative, **EXACT)
    np.testing.assert_allclose(fitted.effects, blups, **EXACT)
    np.testing.assert_allclose(fitted.log_likelihood, log_likelihood, **EXACT)


def test_the_slope_is_the_derivative():
    sums, half = _Sums(moments(), "full"), np.linalg.cholesky(RELATIVE)

    def deviance(entries):
        return _profile(entries.reshape(3, 3), sums).deviance

    numbers = approx_fprime(half.ravel(), deviance, 1e-7).reshape(3, 3)
    np.testing.assert_allclose(_profile(half, sums).slope, numbers, rtol=1e-4)


def test_no_covariance_is_more_likely_than_the_fitted_one():
    rng = np.random.default_rng(1)
    for effects in EFFECTS:
        fitted = fit_mixed_model(moments(), effects)
        relative = fitted.covariance / fitted.sigma2
        for _ in range(20):
            if effects in ("intercept", "isotropic"):
                other = relative * rng.lognormal(sigma=0.05)
            elif effects == "diagonal":
                other = relative * np.diag(rng.lognormal(sigma=0.05, size=3))
            else:
                mix = np.eye(3) + 0.05 * rng.normal(size=(3, 3))
                other = mix @ relative @ mix.T
            at = mixed_model_at(moments(), other, effects).log_likelihood
            assert at <= fitted.log_likelihood + 1e-8


def test_richer_covariances_are_at_least_as_likely():
    values = {it: fit_mixed_model(moments(), it).log_likelihood for it in EFFECTS}
    assert values["isotropic"] <= values["diagonal"] + 1e-8
    assert values["diagonal"] <= values["full"] + 1e-8
    assert values["intercept"] <= values["diagonal"] + 1e-8


def test_a_client_of_many_rows_has_its_own_least_squares_and_a_new_one_beta():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(200_000, 2))
    y = with_intercept(x) @ [3.0, -2.0, 1.0] + rng.normal(size=len(x))
    known = [*moments(), ClientMoments.of(x, y)]
    fitted = fit_mixed_model(known, "isotropic")
    alone = np.linalg.lstsq(with_intercept(x), y)[0]
    np.testing.assert_allclose(fitted.coefficients(len(SIZES)), alone, atol=1e-4)
    np.testing.assert_array_equal(fitted.coefficients(), fitted.beta)
    np.testing.assert_allclose(
        fitted.predict(x[:3], len(SIZES)),
        with_intercept(x[:3]) @ fitted.coefficients(len(SIZES)),
    )


def test_clients_that_do_not_differ_have_no_effects():
    rng = np.random.default_rng(0)
    # The mean of every client is exactly the same.
    parts = []
    for size in SIZES:
        noise = rng.normal(size=size)
        parts.append(ClientMoments.of(np.zeros((size, 0)), noise - noise.mean()))
    fitted = fit_mixed_model(parts)
    assert abs(fitted.covariance[0, 0]) < 1e-8
    np.testing.assert_allclose(fitted.effects, 0, atol=1e-8)


def test_errors():
    with pytest.raises(ValueError, match="two clients or more with rows"):
        fit_mixed_model(moments()[:1])
    x = np.ones((6, 1))  # another intercept
    same = [ClientMoments.of(x, np.arange(6.0))] * 2
    with pytest.raises(ValueError, match="12 rows do not determine 2 fixed effects"):
        fit_mixed_model(same)
    with pytest.raises(ValueError, match="structure of random effects"):
        fit_mixed_model(moments(), "slopes")


DATA = published.DATA / "multilevel"

# statsmodels 0.15.0, MixedLM(y, [1, x], groups, exog_re=[1] or [1, x]).fit(reml=True,
# method="bfgs", gtol=1e-8): fixed effects, covariance, scale, llf.
STATSMODELS = {
    ("Exam", "intercept"): (
        [0.01194748, 0.55947786, 0.35765642],
        [[0.078992]],
        0.566040062,
        -4680.930983070,
    ),
    ("Exam", "full"): (
        [-0.01164932, 0.55653471],
        [[0.09211835, 0.0183418], [0.0183418, 0.01496713]],
        0.553641396,
        -4663.800172565,
    ),
    ("MathAchieve", "intercept"): (
        [12.66126179, 2.19116534, 3.67503735],
        [[2.69242165]],
        37.019064482,
        -23284.289891769,
    ),
    ("MathAchieve", "full"): (
        [12.66502308, 2.39381321],
        [[4.82863636, -0.15427545], [-0.15427545, 0.41292945]],
        36.830164610,
        -23320.199127080,
    ),
}
COLUMNS = {
    "Exam": ("normexam", "school", ["standLRT", "schavg"]),
    "MathAchieve": ("MathAch", "School", ["SES", "MEANSES"]),
}


@pytest.mark.skipif(not DATA.is_dir(), reason="FEDTAILOR_DATA has no multilevel")
@pytest.mark.parametrize(("table", "effects"), STATSMODELS)
def test_statsmodels_finds_the_same(table, effects):
    target, group, columns = COLUMNS[table]
    columns = columns if effects == "intercept" else columns[:1]
    with gzip.open(DATA / f"{table}.csv.gz") as file:
        frame = pl.read_csv(file.read())
    parts = [
        ClientMoments.of(part.select(columns).to_numpy(), part[target].to_numpy())
        for part in frame.partition_by(group)
    ]
    fitted = fit_mixed_model(parts, effects)
    beta, covariance, scale, log_likelihood = STATSMODELS[table, effects]
    # statsmodels stops at about six digits of the covariance.
    np.testing.assert_allclose(fitted.beta, beta, rtol=2e-6)
    np.testing.assert_allclose(fitted.covariance, covariance, rtol=2e-6)
    np.testing.assert_allclose(fitted.sigma2, scale, rtol=1e-7)
    np.testing.assert_allclose(fitted.log_likelihood, log_likelihood, rtol=1e-10)


def test_what_sums_of_squares_do_not_show_is_refused():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 20, 1))
    y = x[..., 0] + rng.normal(size=(4, 1)) + rng.normal(size=(4, 20))
    with pytest.raises(ValueError, match="subtract its mean"):
        fit_mixed_model([ClientMoments.of(*it) for it in zip(x, y + 1e8, strict=True)])
    alone = [ClientMoments.of(row[None], [1.0]) for row in rng.normal(size=(9, 1))]
    with pytest.raises(ValueError, match="each client has one row"):
        fit_mixed_model(alone)


def test_the_unit_of_an_input_changes_nothing():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 20, 1))
    y = x[..., 0] + rng.normal(size=(4, 1)) + rng.normal(size=(4, 20))
    fits = [
        fit_mixed_model(
            [ClientMoments.of(unit * a, b) for a, b in zip(x, y, strict=True)]
        )
        for unit in (1.0, 5e7)
    ]
    assert fits[1].sigma2 == pytest.approx(fits[0].sigma2, rel=1e-6)
    assert fits[1].beta[1] * 5e7 == pytest.approx(fits[0].beta[1], rel=1e-6)

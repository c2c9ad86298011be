"""Cox's model: published coefficients, closed forms, sums over strata, and lifelines."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedtailor.models.tasks import CoxPartial
from fedtailor.models.tasks.times import cox_sums, fit_cox, harrell
from models.tasks.times.test_curves import CONTROLS, SEEN, TREATED

LEUKAEMIA = (
    np.repeat([[0.0], [1.0]], 21, axis=0),
    np.array([*TREATED, *CONTROLS], float),
    np.array([*SEEN, *[1] * 21]),
)


def made(rows=120, inputs=3, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, inputs))
    time = np.ceil(8 * rng.exponential(np.exp(-x @ np.linspace(0.5, -0.5, inputs))))
    return x, time, rng.random(rows) < 0.7


@pytest.mark.parametrize(
    ("ties", "coefficient", "error"),
    [("breslow", 1.5092, 0.4096), ("efron", 1.5721, 0.4124)],
)
def test_the_published_coefficients_of_the_leukaemia_trial(ties, coefficient, error):
    """Cox (1972) and the manual of R's survival package."""
    fit = fit_cox([partial(cox_sums, *LEUKAEMIA, ties=ties)], 1)
    assert fit.coefficients[0] == pytest.approx(coefficient, abs=5e-5)
    assert fit.errors[0] == pytest.approx(error, abs=5e-5)
    assert fit.events == 30


@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_inputs_far_from_0_keep_their_digits(ties):
    """An error of 0.23418 instead of 0.23412 at 1e6; none was found at 1e8."""
    x, time, event = made()
    x = np.round(x * 2**10) / 2**10  # so that the sums below are exact
    near = fit_cox([partial(cox_sums, x, time, event, ties=ties)], 3)
    far = fit_cox([partial(cox_sums, x + 2.0**27, time, event, ties=ties)], 3)
    np.testing.assert_allclose(far.coefficients, near.coefficients, rtol=1e-7)
    np.testing.assert_allclose(far.errors, near.errors, rtol=1e-7)


def test_two_rows_have_a_closed_form():
    beta = 0.7
    sums = cox_sums([[1.0], [0.0]], [1.0, 2.0], [1, 0], [beta])
    share = np.exp(beta) / (1 + np.exp(beta))
    assert sums.log_likelihood == pytest.approx(np.log(share), abs=1e-14)
    assert sums.gradient == pytest.approx([1 - share], abs=1e-14)
    assert sums.information[0, 0] == pytest.approx(share * (1 - share), abs=1e-14)


@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_the_loss_is_the_partial_likelihood(ties):
    x, time, event = made()
    beta = np.array([0.3, -0.2, 0.1])
    with jax.enable_x64(True):
        task = CoxPartial(efron=ties == "efron")
        y = jnp.stack([jnp.asarray(time), jnp.asarray(event, jnp.float64)], 1)

        def losses(beta, weight=None):
            return task.losses((jnp.asarray(x) @ beta)[:, None], y, weight)

        def total(beta, weight=None):
            return losses(beta, weight).sum()

        sums = cox_sums(x, time, event, beta, ties)
        value, gradient = jax.jit(jax.value_and_grad(total))(jnp.asarray(beta))
        assert value == pytest.approx(-sums.log_likelihood, abs=1e-10)
        assert gradient == pytest.approx(-sums.gradient, abs=1e-10)
        information = jax.jit(jax.hessian(total))(jnp.asarray(beta))
        np.testing.assert_allclose(information, sums.information, atol=1e-9)
        # padding repeats rows and must not enter a risk set
        weight = jnp.asarray(np.arange(120) < 70, jnp.float64)
        part = cox_sums(x[:70], time[:70], event[:70], beta, ties)
        padded = jax.jit(losses)(jnp.asarray(beta), weight)
        assert padded[:70].sum() == pytest.approx(-part.log_likelihood, abs=1e-10)
        assert not padded[70:].any()
        gradient_of = jax.jit(jax.grad(total))
        for rows in (3, 70):
            few = jnp.asarray(np.arange(120) < rows, jnp.float64)
            gradient = gradient_of(jnp.asarray(beta), few)
            assert jnp.isfinite(gradient).all()


def test_likelihoods_of_large_scores_are_finite():
    x, time, event = made()
    sums = cox_sums(1e4 * x, time, event, np.ones(3))
    assert np.isfinite(sums.log_likelihood) and np.isfinite(sums.gradient).all()


def test_sums_of_strata_are_the_stratified_model():
    """A stratum that is moved to later times than all others has risk sets of its own only
    if it is a stratum: the pooled model differs.
    """
    parts = [made(60, seed=seed) for seed in range(3)]
    fit = fit_cox([partial(cox_sums, *part) for part in parts], 3)
    moved = [
        (x, time * factor, event)
        for (x, time, event), factor in zip(parts, (1, 7, 50), strict=True)
    ]
    same = fit_cox([partial(cox_sums, *part) for part in moved], 3)
    np.testing.assert_allclose(same.coefficients, fit.coefficients, atol=1e-10)
    pooled = [np.concatenate(columns) for columns in zip(*parts, strict=True)]
    other = fit_cox([partial(cox_sums, *pooled)], 3)
    assert np.abs(other.coefficients - fit.coefficients).max() > 1e-3


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ((np.eye(3)[:, :1], [1.0, 2, 3], [0, 0, 0]), "no event"),
        ((np.ones((5, 1)), [1.0, 2, 3, 4, 5], [1] * 5), "constant"),
        ((np.arange(5.0)[::-1, None], [1.0, 2, 3, 4, 5], [1] * 5), "no maximum"),
    ],
)
def test_what_cannot_be_estimated_is_told(rows, problem):
    with pytest.raises(ValueError, match=problem):
        fit_cox([partial(cox_sums, *rows)], 1)


@pytest.mark.extra
@pytest.mark.parametrize("strata", [False, True])
def test_one_client_and_several_are_lifelines(strata):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    lifelines = pytest.importorskip("lifelines", reason="lifelines is not installed")
    parts = [made(150, seed=seed) for seed in range(3 if strata else 1)]
    fit = fit_cox([partial(cox_sums, *part) for part in parts], 3)
    x, time, event = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    frame = pandas.DataFrame(x, columns=["a", "b", "c"])
    frame["time"], frame["event"] = time, event
    frame["client"] = np.repeat(np.arange(len(parts)), 150)
    fitted = lifelines.CoxPHFitter().fit(
        frame if strata else frame.drop(columns="client"),
        "time",
        "event",
        strata=["client"] if strata else None,
        fit_options={"precision": 1e-12},
    )
    np.testing.assert_allclose(fit.coefficients, fitted.params_, atol=1e-6)
    np.testing.assert_allclose(fit.errors, fitted.standard_errors_, atol=1e-6)


@pytest.mark.extra
@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_one_client_is_scikit_survivals(ties):
    linear = pytest.importorskip(
        "sksurv.linear_model", reason="scikit-survival is not installed"
    )
    x, time, event = made(150)
    kind = [("event", bool), ("time", float)]
    rows = np.array(list(zip(event, time, strict=True)), dtype=kind)
    model = linear.CoxPHSurvivalAnalysis(ties=ties, tol=1e-12).fit(x, rows)
    fit = fit_cox([partial(cox_sums, x, time, event, ties=ties)], 3)
    np.testing.assert_allclose(fit.coefficients, model.coef_, atol=1e-6)


def test_each_refusal_has_its_own_reason():
    rng = np.random.default_rng(0)
    x, time, event = rng.normal(size=(20, 3)), rng.exponential(size=20), np.ones(20)

    def fit(inputs):
        return fit_cox([partial(cox_sums, inputs, time, event)], inputs.shape[1])

    flat = np.column_stack([x[:, 0], np.full(20, 3.7)])
    with pytest.raises(ValueError, match=r"input 1 .* constant within every client"):
        fit(flat)
    with pytest.raises(ValueError, match="determine each other"):
        fit(np.column_stack([x[:, 0], 2 * x[:, 0] + x[:, 1], x[:, 1]]))
    unknown = x.copy()
    unknown[3, 2] = np.nan
    with pytest.raises(ValueError, match=r"input 2 .* has missing values"):
        fit(unknown)
    # The unit of an input is none.
    scale = np.array([1e6, 1.0, 1e-4])
    np.testing.assert_allclose(
        fit(x * scale).coefficients * scale, fit(x).coefficients, rtol=1e-6
    )


def test_harrell_refuses_missing_numbers():
    for time, risk in (([1.0, np.nan], [1.0, 2.0]), ([1.0, 2.0], [np.nan, 2.0])):
        with pytest.raises(ValueError, match="NaN"):
            harrell(time, [1, 1], risk)

"""Regressions beside closed forms, statsmodels and lifelines."""

import itertools
import json

import numpy as np
import pytest

import regression_reference as reference
from fedtailor.statistics.mixed import ClientMoments, fit_mixed_model
from fedtailor.statistics.regression import ClientRows, fit_regression
from fedtailor.statistics.regression.fit import fit_from_sums
from fedtailor.statistics.regression.rows import RegressionRows, sum_over
from fedtailor.statistics.regression.sums import best_intercept, sums_of

REFERENCES = json.loads(reference.HOME.read_text())


def rows_of(x, y, seen=None):
    x = np.asarray(x, float)
    x = x[:, None] if x.ndim == 1 else x
    return ClientRows(
        x, np.asarray(y, float), None if seen is None else np.asarray(seen, float)
    )


def divided(rows, owners):
    """The rows of one client as those of several."""
    return [
        ClientRows(
            rows.x[owners == owner],
            rows.y[owners == owner],
            None if rows.seen is None else rows.seen[owners == owner],
        )
        for owner in np.unique(owners)
    ]


def made(model, rows=90):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 2))
    score = x @ [0.8, -0.5] + 0.3
    y = {
        "linear": score + rng.normal(size=rows),
        "logistic": (score + rng.logistic(size=rows) > 0).astype(float),
        "poisson": rng.poisson(np.exp(score)).astype(float),
        "cox": np.ceil(20 * rng.exponential(np.exp(-score))),
    }[model]
    return ClientRows(x, y, (rng.random(rows) < 0.7).astype(float))


GLMS = ("linear", "logistic", "poisson")


@pytest.mark.parametrize("key", REFERENCES)
def test_as_statsmodels_and_lifelines(key):
    model, intercept, errors, _ = key.split()
    fitted = fit_regression(
        reference.clients_of(model),
        reference.NAMES,
        model,
        intercept=intercept,
        errors=errors,
    )
    coefficients, deviations, p_values, log_likelihood = REFERENCES[key]
    np.testing.assert_allclose(fitted.coefficients, coefficients, rtol=1e-8)
    np.testing.assert_allclose(fitted.standard_errors, deviations, rtol=1e-8)
    np.testing.assert_allclose(fitted.p_values, p_values, rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose(fitted.log_likelihood, log_likelihood, rtol=1e-10)
    # Newton's method doubles the digits in each step; other directions take more.
    assert fitted.steps <= 6


@pytest.mark.extra
def test_statsmodels_and_lifelines_still_say_so():
    pytest.importorskip("statsmodels", reason="statsmodels is not installed")
    pytest.importorskip("lifelines", reason="lifelines is not installed")
    for key, columns in reference.references().items():
        for now, stored in zip(columns, REFERENCES[key], strict=True):
            np.testing.assert_allclose(now, stored, rtol=1e-7, atol=1e-12)


def test_odds_of_a_table_of_four():
    """Woolf's standard error of a log odds ratio."""
    a, b, c, d = 12, 7, 5, 20  # ill and well of the exposed, and of the others
    rows = rows_of(
        np.repeat([1, 1, 0, 0], [a, b, c, d]), np.repeat([1, 0, 1, 0], [a, b, c, d])
    )
    fitted = fit_regression(divided(rows, np.arange(44) % 3), ["exposed"], "logistic")
    expected = [np.log(c / d), np.log(a * d / (b * c))]
    np.testing.assert_allclose(fitted.coefficients, expected, rtol=1e-10)
    errors = np.sqrt([1 / c + 1 / d, 1 / a + 1 / b + 1 / c + 1 / d])
    np.testing.assert_allclose(fitted.standard_errors, errors, rtol=1e-10)


def test_rates_of_two_groups():
    rows = rows_of(np.repeat([1, 0], [4, 5]), [3, 4, 1, 2, 0, 1, 1, 0, 1])
    fitted = fit_regression(divided(rows, np.arange(9) % 2), ["x"], "poisson")
    expected = [np.log(3 / 5), np.log((10 / 4) / (3 / 5))]
    np.testing.assert_allclose(fitted.coefficients, expected, rtol=1e-10)
    errors = np.sqrt([1 / 3, 1 / 10 + 1 / 3])
    np.testing.assert_allclose(fitted.standard_errors, errors, rtol=1e-10)


def test_fixed_effects_are_deviations_from_each_clients_means():
    rows, owners = made("linear"), np.arange(90) % 6
    fitted = fit_regression(
        divided(rows, owners), ["a", "b"], "linear", intercept="fixed"
    )
    within = np.hstack([rows.x, rows.y[:, None]])
    for owner in range(6):
        within[owners == owner] -= within[owners == owner].mean(axis=0)
    x, y = within[:, :2], within[:, 2]
    slopes, (squares,), *_ = np.linalg.lstsq(x, y)
    np.testing.assert_allclose(fitted.coefficients, slopes, rtol=1e-10)
    covariance = squares / (90 - 6 - 2) * np.linalg.inv(x.T @ x)
    np.testing.assert_allclose(fitted.covariance, covariance, rtol=1e-9)


@pytest.mark.parametrize("model", ["poisson", "cox"])
def test_matched_pairs_know_their_own_level(model):
    """Each client has one exposed row and one that is not. Given the pair's total, a
    count is binomial; and the first event of a pair is one toss of a coin.
    """
    if model == "poisson":
        counts = [(3, 1), (0, 2), (5, 4), (2, 0), (0, 0)]
        pairs = [rows_of([1, 0], pair) for pair in counts]
        exposed, others = 10, 7
    else:
        exposed, others = 9, 4
        pairs = [rows_of([1, 0], [1, 2], [1, 0])] * exposed
        pairs += [rows_of([1, 0], [2, 1], [0, 1])] * others
    fitted = fit_regression(pairs, ["exposed"], model, intercept="fixed")
    assert fitted.coefficients[0] == pytest.approx(np.log(exposed / others), rel=1e-10)
    error = np.sqrt(1 / exposed + 1 / others)
    assert fitted.standard_errors[0] == pytest.approx(error, rel=1e-10)
    # Two rows without a count say nothing about rates.
    assert fitted.left_out == ((4,) if model == "poisson" else ())


@pytest.mark.parametrize("model", GLMS)
def test_who_holds_which_rows_changes_nothing(model):
    rows = made(model)
    one = fit_regression([rows], ["a", "b"], model)
    for owners in (np.arange(90) % 7, np.arange(90) // 80):
        several = fit_regression(divided(rows, owners)[::-1], ["a", "b"], model)
        np.testing.assert_allclose(several.coefficients, one.coefficients, rtol=1e-9)
        np.testing.assert_allclose(several.covariance, one.covariance, rtol=1e-9)
        assert several.log_likelihood == pytest.approx(one.log_likelihood, rel=1e-12)


@pytest.mark.parametrize(
    ("model", "intercept"),
    [
        *itertools.product(GLMS, ["common", "fixed"]),
        ("linear", "random"),
        ("cox", "fixed"),
    ],
)
def test_units_of_columns_are_those_of_coefficients(model, intercept):
    rows, owners = made(model), np.arange(90) % 5
    names, choices = ["a", "b"], {"intercept": intercept}
    plain = fit_regression(divided(rows, owners), names, model, **choices)
    other = ClientRows(rows.x * [1e6, 1e-3] + [0, 50], rows.y, rows.seen)
    turned = fit_regression(divided(other, owners), names, model, **choices)
    np.testing.assert_allclose(
        turned.coefficients[-2:] * [1e6, 1e-3], plain.coefficients[-2:], rtol=1e-7
    )
    np.testing.assert_allclose(turned.p_values[-2:], plain.p_values[-2:], rtol=1e-6)
    if plain.names[0] == "intercept":
        expected = plain.coefficients[0] - 50 / 1e-3 * plain.coefficients[2]
        assert turned.coefficients[0] == pytest.approx(expected, rel=1e-6)


def test_robust_errors_of_single_rows_are_whites():
    rows = made("linear")
    design = np.hstack([np.ones((90, 1)), rows.x])
    inverse = np.linalg.inv(design.T @ design)
    residuals = rows.y - design @ (inverse @ design.T @ rows.y)
    meat = (design * residuals[:, None] ** 2).T @ design
    clients = divided(rows, np.arange(90))
    fitted = fit_regression(clients, ["a", "b"], "linear", errors="CR0")
    np.testing.assert_allclose(
        fitted.covariance, inverse @ meat @ inverse, rtol=1e-9, atol=1e-14
    )
    corrected = fit_regression(clients, ["a", "b"], "linear", errors="CR1")
    np.testing.assert_allclose(
        corrected.covariance, fitted.covariance * 90 / 89 * 89 / 87, rtol=1e-12
    )
    assert corrected.freedom == 89


def test_random_intercepts_of_equal_clients_have_a_closed_form():
    """Of a balanced layout without slopes, the mean's variance is the mean square between
    clients by the number of rows; a column of which each client has the same values
    changes it by nothing, and has the error of a fixed effect.
    """
    rng, clients, size = np.random.default_rng(0), 8, 6
    column = np.tile(np.arange(size) - (size - 1) / 2, (clients, 1))
    y = 2 * rng.normal(size=(clients, 1)) + column + rng.normal(size=(clients, size))
    parts = [rows_of(*pair) for pair in zip(column, y, strict=True)]
    fitted = fit_regression(parts, ["x"], "linear", intercept="random")
    between = size * y.mean(axis=1).var(ddof=1)
    assert fitted.coefficients[0] == pytest.approx(y.mean(), rel=1e-10)
    error = np.sqrt(between / (clients * size))
    assert fitted.standard_errors[0] == pytest.approx(error, rel=1e-6)
    fixed = fit_regression(parts, ["x"], "linear", intercept="fixed")
    assert fitted.coefficients[1] == pytest.approx(fixed.coefficients[0], rel=1e-10)
    assert fitted.standard_errors[1] == pytest.approx(
        fixed.standard_errors[0], rel=1e-6
    )
    variance = (between - fixed.sigma2) / size
    assert fitted.client_variance == pytest.approx(variance, rel=1e-5)
    # The likelihood is that of the user's units.
    moments = [ClientMoments.of(rows.x, rows.y) for rows in parts]
    assert fitted.log_likelihood == pytest.approx(
        fit_mixed_model(moments).log_likelihood, rel=1e-8
    )


def test_intervals_and_p_values():
    fitted = fit_regression(divided(made("linear"), np.arange(90) % 3), "ab", "linear")
    low, high = fitted.intervals(0.9).T
    np.testing.assert_allclose((low + high) / 2, fitted.coefficients)
    # The 5 % point of Student's t with 87 degrees of freedom.
    np.testing.assert_allclose(
        (high - low) / 2, 1.662557349 * fitted.standard_errors, rtol=1e-9
    )
    # An interval of level 1 - p ends at 0.
    noise = np.random.default_rng(0).normal(size=(2, 40))
    edge = fit_regression([rows_of(*noise)], "a", "linear")
    ends = edge.intervals(1 - edge.p_values[1])[1] / edge.standard_errors[1]
    assert np.abs(ends).min() < 1e-9


X = np.arange(12.0)
SEEN = np.ones(12)


@pytest.mark.parametrize(
    ("rows", "model", "choices", "problem"),
    [
        (rows_of(X, X > 5), "logistic", {}, "'a' separate the two outcomes"),
        (
            rows_of(np.stack([X % 3 == 1, X // 6], 1), (X % 3 == 1) | (X % 4 == 0)),
            "logistic",
            {},
            "'a' separate the two outcomes",
        ),
        (rows_of(X % 2, (X % 2) * X), "poisson", {}, "every count is 0 where 'a'"),
        (rows_of(X, X, SEEN), "cox", {}, "'a' separate who has the event first"),
        (
            rows_of(np.stack([X, X**2, 3 + X - 2 * X**2], 1), X),
            "linear",
            {},
            "'c' follows from 'a', 'b'; leave it out",
        ),
        (rows_of(np.stack([X, X * 0 + 7], 1), X), "linear", {}, "'b' does not vary;"),
        (
            rows_of(X % 3, X),
            "linear",
            {"intercept": "fixed"},
            "'a' does not vary within clients",
        ),
        (rows_of(X, 3 * X + 1), "linear", {}, "follows exactly from the inputs"),
        (rows_of(X, X + 0.5), "poisson", {}, "is a count, .* not 0.5"),
        (rows_of(X, X), "logistic", {}, "is 0 or 1, and both occur"),
        (rows_of(X, X, 0 * X), "cox", {}, "no client has rows that say anything"),
        (rows_of(X, X), "linear", {"errors": "CR2"}, "errors"),
        (
            rows_of(X, X % 2),
            "logistic",
            {"intercept": "random"},
            "for the linear model",
        ),
        (rows_of(np.eye(12)[:, :11], X), "linear", {}, "12 rows do not determine 12"),
    ],
)
def test_what_cannot_be_fitted_is_told(rows, model, choices, problem):
    names = "abcdefghijk"[: rows.x.shape[1]]
    with pytest.raises(ValueError, match=problem):
        fit_regression(divided(rows, X % 3), names, model, **choices)


SILENT = {
    "linear": rows_of([3], [2]),
    "logistic": rows_of([3, 3, 3], [1, 0, 1]),
    "poisson": rows_of([3], [2]),
    "cox": rows_of([1, 2, 3, 4], [5, 6, 7, 8], [0, 0, 0, 0]),
    # Rows that are gone before the first event have no part in any risk set.
    "cox, one at risk": rows_of([1, 2, 3], [5, 6, 7], [0, 0, 1]),
}


@pytest.mark.parametrize("key", SILENT)
def test_clients_that_say_nothing_are_left_out_and_hide_nobody(key):
    """Of four clients three added zeros: every sum was one client's own."""
    model = key.partition(",")[0]
    rows = made(model)
    rows = ClientRows(rows.x[:, :1], rows.y, rows.seen)
    silent = [SILENT[key]] * 3
    intercept = "common" if model == "cox" else "fixed"
    alone = fit_regression([rows], ["x"], model, intercept=intercept)
    fitted = fit_regression([*silent, rows], ["x"], model, intercept=intercept)
    assert fitted.left_out == (0, 1, 2)
    np.testing.assert_allclose(fitted.coefficients, alone.coefficients, rtol=1e-10)
    np.testing.assert_allclose(fitted.standard_errors, alone.standard_errors, rtol=1e-9)
    # Over machines a job of Cox's model says "common".
    parts = [
        RegressionRows(part, model, own_intercept=intercept == "fixed")
        for part in (*silent, rows)
    ]
    with pytest.raises(ValueError, match="only 1 clients"):
        fit_from_sums(sum_over(parts), ["x"], model, intercept=intercept)


def test_rare_levels_are_not_taken_for_separation():
    """One event among 400 rows of a level, and very large effects."""
    level = np.repeat([0, 1], [400, 400])
    y = np.r_[np.arange(400) % 2, np.arange(400) == 0]
    fitted = fit_regression([rows_of(level, y)], ["level"], "logistic")
    expected = [0, np.log(1 / 399)]
    np.testing.assert_allclose(fitted.coefficients, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("model", ["linear", "logistic", "poisson"])
@pytest.mark.parametrize("size", [0.0, 1.0, 30.0])
def test_an_own_intercept_is_the_best_one(model, size):
    """Before, it followed from the server's steps, which could make all weights but one
    client's nearly 0.
    """
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 2))
    y = {
        "linear": rng.normal(size=40),
        "logistic": rng.integers(0, 2, 40) + 0.0,
        "poisson": rng.poisson(2, 40) + 0.0,
    }[model]
    rows, slopes = ClientRows(x, y), np.array([size, -size])
    best = best_intercept(rows, model, slopes)
    sums = sums_of(rows, model, np.append(best, slopes))
    assert abs(sums.score[0]) <= 1e-11 * max(1, sums.information[0, 0])
    for away in (-0.1, 0.1):
        other = sums_of(rows, model, np.append(best + away, slopes))
        assert other.log_likelihood < sums.log_likelihood


@pytest.mark.parametrize("model", GLMS)
def test_sums_over_machines_do_not_depend_on_whose_rows_they_are(model):
    """Before, clients rounded their sums: the last digits were the smallest client's."""
    rows, told = made(model), []
    for owners in (np.arange(90) % 4, np.repeat(np.arange(4), [50, 30, 9, 1])):
        parts = [
            RegressionRows(part, model, own_intercept=False)
            for part in divided(rows, owners)
        ]
        ask, answers = sum_over(parts, on_grid=True), []

        def recorded(request, ask=ask, answers=answers):
            answer = ask(request)
            answers.append(answer.tolist())
            return answer

        fit_from_sums(recorded, "ab", model)
        told.append(answers)
    assert told[0] == told[1]

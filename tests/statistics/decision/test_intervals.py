"""Intervals of paired differences: exact special cases, and how often they are wrong
where there is no difference.
"""

import numpy as np
import polars as pl
import pytest
from scipy import stats

from fedtailor.statistics.decision import (
    SCORES,
    Interval,
    Splits,
    client_gains,
    metric_interval,
    resampled_interval,
    two_way_interval,
)
from fedtailor.statistics.decision.intervals import (
    resampled_variance,
    two_way_variance,
)


def gain_of(base, method, metric):
    """The line of one client, from scores [seeds, rows]."""
    seed, row = np.indices(base.shape)
    column = {"accuracy": "correct", "loss": "loss", "rmse": "squared_error"}[metric]
    table = pl.concat(
        pl.DataFrame(
            {
                "method": name,
                "seed": seed.ravel(),
                "client": "a",
                "row": row.ravel(),
                column: np.asarray(scores, np.float64).ravel(),
            }
        )
        for name, scores in (("local", base), ("other", method))
    )
    return client_gains(table.filter(pl.col(column).is_not_nan()), metric=metric)


def at_most(rate, nominal, repetitions):
    """Whether a rate of errors is nominal, up to three Monte Carlo standard errors."""
    return rate <= nominal + 3 * np.sqrt(nominal * (1 - nominal) / repetitions)


def test_one_seed_is_student_s_paired_test_over_clients():
    differences = np.random.default_rng(0).normal(0.3, 1, 12)
    found, expected = (
        two_way_interval(differences[None]),
        stats.ttest_1samp(differences, 0),
    )
    ends = expected.confidence_interval(0.95)
    np.testing.assert_allclose(
        [found.low, found.high, found.p],
        [ends.low, ends.high, expected.pvalue],
        rtol=1e-10,
    )
    np.testing.assert_allclose(found.estimate, differences.mean(), rtol=1e-12)


def test_seeds_that_move_all_clients_alike_are_as_many_observations_as_there_are_seeds():
    by_seed = np.array([0.5, 1.5, 1.0])
    found = two_way_interval(np.repeat(by_seed[:, None], 50, axis=1))
    expected = stats.ttest_1samp(by_seed, 0)
    np.testing.assert_allclose(found.p, expected.pvalue, rtol=1e-8)
    assert found.p > 0.05  # 150 pairs taken for independent would give 1e-60


@pytest.mark.parametrize("seed_deviation", [0.0, 0.3, 2.0])
@pytest.mark.parametrize(("seeds", "clients"), [(3, 4), (3, 60), (5, 12)])
def test_without_a_difference_one_interval_in_twenty_excludes_it(
    seeds, clients, seed_deviation
):
    rng, repetitions = np.random.default_rng(seeds * clients), 600
    wrong = 0
    for _ in range(repetitions):
        noise = rng.normal(0, 1, (seeds, clients)) + rng.normal(
            0, seed_deviation, (seeds, 1)
        )
        found = two_way_interval(noise + rng.normal(0, 0.7, clients))
        assert (found.p < 0.05) == (found.verdict != "cannot tell")
        wrong += found.verdict != "cannot tell"
    assert at_most(wrong / repetitions, 0.05, repetitions)
    assert wrong > 0  # an interval that never excludes anything would pass, too


@pytest.mark.parametrize("shape", [(3, 7), (5, 4)])
def test_the_variance_of_a_mean_over_clients_and_seeds_counts_the_residual_once(shape):
    """The crossed analysis of variance, by its mean squares."""
    rng, (seeds, clients) = np.random.default_rng(1), shape
    values = rng.normal(size=shape) + 3 * rng.normal(size=(seeds, 1))
    values += 2 * rng.normal(size=clients)
    of_clients, of_seeds = values.mean(axis=0), values.mean(axis=1)
    rest = values - of_clients - of_seeds[:, None] + values.mean()
    residual = np.square(rest).sum() / ((seeds - 1) * (clients - 1))
    expected = of_clients.var(ddof=1) / clients + of_seeds.var(ddof=1) / seeds
    expected -= residual / (seeds * clients)
    np.testing.assert_allclose(two_way_variance(values), expected, rtol=1e-10)
    # Clients' means contain it, so that it is taken from what seeds add.
    components = {
        clients - 1: of_clients.var(ddof=1) / clients,
        seeds - 1: of_seeds.var(ddof=1) / seeds - residual / (seeds * clients),
    }
    assert min(components.values()) > 0
    width = np.sqrt(
        sum(
            stats.t.ppf(0.975, degrees) ** 2 * variance
            for degrees, variance in components.items()
        )
    )
    found = two_way_interval(values)
    np.testing.assert_allclose(found.high - found.estimate, width, rtol=1e-8)


@pytest.mark.parametrize("shape", [(3, 7), (7, 3)])
def test_seeds_and_clients_that_agree_by_chance_leave_the_residual_s_variance(shape):
    """The mean over all cells is no more certain than their interaction lets it be."""
    # Clients and seeds have one mean each: all that varies is their interaction.
    rng = np.random.default_rng(0)
    rest = rng.normal(size=shape)
    rest -= rest.mean(axis=0) + rest.mean(axis=1, keepdims=True) - rest.mean()
    least = np.square(rest).sum() / 12 / rest.size
    np.testing.assert_allclose(two_way_variance(1 + rest), least, rtol=1e-10)
    found = two_way_interval(0.1 + rest)
    variances = rest.var(axis=0, ddof=1)
    degrees = (shape[0] - 1) * variances.sum() ** 2 / np.square(variances).sum()
    degrees *= (shape[1] - 1) / shape[1]
    width = stats.t.ppf(0.975, degrees) * np.sqrt(least)
    np.testing.assert_allclose(found.high - found.estimate, width, rtol=1e-8)
    assert found.verdict == "cannot tell"


def test_a_row_that_three_splits_happen_to_give_does_not_help():
    """Of 28 test rows of a client, one more is right here and there, one less once."""
    row = 1 / 28
    gains = row * np.array([[0, 0, 0, 1], [0, 1, -1, 1], [0, 0, 1, 0]])
    assert two_way_interval(gains).verdict == "cannot tell"


def test_two_seeds_speak_of_themselves_and_leave_an_interval_of_use():
    rng = np.random.default_rng(9)
    base = rng.uniform(size=(2, 60)) < 0.5
    method = base | (rng.uniform(size=(2, 60)) < 0.5)
    one = gain_of(base[:1], method[:1], "accuracy")
    two = gain_of(base, method, "accuracy")
    assert two["verdict"].item() == "helps"
    assert (two["high"] - two["low"]).item() < (one["high"] - one["low"]).item()
    means = rng.normal(1, 0.1, (2, 9))
    np.testing.assert_allclose(
        two_way_interval(means).p,
        stats.ttest_1samp(means.mean(axis=0), 0).pvalue,
        rtol=1e-8,
    )


def test_a_clear_difference_is_found():
    rng = np.random.default_rng(0)
    found = two_way_interval(rng.normal(-0.5, 0.3, (5, 40)))
    assert found.verdict == "hurts" and found.p < 1e-3 and found.low < -0.5 < found.high


def test_what_cannot_be_judged_is_not():
    assert two_way_interval(np.array([[0.4], [0.5]])) == Interval(
        0.45, -np.inf, np.inf, 1.0
    )  # one client
    assert np.isnan(two_way_interval(np.full((2, 3), np.nan)).p)
    nothing = two_way_interval(np.zeros((3, 5)))
    assert (nothing.low, nothing.high, nothing.p, nothing.verdict) == (
        0,
        0,
        1,
        "cannot tell",
    )
    gaps = np.random.default_rng(0).normal(size=(3, 6))
    gaps[0, 2] = gaps[:, 4] = np.nan
    assert np.isfinite(two_way_interval(gaps).low)


def test_one_seed_is_student_s_paired_test_over_rows():
    rng = np.random.default_rng(2)
    base, method = rng.normal(size=(1, 80)), rng.normal(0.2, 1, (1, 80))
    found = gain_of(base, method, "loss")
    expected = stats.ttest_rel(base[0], method[0])
    ends = expected.confidence_interval(0.95)
    np.testing.assert_allclose(
        found.select("low", "high", "p").row(0),
        [ends.low, ends.high, expected.pvalue],
        rtol=1e-8,
    )


def test_errors_are_compared_by_their_logarithms():
    rng = np.random.default_rng(3)
    base, method = rng.chisquare(1, (1, 60)) * 4, rng.chisquare(1, (1, 60))
    found = gain_of(base, method, "rmse").row(0, named=True)
    own, value = np.sqrt([base.mean(), method.mean()])
    np.testing.assert_allclose(
        [found["value"], found["base_value"], found["gain"]],
        [value, own, own - value],
        rtol=1e-12,
    )
    # Delta method: q / (2 mean q) is what a row adds to the logarithm of the root.
    error = stats.sem(base[0] / (2 * own**2) - method[0] / (2 * value**2))
    reach = stats.t.ppf(0.975, 59) * error
    difference = np.log(own / value)
    np.testing.assert_allclose(
        [found["low"], found["high"]],
        [own * (1 - np.exp(-(difference - reach))) for reach in (reach, -reach)],
        rtol=1e-8,
    )


def test_few_rows_that_all_speak_for_one_method_do_not_decide():
    base, method = np.zeros((1, 20)), np.zeros((1, 20))
    method[0, :4] = (
        1  # McNemar's exact test: p = 0.125; a bare variance would exclude 0
    )
    assert gain_of(base, method, "accuracy")["verdict"].item() == "cannot tell"
    method[0, :9] = 1
    assert gain_of(base, method, "accuracy")["verdict"].item() == "helps"
    alike = gain_of(base, base, "accuracy")
    assert (
        alike["low"].item() < -0.05 and alike["high"].item() > 0.05
    )  # 20 equal answers do not show that there is no difference


def test_one_row_or_no_seed_in_common_tells_nothing():
    one = gain_of(np.zeros((2, 1)), np.ones((2, 1)), "accuracy")
    assert one.select("gain", "low", "high", "verdict").row(0) == (
        1,
        -1,
        1,
        "cannot tell",
    )
    # One row in each seed, always another, tells what these rows tell in one seed.
    gains = np.array([1.0, 2, 4, 3, 7, 5])
    method = np.where(np.eye(6, dtype=bool), np.arange(6.0), np.nan)
    six, one = (
        gain_of(method + gains, method, "loss"),
        gain_of(gains[None], np.zeros((1, 6)), "loss"),
    )
    np.testing.assert_allclose(six["low"].item(), one["low"].item())
    base = np.array([[0.0, 1], [np.nan, np.nan]])
    method = np.array([[np.nan, np.nan], [1.0, 1]])
    assert gain_of(base, method, "accuracy").is_empty()


def test_equal_errors_and_errors_of_zero_have_an_interval():
    errors = np.array([[1.0, 2, 3, 4]])
    same = gain_of(errors, errors, "rmse").row(0, named=True)
    assert (same["gain"], same["low"], same["high"], same["verdict"]) == (
        0,
        0,
        0,
        "cannot tell",
    )
    perfect = gain_of(errors, np.zeros((1, 4)), "rmse").row(0, named=True)
    assert perfect["verdict"] == "helps" and perfect["gain"] == perfect["base_value"]


def rows_of(score, **columns):
    """A metric's interval over rows with the given columns."""
    return metric_interval(pl.DataFrame(columns), SCORES[score])


def test_the_interval_of_one_metric():
    hits = np.array([1.0] * 9 + [0.0])
    found, z = rows_of("accuracy", correct=hits), 1.959963984540054
    centre = (0.9 + z**2 / 20) / (1 + z**2 / 10)  # Wilson 1927
    reach = z / (1 + z**2 / 10) * np.sqrt(0.9 * 0.1 / 10 + z**2 / 400)
    assert found.estimate == 0.9
    np.testing.assert_allclose(
        [found.low, found.high], [centre - reach, centre + reach], rtol=1e-10
    )
    losses = np.random.default_rng(0).gamma(2.0, size=30)
    found = rows_of("loss", loss=losses)
    low, high = stats.t.interval(
        0.95, 29, losses.mean(), losses.std(ddof=1) / np.sqrt(30)
    )
    np.testing.assert_allclose(
        [found.estimate, found.low, found.high], [losses.mean(), low, high], rtol=1e-8
    )
    # Of the logarithm: the root's deviation is half that of the mean, relatively.
    found = rows_of("rmse", squared_error=losses)
    reach = (high - losses.mean()) / (2 * losses.mean())
    np.testing.assert_allclose(
        [found.estimate, found.low, found.high],
        np.sqrt(losses.mean()) * np.exp([0, -reach, reach]),
        rtol=1e-8,
    )
    assert rows_of("loss", loss=losses[:1]).high == np.inf
    assert np.isnan(rows_of("loss", loss=losses[:0]).estimate)


def test_the_interval_of_an_area_ends_where_it_is_just_not_excluded():
    """Newcombe 2006, method 5: (area - A)^2 = z^2 var(A) at both ends A."""
    rng, z = np.random.default_rng(1), 1.959963984540054
    truth = np.array([0] * 12 + [1] * 8)
    chance = 1 / (1 + np.exp(-rng.normal(1.5 * truth - 0.75)))
    said = (chance > 0.5).astype(int)
    columns = {
        "prediction": said,
        "log_odds": np.abs(np.log(chance / (1 - chance))),
        "correct": said == truth,
    }
    found = rows_of("roc_auc", **columns)
    positive, negative = chance[truth == 1], chance[truth == 0]
    area = (positive[:, None] > negative).mean()
    np.testing.assert_allclose(found.estimate, area, rtol=1e-12)
    for end in (found.low, found.high):
        more = (1 - end) / (2 - end) + end / (1 + end)
        variance = end * (1 - end) * (1 + 9 * more) / (12 * 8)
        np.testing.assert_allclose((area - end) ** 2, z**2 * variance, rtol=1e-8)
    # Where all pairs are in order there is still something to doubt below.
    perfect = rows_of(
        "roc_auc", prediction=truth, log_odds=[2.0] * 20, correct=[True] * 20
    )
    assert perfect.estimate == perfect.high == 1 and 0.7 < perfect.low < 1
    one_class = rows_of("roc_auc", prediction=[1], log_odds=[2.0], correct=[True])
    assert np.isnan(one_class.estimate) and np.isnan(one_class.low)


def test_the_interval_of_r2_covers_it_and_is_undefined_for_a_constant_target():
    """The R2 of the rows' population is 0.5: the noise varies as the target does."""
    rng, covered = np.random.default_rng(3), 0
    for _ in range(400):
        signal, noise = rng.normal(size=(2, 60))
        found = rows_of("r2", squared_error=noise**2, target=signal + noise)
        covered += found.low <= 0.5 <= found.high
    assert found.estimate == pytest.approx(
        1 - (noise**2).mean() / (signal + noise).var()
    )
    assert 370 <= covered <= 392  # of 380 expected; in 99 % of such tests
    constant = rows_of("r2", squared_error=[1.0, 2], target=[3.0, 3])
    assert np.isnan(constant.estimate)
    assert rows_of("r2", squared_error=[0.0, 0], target=[1.0, 3]).low == 1


def test_two_seeds_share_test_rows_as_their_splits_say():
    assert Splits(0.2).overlap(3) == 0.2
    assert Splits(0.2, folds=5).overlap(5) == 0
    # Of ten parts, each has nine others, five of them of the other division.
    assert Splits(0.2, folds=5).overlap(10) == pytest.approx(5 / 9 * 0.2)


def test_one_client_s_random_splits_have_the_corrected_resampled_interval():
    """The t test of Nadeau and Bengio (2003)."""
    differences = np.random.default_rng(3).normal(0.2, 1, 6)
    found = resampled_interval(differences[:, None], Splits(0.2))
    variance = differences.var(ddof=1) * (1 / 6 + 0.2 / 0.8)
    width = stats.t.ppf(0.975, 5) * np.sqrt(variance)
    np.testing.assert_allclose(found.high - found.estimate, width, rtol=1e-8)
    np.testing.assert_allclose(
        resampled_variance(differences[:, None], Splits(0.2)), variance
    )


def cross_validated(rng, clients, rows, luck, common):
    """Mean differences of five folds, twice, whose expectation is 0: each row has a
    difference of its own, and each training of a client and of all of them another one.
    """
    of_rows = rng.normal(size=(clients, rows))
    values = []
    for _ in range(2):
        order = rng.permuted(np.tile(np.arange(rows), (clients, 1)), axis=1)
        shuffled = np.take_along_axis(of_rows, order, axis=1)
        values += list(shuffled.reshape(clients, 5, -1).mean(axis=2).T)
    trained = luck * rng.normal(size=(10, clients)) + common * rng.normal(size=(10, 1))
    return np.array(values) + trained


@pytest.mark.parametrize(
    ("clients", "rows", "luck", "common"),
    [(5, 20, 0.0, 0.0), (20, 5, 0.5, 0.0), (30, 20, 0.2, 0.1)],
)
def test_cross_validation_decides_for_these_clients_at_its_level(
    clients, rows, luck, common
):
    """Also if clients differ by much, which is nothing to these clients."""
    rng, repetitions = np.random.default_rng(clients), 400
    gains = 3 * rng.normal(size=clients)
    low, high, widths = 0, 0, 0.0
    for _ in range(repetitions):
        values = gains + cross_validated(rng, clients, rows, luck, common)
        found = resampled_interval(values, Splits(0.2, folds=5))
        low += found.low > gains.mean()
        high += found.high < gains.mean()
        widths += (found.high - found.low) / repetitions
    assert at_most(low / repetitions, 0.025, repetitions)
    assert at_most(high / repetitions, 0.025, repetitions)
    # Rows are all tested, and trainings ten times.
    variance = (1 / rows + luck**2 / 10) / clients + common**2 / 10
    assert widths < 1.4 * 2 * 1.96 * np.sqrt(variance)
    # Clients like these may gain or lose.
    assert two_way_interval(values).high - two_way_interval(values).low > 2 * widths


def test_clients_that_were_tested_once_or_never_leave_the_others_their_interval():
    values = np.random.default_rng(0).normal(1, 0.1, (10, 8))
    values[1:, 0] = values[:, 1] = values[3, 2:6] = np.nan
    found = resampled_interval(values, Splits(0.2, folds=5))
    assert found.estimate == np.nanmean(values[:, [0, *range(2, 8)]], axis=0).mean()
    assert found.verdict == "helps" and np.isfinite(found.low)
    once = resampled_interval(values[:, :1], Splits(0.2, folds=5))
    assert once.low == -np.inf and once.p == 1
    assert np.isnan(resampled_interval(values[:, 1:2], Splits(0.2)).p)


@pytest.mark.parametrize("name", ["accuracy", "loss", "rmse", "r2"])
def test_a_difference_of_worths_is_led_back_to_a_gain_in_the_metric(name):
    rng = np.random.default_rng(5)
    score, truth = SCORES[name], rng.normal(size=40)
    base, other = rng.uniform(0.1, 0.6, size=(2, 40))
    (worth, _), (base_worth, _) = score.worth(other, truth), score.worth(base, truth)
    value, base_value = score.value(other, truth), score.value(base, truth)
    better = value - base_value if score.higher_is_better else base_value - value
    found = score.gain(worth - base_worth, base_value)
    np.testing.assert_allclose(found, better, rtol=1e-10)

"""Intervals of paired differences: exact special cases, and how often they are wrong
where there is no difference.
"""

import numpy as np
import pytest
from scipy import stats

from fedtailor.decision import (
    SCORES,
    Interval,
    Score,
    bootstrap_gains,
    metric_interval,
    two_way_interval,
)

MEAN = Score("loss", higher_is_better=True)


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


def test_two_seeds_speak_of_themselves_and_leave_an_interval_of_use():
    rng = np.random.default_rng(9)
    base = rng.uniform(size=(2, 60)) < 0.5
    method = base | (rng.uniform(size=(2, 60)) < 0.5)
    one = bootstrap_gains(base[:1] * 1.0, method[None, :1] * 1.0, SCORES["accuracy"])[
        2
    ][0]
    two = bootstrap_gains(base * 1.0, method[None] * 1.0, SCORES["accuracy"])[2][0]
    assert two.verdict == "helps" and two.high - two.low < one.high - one.low
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


def test_the_bootstrap_of_rows_has_the_deviation_of_a_mean():
    rng = np.random.default_rng(2)
    base, method = rng.normal(size=(1, 80)), rng.normal(0.2, 1, (1, 80))
    _, _, (found,) = bootstrap_gains(base, method[None], MEAN, draws=20_000)
    ends = stats.ttest_rel(method[0], base[0]).confidence_interval(0.95)
    np.testing.assert_allclose(
        [found.low, found.high], [ends.low, ends.high], rtol=0.03
    )


def test_roots_of_means_are_resampled_as_such():
    rng = np.random.default_rng(3)
    base, method = rng.chisquare(1, (1, 60)) * 4, rng.chisquare(1, (1, 60))
    values, own, (found,) = bootstrap_gains(
        base, method[None], SCORES["rmse"], draws=4000
    )
    np.testing.assert_allclose(
        [values[0, 0], own[0]], np.sqrt([method.mean(), base.mean()]), rtol=1e-12
    )
    np.testing.assert_allclose(
        found.estimate, np.sqrt(base.mean()) - np.sqrt(method.mean()), rtol=1e-12
    )
    # Delta method: the deviation of q / (2 sqrt(mean q)).
    linear = base[0] / (2 * own[0]) - method[0] / (2 * values[0, 0])
    np.testing.assert_allclose(
        found.high - found.low,
        2 * stats.t.ppf(0.975, 59) * stats.sem(linear),
        rtol=0.06,
    )


def test_few_rows_that_all_speak_for_one_method_do_not_decide():
    base, method = np.zeros((1, 20)), np.zeros((1, 20))
    method[0, :4] = (
        1  # McNemar's exact test: p = 0.125; a bare bootstrap would exclude 0
    )
    assert (
        bootstrap_gains(base, method[None], SCORES["accuracy"])[2][0].verdict
        == "cannot tell"
    )
    method[0, :9] = 1
    assert (
        bootstrap_gains(base, method[None], SCORES["accuracy"])[2][0].verdict == "helps"
    )
    alike = bootstrap_gains(base, base[None], SCORES["accuracy"])[2][0]
    assert (
        alike.low < -0.05 and alike.high > 0.05
    )  # 20 equal answers do not show that there is no difference


def test_one_row_or_no_seed_in_common_tells_nothing():
    _, _, (one,) = bootstrap_gains(
        np.zeros((2, 1)), np.ones((1, 2, 1)), SCORES["accuracy"]
    )
    assert (one.estimate, one.low, one.high, one.verdict) == (1, -1, 1, "cannot tell")
    base, method = (
        np.array([[0.0, 1], [np.nan, np.nan]]),
        np.array([[[np.nan, np.nan], [1.0, 1]]]),
    )
    values, _, (none,) = bootstrap_gains(base, method, SCORES["accuracy"])
    assert np.isnan(none.estimate) and values[0, 1] == 1 and np.isnan(values[0, 0])


def test_the_interval_of_one_metric():
    hits = np.array([1.0] * 9 + [0.0])
    found, z = metric_interval(hits, SCORES["accuracy"]), 1.959963984540054
    centre = (0.9 + z**2 / 20) / (1 + z**2 / 10)  # Wilson 1927
    reach = z / (1 + z**2 / 10) * np.sqrt(0.9 * 0.1 / 10 + z**2 / 400)
    assert found.estimate == 0.9
    np.testing.assert_allclose(
        [found.low, found.high], [centre - reach, centre + reach], rtol=1e-10
    )
    losses = np.random.default_rng(0).gamma(2.0, size=30)
    found = metric_interval(losses, SCORES["loss"])
    low, high = stats.t.interval(
        0.95, 29, losses.mean(), losses.std(ddof=1) / np.sqrt(30)
    )
    np.testing.assert_allclose(
        [found.estimate, found.low, found.high], [losses.mean(), low, high], rtol=1e-8
    )
    found = metric_interval(losses, SCORES["rmse"])
    assert found.estimate == pytest.approx(np.sqrt(losses.mean()))
    assert found.high - found.estimate == pytest.approx(
        (high - losses.mean()) / (2 * found.estimate)
    )
    assert metric_interval(losses[:1], SCORES["loss"]).high == np.inf
    assert np.isnan(metric_interval(losses[:0], SCORES["loss"]).estimate)

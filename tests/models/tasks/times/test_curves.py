"""Curves from counts: published numbers, sums over clients, and two libraries."""

import numpy as np
import pytest

from fedtailor.models.tasks.times import (
    brier_scores,
    censoring_curve,
    integrated_brier,
    life_table,
    log_rank,
)

TREATED = [6, 6, 6, 7, 10, 13, 16, 22, 23, 6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35]
SEEN = [1] * 9 + [0] * 12
CONTROLS = [1, 1, 2, 2, 3, 4, 4, 5, 5, 8, 8, 8, 8, 11, 11, 12, 12, 15, 17, 22, 23]
"""Weeks of remission of 42 children with leukaemia (Freireich et al. 1963)."""


def test_the_published_curve_of_the_leukaemia_trial():
    table = life_table(TREATED, SEEN)
    assert table.survival([6, 7, 10, 13, 16, 22, 23]) == pytest.approx(
        [0.8571, 0.8067, 0.7529, 0.6902, 0.6275, 0.5378, 0.4482], abs=1e-4
    )
    assert table.survival([0, 5.9]) == pytest.approx([1, 1])
    low, high = table.interval()
    assert (low <= table.curve).all() and (table.curve <= high).all()


def test_the_published_log_rank_test_of_the_leukaemia_trial():
    times = np.unique([*TREATED, *CONTROLS])
    groups = [
        life_table(TREATED, SEEN, times),
        life_table(CONTROLS, np.ones(21), times),
    ]
    found = log_rank(groups)
    assert found.statistic == pytest.approx(16.79, abs=0.005)
    assert found.observed.tolist() == [9, 21]
    assert found.expected == pytest.approx([19.25, 10.75], abs=0.005)
    assert found.p < 1e-4


def test_a_group_that_is_never_at_risk_changes_no_log_rank_test():
    times = np.unique([0.5, *TREATED, *CONTROLS])
    groups = [
        life_table(TREATED, SEEN, times),
        life_table(CONTROLS, np.ones(21), times),
        life_table([0.5, 0.5], [0, 0], times),
    ]
    alone, found = log_rank(groups[:2]), log_rank(groups)
    assert found.statistic == pytest.approx(alone.statistic, abs=1e-9)
    assert found.p == pytest.approx(alone.p, rel=1e-9)
    assert log_rank(groups[1:]).p == 1


def test_sums_of_clients_are_the_table_of_all_rows():
    rng = np.random.default_rng(0)
    time, event = rng.exponential(10, 90).round(1), rng.random(90) < 0.6
    times = np.unique(time)
    parts = [life_table(time[i::3], event[i::3], times) for i in range(3)]
    whole = life_table(time, event)
    total = parts[0] + parts[1] + parts[2]
    np.testing.assert_array_equal(total.at_risk, whole.at_risk)
    np.testing.assert_array_equal(total.events, whole.events)
    with pytest.raises(ValueError, match="other times"):
        _ = whole + life_table(time[:5], event[:5])


def test_all_events_are_on_a_coarse_grid():
    rng = np.random.default_rng(1)
    time, event = rng.exponential(10, 200), rng.random(200) < 0.6
    table = life_table(time, event, np.append(np.arange(5, 41, 5), time.max()))
    assert table.events.sum() == event.sum()
    exact = life_table(time, event).survival(table.times)
    assert np.abs(table.curve - exact)[:5].max() < 0.1


def test_brier_without_censoring_is_the_mean_square():
    rng = np.random.default_rng(0)
    time, event = rng.exponential(10, 50), np.ones(50)
    times = np.array([2.0, 5.0, 9.0])
    survival = rng.random((50, 3))
    expected = ((time[:, None] > times) - survival) ** 2
    found = brier_scores(time, event, survival, times, time, event)
    assert found == pytest.approx(expected.mean(0), abs=1e-12)
    assert integrated_brier(times, [1.0, 1.0, 1.0]) == pytest.approx(1.0)


@pytest.mark.extra
def test_as_in_lifelines_and_scikit_survival():
    lifelines = pytest.importorskip("lifelines", reason="lifelines is not installed")
    metrics = pytest.importorskip(
        "sksurv.metrics", reason="scikit-survival is not installed"
    )
    rng = np.random.default_rng(2)
    time, event = np.ceil(rng.exponential(10, 150)), rng.random(150) < 0.6
    fitted = lifelines.KaplanMeierFitter().fit(time, event)
    table = life_table(time, event)
    asked = np.arange(1, 30)
    assert table.survival(asked) == pytest.approx(
        fitted.survival_function_at_times(asked).to_numpy(), abs=1e-9
    )
    ends = fitted.confidence_interval_survival_function_.to_numpy()[1:].T
    inside = (table.curve < 1) & (table.curve > 0)
    assert table.interval()[:, inside] == pytest.approx(ends[:, inside], abs=1e-6)
    kind = [("event", bool), ("time", float)]
    rows = np.array(list(zip(event, time, strict=True)), dtype=kind)
    times = np.array([2.0, 5.0, 9.0, 15.0])
    survival = np.sort(rng.random((150, 4)), 1)[:, ::-1]
    _, expected = metrics.brier_score(rows, rows, survival, times)
    found = brier_scores(time, event, survival, times, time, event)
    assert found == pytest.approx(expected, abs=1e-9)
    expected = metrics.integrated_brier_score(rows, rows, survival, times)
    assert integrated_brier(times, found) == pytest.approx(expected, abs=1e-9)
    assert censoring_curve(time, event).survival([0.5]) == pytest.approx([1.0])

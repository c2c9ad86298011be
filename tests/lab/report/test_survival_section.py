"""A report's section of survival: curves of clients, and what they rest on."""

from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from fedtailor.lab.report.page.survival import survival_section
from fedtailor.lab.results.concordance import few_pairs_warnings

# Freireich et al. 1963, remission in weeks; "placebo" had all events.
TREATED = (
    [6, 6, 6, 7, 10, 13, 16, 22, 23],
    [6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35],
)
PLACEBO = [1, 1, 2, 2, 3, 4, 4, 5, 5, 8, 8, 8, 8, 11, 11, 12, 12, 15, 17, 22, 23]


def stored(sign=1.0):
    """A run whose test rows are of this trial, with risks that fall with time."""
    events, censored = TREATED
    time = np.array([*events, *censored, *PLACEBO], float)
    frame = pl.DataFrame(
        {
            "client": ["6-MP"] * 21 + ["placebo"] * 21,
            "time": time,
            "event": [1.0] * 9 + [0.0] * 12 + [1.0] * 21,
            "risk": -sign * time,
        }
    )
    return SimpleNamespace(rows=frame)


def at(series, time):
    """Where a curve stands at a time."""
    return series.y[np.flatnonzero(np.array(series.x) <= time)[-1]]


def test_curves_are_kaplan_and_meiers_with_greenwoods_interval():
    (section,) = survival_section({"fedavg": [stored()]})
    (chart,) = section.charts
    treated, placebo = chart.series
    assert (treated.label, placebo.label) == ("6-MP", "placebo")
    # As published: 0.857, 0.807, 0.753, 0.690, 0.627, 0.538, 0.448.
    found = [at(treated, time) for time in (6, 7, 10, 13, 16, 22, 23)]
    expected = [0.857, 0.807, 0.753, 0.690, 0.627, 0.538, 0.448]
    assert found == pytest.approx(expected, abs=5e-4)
    assert at(placebo, 8) == pytest.approx(8 / 21, abs=1e-12)
    assert at(placebo, 23) == pytest.approx(0, abs=1e-12)
    place = treated.x.index(22)
    # log(-log S) with Greenwood's variance, by hand: S = 0.538, sum d / (n (n - d)).
    terms = [(3, 21), (1, 17), (1, 15), (1, 12), (1, 11), (1, 7)]
    s = np.prod([1 - d / n for d, n in terms])
    error = np.sqrt(sum(d / (n * (n - d)) for d, n in terms)) / abs(np.log(s))
    ends = [np.exp(-np.exp(np.log(-np.log(s)) + z * error)) for z in (1.96, -1.96)]
    assert [treated.low[place], treated.high[place]] == pytest.approx(ends, abs=1e-4)


def test_a_curve_ends_with_the_last_row_under_observation():
    """It went on to the last time of all clients, with an interval."""
    (section,) = survival_section({"fedavg": [stored()]})
    treated, placebo = section.charts[0].series
    assert (treated.x[-1], placebo.x[-1]) == (35, 23)
    for series in (treated, placebo):
        assert len(series.x) == len(series.y) == len(series.low) == len(series.high)


def test_rows_of_any_method_draw_the_curves():
    runs = {"no rows": [SimpleNamespace(rows=None)], "fedavg": [stored()]}
    (section,) = survival_section(runs)
    assert len(section.charts[0].series) == 2


def test_the_log_rank_test_is_said_in_words():
    (section,) = survival_section({"fedavg": [stored()]})
    text = " ".join(section.paragraphs)
    assert "chi-squared 16.8, p <0.0001: their curves are shown to differ" in text
    alike = stored()
    half = pl.when(pl.int_range(pl.len()) % 2 == 0).then(pl.lit("x"))
    alike.rows = alike.rows.with_columns(client=half.otherwise(pl.lit("y")))
    (section,) = survival_section({"fedavg": [alike]})
    assert "no difference of their curves is shown" in " ".join(section.paragraphs)


def test_each_method_has_its_c_index_with_the_pairs_behind_it():
    runs = {"fedavg": [stored()], "local": [stored(sign=-1.0)]}
    (section,) = survival_section(runs)
    (table,) = section.tables
    assert list(table.columns[-2:]) == ["fedavg", "local"]
    client, rows, events, pairs, right, wrong = table.rows[0]
    assert (client, rows.mean, events.mean) == ("6-MP", 21, 9)
    times, censored = TREATED
    expected = sum(
        (np.array(times) > time).sum() + (np.array(censored) >= time).sum()
        for time in times
    )
    assert pairs.mean == expected
    # Four pairs have equal times, one censored, and so equal risks here.
    assert right.mean == pytest.approx(1 - 2 / expected, abs=1e-12)
    assert wrong.mean == pytest.approx(2 / expected, abs=1e-12)


def test_clients_without_pairs_are_warned_of():
    run = stored()
    assert few_pairs_warnings(run) == []
    run.rows = run.rows.with_columns(
        event=pl.when(pl.col("client") == "6-MP").then(0.0).otherwise("event")
    )
    (warning,) = few_pairs_warnings(run)
    assert "6-MP (0)" in warning and "placebo" not in warning


def test_other_tasks_have_no_such_section():
    rows = pl.DataFrame({"client": ["a"], "loss": [0.1]})
    assert survival_section({"fedavg": [SimpleNamespace(rows=rows)]}) == []
    assert survival_section({"fedavg": [SimpleNamespace(rows=None)]}) == []

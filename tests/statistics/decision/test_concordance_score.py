"""Intervals of the C-index: right about as often as they say, and wide where little is
known.
"""

import numpy as np
import polars as pl
import pytest

from fedtailor.models.tasks.times import harrell
from fedtailor.statistics.decision import SCORES, client_gains, metric_interval

SCORE = SCORES["c_index"]


def rows(count, seed, noise=1.0):
    rng = np.random.default_rng(seed)
    risk = rng.normal(size=count)
    time = rng.exponential(np.exp(-risk))
    last = rng.exponential(2.0, count)
    return pl.DataFrame(
        {
            "client": "a",
            "row": np.arange(count),
            "risk": risk + noise * rng.normal(size=count),
            "time": np.minimum(time, last),
            "event": (time <= last).astype(float),
        }
    )


def test_the_value_is_harrells():
    frame = rows(80, 0)
    expected = harrell(frame["time"], frame["event"] > 0, frame["risk"])
    assert metric_interval(frame, SCORE).estimate == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("count", [15, 60])
def test_intervals_contain_the_truth_as_often_as_they_say(count):
    truth = np.mean(
        [
            metric_interval(rows(3000, seed), SCORE).estimate
            for seed in range(1000, 1002)
        ]
    )
    found = [metric_interval(rows(count, seed), SCORE) for seed in range(200)]
    inside = np.mean([entry.low <= truth <= entry.high for entry in found])
    assert 0.92 <= inside <= 1.0
    if count == 60:
        width = np.mean([entry.high - entry.low for entry in found])
        assert width < 0.35


def test_few_pairs_tell_nothing():
    frame = pl.DataFrame(
        {"risk": [3.0, 2.0, 1.0], "time": [1.0, 2.0, 3.0], "event": [1.0, 1.0, 0.0]}
    )
    found = metric_interval(frame, SCORE)
    assert (found.estimate, found.low, found.high) == (1.0, 0.0, 1.0)
    censored = frame.with_columns(event=pl.lit(0.0))
    assert np.isnan(metric_interval(censored, SCORE).estimate)


def compared(count, seed, gain):
    """Rows of a base of noise, and of a method with less of it."""
    base, other = rows(count, seed, 2.0), rows(count, seed, 2.0 - gain)
    return pl.concat(
        [
            base.with_columns(method=pl.lit("local"), seed=0, loss=0.0),
            other.with_columns(method=pl.lit("fedavg"), seed=0, loss=0.0),
        ]
    )


def test_a_gain_is_found_where_there_are_rows_enough():
    found = client_gains(compared(400, 0, 2.0), "local", "c_index").row(0, named=True)
    assert found["verdict"] == "helps" and found["low"] > 0
    few = client_gains(compared(8, 0, 2.0), "local", "c_index").row(0, named=True)
    assert few["verdict"] == "cannot tell"


def test_where_there_is_no_gain_few_are_found():
    """A verdict is wrong in at most 5 of 100, whatever the number of rows."""
    for count in (12, 40):
        verdicts = []
        for seed in range(80):
            frame = compared(count, seed, 0.0)
            noise = np.random.default_rng(seed + 999).normal(size=2 * count)
            frame = frame.with_columns(risk=pl.col("risk") + pl.Series(noise))
            verdicts.append(client_gains(frame, "local", "c_index")["verdict"][0])
        wrong = np.mean([verdict != "cannot tell" for verdict in verdicts])
        assert wrong <= 0.1


def test_events_before_all_others_are_ranked_as_two_classes_are():
    """All events are at time 1, all others are censored at 2: the pairs are those of an
    area under the ROC curve, and so are the metric, what each event adds to it, and the
    least variance.
    """
    seen, kept = 7, 5
    scores = np.random.default_rng(6).normal(size=seen + kept)
    times = np.array([1.0] * seen + [-2.0] * kept)
    classes = np.array([1.0] * seen + [0.0] * kept)
    index, area = SCORE, SCORES["roc_auc"]
    assert index.value(scores, times) == pytest.approx(area.value(scores, classes))
    (_, added), (_, expected) = index.worth(scores, times), area.worth(scores, classes)
    np.testing.assert_allclose(added[:seen], expected[:seen], rtol=1e-12)
    # An area corrects each class by its own count, the C-index all rows by the events'.
    ratio = np.sqrt(seen / (seen - 1) * (kept - 1) / kept)
    np.testing.assert_allclose(added[seen:], ratio * expected[seen:], rtol=1e-12)
    least = 2 / (kept**2 * (seen + 1) * (seen + 2))
    least += 2 / (seen**2 * (kept + 1) * (kept + 2))
    assert area.least_variance(classes) == pytest.approx(least, rel=1e-12)
    assert index.least_variance(times) == pytest.approx(least, rel=1e-12)

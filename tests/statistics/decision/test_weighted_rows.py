"""Scores of rows that have weights: plain means of them are the weighted means."""

import numpy as np
import polars as pl

from fedtailor.models.metrics.rows import WEIGHT
from fedtailor.statistics.decision import SCORES, metric_interval
from fedtailor.statistics.decision.row_scores import weighted_scores


def frame(correct, weight):
    rows = np.arange(len(correct))
    return pl.DataFrame(
        {
            "client": ["a"] * len(correct),
            "row": rows,
            "correct": correct,
            "loss": np.linspace(0, 1, len(correct)),
            "weight": weight,
        }
    )


def ends(interval):
    return interval.estimate, interval.low, interval.high


def test_means_are_weighted_and_influences_those_of_the_weighted_mean():
    rng = np.random.default_rng(0)
    correct, weight = rng.random(30) < 0.7, rng.uniform(0.5, 4, 30)
    found = weighted_scores(frame(correct, weight), WEIGHT)
    mean = np.average(correct, weights=weight)
    scores = found["correct"].to_numpy()
    np.testing.assert_allclose(scores.mean(), mean, rtol=1e-12)
    influence = weight / weight.sum() * (correct - mean)
    np.testing.assert_allclose((scores - mean) / 30, influence, rtol=0, atol=1e-12)
    losses = np.average(np.linspace(0, 1, 30), weights=weight)
    np.testing.assert_allclose(found["loss"].mean(), losses, rtol=1e-12)


def test_an_interval_counts_as_many_rows_as_tell_as_much():
    correct = np.array([True, False, True, True] * 10)
    score = SCORES["accuracy"]
    alike = metric_interval(
        weighted_scores(frame(correct, np.full(40, 2.0)), WEIGHT), score
    )
    plain = metric_interval(frame(correct, np.ones(40)), score)
    np.testing.assert_allclose(ends(alike), ends(plain), rtol=1e-12)
    # Half of the rows count nothing: the interval is the one of the other half.
    half = np.repeat([1.0, 0.0], 20)
    weighted = metric_interval(weighted_scores(frame(correct, half), WEIGHT), score)
    of_half = metric_interval(frame(correct[:20], np.ones(20)), score)
    np.testing.assert_allclose(ends(weighted), ends(of_half), rtol=1e-12)


def test_a_client_whose_rows_count_nothing_has_no_score():
    assert weighted_scores(
        frame(np.array([True, False]), np.zeros(2)), WEIGHT
    ).is_empty()

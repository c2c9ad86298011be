"""Coverage is what the closed form says."""

import itertools
import json
import math

import numpy as np
import pytest
from scipy.special import log_softmax

from fedtailor.statistics.conformal import (
    BINS,
    OWN_ROWS,
    Calibration,
    conformal_rank,
    covered_share,
    fit_temperature,
    quantile_of_counts,
    quantile_of_scores,
    score_counts,
    scores_of_classes,
)

COVERAGES = (0.5, 0.8, 0.9, 0.95, 0.99)


@pytest.mark.parametrize("coverage", COVERAGES)
@pytest.mark.parametrize("rows", [1, 4, 9, 19, 40])
def test_coverage_by_counting_all_orders(rows, coverage):
    """Any of n + 1 exchangeable scores is equally likely to be the new one."""
    scores = np.random.default_rng(rows).permutation(np.arange(rows + 1.0))
    covered = 0
    for new in range(rows + 1):
        others = np.delete(scores, new)
        covered += scores[new] <= quantile_of_scores(others, coverage)
    share = covered / (rows + 1)
    assert share == pytest.approx(covered_share(rows, coverage), abs=1e-12)
    assert coverage - 1e-12 <= share
    assert share < coverage + 1 / (rows + 1)


def test_with_ties_the_coverage_is_at_least_the_stated_one():
    for scores in itertools.product(range(3), repeat=5):
        covered = [
            scores[new] <= quantile_of_scores(np.delete(scores, new), 0.6)
            for new in range(5)
        ]
        assert np.mean(covered) >= 0.6


def test_too_few_rows_take_everything_in():
    assert quantile_of_scores(np.zeros(8), 0.9) == math.inf
    assert quantile_of_scores(np.zeros(9), 0.9) == 0
    assert quantile_of_scores([], 0.5) == math.inf
    assert quantile_of_counts(score_counts(np.zeros(8)), 0.9) == math.inf


def test_ranks_are_not_moved_by_rounding():
    # (n + 1) c is a whole number in decimals, and often above it in binary.
    for rows in range(1, 2000):
        for percent in range(1, 100):
            exact = -(-(rows + 1) * percent // 100)
            assert conformal_rank(rows, percent / 100) == exact


@pytest.mark.parametrize("coverage", COVERAGES)
def test_histograms_cover_as_many_and_at_most_a_bin_more(coverage):
    rng = np.random.default_rng(0)
    parts = [rng.gamma(2.0, size=size) for size in (3, 40, 200)]
    exact = quantile_of_scores(np.concatenate(parts), coverage)
    counts = sum(score_counts(part) for part in parts)
    binned = quantile_of_counts(counts, coverage)
    assert exact <= binned
    width = 1 / BINS  # of r / (1 + r)
    assert binned / (1 + binned) - exact / (1 + exact) <= width + 1e-12


def test_a_score_beyond_the_last_bin_takes_everything_in():
    counts = score_counts(np.full(50, 1e9))
    assert counts[-1] == 50
    assert quantile_of_counts(counts, 0.9) == math.inf


def test_scores_of_classes_are_of_the_true_one():
    np.testing.assert_allclose(
        scores_of_classes(-np.log([0.25, 1.0, 1e-9])), [0.75, 0, 1 - 1e-9], rtol=1e-12
    )


def calibration():
    rng = np.random.default_rng(0)
    scores = {
        "large": rng.uniform(0, 0.2, OWN_ROWS),
        "small": rng.uniform(0.5, 0.6, OWN_ROWS - 1),
        "peer": rng.uniform(0.5, 0.6, 10),
        "alone": rng.uniform(0.9, 1.0, 4),
        "empty": [],
    }
    groups = {"small": "g", "peer": "g", "alone": "h"}
    return scores, Calibration.of("classes", scores, groups=groups)


def test_own_rows_then_the_groups_then_all():
    scores, found = calibration()
    own = found.threshold("large", 0.9)
    assert (own.source, own.rows) == ("own", OWN_ROWS)
    assert own.value == quantile_of_scores(scores["large"], 0.9)
    group = found.threshold("small", 0.9)
    assert (group.source, group.rows) == ("group", OWN_ROWS + 9)
    assert 0.5 < group.value < 0.61
    # A group that is too small itself, a client without rows, one that is not known.
    for name in ("alone", "empty", "newcomer"):
        pooled = found.threshold(name, 0.9)
        assert (pooled.source, pooled.rows) == ("all", found.rows)
    # Own rows that are too few for this coverage.
    assert found.threshold("large", 0.985).source == "all"
    assert found.threshold("large", 0.9999).value == 1  # of all rows: every class


@pytest.mark.parametrize("coverage", [0.0, 1.0, -1, 2, math.nan])
def test_coverage_is_a_share(coverage):
    _, found = calibration()
    with pytest.raises(ValueError, match="above 0 and below 1"):
        found.threshold("large", coverage)


def test_numbers_keep_their_unit():
    scores = np.random.default_rng(1).exponential(2000, 500)
    for scale in (1.0, 2000.0):
        found = Calibration.of("numbers", {"a": scores}, scale=scale)
        assert found.threshold("a", 0.9).value == quantile_of_scores(scores, 0.9)
        pooled = found.threshold("b", 0.9).value
        if scale > 1:
            assert pooled == pytest.approx(quantile_of_scores(scores, 0.9), rel=0.02)


def test_files_hold_all_of_it():
    _, found = calibration()
    read = Calibration.from_dict(json.loads(json.dumps(found.as_dict())))
    for name in found.clients:
        assert read.threshold(name, 0.9) == found.threshold(name, 0.9)
    one = found.only(["small"])
    assert list(one.clients) == ["small"]
    assert one.threshold("small", 0.9) == found.threshold("small", 0.9)
    assert one.threshold("empty", 0.9) == found.threshold("empty", 0.9)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "words"},
        {"scale": 0},
        {"scale": "x"},
        {"counts": [[BINS, 1]]},
        {"counts": [[0, -1]]},
        {"counts": 3},
        {"clients": {"a": {"scores": [math.nan], "group": None, "temperature": None}}},
        {"clients": {"a": {"scores": [0.1], "group": None, "temperature": 0}}},
        {"clients": {"a": {"scores": [0.1]}}},
        {"clients": []},
    ],
)
def test_other_content_is_refused(change):
    _, found = calibration()
    with pytest.raises(ValueError):
        Calibration.from_dict(found.as_dict() | change)


@pytest.mark.parametrize("true", [0.3, 1.0, 4.0])
def test_temperature_minimises_the_loss(true):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(4000, 3)) * 3
    p = np.exp(log_softmax(logits / true, axis=1))
    labels = (p.cumsum(axis=1) < rng.random((4000, 1))).sum(axis=1)

    def loss(temperature):
        return -log_softmax(logits / temperature, axis=1)[range(4000), labels].mean()

    found = fit_temperature(logits, labels)
    assert found == pytest.approx(true, rel=0.1)
    assert loss(found) <= min(loss(found * 1.001), loss(found / 1.001))


def test_temperatures_are_bounded():
    logits = np.array([[5.0, 0.0], [0.0, 5.0]])
    assert fit_temperature(logits, np.array([0, 1])) == pytest.approx(1 / 20)
    assert fit_temperature(logits, np.array([1, 0])) == pytest.approx(20)
    assert fit_temperature(np.zeros((0, 2)), np.zeros(0, int)) == 1


def test_a_score_that_is_nan_is_never_within_a_threshold():
    """It counted as a row that is predicted perfectly."""
    counts = score_counts([np.nan, np.inf, 0.0])
    assert counts[0] == 1 and counts[-1] == 2
    assert quantile_of_scores([0.1, np.nan, 0.2], 0.5) == 0.2
    assert quantile_of_scores([0.1, np.nan, 0.2], 0.75) == np.inf

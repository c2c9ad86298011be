"""Thresholds of two classes, against enumeration and scikit-learn."""

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics

from fedtailor.statistics.decision.thresholds import (
    ThresholdRule,
    choose_threshold,
    measure_threshold,
)

SCORES = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]
TRUTH = [False, False, True, False, False, True, True, False]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        # F1 from the third score on: 6 / 9; from the sixth on: 4 / 6, which ties.
        ("f1", 0.55),
        ("specificity=0.8", 0.55),
        ("specificity=0.81", np.inf),
        ("specificity=0.2", 0.15),
        ("sensitivity=0.6", 0.55),
        ("sensitivity=0.7", 0.25),
    ],
)
def test_thresholds_known_by_counting(rule, expected):
    found = choose_threshold(SCORES, TRUTH, ThresholdRule.of(rule))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_tied_scores_stay_on_one_side():
    found = choose_threshold([1, 1, 1, 2], [0, 1, 1, 1], ThresholdRule.of("f1"))
    assert found == -np.inf
    rule = ThresholdRule.of("specificity=0.5")
    assert choose_threshold([1, 1, 1, 2], [0, 1, 1, 1], rule) == 1.5


def rows(seed, weighted=False):
    """Scores with ties, classes and weights of 60 rows."""
    rng = np.random.default_rng(seed)
    truth = rng.random(60) < 0.3
    scores = np.round(rng.normal(size=60) + truth, 1)
    weights = rng.integers(0, 4, 60) if weighted else np.ones(60)
    return scores, truth, weights


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("weighted", [False, True])
def test_thresholds_are_those_of_scikit_learn(seed, weighted):
    scores, truth, weights = rows(seed, weighted)
    precision, recall, _ = metrics.precision_recall_curve(
        truth, scores, sample_weight=weights
    )
    total = precision + recall
    best = np.max(2 * precision * recall / np.where(total > 0, total, 1))
    cut = choose_threshold(scores, truth, ThresholdRule.of("f1"), weights)
    found = metrics.f1_score(truth, scores >= cut, sample_weight=weights)
    np.testing.assert_allclose(found, best, rtol=1e-10)
    fpr, tpr, _ = metrics.roc_curve(
        truth, scores, sample_weight=weights, drop_intermediate=False
    )
    for share in (0.35, 0.5, 0.9):
        rule = ThresholdRule("specificity", share)
        hit = scores >= choose_threshold(scores, truth, rule, weights)
        found = measure_threshold(hit, truth, weights)
        assert found.specificity.estimate >= share - 1e-12
        expected = tpr[1 - fpr >= share - 1e-12].max()
        np.testing.assert_allclose(found.sensitivity.estimate, expected, rtol=1e-10)
        rule = ThresholdRule("sensitivity", share)
        hit = scores >= choose_threshold(scores, truth, rule, weights)
        found = measure_threshold(hit, truth, weights)
        assert found.sensitivity.estimate >= share - 1e-12
        expected = 1 - fpr[tpr >= share - 1e-12].min()
        np.testing.assert_allclose(found.specificity.estimate, expected, rtol=1e-10)


@pytest.mark.parametrize("rule", ["f1", "specificity=0.8", "sensitivity=0.8"])
def test_a_row_of_weight_2_is_two_rows(rule):
    scores, truth, weights = rows(0, weighted=True)
    repeated = [np.repeat(values, weights) for values in (scores, truth)]
    found = [
        choose_threshold(scores, truth, ThresholdRule.of(rule), weights),
        choose_threshold(*repeated, ThresholdRule.of(rule)),
    ]
    # Rows that count nothing may lie between the neighbours of a threshold.
    np.testing.assert_array_equal(repeated[0] >= found[0], repeated[0] >= found[1])


def test_intervals_are_wilsons():
    scores, truth, _ = rows(1)
    hit = scores >= 0.5
    found = measure_threshold(hit, truth)
    tp, fp = int((hit & truth).sum()), int((hit & ~truth).sum())
    assert (found.positives, found.negatives) == (truth.sum(), (~truth).sum())
    for interval, count, total in (
        (found.sensitivity, tp, found.positives),
        (found.specificity, found.negatives - fp, found.negatives),
    ):
        assert interval.estimate == count / total
        ends = stats.binomtest(count, total).proportion_ci(0.95, "wilson")
        np.testing.assert_allclose((interval.low, interval.high), ends, rtol=1e-10)
    ends = stats.binomtest(tp, found.positives + fp).proportion_ci(0.95, "wilson")
    expected = [2 * share / (1 + share) for share in ends]
    np.testing.assert_allclose((found.f1.low, found.f1.high), expected, rtol=1e-10)
    np.testing.assert_allclose(
        found.f1.estimate, metrics.f1_score(truth, hit), rtol=1e-12
    )
    # Equal weights are none.
    twice = measure_threshold(hit, truth, np.full(60, 7.0))
    np.testing.assert_allclose(twice.f1.low, found.f1.low, rtol=1e-12)


def test_intervals_of_f1_hold_it():
    # Of 1,000 tables of 80 rows: the standard error of a share of 0.95 is 0.007.
    rng = np.random.default_rng(0)
    shares = np.array([0.15, 0.1, 0.1, 0.65])  # TP, FP, FN, TN
    true = 2 * 0.15 / (2 * 0.15 + 0.2)
    held = []
    for counts in rng.multinomial(80, shares, size=1000):
        hit = np.repeat([True, True, False, False], counts)
        truth = np.repeat([True, False, True, False], counts)
        f1 = measure_threshold(hit, truth).f1
        held.append(f1.low <= true <= f1.high)
    assert 0.93 <= np.mean(held) <= 0.97


def test_what_there_are_no_rows_for_is_nan():
    found = measure_threshold([True, False], [True, True])
    assert np.isnan(found.specificity.estimate)
    assert found.sensitivity.estimate == 0.5
    for truth in ([True, True], [False, False]):
        with pytest.raises(ValueError, match="all of one class"):
            choose_threshold([1.0, 2.0], truth, ThresholdRule.of("f1"))
    with pytest.raises(ValueError, match="all of one class"):
        choose_threshold([1.0, 2.0], [0, 1], ThresholdRule.of("f1"), [1, 0])


@pytest.mark.parametrize(
    "text",
    [
        *("", "F2", "0.5", "specificity", "specificity=1.5", "specificity=abc"),
        *("specificity=0.0", "specificity=1", "specificity=nan"),
        *("sensitivity=0", "sensitivity=-.1"),
    ],
)
def test_other_rules_are_refused(text):
    with pytest.raises(ValueError, match=r"say f1, specificity=0\.9 or sensitivity"):
        ThresholdRule.of(text)

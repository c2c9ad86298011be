"""The numbers of a privacy audit: closed forms, and the coverage of intervals by
simulation.
"""

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from fedtailor.aggregation.accounting.audit import (
    area,
    epsilon_from_below,
    likelihood_ratios,
    rate_at,
)


def test_area_is_that_of_scikit_learn_with_ties():
    rng = np.random.default_rng(0)
    members, others = rng.integers(0, 5, 40), rng.integers(-1, 4, 25)
    expected = roc_auc_score(
        np.repeat([1, 0], [40, 25]), np.concatenate([members, others])
    )
    found = area(members, others)
    assert found.estimate == pytest.approx(expected, abs=1e-12)
    assert found.low < expected < found.high


@pytest.mark.parametrize(("members", "others"), [(12, 8), (60, 20), (200, 200)])
def test_area_at_its_ends(members, others):
    told_apart = area(np.arange(members) + 1000.0, np.arange(others))
    assert told_apart.estimate == told_apart.high == 1
    assert told_apart.low > 0.5
    alike = area(np.zeros(members), np.zeros(others))
    assert alike.estimate == 0.5 and alike.low < 0.5 < alike.high


def test_without_rows_nothing_is_said():
    for found in (area([], [1.0]), area([1.0], []), rate_at([], [1.0], 0.1)):
        assert np.isnan([found.estimate, found.low, found.high]).all()


@pytest.mark.parametrize("shift", [0.0, 0.5, 1.5, 3.0])
@pytest.mark.parametrize(("members", "others"), [(22, 8), (80, 40), (400, 300)])
def test_coverage_of_the_interval_of_the_area(members, others, shift):
    """Normal scores, whose area is Phi(shift / sqrt 2): 95 % hold it, 1,000 draws."""
    rng = np.random.default_rng([members, others, int(10 * shift)])
    truth = stats.norm.cdf(shift / np.sqrt(2))
    held = 0
    for _ in range(1000):
        found = area(rng.normal(shift, 1, members), rng.normal(0, 1, others))
        held += found.low <= truth <= found.high
    assert 930 <= held <= 990


@pytest.mark.parametrize("fpr", [0.01, 0.1])
@pytest.mark.parametrize(("members", "others"), [(40, 30), (300, 200)])
@pytest.mark.parametrize("shift", [0.0, 2.0])
def test_coverage_of_the_interval_of_a_rate(members, others, fpr, shift):
    """The threshold is not known either; the interval holds at least as often as it says."""
    rng = np.random.default_rng([members, others, int(100 * fpr)])
    truth = stats.norm.sf(stats.norm.isf(fpr) - shift)
    held = 0
    for _ in range(500):
        found = rate_at(rng.normal(shift, 1, members), rng.normal(0, 1, others), fpr)
        assert found.low <= found.estimate <= found.high
        held += found.low <= truth <= found.high
    assert held >= 0.94 * 500


def test_a_rate_that_few_rows_cannot_tell_reaches_down_to_zero():
    found = rate_at(np.full(50, 9.0), np.zeros(20), 0.01)
    assert found.low == 0.0 and found.high == 1.0 and found.estimate == 1.0


def test_a_rate_counts_no_ties_with_the_threshold():
    assert rate_at(np.zeros(50), np.zeros(50), 0.1).estimate == 0.0


def test_likelihood_ratios_by_hand():
    """Two shadow models in and two out of each row; a common variance each."""
    own = np.array([2.0, 0.0])
    shadows = np.array([[1.0, 0.5], [3.0, -0.5], [0.0, 1.0], [-1.0, -2.0]])
    inside = np.array([[1, 0], [1, 0], [0, 1], [0, 1]], bool)
    # means in: 2, -.5; out: -.5, 0; residuals in: -1 1 1.5 -1.5, out: .5 -.5 .5 -.5
    var_in = (1 + 1 + 2.25 + 2.25) / (4 - 2)
    var_out = (0.25 * 4) / (4 - 2)
    expected = stats.norm.logpdf(own, [2, -0.5], var_in**0.5) - stats.norm.logpdf(
        own, [-0.5, 0], var_out**0.5
    )
    np.testing.assert_allclose(
        likelihood_ratios(own, shadows, inside), expected, rtol=1e-12
    )


def test_likelihood_ratios_need_models_without_the_row():
    with pytest.raises(ValueError, match="shadow"):
        likelihood_ratios(np.zeros(2), np.zeros((2, 2)), np.ones((2, 2), bool))


def test_likelihood_ratios_see_what_a_threshold_does_not():
    """Rows differ in difficulty much more than membership changes their score."""
    rng = np.random.default_rng(0)
    rows, models = 400, 16
    difficulty = rng.normal(0, 5, rows)
    member = rng.random(rows) < 0.5
    own = difficulty + member + 0.5 * rng.normal(size=rows)
    inside = np.array([rng.permutation(models) < models // 2 for _ in range(rows)]).T
    shadows = difficulty + inside + 0.5 * rng.normal(size=(models, rows))
    ratio = likelihood_ratios(own, shadows, inside)
    assert area(own[member], own[~member]).estimate < 0.6
    assert area(ratio[member], ratio[~member]).low > 0.85


def test_epsilon_of_certain_guesses_in_closed_form():
    """All of r guesses right refutes every epsilon with (e^eps / (1 + e^eps))^r below
    1 - confidence. Guesses are chosen among four numbers, which share the level.
    """
    for m in (40, 400):
        member = np.arange(m) % 2 == 0
        found = epsilon_from_below(np.where(member, 1.0, -1.0), member)
        right = (0.05 / 4) ** (1 / m)
        assert found == pytest.approx(np.log(right / (1 - right)), abs=1e-6)


def test_delta_lowers_the_bound():
    member = np.arange(200) % 2 == 0
    scores = np.where(member, 1.0, -1.0)
    bounds = [epsilon_from_below(scores, member, delta=it) for it in (0, 1e-5, 1e-3)]
    assert bounds[0] >= bounds[1] > bounds[2] > 0


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0, 3.0])
def test_epsilon_from_below_holds_for_randomized_response(epsilon):
    """Each bit is told right with probability e^eps / (1 + e^eps), which is exactly eps
    of differential privacy: at most 5 % of audits find more, and they come near it.
    """
    rng = np.random.default_rng(int(10 * epsilon))
    found = []
    for _ in range(200):
        member = rng.random(1000) < 0.5
        is_right = rng.random(1000) < 1 / (1 + np.exp(-epsilon))
        told = np.where(is_right, member, ~member)
        found.append(epsilon_from_below(told + rng.random(1000) / 10, member))
    assert np.mean(np.array(found) > epsilon) <= 0.05
    assert np.median(found) >= 0.75 * epsilon - 0.05
    assert min(found) >= 0


def test_epsilon_of_nothing_is_zero():
    assert epsilon_from_below(np.zeros(0), np.zeros(0, bool)) == 0

    # equal scores prove nothing, however the canaries are listed
    assert epsilon_from_below(np.zeros(1000), np.arange(1000) < 500) < 0.3

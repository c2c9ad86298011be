"""Gradients of clients: variances from batches, tests of homogeneity, groups, and the
kernel's exponents.
"""

from itertools import combinations, product

import numpy as np
import pytest
from scipy import stats

from fedtailor.statistics.diagnosis import (
    batch_sizes,
    gradient_traces,
    homogeneity,
)


def trace(samples):
    return samples.var(axis=0, ddof=1).sum()


@pytest.mark.parametrize(("n", "batch"), [(6, 2), (6, 3), (7, 3)])
def test_batches_tell_the_trace_exactly(n, batch):
    samples = np.random.default_rng(n).normal(size=(n, 3))
    every = [
        samples[list(chosen)].mean(axis=0) for chosen in combinations(range(n), batch)
    ]
    sigma2 = np.square(np.array(every) - samples.mean(axis=0)).sum(axis=1).mean()
    found = gradient_traces(np.array([sigma2]), np.array([batch]), np.array([n]))
    np.testing.assert_allclose(found, trace(samples), rtol=1e-10)
    assert np.isnan(gradient_traces(np.array([0.0]), np.array([1]), np.array([1]))[0])


def test_the_distance_has_no_bias():
    # All pairs of samples of size 2 (with replacement) from two small populations, each
    # equally likely.
    rng = np.random.default_rng(0)
    populations = rng.normal(size=(2, 3, 2)) + np.array([0.0, 0.5])[:, None, None]
    draws = [populations[0][list(i)] for i in product(range(3), repeat=2)]
    others = [populations[1][list(j)] for j in product(range(3), repeat=2)]
    total = 0.0
    for one, other in product(draws, others):
        gradients, traces = (
            np.array([one.mean(axis=0), other.mean(axis=0)]),
            np.array([trace(one), trace(other)]),
        )
        total += homogeneity(gradients, traces, np.array([2, 2])).distance[0, 1]
    true = np.square(populations[0].mean(axis=0) - populations[1].mean(axis=0)).sum()
    np.testing.assert_allclose(total / 81, true, rtol=1e-10)


def population(rng, means, sizes, dimension, spread):
    """Mean gradients of clients whose samples' gradients are normal with covariance
    diag(spread).
    """
    noise = rng.normal(size=(len(sizes), dimension)) * np.sqrt(
        spread / np.asarray(sizes)[:, None]
    )
    return means + noise


def test_equal_clients_have_ratio_one_and_are_told_apart_by_chance_only():
    rng, spread = np.random.default_rng(1), np.ones(8)
    ratios, rejected, any_rejected = [], [], []
    for _ in range(150):
        sizes = rng.integers(5, 100, 10)
        gradients = population(rng, 0.0, sizes, 8, spread)
        found = homogeneity(gradients, np.full(10, spread.sum()), sizes)
        above = np.triu_indices(10, 1)
        ratios.append(found.ratio[above].mean())
        rejected.append((found.p[above] < 0.05).mean())
        any_rejected.append((found.p_holm < 0.05).any())
    assert abs(np.mean(ratios) - 1) < 0.03
    assert np.mean(rejected) <= 0.06 and np.mean(any_rejected) <= 0.05 + 3 * np.sqrt(
        0.05 * 0.95 / 150
    )


def test_one_direction_is_the_worst_case_that_rank_one_allows_for():
    rng = np.random.default_rng(2)
    sizes = np.full(40, 20)
    gradients = population(rng, 0.0, sizes, 1, np.ones(1))
    p = homogeneity(gradients, np.ones(40), sizes).p[np.triu_indices(40, 1)]
    assert 0.02 < (p < 0.05).mean() < 0.09


def test_groups_are_found_and_numbered_by_their_first_member():
    rng, sizes = np.random.default_rng(3), np.full(9, 400)
    centres = np.array([[0.0, 0], [3, 0], [0, 3]])[[0, 1, 0, 2, 1, 0, 2, 2, 1]]
    found = homogeneity(
        population(rng, centres, sizes, 2, np.ones(2)), np.full(9, 2.0), sizes
    )
    np.testing.assert_array_equal(found.groups(), [0, 1, 0, 2, 1, 0, 2, 2, 1])
    alike = homogeneity(
        population(rng, 0.0, sizes, 2, np.ones(2)), np.full(9, 2.0), sizes
    )
    np.testing.assert_array_equal(alike.groups(), np.zeros(9))
    for group in np.unique(found.groups()):
        inside = found.groups() == group
        assert (found.p_holm[np.ix_(inside, inside)] >= 0.05).all()


def test_clients_without_variance_and_unknown_traces():
    gradients = np.array([[0.0], [0.0], [1.0]])
    found = homogeneity(gradients, np.zeros(3), np.array([5, 5, 5]))
    np.testing.assert_array_equal(
        found.ratio, [[1, 1, np.inf], [1, 1, np.inf], [np.inf, np.inf, 1]]
    )
    np.testing.assert_array_equal(found.groups(), [0, 0, 1])
    filled = homogeneity(gradients, np.array([2.0, np.nan, 4.0]), np.array([1, 2, 4]))
    np.testing.assert_allclose(filled.expected[0, 1], 2 + 3 / 2, rtol=1e-12)
    assert len(homogeneity(gradients[:1], np.ones(1), np.array([3])).groups()) == 1
    with pytest.raises(ValueError, match="no client has two batches"):
        homogeneity(gradients, np.full(3, np.nan), np.array([1, 1, 1]))
    with pytest.raises(ValueError, match=r"a variance of gradients is -1\.0"):
        homogeneity(gradients, np.array([1.0, -1, 1]), np.array([1, 1, 1]))


def test_the_p_value_is_the_tail_of_an_f_distribution_with_welch_s_degrees():
    """A client whose trace is unknown has one degree of freedom, whatever was given."""
    gradients = np.array([[0.0, 0.0], [3.0, 0.0], [0.5, 0.0]])
    traces, sizes = np.array([2.0, 6.0, np.nan]), np.array([4, 3, 4])
    degrees = np.array([7.0, 5.0, 9.0])
    found = homogeneity(gradients, traces, sizes, degrees=degrees)
    variances = np.array([2 / 4, 6 / 3, 4 / 4])
    welch = variances[:2].sum() ** 2 / (variances[0] ** 2 / 7 + variances[1] ** 2 / 5)
    expected = stats.f.sf(9 / 2.5, 1, welch)
    np.testing.assert_allclose(found.p[0, 1], expected, rtol=1e-10)
    welch = variances[1:].sum() ** 2 / (variances[1] ** 2 / 5 + variances[2] ** 2 / 1)
    expected = stats.f.sf(2.5**2 / 3, 1, welch)
    np.testing.assert_allclose(found.p[1, 2], expected, rtol=1e-10)
    # Nobody has fewer than one.
    none = homogeneity(gradients, traces, sizes, degrees=np.array([0.0, 5.0, 9.0]))
    one = homogeneity(gradients, traces, sizes, degrees=np.array([1.0, 5.0, 9.0]))
    assert none.p[0, 1] == one.p[0, 1] < 1
    # Below the threshold of 1.54 rank 1 is not conservative, so that nothing is said.
    assert found.ratio[0, 2] < 1.53 and found.p[0, 2] == 1.0


def test_batches_are_a_share_of_a_client_s_samples():
    """At most half of them, and at least one; rounding of the share takes none away."""
    sizes = np.array([1, 2, 3, 20, 60, 79, 80])
    np.testing.assert_array_equal(batch_sizes(sizes, 0.05), [1, 1, 1, 1, 3, 3, 4])
    np.testing.assert_array_equal(batch_sizes(sizes, 0.9), [1, 1, 1, 10, 30, 39, 40])
    # In binary, 0.29 x 100 is a little less than 29.
    np.testing.assert_array_equal(batch_sizes(np.array([100]), 0.29), [29])


def probed(rng, clients, rows, draw, share=0.05):
    """Gradients and traces of clients with one distribution, as a probe gives them."""
    gradients, sigma2, concentrations = [], [], []
    batch = max(int(share * rows + 1e-3), 1)
    count = rows // batch
    for _ in range(clients):
        samples = draw(rng, rows)
        batches = samples[: count * batch].reshape(count, batch, -1).mean(axis=1)
        gradients.append(samples.mean(axis=0))
        sigma2.append(np.square(batches - gradients[-1]).sum(axis=1).mean())
        scatter = np.cov(batches.T, ddof=0).reshape(batches.shape[1], -1)
        concentrations.append(np.square(scatter).sum() / np.trace(scatter) ** 2)
    sizes = np.full(clients, rows)
    traces = gradient_traces(np.array(sigma2), np.full(clients, batch), sizes)
    degrees = np.full(clients, count - 1.0)
    return np.array(gradients), traces, sizes, degrees, np.array(concentrations)


def correlated(rng, rows):
    """Gradients of a logistic regression at 0 on nearly equal columns."""
    x = 3 * rng.normal(size=(rows, 1)) + rng.normal(size=(rows, 8))
    return rng.choice([-0.5, 0.5], size=(rows, 1)) * x


@pytest.mark.parametrize(
    "draw",
    [
        lambda rng, rows: rng.normal(size=(rows, 1)),
        lambda rng, rows: rng.normal(size=(rows, 8)),
        correlated,
    ],
)
@pytest.mark.parametrize("clients", [8, 20])
def test_the_level_holds_over_all_pairs_with_traces_from_batches(draw, clients):
    rng, repetitions = np.random.default_rng(clients), 150
    pairs = together = 0
    for _ in range(repetitions):
        found = homogeneity(*probed(rng, clients, 60, draw))
        pairs += bool((found.p_holm < 0.05).any())
        together += found.overall_p < 0.05
    most = repetitions * 0.05 + 3 * np.sqrt(repetitions * 0.05 * 0.95)
    assert pairs <= most and together <= most


def test_one_direction_and_equal_traces_have_an_f_distribution():
    gradients = np.array([[0.0], [3.0]])
    traces, sizes = np.array([8.0, 8.0]), np.array([10, 10])
    found = homogeneity(gradients, traces, sizes, np.array([9.0, 9.0]))
    expected = stats.f.sf(9 / 1.6, 1, 18)
    np.testing.assert_allclose(found.p[0, 1], expected, rtol=1e-10)
    np.testing.assert_allclose(found.overall_p, expected, rtol=1e-10)
    # A client without two batches counts as one degree of freedom.
    traces[1] = np.nan
    alone = homogeneity(gradients, traces, sizes, np.array([9.0, 0.0]))
    degrees = 2**2 / (1 / 9 + 1)
    np.testing.assert_allclose(
        alone.p[0, 1], stats.f.sf(9 / 1.6, 1, degrees), rtol=1e-10
    )


def test_rank_one_says_nothing_below_the_ratio_from_which_it_is_cautious():
    """Below 1.5365 chi^2_1 is not the heaviest tail of all covariances."""
    sizes, traces = np.array([1, 1]), np.array([0.5, 0.5])
    for degrees in (None, np.array([19.0, 19.0])):
        for ratio, is_said in ((1.53, False), (1.55, True)):
            gradients = np.array([[0.0], [np.sqrt(ratio)]])
            p = homogeneity(gradients, traces, sizes, degrees=degrees).p[0, 1]
            assert (p < 1) == is_said
            if is_said and degrees is None:
                np.testing.assert_allclose(p, stats.chi2.sf(ratio, 1), rtol=1e-10)

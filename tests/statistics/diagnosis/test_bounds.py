"""Bounds as they hold: closed forms, minima against a solver, and the counterexamples
to what is printed.
"""

from itertools import product
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats
from scipy.spatial.distance import jensenshannon

from fedtailor.statistics import diagnosis as dx
from fedtailor.statistics.decision import holm

SIZES = np.array([10, 40, 50])


def test_effective_samples_lie_between_one_client_s_and_all():
    weights = np.array([[1, 0, 0], SIZES / 100, [0.5, 0.25, 0.25]])
    found = dx.effective_samples(weights, SIZES)
    np.testing.assert_allclose(
        found, [10, 100, 1 / (0.25 / 10 + 0.0625 / 40 + 0.0625 / 50)], rtol=1e-12
    )
    np.testing.assert_allclose(dx.skewness(weights, SIZES), 100 / found, rtol=1e-12)
    assert (
        dx.effective_samples(np.random.default_rng(0).dirichlet(np.ones(3), 50), SIZES)
        <= 100
    ).all()


def test_the_printed_estimation_term_is_below_what_happens_and_the_corrected_one_above():
    # 1,000 points with 10 samples each, labels 1 with probability 0.65; every labelling
    # is a hypothesis.
    rng, points, n, delta = np.random.default_rng(0), 1000, 10_000, 0.05
    excess = []
    for _ in range(50):
        ones = rng.binomial(n // points, 0.65, points)
        wrong = (ones < 5) + (ones == 5) * rng.integers(0, 2, points)
        excess.append(0.3 * wrong.mean())
    d = points
    printed = np.sqrt(1 / n) * (
        np.sqrt(2 * d / n * np.log(np.e * n / d)) + np.sqrt(np.log(2 / delta))
    )
    corrected = dx.estimation_term(np.ones((1, 1)), np.array([n]), d, delta=delta)[0]
    assert printed < 0.028 < 0.045 <= min(excess) and max(excess) < corrected
    expected = (
        4 * np.sqrt(2 * d * np.log(np.e * n / d)) + np.sqrt(2 * np.log(2 / delta))
    ) / 100
    np.testing.assert_allclose(corrected, expected, rtol=1e-12)
    half = dx.estimation_term(
        np.ones((1, 1)), np.array([n]), d, loss_range=0.5, delta=delta
    )[0]
    np.testing.assert_allclose(half, expected / 2, rtol=1e-12)


@pytest.mark.parametrize("gap", [1e-4, 1e-2, 0.2, 0.5])
def test_the_divergence_term_needs_twice_the_range(gap):
    # Two hypotheses, "0" and "1"; P_j is a fair coin, so its data may choose the one
    # that P_i loses 2 gap more with.
    p_i, p_j = np.array([[0.5 - gap, 0.5 + gap]]), np.array([[0.5, 0.5]])
    js = dx.jensen_shannon(p_i, p_j)
    corrected = dx.jensen_shannon_bias(np.ones((1, 1)), js[None])[0]
    printed = np.sqrt(
        2 * 2 * js[0]
    )  # B sqrt(2 D), with D the sum of both divergences to the midpoint
    assert printed < 2 * gap <= corrected * (1 + 1e-12)
    if gap <= 1e-2:
        np.testing.assert_allclose(
            [corrected / gap, printed / gap], [2, np.sqrt(2)], rtol=1e-3
        )


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.integers(2, 6), st.integers(2, 8))
def test_mixtures_of_clients_lose_at_most_the_bias(seed, clients, hypotheses):
    # With infinitely many samples the bias is all there is: of the minimiser of a
    # weighted loss, for each client.
    rng = np.random.default_rng(seed)
    losses, weights = (
        rng.uniform(size=(hypotheses, clients)),
        rng.dirichlet(np.ones(clients), clients),
    )
    chosen = (losses @ weights.T).argmin(axis=0)
    excess = losses[chosen, range(clients)] - losses.min(axis=0)
    apart = dx.discrepancy_from_models(losses)
    assert (excess <= dx.discrepancy_bias(weights, apart) + 1e-12).all()
    mixed = np.diag(dx.discrepancy_from_mixture(losses, weights))
    assert (excess <= 2 * mixed + 1e-12).all() and (
        mixed <= (weights * apart).sum(axis=1) + 1e-12
    ).all()


def test_one_discrepancy_is_not_enough_for_the_global_model():
    # Mansour et al., eq. 2: on U both hypotheses lose 0.5, and client 1 loses 2 disc
    # more with the wrong one.
    losses = np.array([[0.4, 0.6], [0.6, 0.4]])
    disc = dx.discrepancy_from_mixture(losses, np.array([[0.5, 0.5]]))
    np.testing.assert_allclose(disc, [[0.1, 0.1]], rtol=1e-12)
    assert losses[1, 0] - losses[0, 0] > 1.9 * disc[0, 0]


@settings(max_examples=60)
@given(
    st.integers(0, 10**6), st.integers(1, 12), st.sampled_from([0.01, 1.0, 5.0, 100.0])
)
def test_best_rows_satisfy_the_conditions_of_a_minimum(seed, clients, complexity):
    rng = np.random.default_rng(seed)
    sizes, biases = (
        rng.integers(1, 200, clients),
        rng.uniform(0, 1, (clients, clients)).round(2),
    )
    found = dx.best_rows(biases, sizes, complexity)
    np.testing.assert_allclose(found.weights.sum(axis=1), 1, rtol=1e-12)
    assert (found.weights >= 0).all()
    values = dx.row_bounds(found.weights, biases, sizes, complexity)
    np.testing.assert_allclose(values, found.bound, rtol=1e-9)
    slope = (
        complexity
        * found.weights
        / sizes
        * np.sqrt(dx.effective_samples(found.weights, sizes))[:, None]
        + biases
    )
    used = found.weights > 1e-12
    np.testing.assert_allclose(
        np.where(used, slope, found.bound[:, None]),
        found.bound[:, None].repeat(clients, 1),
        rtol=1e-7,
        atol=1e-9,
    )
    assert (slope >= found.bound[:, None] - 1e-9).all()


def test_best_rows_are_those_of_a_solver():
    rng = np.random.default_rng(4)
    sizes, bias, c = rng.integers(5, 100, 6), rng.uniform(0, 0.4, 6), 2.0
    found = dx.best_rows(bias[None], sizes, c)

    def objective(w):
        return c * np.sqrt((w**2 / sizes).sum()) + w @ bias

    solved = optimize.minimize(
        objective,
        np.full(6, 1 / 6),
        method="SLSQP",
        bounds=[(0, 1)] * 6,
        tol=1e-14,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
    )
    np.testing.assert_allclose(found.bound[0], solved.fun, rtol=1e-8)
    np.testing.assert_allclose(found.weights[0], solved.x, atol=1e-4)
    others = rng.dirichlet(np.ones(6), 100)
    assert (
        dx.row_bounds(others, np.tile(bias, (100, 1)), sizes, c) >= found.bound
    ).all()


def test_best_rows_know_both_ends():
    alike, apart = np.zeros((3, 3)), 1e6 * (1 - np.eye(3))
    np.testing.assert_allclose(
        dx.best_rows(alike, SIZES, 1.0).weights,
        np.tile(SIZES / 100, (3, 1)),
        rtol=1e-12,
    )
    np.testing.assert_allclose(
        dx.best_rows(apart, SIZES, 1.0).weights, np.eye(3), atol=1e-12
    )
    with pytest.raises(ValueError, match="complexity is 0; it must be above 0"):
        dx.best_rows(alike, SIZES, 0)


def test_a_client_with_few_samples_gains_and_one_far_away_does_not():
    margin = dx.together_minus_alone(
        np.array([0.0, 0.0, 2.0]), np.array([10, 1000, 100]), 5
    )
    assert margin[0] < margin[1] < 0 < margin[2]
    expected = 4.0 - np.sqrt(5 + np.log(20)) * (1 / np.sqrt(100) - 1 / np.sqrt(1110))
    np.testing.assert_allclose(margin[2], expected, rtol=1e-12)


@pytest.mark.parametrize("disc", [0.0, 0.05, 0.3, 5.0])
def test_dapper_s_share_is_the_minimum_on_a_grid(disc):
    grid = np.linspace(0, 1, 200_001)
    objective = (
        np.sqrt(grid**2 / 30 + (1 - grid) ** 2 / 170) * np.sqrt(7 * np.log(20))
        + (1 - grid) * disc
    )
    found = dx.dapper_share(np.array([30]), np.array([170]), np.array([disc]), 7)
    np.testing.assert_allclose(found, grid[objective.argmin()], atol=2e-4)
    assert found[0] == pytest.approx(
        {0.0: 0.15, 5.0: 1.0}.get(disc, found[0]), abs=1e-12
    )


def test_bounds_of_clusters_central_models_and_mixtures():
    q = np.array([1, 2, 5])
    expected = 2 * np.sqrt(20 * np.log(2 * q / 0.05) / 2000) + np.sqrt(
        30 * q / 2000 * np.log(np.e * 2000 / 30)
    )
    np.testing.assert_allclose(
        dx.hypcluster_bound(q, 20, 2000, 30), expected, rtol=1e-12
    )
    np.testing.assert_array_equal(
        dx.clusters_have_samples(q, np.full(20, 5), 30), [True, True, False]
    )
    np.testing.assert_array_equal(
        dx.clusters_have_samples(np.array([2, 3, 8]), np.full(2000, 1), 5),
        [True, False, False],
    )
    central = np.sqrt(50 / 2000 * np.log(np.e * 2000 / 50))
    local = np.sqrt(3 * 20 / 2000 * np.log(np.e * 2000 / 3))
    np.testing.assert_allclose(
        dx.mapper_bound(20, 2000, 50, 3, lipschitz=2),
        4 * (central + local) + 2 * np.sqrt(np.log(20) / 2000),
        rtol=1e-12,
    )
    np.testing.assert_allclose(
        dx.agnostic_bound(4, 100, 5, 10, resolution=0.1, discrepancy=0.2),
        2 * np.sqrt((5 + np.log(200)) / 100) + 0.3,
        rtol=1e-12,
    )
    with pytest.raises(
        ValueError, match="the dimension is 30; the bound wants 1 to 20"
    ):
        dx.hypcluster_bound(q, 2, 20, 30)


def test_contexts_cost_a_choice_among_them():
    costs, counts = np.array([3.0, 1.0, 0.2]), np.array([1, 2, 4])
    printed = np.sqrt(8 * counts / 500 * np.log(np.e * 500 / 8)) + 0.5 * costs
    np.testing.assert_allclose(
        dx.contexts_bound(costs, counts, 20, 500, 8, 0.5, delta=None),
        printed,
        rtol=1e-12,
    )
    union = 2 * np.sqrt(20 * np.log(counts / 0.05) / 500)
    np.testing.assert_allclose(
        dx.contexts_bound(costs, counts, 20, 500, 8, 0.5), printed + union, rtol=1e-12
    )
    with pytest.raises(ValueError, match="the dimension is 600"):
        dx.contexts_bound(costs, counts, 20, 500, 600, 0.5)


def test_the_bound_of_clusters_holds_for_thresholds():
    # Losses of thresholds on [0, 1] (d = 1) under the best of q = 2 for each client:
    # training against expected.
    rng, clients, n, delta = np.random.default_rng(1), 6, 40, 0.05
    grid = np.linspace(0, 1, 21)
    bound = dx.hypcluster_bound(np.array([2]), clients, clients * n, 1, delta=delta)[0]
    for _ in range(20):
        x, cut = (
            rng.uniform(size=(clients, n)),
            np.where(np.arange(clients) < 3, 0.3, 0.7),
        )
        observed = np.abs(
            (x[:, :, None] > grid) * 1.0 - (x > cut[:, None])[:, :, None]
        ).mean(axis=1)
        expected = np.abs(grid - cut[:, None])
        pairs = [(a, b) for a in range(21) for b in range(a, 21)]
        gaps = [
            abs(
                observed[:, [a, b]].min(axis=1).mean()
                - expected[:, [a, b]].min(axis=1).mean()
            )
            for a, b in pairs
        ]
        assert max(gaps) <= bound


def test_divergences_are_those_of_scipy():
    rng = np.random.default_rng(2)
    p, q = rng.dirichlet(np.ones(5), 2)
    np.testing.assert_allclose(
        dx.jensen_shannon(p, q), jensenshannon(p, q) ** 2, rtol=1e-10
    )
    assert dx.jensen_shannon(np.array([1.0, 0]), np.array([0, 1.0])) == pytest.approx(
        np.log(2), rel=1e-14
    )


def assignments(pooled, size):
    """All ways to give one client `size` of the pooled samples, and how many of each."""
    for one in product(*(range(count + 1) for count in pooled)):
        if sum(one) == size:
            ways = np.prod([comb(t, k) for t, k in zip(pooled, one, strict=True)])
            yield np.array(one), float(ways)


@pytest.mark.parametrize("counts", [[[3, 1, 0, 2], [1, 4, 0, 0]], [[1, 0], [4, 3]]])
def test_labels_are_compared_by_pearson_s_test_over_all_assignments(counts):
    counts = np.array(counts)
    pooled, sizes = counts.sum(axis=0), counts.sum(axis=1)

    def statistic(one):
        present = pooled > 0
        table = np.array([one, pooled - one])[:, present]
        return stats.chi2_contingency(table, correction=False).statistic

    values, weights = zip(
        *((statistic(one), ways) for one, ways in assignments(pooled, sizes[0])),
        strict=True,
    )
    mean = np.average(values, weights=weights)
    variance = np.average(np.square(values - mean), weights=weights)
    tail = stats.gamma.sf(
        statistic(counts[0]), mean**2 / variance, scale=variance / mean
    )
    np.testing.assert_allclose(dx.label_differences(counts).p[0, 1], tail, rtol=1e-8)


def test_labels_of_many_samples_have_the_p_value_of_chi_squared():
    counts = np.array([[3000, 1000, 0], [2950, 1050, 0], [5, 5, 40]])
    found = dx.label_differences(counts)
    two = stats.chi2_contingency(counts[:2, :2], correction=False).pvalue
    # The class that neither has does not count.
    np.testing.assert_allclose(found.p[0, 1], two, rtol=1e-3)
    np.testing.assert_array_equal(found.p, found.p.T)
    shares = counts / counts.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(
        found.divergence[0, 2], dx.jensen_shannon(shares[0], shares[2]), rtol=1e-12
    )
    with pytest.raises(ValueError, match="a client has no label"):
        dx.label_differences(np.array([[1, 0], [0, 0]]))
    with pytest.raises(ValueError, match="a count of labels is -1"):
        dx.label_differences(np.array([[1, -1]]))


def test_inputs_are_compared_by_welch_s_test():
    rng = np.random.default_rng(3)
    x = [
        rng.normal(0, 1, (40, 4)),
        rng.normal([0, 0, 1, 0], 2, (70, 4)),
        rng.normal(0, 1, (30, 4)),
    ]
    for one in x:
        one[:, 3] = 1e4  # constant, and the same
    means, squares = (
        np.array([np.power(one, k).mean(axis=0) for one in x]) for k in (1, 2)
    )
    found = dx.input_differences(means, squares, np.array([40, 70, 30]))
    expected = stats.ttest_ind(x[0][:, :3], x[1][:, :3], equal_var=False).pvalue
    np.testing.assert_allclose(found.p[0, 1], min(3 * expected.min(), 1), rtol=1e-8)
    assert found.feature[0, 1] == found.feature[1, 0] == expected.argmin()
    assert (
        found.standardized[0, 1] > 0.1
        and (found.standardized == found.standardized.T).all()
    )


def test_equal_inputs_have_no_standardized_difference_on_average():
    rng, values = np.random.default_rng(5), []
    for _ in range(300):
        x = rng.normal(3, 2, (2, 15, 1))
        found = dx.input_differences(
            x.mean(axis=1), np.square(x).mean(axis=1), np.array([15, 15])
        )
        values.append(found.p[0, 1] < 0.05)
    assert np.mean(values) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 300)
    shifted = dx.input_differences(
        np.array([[0.0], [3.0]]), np.array([[1.0], [10.0]]), np.array([10**6, 10**6])
    )
    np.testing.assert_allclose(shifted.standardized[0, 1], 3, rtol=1e-5)


def test_equal_labels_are_told_apart_as_often_as_the_test_says():
    rng, p = np.random.default_rng(6), np.array([0.5, 0.3, 0.2])
    counts = rng.multinomial(60, p, size=150)
    found = dx.label_differences(counts).p[np.triu_indices(150, 1)]
    assert 0.03 < (found < 0.05).mean() < 0.07


@pytest.mark.parametrize(("clients", "rows"), [(20, 60), (30, 100)])
def test_few_samples_of_many_classes_keep_the_level_over_all_pairs(clients, rows):
    """As many classes as clients, about three samples of each in a client."""
    rng, wrong = np.random.default_rng(7), 0
    for _ in range(100):
        counts = rng.multinomial(rows, np.full(clients, 1 / clients), size=clients)
        p = dx.label_differences(counts).p[np.triu_indices(clients, 1)]
        wrong += bool((holm(p) < 0.05).any())
    assert wrong <= 100 * (0.05 + 3 * np.sqrt(0.05 * 0.95 / 100))


def test_columns_that_are_constant_in_clients_do_not_tell_them_apart():
    """One column describes clients (its height above the sea), one is constant in one
    of them only.
    """
    rng = np.random.default_rng(8)
    rows = [rng.normal(size=(30, 3)) for _ in range(3)]
    for client, x in enumerate(rows):
        x[:, 1] = 100.0 * client
    rows[0][:, 2] = 0.1
    means, squares = (np.array([(x**k).mean(axis=0) for x in rows]) for k in (1, 2))
    found = dx.input_differences(means, squares, np.full(3, 30))
    np.testing.assert_array_equal(found.constant, [False, True, False])
    assert np.isfinite(found.standardized).all() and found.standardized.max() < 1
    assert (found.p > 0.01).all() and found.spread[1] == 0


def test_the_spread_of_a_column_is_that_between_clients():
    rng = np.random.default_rng(9)
    centres = np.array([[0.0, 0], [2, 0], [1, 0], [3, 0]])
    rows = [rng.normal(size=(500, 2)) + centre for centre in centres]
    means, squares = (np.array([(x**k).mean(axis=0) for x in rows]) for k in (1, 2))
    found = dx.input_differences(means, squares, np.full(4, 500))
    np.testing.assert_allclose(found.spread, [centres[:, 0].std(ddof=1), 0], atol=0.1)
    expected = stats.f_oneway(*rows).pvalue
    np.testing.assert_allclose(found.spread_p, np.minimum(2 * expected, 1), rtol=1e-6)

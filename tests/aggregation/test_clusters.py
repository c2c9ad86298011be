import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import pdist, squareform
from sklearn.metrics import silhouette_score

from fedtailor.aggregation import clusters
from fedtailor.aggregation.clusters import (
    choose_streams,
    costs_of_models,
    k_means,
    k_means_of_models,
    match,
    silhouette,
)

seeds = st.integers(0, 2**32 - 1)


def grouped(seed, sizes=(3, 4, 5), noise=0.01, columns=12):
    """Row-stochastic rows [m, columns] in clear groups, and the group of each row."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    rows = rng.dirichlet(np.ones(columns), len(sizes))[labels] + noise * rng.uniform(
        size=(len(labels), columns)
    )
    return rows / rows.sum(1, keepdims=True), labels


@given(seeds)
@settings(max_examples=10)
def test_k_means_finds_clear_groups_and_numbers_them_by_first_member(seed):
    rows, groups = grouped(seed, noise=1e-3)
    labels, centroids = k_means(rows, 3)
    np.testing.assert_array_equal(labels, groups)
    np.testing.assert_allclose(
        centroids, [rows[groups == group].mean(0) for group in range(3)], atol=1e-15
    )


@given(seeds, st.integers(1, 12))
@settings(max_examples=20)
def test_centroids_of_stochastic_rows_are_stochastic(seed, k):
    rows, _ = grouped(seed, noise=1.0)
    labels, centroids = k_means(rows, k)
    assert len(centroids) == k
    assert set(labels) == set(range(k))
    np.testing.assert_allclose(centroids.sum(1), 1, atol=1e-14)
    assert (centroids >= 0).all()


def test_one_cluster_and_as_many_as_rows():
    rows, _ = grouped(0)
    labels, centroids = k_means(rows, 1)
    np.testing.assert_array_equal(labels, 0)
    np.testing.assert_allclose(centroids, rows.mean(0, keepdims=True), atol=1e-15)
    labels, centroids = k_means(rows, len(rows))
    np.testing.assert_array_equal(labels, np.arange(len(rows)))
    np.testing.assert_array_equal(centroids, rows)


def test_duplicates_bound_the_number_of_clusters_and_stay_together():
    rows, groups = grouped(0, noise=0.0)
    rows = rows + 1e-16 * np.random.default_rng(1).uniform(
        size=rows.shape
    )  # rounding does not make a client special
    labels, centroids = k_means(rows, 7)
    np.testing.assert_array_equal(labels, groups)
    assert centroids.shape == (3, 12)


def test_duplicates_weigh_by_their_number():
    line = np.array([[0.0], [4.0], [7.0]])
    np.testing.assert_array_equal(k_means(line, 2)[0], [0, 1, 1])
    labels, centroids = k_means(
        line.repeat([1, 10, 10], axis=0), 2
    )  # now it is cheaper to keep 4 and 7 apart
    np.testing.assert_array_equal(labels, np.repeat([0, 0, 1], [1, 10, 10]))
    np.testing.assert_allclose(centroids, [[40 / 11], [7]])


@pytest.mark.parametrize("k", [0, 13])
def test_an_impossible_number_of_clusters_is_refused(k):
    with pytest.raises(ValueError, match=f"{k} .*12"):
        k_means(grouped(0)[0], k)


@pytest.mark.parametrize(
    "cluster",
    [
        lambda rows: k_means(rows, 2),
        choose_streams,
        lambda rows: k_means_of_models(rows, 2),
    ],
)
def test_rows_that_are_not_finite_are_refused(cluster):
    rows = grouped(0)[0]
    rows[4, 1] = np.nan
    with pytest.raises(ValueError, match="row 4 is not finite"):
        cluster(rows)


def test_k_means_of_models_in_many_dimensions():
    rng = np.random.default_rng(0)
    groups = np.repeat([0, 1, 2], 4)
    models = rng.standard_normal((3, 5000))[groups] + 0.1 * rng.standard_normal(
        (12, 5000)
    )
    np.testing.assert_array_equal(
        k_means_of_models(models.astype(np.float32) + 3, 3), groups
    )
    np.testing.assert_array_equal(
        k_means_of_models(np.ones((5, 5000), np.float32), 3), 0
    )


def test_costs_of_models_are_weighted_distances_to_the_means_of_their_clusters():
    rng = np.random.default_rng(0)
    models, weights = rng.standard_normal((9, 40)) + 5, rng.uniform(size=9)
    models[3] = models[7]
    numbers, costs = costs_of_models(models, weights, 9)
    assert list(numbers) == list(range(1, 9))  # eight of them differ
    for number, cost in zip(numbers, costs, strict=True):
        labels, means = k_means(models, number)
        assert cost == pytest.approx(
            weights @ np.square(models - means[labels]).sum(axis=1),
            rel=1e-10,
            abs=1e-10,
        )


def test_silhouette():
    tight = np.array([[0.0], [1e-9], [1.0], [1 + 1e-9]])
    assert silhouette(tight, [0, 0, 1, 1]) == pytest.approx(1, abs=1e-8)
    assert silhouette(np.ones((4, 2)), [0, 0, 1, 1]) == 0  # a point mass
    assert silhouette(tight, [0, 0, 0, 0]) == 0
    assert silhouette(tight, [0, 1, 2, 3]) == 0
    a, b = (
        np.array([2, 2, 1]),
        np.array([10.0, 8, 9]),
    )  # by hand: plain distances, and 0 for the client alone
    assert silhouette(np.array([[0.0], [2], [10]]), [0, 0, 1]) == pytest.approx(
        ((b - a) / b)[:2].sum() / 3
    )


@given(seeds, st.floats(1e-3, 1e3))
@settings(max_examples=20)
def test_silhouette_does_not_depend_on_scale(seed, scale):
    rows, labels = grouped(seed, noise=0.5)
    assert silhouette(scale * rows, labels) == pytest.approx(
        silhouette(rows, labels), abs=1e-10
    )


@given(seeds, st.integers(2, 15))
@settings(max_examples=20)
def test_silhouette_is_scikit_learns(seed, k):
    rng = np.random.default_rng(seed)
    rows, labels = (
        rng.normal(size=(20, 3)),
        np.append(np.arange(k), rng.integers(k, size=20 - k)),
    )
    assert silhouette(rows, labels) == pytest.approx(
        silhouette_score(rows, labels), abs=1e-10
    )


@given(seeds)
@settings(max_examples=5)
def test_scores_of_all_numbers_are_the_silhouettes_of_their_clusters(seed):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(12, 4))[rng.integers(12, size=30)]  # many of them equal
    _, scores = choose_streams(rows)
    for k, score in scores.items():
        assert score == pytest.approx(silhouette(rows, k_means(rows, k)[0]), abs=1e-10)


@given(st.integers(0, 1000), st.integers(2, 4))
@settings(max_examples=8)
def test_as_many_streams_as_clear_groups(seed, count):
    rows = np.eye(count).repeat(4, axis=0) + 0.01 * np.random.default_rng(seed).uniform(
        size=(4 * count, count)
    )
    k, scores = choose_streams(rows)
    assert k == count
    assert list(scores) == list(range(2, 4 * count))
    assert max(scores, key=scores.__getitem__) == count


@pytest.mark.parametrize(
    "rows", [np.full((6, 6), 1 / 6), np.ones((1, 1)), np.eye(2), np.eye(7)]
)
def test_one_stream_where_no_silhouette_is_positive(rows):
    assert choose_streams(rows)[0] == 1


def test_rounding_makes_no_streams():
    rows = np.full((6, 6), 1 / 6) + 1e-16 * np.random.default_rng(0).normal(size=(6, 6))
    assert choose_streams(rows) == (1, {})


def test_distinct_rows_bound_the_number_of_streams():
    rows = np.eye(3)[[0, 1, 2, 0, 1, 2]]
    k, scores = choose_streams(rows)
    assert k == 3
    assert list(scores) == [2, 3]
    assert scores[3] == 1


def test_a_trade_off_of_the_users_own():
    rows, _ = grouped(0)
    assert choose_streams(rows, lambda k, s: 1 / k)[0] == 1
    assert (
        choose_streams(rows, lambda k, s: s - 10 * (k - 2) ** 2 if k > 1 else -1e9)[0]
        == 2
    )
    assert (
        choose_streams(rows, lambda k, s: min(k, 5))[0] == 5
    )  # the fewest streams on ties
    with pytest.raises(ValueError, match="k = 1"):
        choose_streams(rows, lambda k, s: float("nan"))


def test_no_rows_are_refused():
    with pytest.raises(ValueError, match="no rows"):
        choose_streams(np.ones((0, 3)))


def test_rows_far_away_blur_no_others():
    rows = np.array([[0.0], [1e-6], [1.0], [1 + 1e-6], [1e6]])
    np.testing.assert_array_equal(k_means(rows, 5)[0], range(5))


def test_large_populations_try_large_numbers_sparsely():
    rows = np.eye(130).repeat(2, axis=0)
    _, scores = choose_streams(rows)
    tried = np.array(list(scores))
    assert set(range(2, 101)) <= set(tried)
    assert tried[-1] == 130
    assert (np.diff(tried) <= 0.1 * tried[1:] + 1).all()


@given(seeds, st.integers(1, 5), st.integers(0, 2))
@settings(max_examples=30)
def test_matching_has_minimum_cost(seed, new, more):
    cost = np.random.default_rng(seed).uniform(size=(new, new + more))
    chosen = match(cost)
    best = min(
        cost[range(new), order].sum()
        for order in map(list, itertools.permutations(range(new + more), new))
    )
    assert len(set(chosen)) == new
    assert cost[range(new), chosen].sum() == pytest.approx(best)


def test_matching_refuses_more_new_than_old():
    with pytest.raises(ValueError, match="3"):
        match(np.zeros((3, 2)))


def test_copies_of_rows_are_left_out_of_the_distances_and_change_nothing():
    rng = np.random.default_rng(0)
    few = rng.random((6, 5))
    few[4] = few[1] + 1e-13  # the same point, but no copy
    rows = few[[3, 1, 1, 0, 4, 3, 5, 2, 4]]
    found = clusters._distinct_rows(rows)
    tolerance = 1e-9 * clusters._larger_norm(rows)
    of_all = clusters._DistinctPoints(squareform(pdist(rows, "sqeuclidean")), tolerance)
    assert len(found.squared) == 5
    for name in ("point_of_row", "squared", "multiplicity"):
        np.testing.assert_array_equal(getattr(found, name), getattr(of_all, name))
    alike = np.ones((3000, 3000))
    assert clusters.k_means(alike, 3)[0].max() == 0

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans

from fedtailor.aggregation.global_k_means import (
    ClusterSums,
    _without_empty_clusters,
    partitions,
)

seeds = st.integers(0, 2**32 - 1)


def squared_distances(points):
    return np.square(points[:, None] - points[None]).sum(axis=-1)


def labels_of(points, weights, numbers):
    return [
        found.labels
        for found in partitions(squared_distances(points), weights, numbers)
    ]


def cost(points, weights, labels):
    members = [labels == label for label in np.unique(labels)]
    means = [
        np.average(points[mine], axis=0, weights=weights[mine]) for mine in members
    ]
    return sum(
        weights[mine] @ np.square(points[mine] - mean).sum(1)
        for mine, mean in zip(members, means, strict=True)
    )


def grouped(rng, count):
    return 2 * rng.normal(size=(8, 5))[rng.integers(8, size=count)] + rng.normal(
        size=(count, 5)
    )


@given(seeds, st.integers(3, 30))
@settings(max_examples=20, deadline=None)
def test_every_number_of_clusters_is_found_and_none_is_empty(seed, count):
    rng = np.random.default_rng(seed)
    points, weights = (
        rng.normal(size=(count, 2)),
        rng.integers(1, 4, count).astype(float),
    )
    found = list(partitions(squared_distances(points), weights, range(1, count + 1)))
    assert (
        [len(np.unique(one.labels)) for one in found]
        == [one.count for one in found]
        == list(range(1, count + 1))
    )
    costs = [cost(points, weights, one.labels) for one in found]
    np.testing.assert_allclose(
        [one.cost for one in found], costs, rtol=1e-10, atol=1e-10
    )
    np.testing.assert_allclose(
        [weights @ one.squared_to_mean() for one in found],
        costs,
        rtol=1e-10,
        atol=1e-10,
    )
    assert (np.diff(costs) <= 1e-10).all()  # a cluster more never costs more


@pytest.mark.parametrize("numbers", [[2, 9, 10, 25, 29], [30], [1, 14, 28]])
def test_clusters_between_two_numbers_are_placed_at_once(numbers):
    points = np.random.default_rng(0).normal(size=(30, 3))
    found = labels_of(points, np.ones(30), numbers)
    assert [len(np.unique(labels)) for labels in found] == numbers


@given(seeds)
@settings(max_examples=10, deadline=None)
def test_points_lie_with_the_nearest_mean_and_no_single_move_is_worth_it(seed):
    rng = np.random.default_rng(seed)
    points, weights = rng.normal(size=(15, 2)), rng.integers(1, 4, 15).astype(float)
    for labels in labels_of(points, weights, [2, 3, 7]):
        members = [labels == own for own in range(labels.max() + 1)]
        means = [
            np.average(points[mine], axis=0, weights=weights[mine]) for mine in members
        ]
        far = np.square(points[:, None] - np.stack(means)).sum(axis=-1)
        np.testing.assert_allclose(
            far[np.arange(15), labels], far.min(axis=1), rtol=1e-10
        )
        least = cost(points, weights, labels)
        for point, other in itertools.product(range(15), range(len(members))):
            moved = np.where(np.arange(15) == point, other, labels)
            if len(np.unique(moved)) == len(members):
                assert cost(points, weights, moved) >= least * (1 - 1.1e-5)


@given(seeds)
@settings(max_examples=10, deadline=None)
def test_few_points_are_clustered_at_the_least_cost_there_is(seed):
    """Or nearly: five seeds are tried for each cluster, each cluster starting from the
    clusters before.
    """
    points = np.random.default_rng(seed).normal(size=(7, 2))
    every = [np.array([0, *rest]) for rest in itertools.product(range(3), repeat=6)]
    for k, labels in zip([2, 3], labels_of(points, np.ones(7), [2, 3]), strict=True):
        least = min(
            cost(points, np.ones(7), guess)
            for guess in every
            if len(np.unique(guess)) == k
        )
        assert cost(points, np.ones(7), labels) <= 1.25 * least


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "draw",
    [
        grouped,
        lambda rng, m: rng.normal(size=(m, 10)),
        lambda rng, m: rng.dirichlet(np.ones(m), m),
    ],
)
def test_costs_are_those_of_the_best_of_ten_starts_of_k_means(seed, draw):
    points, numbers = draw(np.random.default_rng(seed), 60), [2, 3, 5, 8, 20]
    weights = np.ones(60)
    found = labels_of(points, weights, range(2, 21))
    costs = {k: cost(points, weights, labels) for k, labels in enumerate(found, 2)}
    for k in numbers:
        best_of_ten = KMeans(k, n_init=10, random_state=0).fit(points).inertia_
        assert costs[k] <= 1.02 * best_of_ten


def test_weights_count_as_copies():
    points = np.random.default_rng(1).normal(size=(12, 2))
    copies = np.random.default_rng(2).integers(1, 5, 12)
    each = points.repeat(copies, axis=0)
    # copies at distance 0 are not points of their own: a little apart, they are those of
    # one weighted point
    apart = each + 1e-7 * np.random.default_rng(3).normal(size=each.shape)
    weighted = labels_of(points, copies.astype(float), range(2, 8))
    copied = labels_of(apart, np.ones(len(each)), range(2, 8))
    for labels, of_copies in zip(weighted, copied, strict=True):
        expected = cost(each, np.ones(len(each)), labels.repeat(copies))
        assert cost(apart, np.ones(len(each)), of_copies) == pytest.approx(
            expected, rel=1e-4
        )


@given(seeds)
@settings(max_examples=20, deadline=None)
def test_sums_over_clusters_follow_the_labels(seed):
    rng = np.random.default_rng(seed)
    matrix, weights = rng.uniform(size=(15, 15)), rng.uniform(size=15)
    sums, labels = ClusterSums(matrix, weights), np.zeros(15, np.int64)
    for count in (2, 2, 5, 5, 5):
        labels = np.where(
            rng.uniform(size=15) < 0.5, rng.integers(count, size=15), labels
        )
        sums = sums.with_labels(labels, count)
        np.testing.assert_array_equal(sums.labels, labels)
        np.testing.assert_allclose(
            sums.values,
            (labels == np.arange(count)[:, None]) * weights @ matrix,
            atol=1e-13,
        )


def test_sums_of_points_close_together_outlive_a_far_one():
    """What a far point leaves behind must not be its rounding."""
    line = np.array([0, 1e-7, 3e-7, 1.0, 2.0])
    distances = np.abs(line[:, None] - line)
    sums = ClusterSums(distances, np.ones(5))
    for labels in ([0, 0, 0, 0, 1], [0, 0, 0, 1, 1]):
        sums = sums.with_labels(np.array(labels), 2)
    np.testing.assert_allclose(
        sums.values[0, :3], distances[:3, :3].sum(axis=0), rtol=1e-14
    )


def test_an_outlier_does_not_end_the_search_among_the_others():
    rng = np.random.default_rng(0)
    points = grouped(rng, 60)
    alone = labels_of(points[1:], np.ones(59), range(2, 20))[-1]
    points[0] *= 1e6
    with_it = labels_of(points, np.ones(60), range(2, 21))[-1]
    assert cost(points, np.ones(60), with_it) == pytest.approx(
        cost(points[1:], np.ones(59), alone), rel=0.03
    )


def test_a_cluster_that_would_be_emptied_keeps_its_members():
    old, labels = (
        np.array([0, 0, 1, 2]),
        np.array([2, 1, 2, 2]),
    )  # 0 gets the second point back; 1 then needs its own
    np.testing.assert_array_equal(_without_empty_clusters(old, labels, 3), [0, 0, 1, 2])
    np.testing.assert_array_equal(
        _without_empty_clusters(old, np.array([0, 1, 1, 2]), 3), [0, 1, 1, 2]
    )
    # the first point founds a cluster of its own, 3: the second has to stay
    np.testing.assert_array_equal(
        _without_empty_clusters(old, np.array([3, 3, 1, 2]), 3, [0]), [3, 0, 1, 2]
    )

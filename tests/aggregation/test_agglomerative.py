import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtailor.aggregation.agglomerative import agglomerative, bipartition

seeds = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize("linkage", ["complete", "single"])
def test_opposed_groups_are_split(linkage):
    side = np.array([1.0, -1, -1, 1, -1])
    np.testing.assert_array_equal(
        bipartition(np.outer(side, side), linkage), [0, 1, 1, 0, 1]
    )
    np.testing.assert_array_equal(bipartition(np.eye(2), linkage), [0, 1])


@given(seeds, st.integers(2, 7))
@settings(max_examples=30)
def test_single_linkage_minimises_the_largest_similarity_across(seed, count):
    directions = np.random.default_rng(seed).normal(size=(count, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    similarity = directions @ directions.T

    def across(labels):
        return similarity[np.ix_(labels == 0, labels == 1)].max()

    every = (
        np.array([0, *rest])
        for rest in itertools.product([0, 1], repeat=count - 1)
        if any(rest)
    )
    assert across(bipartition(similarity, "single")) == pytest.approx(
        min(map(across, every))
    )


def test_a_chain_tells_the_linkages_apart():
    angles = np.deg2rad([0, 50, 90, 120])
    similarity = np.cos(angles[:, None] - angles[None])
    np.testing.assert_array_equal(bipartition(similarity, "complete"), [0, 0, 1, 1])
    np.testing.assert_array_equal(
        bipartition(similarity, "single"), [0, 1, 1, 1]
    )  # at the widest gap


def test_complete_linkage_is_not_average_linkage():
    """By average linkage the fourth direction would join the second and third instead
    of the last.
    """
    angles = np.deg2rad([0, 40, 50, 76, 110])
    similarity = np.cos(angles[:, None] - angles[None])
    np.testing.assert_array_equal(bipartition(similarity, "complete"), [0, 0, 0, 1, 1])
    np.testing.assert_array_equal(bipartition(similarity, "single"), [0, 1, 1, 1, 1])


def test_impossible_bipartitions_are_refused():
    with pytest.raises(ValueError, match="two"):
        bipartition(np.ones((1, 1)))
    with pytest.raises(ValueError, match="linkage"):
        bipartition(np.ones((2, 2)), "average")  # pyright: ignore[reportArgumentType]


def test_agglomerative_clusters_by_number_threshold_and_largest_gap():
    places = np.array([0.0, 0.1, 5.0, 5.3, 9.0])
    distances = np.abs(places[:, None] - places)
    for how in ({"clusters": 3}, {"threshold": 1.0}, {}):
        np.testing.assert_array_equal(agglomerative(distances, **how), [0, 0, 1, 1, 2])
    np.testing.assert_array_equal(
        agglomerative(distances, threshold=4.5), [0, 0, 1, 1, 1]
    )
    np.testing.assert_array_equal(
        agglomerative(distances, "single", threshold=6.0), np.zeros(5)
    )
    np.testing.assert_array_equal(agglomerative(1 - np.eye(4)), np.zeros(4))
    np.testing.assert_array_equal(agglomerative(np.zeros((1, 1)), clusters=1), [0])
    with pytest.raises(ValueError, match=r"cannot make 6 clusters of 5 clients"):
        agglomerative(distances, clusters=6)
    with pytest.raises(ValueError, match=r"linkage is 'ward'"):
        agglomerative(distances, "ward")

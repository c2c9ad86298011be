"""Numbers of streams and contexts: what they lose, and how long rounds take."""

import numpy as np
import pytest

from fedtailor.accounting.wireless import Wireless
from fedtailor.aggregation.clusters import choose_streams, k_means
from fedtailor.diagnosis import (
    compare_streams,
    contexts_bound,
    matching_stability,
    round_time,
    time_to_finish,
)


def test_streams_lose_what_their_centroids_do_not_say():
    rng = np.random.default_rng(0)
    rows = np.repeat(np.eye(3), 4, axis=0) + rng.uniform(0, 0.05, (12, 3))
    found = compare_streams(rows)
    assert found.count.tolist() == list(range(1, 13))
    assert (
        found.chosen == choose_streams(rows)[0] == 3
        and found.silhouette[2] == found.silhouette.max()
    )
    for k in (1, 3, 7):
        labels, centroids = k_means(rows, k)
        apart = rows - centroids[labels]
        np.testing.assert_allclose(
            found.cost[k - 1], np.square(apart).sum(), rtol=1e-10
        )
        np.testing.assert_allclose(
            found.personalization_loss[k - 1], np.abs(apart).sum(), rtol=1e-10
        )
    assert found.cost[-1] == found.personalization_loss[-1] == found.silhouette[-1] == 0
    assert (np.diff(found.cost) <= 1e-12).all()
    silhouettes = choose_streams(rows)[1]
    np.testing.assert_array_equal(found.silhouette[1:-1], list(silhouettes.values()))


def test_equal_rows_need_one_stream():
    found = compare_streams(np.ones((5, 2)))
    assert found.count.tolist() == [1] and found.cost[0] == 0 and found.chosen == 1


def test_contexts_cost_a_choice_among_them():
    costs, counts = np.array([3.0, 1.0, 0.2]), np.array([1, 2, 4])
    printed = np.sqrt(8 * counts / 500 * np.log(np.e * 500 / 8)) + 0.5 * costs
    np.testing.assert_allclose(
        contexts_bound(costs, counts, 20, 500, 8, 0.5, delta=None), printed, rtol=1e-12
    )
    union = 2 * np.sqrt(20 * np.log(counts / 0.05) / 500)
    np.testing.assert_allclose(
        contexts_bound(costs, counts, 20, 500, 8, 0.5), printed + union, rtol=1e-12
    )
    with pytest.raises(ValueError, match="the dimension is 600"):
        contexts_bound(costs, counts, 20, 500, 600, 0.5)


def test_groups_that_only_change_their_numbers_are_stable():
    found = matching_stability(np.array([[0, 0, 1, 1], [1, 1, 0, 0], [0, 1, 0, 1]]))
    assert found[0] == 1 and found[1] < 0.1


def test_a_round_takes_its_three_parts_and_the_end_a_delivery():
    system = Wireless(rho=4, t_min=1, mean_delay=2, t_dl=0.5)
    computing = 1 + 2 * (1 + 1 / 2 + 1 / 3)
    assert round_time(system, 3, 3) == pytest.approx(
        3 * 0.5 + computing + 4 * 0.5, rel=1e-12
    )
    assert round_time(system, 3, 3, passes=2, uploads=2) == pytest.approx(
        1.5 + 2 * computing + 4, rel=1e-12
    )
    one_by_one = Wireless(rho=4, t_min=1, mean_delay=2, t_dl=0.5, uplink="sequential")
    assert round_time(one_by_one, 3, 3) == pytest.approx(
        1.5 + computing + 3 * 2, rel=1e-12
    )
    expected = 10 * round_time(system, 3, 3) + 3 * 0.5
    assert time_to_finish(system, 10, 3, 3, delivered=3) == pytest.approx(
        expected, rel=1e-12
    )
    with pytest.raises(ValueError, match="-1 streams"):
        round_time(system, -1, 3)

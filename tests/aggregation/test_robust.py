"""Robust averages: closed forms, breakdown points, and no dependence on an order."""

import itertools

import numpy as np
import pytest

from fedtailor.aggregation.robust import (
    bucket_means,
    centred_clipping,
    coordinate_median,
    geometric_median,
    krum,
    krum_scores,
    norm_bounded_mean,
    trimmed_mean,
)

N, D, BYZANTINE = 11, 6, 3

RULES = {
    "median": coordinate_median,
    "trimmed-mean": lambda x: trimmed_mean(x, BYZANTINE),
    "krum": lambda x: krum(x, BYZANTINE),
    "multi-krum": lambda x: krum(x, BYZANTINE, keep=len(x) - BYZANTINE - 2),
    "geometric-median": geometric_median,
    "norm-bound": norm_bounded_mean,
    "centred-clipping": lambda x: centred_clipping(x, np.zeros(x.shape[1]), steps=3),
}


def honest(n=N, seed=0):
    return np.random.default_rng(seed).normal(size=(n, D))


@pytest.mark.parametrize("name", RULES)
def test_no_rule_depends_on_the_order_of_the_vectors(name):
    x = honest()
    expected = RULES[name](x)
    for seed in range(5):
        shuffled = x[np.random.default_rng(seed).permutation(N)]
        np.testing.assert_allclose(RULES[name](shuffled), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", [*RULES])
@pytest.mark.parametrize("far", [1e3, 1e30])
def test_three_liars_of_eleven_move_no_rule_out_of_the_honest(name, far):
    """However far away the liars are, and whether they agree or not."""
    x = honest()
    for lies in (np.full((BYZANTINE, D), far), far * honest(BYZANTINE, seed=1)):
        x[:BYZANTINE] = lies
        rest = x[BYZANTINE:]
        found = RULES[name](x)
        radius = np.linalg.norm(rest, axis=1).max()
        assert np.linalg.norm(found) <= radius * (1 + 1e-12)
        if name in ("median", "trimmed-mean"):
            assert (rest.min(axis=0) <= found).all()
            assert (found <= rest.max(axis=0)).all()


@pytest.mark.parametrize("name", ["median", "geometric-median"])
def test_half_of_the_vectors_is_the_breakdown_point(name):
    x = honest(10)
    x[:4] = 1e9
    assert np.linalg.norm(RULES[name](x)) < 10
    x[:6] = 1e9
    assert np.linalg.norm(RULES[name](x)) > 1e8


def test_trimming_breaks_down_above_its_cut_and_krum_at_its_limit():
    x = honest()
    x[:BYZANTINE] = 1e9
    assert np.abs(trimmed_mean(x, BYZANTINE)).max() < 10
    assert trimmed_mean(x, BYZANTINE - 1).min() > 1e7
    # Krum picks one of the liars once they are as many as its neighbours and itself.
    x[: N - BYZANTINE - 1] = 1e9
    np.testing.assert_array_equal(krum(x, BYZANTINE), np.full(D, 1e9))


def test_the_mean_itself_breaks_down_at_one_vector():
    x = honest()
    np.testing.assert_allclose(trimmed_mean(x, 0), x.mean(axis=0), rtol=0, atol=1e-15)
    x[0] = 1e30
    assert trimmed_mean(x, 0).min() > 1e28


def test_the_median_and_the_trimmed_mean_are_those_of_numpy():
    from scipy.stats import trim_mean

    for n in (1, 2, 5, 8):
        x = honest(n)
        np.testing.assert_allclose(
            coordinate_median(x), np.median(x, axis=0), rtol=0, atol=1e-15
        )
        cut = (n - 1) // 3
        np.testing.assert_allclose(
            trimmed_mean(x, cut), trim_mean(x, cut / n + 1e-9), rtol=0, atol=1e-14
        )


@pytest.mark.parametrize("keep", [1, 4])
def test_krum_is_that_of_a_loop_over_all_pairs(keep):
    x = honest(9, seed=3)
    scores = []
    for i in range(9):
        squared = sorted(float(((x[i] - x[j]) ** 2).sum()) for j in range(9) if j != i)
        scores.append(sum(squared[: 9 - 2 - 2]))
    best = np.argsort(scores)[:keep]
    np.testing.assert_allclose(
        krum(x, 2, keep), x[best].mean(axis=0), rtol=0, atol=1e-12
    )


def test_krum_has_one_neighbour_at_least():
    squared = np.array([[0.0, 4.0, 9.0], [4.0, 0.0, 1.0], [9.0, 1.0, 0.0]])
    np.testing.assert_array_equal(krum_scores(squared, 1), [4.0, 1.0, 1.0])


def test_the_geometric_median_has_least_sum_of_distances():
    def cost(v, x):
        return np.linalg.norm(x - v, axis=1).sum()

    for seed in range(5):
        x = honest(seed=seed)
        found = geometric_median(x)
        # At the minimum the unit vectors towards all points add up to 0.
        towards = x - found
        unit = towards / np.linalg.norm(towards, axis=1, keepdims=True)
        assert np.abs(unit.sum(axis=0)).max() < 1e-6
        for step in 1e-3 * honest(5, seed=seed + 1):
            assert cost(found, x) < cost(found + step, x)


def test_geometric_medians_with_closed_forms():
    # the crossing of the diagonals of a convex quadrangle
    square = np.array([[0.0, 0], [4, 0], [4, 4], [0, 4]])
    np.testing.assert_allclose(geometric_median(square), [2, 2], atol=1e-8)
    kite = np.array([[0.0, 0], [1, -1], [5, 0], [1, 1]])
    np.testing.assert_allclose(geometric_median(kite), [1, 0], atol=1e-8)
    # Fermat's point of a triangle with an angle above 120 degrees is that corner.
    flat = np.array([[-10.0, 1], [0, 0], [10, 1]])
    np.testing.assert_allclose(geometric_median(flat), [0, 0], atol=1e-10)
    # a majority of equal vectors
    majority = np.array([[3.0, 1]] * 3 + [[1e30, 0], [-7, 2]])
    np.testing.assert_allclose(geometric_median(majority), [3, 1], atol=1e-10)
    np.testing.assert_array_equal(geometric_median(np.ones((1, 4))), np.ones(4))
    np.testing.assert_array_equal(geometric_median(np.ones((5, 4))), np.ones(4))


def test_bounded_norms_by_hand():
    x = np.array([[3.0, 4.0], [0.0, 0.5], [0.0, 0.0]])
    np.testing.assert_allclose(norm_bounded_mean(x, 1.0), [0.2, 1.3 / 3], atol=1e-15)
    # the median of the norms 5, 0.5 and 0
    np.testing.assert_allclose(norm_bounded_mean(x), [0.1, 0.3], atol=1e-15)
    np.testing.assert_allclose(
        norm_bounded_mean(x, 1e9), x.mean(axis=0), rtol=0, atol=1e-15
    )


def test_centred_clipping_by_hand():
    x = np.array([[11.0, 0.0], [10.0, 3.0], [10.0, -1.0]])
    centre = np.array([10.0, 0.0])
    first = centre + np.array([1.0, 0.0]) / 3  # +1 and -1 of the others cancel
    np.testing.assert_allclose(centred_clipping(x, centre, 1.0), first, atol=1e-14)
    # With a radius beyond all distances every step is the mean.
    np.testing.assert_allclose(
        centred_clipping(x, centre, 100.0, steps=2), x.mean(axis=0), atol=1e-14
    )


def test_buckets_are_means_of_a_permutation():
    x = honest(5)
    order = np.array([4, 2, 0, 1, 3])
    expected = [(x[4] + x[2]) / 2, (x[0] + x[1]) / 2, x[3]]
    np.testing.assert_allclose(bucket_means(x, 2, order), expected, atol=1e-15)
    np.testing.assert_array_equal(bucket_means(x, 1, order), x[order])


@pytest.mark.parametrize("name", RULES)
def test_without_liars_rules_are_within_standard_errors_of_the_mean(name):
    """Each coordinate of the honest is normal; the least efficient of the averages, one
    vector, has the standard deviation of a vector."""
    rng = np.random.default_rng(7)
    for n in (11, 40):
        x = 0.3 + rng.normal(size=(n, 200))
        found = RULES[name](x)
        # the root mean square of the distance to the mean, in standard errors of it
        rms = np.sqrt(np.mean((found - x.mean(axis=0)) ** 2)) * np.sqrt(n)
        assert rms < (np.sqrt(n) if name == "krum" else 1.0)


def test_single_precision_and_wide_vectors_go_through_blocks(monkeypatch):
    from fedtailor.aggregation import distances

    x = honest().astype(np.float32)
    whole = {name: rule(x) for name, rule in RULES.items()}
    monkeypatch.setattr(distances, "_BLOCK_ELEMENTS", 2 * N)
    for name, rule in RULES.items():
        np.testing.assert_allclose(rule(x), whole[name], rtol=0, atol=1e-6)
        assert rule(x).dtype == np.float64


def test_every_subset_of_liars_is_found_by_krum():
    base = honest(7) * 0.01
    for byzantine in itertools.combinations(range(7), 2):
        x = base.copy()
        x[list(byzantine)] += 50
        assert np.linalg.norm(krum(x, 2)) < 1

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtailor.aggregation import (
    Probe,
    newcomer_weights,
    restrict_to_reporters,
    user_centric_weights,
)
from fedtailor.protocol import Clients, Cohort

seeds = st.integers(0, 2**32 - 1)
kernels = pytest.mark.parametrize("kernel", ["eq9", "eq6"])
close = {"rtol": 1e-10, "atol": 1e-10}


def problem(seed, clients=6, size=4, spread=1.0):
    rng = np.random.default_rng(seed)
    gradients = spread * rng.normal(size=(clients, size))
    return Probe(
        gradients, rng.uniform(0.5, 2, clients), 2 * rng.integers(2, 50, clients)
    )


def reorder(probe, order):
    return Probe(probe.gradients[order], probe.sigma2[order], probe.sizes[order])


def as_cohort(rows, reporting):
    """Some clients of a population of three."""
    clients = Clients(
        np.arange(3, dtype=np.uint64),
        ("a", "b", "c"),
        np.zeros(3, np.int64),
        None,
        np.arange(3),
    )
    return Cohort(clients, np.asarray(rows), True, np.asarray(reporting, bool), 0, 0)


def test_by_hand():
    probe = Probe(np.array([[0.0], [1.0]]), np.array([0.5, 2.0]), np.array([10, 30]))
    rows = np.array([[10, 30 * np.exp(-1)], [10 * np.exp(-1 / 4), 30]])
    np.testing.assert_allclose(
        user_centric_weights(probe), rows / rows.sum(1, keepdims=True), **close
    )
    rows = np.array([[10, 30 * np.exp(-1 / 2)], [10 * np.exp(-1 / 2), 30]])
    np.testing.assert_allclose(
        user_centric_weights(probe, "eq6"), rows / rows.sum(1, keepdims=True), **close
    )


@kernels
@given(seeds, st.integers(1, 8), st.sampled_from([1e-3, 1.0, 1e4]))
@settings(max_examples=25)
def test_rows_are_distributions_whose_largest_kernel_value_is_ones_own(
    kernel, seed, clients, spread
):
    probe = problem(seed, clients, spread=spread)
    weights = user_centric_weights(probe, kernel)
    assert (weights >= 0).all()
    np.testing.assert_allclose(weights.sum(1), 1, **close)
    per_sample = weights / probe.sizes
    assert (per_sample.diagonal() >= per_sample.max(1) - 1e-15).all()


@kernels
@given(seeds, st.sampled_from([1e-6, 0.3, 1e5]))
@settings(max_examples=25)
def test_scaling_the_loss_changes_nothing(kernel, seed, c):
    probe = problem(seed)
    scaled = Probe(c * probe.gradients, c**2 * probe.sigma2, probe.sizes)
    np.testing.assert_allclose(
        user_centric_weights(scaled, kernel),
        user_centric_weights(probe, kernel),
        **close,
    )


@kernels
@given(seeds)
@settings(max_examples=25)
def test_relabelling_clients_relabels_weights(kernel, seed):
    probe = problem(seed)
    order = np.random.default_rng(seed).permutation(len(probe.sizes))
    permuted = user_centric_weights(reorder(probe, order), kernel)
    np.testing.assert_allclose(
        permuted, user_centric_weights(probe, kernel)[np.ix_(order, order)], **close
    )


@kernels
@given(seeds, st.integers(0, 5))
@settings(max_examples=25)
def test_splitting_a_client_in_two_halves_splits_its_weight(kernel, seed, split):
    probe = problem(seed)
    order = [*range(6), split]
    sizes = probe.sizes[order]
    sizes[[split, 6]] //= 2
    halves = user_centric_weights(
        Probe(probe.gradients[order], probe.sigma2[order], sizes), kernel
    )
    halves[:, split] += halves[:, 6]
    np.testing.assert_allclose(
        halves[:6, :6], user_centric_weights(probe, kernel), **close
    )


# the kernel "bound"
# --------------------------------------------------------------------------------------


@given(seeds, st.integers(1, 8), st.sampled_from([1e-3, 1.0, 3.0, 1e4]))
@settings(max_examples=25)
def test_rows_of_the_bound_satisfy_the_conditions_of_its_minimum(seed, clients, spread):
    """Of sqrt(sum w_j^2 v_j) + sum w_j b_ij on the simplex; b_ij^2 = |g_i - g_j|^2 -
    v_i - v_j, or 0.
    """
    probe = problem(seed, clients, spread=spread)
    rows = user_centric_weights(probe, "bound")
    assert (rows >= 0).all()
    np.testing.assert_allclose(rows.sum(axis=1), 1, **close)
    v, g = probe.sigma2, probe.gradients
    for i, w in enumerate(rows):
        bias = np.sqrt(np.maximum(np.square(g - g[i]).sum(axis=1) - v - v[i], 0.0))
        bias[i] = 0.0
        slope = w * v / np.sqrt(np.sum(w**2 * v)) + bias
        least = slope @ w
        assert (slope >= least - 1e-9 * max(least, 1.0)).all()
        np.testing.assert_allclose(slope[w > 1e-9], least, rtol=1e-9)


def test_limits_of_the_bound():
    """Alike but for noise: by precision, which is by samples where single samples vary
    alike; far apart: alone.
    """
    probe = problem(0)
    traces = Probe(1e-9 * probe.gradients, 3.0 / probe.sizes, probe.sizes)
    share = probe.sizes / probe.sizes.sum()
    np.testing.assert_allclose(
        user_centric_weights(traces, "bound"), np.tile(share, (6, 1)), **close
    )
    apart = Probe(1e9 * probe.gradients, probe.sigma2, probe.sizes)
    np.testing.assert_allclose(user_centric_weights(apart, "bound"), np.eye(6), **close)
    exact = Probe(np.array([[0.0], [0.0], [1.0]]), np.zeros(3), np.array([4, 8, 5]))
    np.testing.assert_allclose(
        user_centric_weights(exact, "bound"),
        [[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0, 1]],
        **close,
    )


def test_single_samples_of_the_bound():
    """Their noise is that of a single sample of the others; with nothing else there is
    FedAvg.
    """
    gradients, sizes = np.array([[0.0], [1.0], [2.0]]), np.array([1, 10, 20])
    found = user_centric_weights(
        Probe(gradients, np.array([7.0, 0.4, 0.3]), sizes), "bound"
    )
    known = user_centric_weights(
        Probe(gradients, np.array([5.0, 0.4, 0.3]), sizes * 2), "bound"
    )
    np.testing.assert_allclose(found, known, **close)  # the median of 4 and 6
    alone = Probe(gradients, np.zeros(3), np.ones(3, int))
    np.testing.assert_allclose(
        user_centric_weights(alone, "bound"), np.full((3, 3), 1 / 3), **close
    )


def test_a_newcomer_of_the_bound_has_its_twins_row_over_those_that_may_have_weight():
    probe = problem(3)
    twin = Probe(probe.gradients[2:3], probe.sigma2[2:3], probe.sizes[2:3])
    rows = user_centric_weights(probe, "bound")
    np.testing.assert_allclose(
        newcomer_weights(twin, probe, "bound"), rows[2:3], **close
    )
    among = np.array([True, True, False, True, True, False])
    found = newcomer_weights(twin, probe, "bound", among)
    left = Probe(probe.gradients[among], probe.sigma2[among], probe.sizes[among])
    assert not found[0, ~among].any()
    np.testing.assert_allclose(
        found[:, among], newcomer_weights(twin, left, "bound"), **close
    )


@kernels
def test_bandwidths_from_local_to_fedavg(kernel):
    """Also where a variance is 0: infinity still averages all, with their samples."""
    probe = problem(0)
    probe.sigma2[2] = 0.0
    half = Probe(probe.gradients, probe.sigma2 / 2, probe.sizes)
    np.testing.assert_array_equal(
        user_centric_weights(probe.with_bandwidth(0.0), kernel), np.eye(6)
    )
    np.testing.assert_array_equal(
        user_centric_weights(probe.with_bandwidth(np.inf), kernel),
        np.tile(probe.sizes / probe.sizes.sum(), (6, 1)),
    )
    np.testing.assert_array_equal(
        user_centric_weights(half.with_bandwidth(2.0), kernel),
        user_centric_weights(probe.with_bandwidth(1.0), kernel),
    )


@kernels
def test_limits_of_the_variance(kernel):
    probe = problem(0)
    share = probe.sizes / probe.sizes.sum()
    noisy, exact = (
        Probe(probe.gradients, np.full(6, sigma2), probe.sizes)
        for sigma2 in (1e14, 1e-6)
    )
    np.testing.assert_allclose(
        user_centric_weights(noisy, kernel), np.tile(share, (6, 1)), **close
    )
    np.testing.assert_allclose(user_centric_weights(exact, kernel), np.eye(6), **close)


def test_the_kernels_agree_for_equal_variances():
    probe = problem(1)
    equal = Probe(probe.gradients, np.full(6, 0.7), probe.sizes)
    np.testing.assert_allclose(
        user_centric_weights(equal), user_centric_weights(equal, "eq6"), **close
    )


def test_detailed_balance_of_equation_6_only():
    probe = problem(2)

    def asymmetry(kernel):
        weights = user_centric_weights(probe, kernel)
        flow = (
            probe.sizes[:, None] * weights / (weights.diagonal() / probe.sizes)[:, None]
        )  # n_i n_j K_ij, K_ii = 1
        return np.abs(flow - flow.T).max() / flow.max()

    assert asymmetry("eq6") < 1e-12
    assert asymmetry("eq9") > 1e-3


@kernels
def test_a_client_of_variance_zero_keeps_to_itself_even_among_identical_clients(kernel):
    gradients = np.array([[1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [0.0, 1.0]])
    nothing = user_centric_weights(Probe(gradients, np.zeros(4), np.full(4, 9)), kernel)
    np.testing.assert_array_equal(nothing, np.eye(4))
    some = user_centric_weights(
        Probe(gradients, np.array([0.0, 1, 1, 1]), np.full(4, 9)), kernel
    )
    np.testing.assert_array_equal(some[0], [1, 0, 0, 0])
    assert np.isfinite(some).all()
    assert (some[1:, 0] == 0).all() == (kernel == "eq6")


@kernels
def test_one_client(kernel):
    alone = Probe(np.ones((1, 3)), np.array([0.3]), np.array([5]))
    np.testing.assert_array_equal(user_centric_weights(alone, kernel), [[1.0]])


@kernels
def test_clients_with_one_sample_take_the_median_deviation_of_the_others(kernel):
    probe = problem(3, clients=5)
    sizes = probe.sizes.copy()
    sizes[1] = 1
    lacking, filled = probe.sigma2.copy(), probe.sigma2.copy()
    lacking[1] = np.nan  # one sample has no two batches to compare
    filled[1] = np.median(np.sqrt(probe.sigma2[[0, 2, 3, 4]])) ** 2
    two = sizes.copy()
    two[1] = 2  # the formula with the median put in by hand, and one sample's weight
    by_hand = user_centric_weights(Probe(probe.gradients, filled, two), kernel)
    by_hand[:, 1] /= 2
    expected = by_hand / by_hand.sum(1, keepdims=True)
    np.testing.assert_allclose(
        user_centric_weights(Probe(probe.gradients, lacking, sizes), kernel),
        expected,
        **close,
    )


@kernels
def test_where_all_have_one_sample_nothing_tells_them_apart(kernel):
    probe = Probe(np.array([[1.0], [5.0]]), np.zeros(2), np.ones(2, np.int64))
    np.testing.assert_allclose(
        user_centric_weights(probe, kernel), np.full((2, 2), 0.5)
    )


@kernels
def test_a_newcomer_like_a_seen_client_gets_its_row_up_to_counting_it_twice(kernel):
    probe = problem(4)
    together = reorder(probe, [0, 1, 2, 3, 4, 5, 2])
    row = user_centric_weights(together, kernel)[6, :6]
    newcomer = newcomer_weights(reorder(probe, [2]), probe, kernel)
    np.testing.assert_allclose(newcomer, [row / row.sum()], **close)


@kernels
def test_a_newcomer_far_from_everybody_gets_the_nearest_clients(kernel):
    seen = Probe(
        np.array([[0.0], [0.0], [-5.0]]), np.full(3, 1e-300), np.array([10, 30, 10])
    )
    for sigma2 in (1e-300, 1e-20, 0.0):
        newcomer = Probe(np.array([[1e6]]), np.array([sigma2]), np.array([8]))
        np.testing.assert_allclose(
            newcomer_weights(newcomer, seen, kernel), [[0.25, 0.75, 0]], **close
        )


@kernels
def test_a_newcomers_row_among_some_clients_is_its_row_renormalised(kernel):
    probe, some = problem(5), np.array([True, False, True, True, False, True])
    newcomer = reorder(problem(6), [1])
    row = np.where(some, newcomer_weights(newcomer, probe, kernel), 0)
    found = newcomer_weights(newcomer, probe, kernel, some)
    np.testing.assert_allclose(found, row / row.sum(), **close)
    far = Probe(
        np.full((1, 4), 1e6), np.array([0.0]), np.array([8])
    )  # whose nearest clients may not count
    nearest = np.argmin(
        np.where(some, np.square(probe.gradients - 1e6).sum(axis=1), np.inf)
    )
    np.testing.assert_array_equal(
        newcomer_weights(far, probe, kernel, some), [np.arange(6) == nearest]
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gradients": np.ones((3, 2))}, "probe"),
        ({"gradients": np.ones(4)}, "probe"),
        ({"sigma2": np.array([1.0, -1, 1, 1])}, "client 1"),
        ({"sigma2": np.array([1.0, 1, np.nan, 1])}, "client 2"),
        ({"sizes": np.array([5, 5, 5, 0])}, "client 3"),
    ],
)
def test_impossible_answers_are_refused(changes, message):
    answers = {
        "gradients": np.ones((4, 2)),
        "sigma2": np.ones(4),
        "sizes": np.full(4, 5),
    }
    with pytest.raises(ValueError, match=message):
        user_centric_weights(Probe(**(answers | changes)))


def test_an_unknown_kernel_is_refused():
    with pytest.raises(ValueError, match="eq9"):
        user_centric_weights(problem(0), "rbf")  # pyright: ignore[reportArgumentType]


def test_rows_are_renormalised_over_reporters():
    rows = np.array([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]])
    restricted = restrict_to_reporters(
        rows, np.array([10, 10, 20]), as_cohort([0, 2], [True, True])
    )
    np.testing.assert_allclose(restricted, [[2 / 3, 1 / 3], [1 / 9, 8 / 9]])
    everyone = restrict_to_reporters(
        np.eye(3), np.array([10, 10, 20]), as_cohort([0, 1, 2], [True, False, True])
    )
    np.testing.assert_array_equal(everyone, [[1, 0, 0], [0, 0, 0], [0, 0, 1]])


def test_a_row_that_hardly_knows_the_reporters_leaves_its_stream_alone():
    sizes, cohort = np.array([10, 10, 20]), as_cohort([0, 1, 2], [False, False, True])
    rows = np.array(
        [[0.96, 0.0, 0.04], [0.94, 0.0, 0.06]]
    )  # it holds half of the samples: less and more than 5 %
    np.testing.assert_array_equal(
        restrict_to_reporters(rows, sizes, cohort), [[0, 0, 0], [0, 0, 1]]
    )
    silent = as_cohort([0, 1, 2], [False] * 3)
    np.testing.assert_array_equal(
        restrict_to_reporters(rows, sizes, silent), np.zeros((2, 3))
    )

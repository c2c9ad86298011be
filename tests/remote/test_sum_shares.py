"""The share of a client in combinations of sums, against closed forms and a search."""

from itertools import combinations

import numpy as np
import pytest

from fedtailor.remote.sum_shares import (
    ReleasedSums,
    SumHistory,
    _basis,
    _share_by_program,
    largest_shares,
)


def searched(weights):
    """All combinations in which s - 1 columns have weight 0: the corners, among which
    the largest share is.
    """
    basis = _basis(np.asarray(weights, float))
    rank, clients = basis.shape
    best = np.zeros(clients)
    for chosen in combinations(range(clients), rank - 1):
        _, _, directions = np.linalg.svd(basis[:, chosen].T, full_matrices=True)
        sizes = np.abs(directions[-1] @ basis)
        best = np.maximum(best, sizes / sizes.sum())
    return best


def weights_of(sums, clients, seed=0):
    return np.random.default_rng(seed).dirichlet(np.full(clients, 2.0), sums)


def test_one_sum_shows_each_client_by_its_weight_whatever_its_sign():
    weights = np.array([[0.5, -0.25, 0.125, 0.125]])
    np.testing.assert_allclose(
        largest_shares(weights), [0.5, 0.25, 0.125, 0.125], rtol=0, atol=1e-12
    )


def test_sums_of_groups_show_each_client_by_its_share_of_its_group():
    groups = np.array([[1, 1, 1, 0, 0], [0, 0, 0, 3, 1]], float)
    expected = [1 / 3, 1 / 3, 1 / 3, 3 / 4, 1 / 4]
    np.testing.assert_allclose(largest_shares(groups), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("sums", "clients"), [(2, 6), (2, 20), (3, 7), (4, 8)])
def test_the_largest_share_is_that_of_a_search(sums, clients):
    weights = weights_of(sums, clients)
    found, expected = largest_shares(weights), searched(weights)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)
    # The program finds what the closed form of two sums does.
    programmed = [_share_by_program(_basis(weights), it) for it in range(clients)]
    np.testing.assert_allclose(programmed, expected, rtol=0, atol=1e-7)
    assert found.max() > (weights / weights.sum(axis=1, keepdims=True)).max()


def test_as_many_sums_as_clients_show_all_of_them():
    np.testing.assert_allclose(largest_shares(weights_of(4, 4)), 1.0, atol=1e-7)
    np.testing.assert_allclose(largest_shares(weights_of(6, 4)), 1.0, atol=1e-7)


def test_only_the_span_of_the_sums_matters():
    weights = weights_of(3, 9)
    mixed = np.random.default_rng(1).normal(size=(5, 3)) @ weights
    np.testing.assert_allclose(
        largest_shares(mixed), largest_shares(weights), rtol=0, atol=1e-7
    )
    assert not largest_shares(np.zeros((2, 3))).any()


def test_a_client_that_misses_a_round_is_the_difference_of_both():
    names = tuple("abcdefghij")
    everybody = np.full((1, 10), 0.1)
    first = ReleasedSums().with_sums(names, everybody)
    assert first.largest_share()[0] == pytest.approx(0.1)
    without_d = np.delete(everybody, 3, axis=1) / 0.9
    both = first.with_sums([name for name in names if name != "d"], without_d)
    assert both.largest_share() == (pytest.approx(1.0), "d")
    # Of two that are missing together each is half of the difference.
    two = first.with_sums(names[2:], np.full((1, 8), 1 / 8))
    assert two.largest_share()[0] == pytest.approx(0.5)


@pytest.mark.parametrize("scope", ["run", "round"])
def test_a_history_outlives_a_process_and_ends_with_its_scope(scope, tmp_path):
    path = tmp_path / "sums.json"
    released = ReleasedSums().with_sums("abc", np.array([[0.2, 0.3, 0.5]]))
    SumHistory(scope, path).record(4, ["model", None], released)
    again = SumHistory(scope, path)
    assert again.released(4, ["model", None]).names == ("a", "b", "c")
    np.testing.assert_array_equal(
        again.released(4, ["model", None]).basis, released.basis
    )
    assert not again.released(4, ["control", None]).names
    assert bool(again.released(5, ["model", None]).names) == (scope == "run")
    path.write_text("{}")
    with pytest.raises(ValueError, match=r"^cannot read .*sums.json: "):
        SumHistory(scope, path)

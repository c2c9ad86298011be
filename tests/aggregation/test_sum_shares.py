"""The share of a client in combinations of sums, against closed forms and a search."""

from itertools import combinations

import numpy as np
import pytest

from fedtailor.aggregation import sum_shares
from fedtailor.aggregation.sum_shares import (
    LEAST_LENGTH,
    ReleasedSums,
    SumHistory,
    _basis,
    _share_by_program,
    largest_shares,
    others_hide,
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


@pytest.mark.parametrize(("sums", "clients"), [(3, 7), (4, 12), (6, 9)])
def test_shares_that_cannot_be_too_large_are_bounded_only(sums, clients):
    weights = weights_of(sums, clients)
    exact, found = largest_shares(weights), largest_shares(weights, 0.9)
    assert (found >= exact - 1e-9).all()
    assert (found.max() > 0.9) == (exact.max() > 0.9)


def test_many_clients_are_looked_at_in_no_time(monkeypatch):
    """Before, each of them took a linear program."""
    computed = []
    compute = sum_shares._share_by_program
    monkeypatch.setattr(
        sum_shares,
        "_share_by_program",
        lambda basis, client: computed.append(client) or compute(basis, client),
    )
    weights = np.random.default_rng(0).random((3, 2000))
    assert largest_shares(weights, 0.9).max() < 0.1 and not computed
    # One that weighs nearly all in a sum is found at the first look.
    weights[2] = 1e-6
    weights[2, 77] = 1.0
    shares = largest_shares(weights, 0.9)
    assert shares.argmax() == 77 and shares[77] > 0.9 and computed == [77]
    # So is one in a full space, in which all are alone.
    computed.clear()
    assert largest_shares(weights_of(40, 40), 0.9).max() > 0.9 and len(computed) == 1


def large_parts(sums, clients):
    """Sums in each of which one client weighs nearly all that it may."""
    rest = np.random.default_rng(0).random((sums, clients - sums)) ** 6
    rest *= 0.15 / rest.sum(axis=1, keepdims=True)
    return np.concatenate([0.85 * np.eye(sums), rest], axis=1)


def test_programs_are_bounded_and_what_is_not_computed_is_not_promised(monkeypatch):
    """Before, 90 sums over 181 clients took a client a minute."""
    sizes = []
    compute = sum_shares._share_by_program
    monkeypatch.setattr(
        sum_shares,
        "_share_by_program",
        lambda basis, client: sizes.append(basis.size) or compute(basis, client),
    )
    weights = large_parts(12, 30)
    exact = largest_shares(weights)
    assert exact.max() < 0.9
    sizes.clear()
    found = largest_shares(weights, 0.9)
    assert found.max() <= 0.9 and (found >= exact - 1e-9).all() and len(sizes) == 2
    sizes.clear()
    monkeypatch.setattr(sum_shares, "MAX_PROGRAMS", weights.size)
    assert largest_shares(weights, 0.9).max() > 0.9 and len(sizes) == 1


@pytest.mark.parametrize(("sums", "clients"), [(3, 7), (4, 12), (6, 9)])
def test_no_share_is_above_its_bound(sums, clients):
    rng = np.random.default_rng(1)
    for _ in range(20):
        weights = weights_of(sums, clients) * np.exp(rng.normal(size=(sums, clients)))
        bounds = sum_shares._upper_bounds(sum_shares._basis(weights))
        assert (bounds >= largest_shares(weights) - 1e-9).all()


def test_rows_that_differ_by_less_than_a_step_are_one():
    row = np.full(5, 0.2)
    for change, share in ((1e-12, 0.2), (1e-8, 1.0)):
        other = row.copy()
        other[3] += change
        found = largest_shares(np.stack([row, other]))
        assert found[3] == pytest.approx(share, abs=1e-6)


@pytest.mark.parametrize(("sums", "clients"), [(1, 5), (2, 5), (3, 8), (40, 90)])
def test_others_hide_a_client_if_no_combination_is_shorter(sums, clients):
    """Without the client's column, as a singular value says."""
    rng = np.random.default_rng(sums)
    weights = weights_of(sums, clients)
    lengths = [
        np.linalg.svd(np.delete(weights, client, axis=1), compute_uv=False)[-1]
        for client in range(clients)
    ]
    for place in (0, clients // 2, clients - 1):
        between = LEAST_LENGTH / np.sort(lengths)[place]
        for near in (1 - 1e-6, 1 + 1e-6):
            expected = np.array(lengths) * between * near >= LEAST_LENGTH
            assert expected.sum() == clients - place - (near < 1)
            scaled = weights * between * near
            np.testing.assert_array_equal(others_hide(scaled), expected)
            # The same sum again, and a combination of others, change nothing.
            mixed = rng.dirichlet(np.ones(sums), 1) @ scaled
            more = np.vstack([scaled, scaled[0], mixed])
            np.testing.assert_array_equal(others_hide(more), expected)
    assert others_hide(np.zeros((2, 3))).all()


def test_sums_of_many_clients_and_of_groups_are_long_enough():
    assert others_hide(np.full((1, 16_384), 1 / 16_384)).all()
    groups = np.kron(np.eye(4), np.full((1, 3), 1 / 3))
    assert others_hide(groups).all()


def test_a_chain_of_nearly_equal_sums_is_as_short_as_its_last_difference():
    """Each of them is far enough from the one before; their second difference is not."""
    close = np.full((3, 20), 0.05)
    close[:, 0] += [0, 1e-3, 2e-3]
    close[2, 1:] += 1e-6
    assert not others_hide(close[:2])[0]  # client 0 alone
    for change in (close[1:], close):
        assert not others_hide(change)[0]
    apart = np.full((2, 20), 0.05)
    apart[1, ::2] += 1e-3
    assert others_hide(apart).all()


def test_a_further_sum_is_one_of_those_before_or_no_combination_of_them():
    names = tuple("abcdef")
    groups = np.kron(np.eye(2), np.full((1, 3), 1 / 3))
    before = ReleasedSums().with_sums(names, groups)
    assert before.with_sums(names, groups) is before
    # As a sum is after losses: with all weights as much smaller.
    assert before.with_sums(names, 0.8 * groups[:1]).are_repeated
    for share in (0.5, 1e-3, 1e-12):
        mixed = (1 - share) * groups[:1] + share * groups[1:]
        assert not before.with_sums(names, mixed).are_repeated
    assert not ReleasedSums().with_sums(names, np.vstack([groups, mixed])).are_repeated
    # A difference below a step of the sums, too: how often one client's part is rounded
    # otherwise, with the others' as before, tells its numbers.
    close = groups.copy()
    close[0, 0] += 1e-12
    close[0, 1] -= 1e-12
    assert not others_hide(before.with_sums(names, close).weights)[0]


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
    SumHistory(scope, path).record(4, ["model", None], released, "abc")
    again = SumHistory(scope, path)
    assert again.released(4).names == ("a", "b", "c")
    np.testing.assert_array_equal(again.released(4).weights, released.weights)
    assert bool(again.released(5).names) == (scope == "run")
    # The sums of another run are others, and those of an earlier round are not known.
    assert bool(again.released(4, "other").names) == (scope == "run")
    assert again.is_past(3) == (scope == "round")
    assert not again.is_past(4) and not again.is_past(5) and not again.is_past(3, "b")
    again.record(2, ["model", None], released, "abc", "other")
    assert again.released(4).names == ("a", "b", "c")
    assert SumHistory(scope, path).is_past(1, "other") == (scope == "round")
    # Who was in the last sum, and how many were in the first, is kept, too.
    assert not again.may_add("abd", "ab", 4) and not again.may_add("a", "a", 4)
    # c is not known to have had a part: it is no neighbour.
    again.record(5, ["model", None], released, "abc", "third", near="ab")
    assert again.may_add("abc", "ab", 5, "third")
    assert not again.may_add("abc", "abc", 5, "third")
    assert again.may_add("ab", "ab", 4) and SumHistory(scope, path).members(4) == set(
        "abc"
    )
    content = path.read_bytes()
    changed = content.replace(b'"c"', b'"d"')
    for damaged in (b"{}", b"[1]", b"\xff", b"[" * 9999, changed):
        assert damaged != content
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"^cannot read .*sums.json: "):
            SumHistory(scope, path)

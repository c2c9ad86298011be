"""The overall winner: found where there is one, and not where there is none."""

import numpy as np
import polars as pl
import pytest

from fedtailor.statistics.decision import NO_DIFFERENCE, best_method
from method_values import values


def test_the_best_of_clearly_different_methods_wins():
    rng = np.random.default_rng(0)
    common = rng.normal(0, 1, (1, 1, 15))  # clients differ by far more than methods do
    table = (
        common
        + np.array([0.0, 0.3, 0.5])[:, None, None]
        + rng.normal(0, 0.05, (3, 4, 15))
    )
    found = best_method(
        values(table, ["local", "fedavg", "ucfl"]), higher_is_better=True
    )
    assert found.winner == found.leader == "ucfl" and found.unbeaten == ("ucfl",)
    assert list(found.means) == ["ucfl", "fedavg", "local"] and (
        found.clients,
        found.seeds,
    ) == (15, 4)
    np.testing.assert_allclose(found.means["local"], table[0].mean(), rtol=1e-12)
    assert (
        found.conclusion()
        == "ucfl is better than every other method, over 15 clients and 4 seeds."
    )
    losses = best_method(
        values(table, ["local", "fedavg", "ucfl"]), higher_is_better=False
    )
    assert [found.verdict("ucfl", "local"), found.verdict("local", "fedavg")] == [
        "better",
        "worse",
    ]
    assert (
        losses.winner == "local"
        and losses.verdict("ucfl", "local") == "worse"
        and (losses.pairs["difference"] > 0).all()
    )
    assert (found.pairs["p_holm"] >= found.pairs["p"]).all() and len(found.pairs) == 3


def test_two_equal_leaders_have_no_winner_but_leave_the_third_behind():
    rng = np.random.default_rng(1)
    table = np.array([0.5, 0.5, 0.0])[:, None, None] + rng.normal(0, 0.1, (3, 3, 20))
    found = best_method(values(table), higher_is_better=True)
    assert found.winner is None and set(found.unbeaten) == {"m0", "m1"}
    assert (found.verdict("m0", "m1"), found.verdict("m2", "m1")) == (
        "cannot tell",
        "worse",
    )
    assert found.conclusion() == (
        "No single winner, over 20 clients and 3 seeds:"
        f" {', '.join(found.unbeaten)} cannot be told apart."
    )


@pytest.mark.parametrize(
    ("seeds", "clients", "luck"), [(1, 10, 0.0), (3, 10, 0.5), (4, 40, 0.2)]
)
def test_without_a_difference_an_order_is_named_in_one_case_of_twenty(
    seeds, clients, luck
):
    rng, repetitions, wrong = np.random.default_rng(7), 200, 0
    wrong_beside = 0
    for _ in range(repetitions):
        table = (
            rng.normal(0, 1, clients)
            + rng.normal(0, luck, (4, seeds, 1))
            + rng.normal(0, 1, (4, seeds, clients))
        )
        found = best_method(values(table), higher_is_better=True)
        wrong += len(found.unbeaten) < 4
        wrong_beside += set(found.beside("m0").values()) != {"cannot tell"}
        assert (len(found.unbeaten) < 4) == (
            not found.conclusion().startswith(NO_DIFFERENCE.capitalize())
        )
    most = 0.05 + 3 * np.sqrt(0.05 * 0.95 / repetitions)
    assert wrong / repetitions <= most and wrong_beside / repetitions <= most


def test_beside_one_method_fewer_comparisons_are_corrected_for():
    """Nine methods and three seeds: too many pairs for a winner, not for what eight of
    them owe to sharing.
    """
    rng = np.random.default_rng(0)
    means = np.array([0.0, *np.full(7, 0.2), -0.2])[:, None, None]
    table = means + rng.normal(0, 0.01, (9, 3, 30))
    table[0] += np.array([-0.02, 0.0, 0.02])[:, None]  # t = 17 in most comparisons
    for sign in (1, -1):
        found = best_method(values(sign * table), higher_is_better=sign > 0)
        assert found.verdict("m1", "m0") == "cannot tell"
        expected = dict.fromkeys((f"m{k}" for k in range(1, 8)), "better")
        assert found.beside("m0") == expected | {"m8": "worse"}


def test_missing_values_pair_what_is_there():
    table = (
        np.random.default_rng(2).normal(0, 0.1, (3, 2, 8))
        + np.array([0.0, 1.0, 2.0])[:, None, None]
    )
    table[1, 0] = np.nan
    found = best_method(values(table), higher_is_better=True)
    assert found.winner is None or found.winner == "m2"
    pair = found.pairs.filter(method="m2", other="m1")["difference"][0]
    np.testing.assert_allclose(pair, (table[2, 1] - table[1, 1]).mean(), rtol=1e-12)


def test_who_was_left_out_early_is_compared_as_all_were_then_and_leads_nobody():
    rng = np.random.default_rng(3)
    early = rng.normal(0, 0.01, (3, 3, 12)) + np.array([0.5, 0.4, 0.3])[:, None, None]
    late = (
        rng.normal(0, 0.01, (2, 3, 12)) + np.array([0.9, 0.2])[:, None, None]
    )  # the second one has fallen back
    frame = pl.concat(
        [
            values(early).with_columns(round=pl.lit(3)),
            values(late).with_columns(round=pl.lit(8)),
        ]
    )
    found = best_method(frame, higher_is_better=True, left_out=["m2"])
    assert (
        found.winner == "m0"
        and len(found.pairs) == 3
        and list(found.means) == ["m0", "m1", "m2"]
    )
    gained = {
        (one, other): gain
        for one, other, gain in found.pairs.select(
            "method", "other", "difference"
        ).iter_rows()
    }
    np.testing.assert_allclose(
        gained["m0", "m1"], (late[0] - late[1]).mean(), rtol=1e-12
    )
    np.testing.assert_allclose(
        gained["m0", "m2"], (early[0] - early[2]).mean(), rtol=1e-12
    )
    np.testing.assert_allclose(
        gained["m1", "m2"], (early[1] - early[2]).mean(), rtol=1e-12
    )  # not of 0.2 and 0.3
    # where it was not shown to be worse then, nobody has won
    frame = frame.with_columns(
        value=pl.when(pl.col("method") == "m2").then(0.5).otherwise(pl.col("value"))
    )
    found = best_method(frame, higher_is_better=True, left_out=["m2"])
    assert (
        found.winner is None
        and found.leader == "m0"
        and set(found.unbeaten) == {"m0", "m2"}
    )
    with pytest.raises(
        ValueError, match="m0 and m2 were never measured after the same round"
    ):
        best_method(
            frame.filter((pl.col("round") == 8) | (pl.col("method") == "m2")),
            higher_is_better=True,
        )


@pytest.mark.parametrize("seeds", [1, 2])
def test_what_leads_in_too_few_seeds_is_no_winner(seeds):
    """One lucky training lifts all clients, and the clients cannot say so."""
    noise = np.random.default_rng(5).normal(0, 0.01, (3, seeds, 12))
    table = noise + np.array([0.9, 0.5, 0.4])[:, None, None]
    found = best_method(values(table), higher_is_better=True)
    assert found.winner is None and found.ahead == "m0"
    assert found.conclusion().startswith(f"Open, over 12 clients and {seeds} seed")
    assert "m0 is better than every other method there" in found.conclusion()


def test_luck_of_a_single_seed_would_often_be_taken_for_a_method():
    """Two methods that differ by nothing but the luck of a training."""
    rng = np.random.default_rng(6)
    found = [
        best_method(
            values(rng.normal(0, 1, (2, 1, 1)) + rng.normal(0, 1, (2, 1, 40))),
            higher_is_better=True,
        )
        for _ in range(40)
    ]
    assert np.mean([one.ahead is not None for one in found]) > 0.5
    assert not any(one.winner for one in found)


def test_one_seed_and_one_method_are_said():
    one = best_method(
        values(np.random.default_rng(0).normal(size=(2, 1, 5))), higher_is_better=True
    )
    assert (
        "over 5 clients and 1 seed, too few to speak of other seeds" in one.conclusion()
    )
    single = best_method(values(np.ones((1, 2, 3))), higher_is_better=True)
    assert single.winner is None and single.leader == "m0"


def test_tables_without_values_are_refused():
    with pytest.raises(ValueError, match="there are no values"):
        best_method(values(np.zeros((0, 1, 1)), ["x"]), higher_is_better=True)
    twice = values(np.zeros((2, 1, 2)))
    with pytest.raises(ValueError, match="two values for one client and seed"):
        best_method(pl.concat([twice, twice]), higher_is_better=True)
    with pytest.raises(ValueError, match=r"lacks the columns \['value'\]"):
        best_method(twice.drop("value"), higher_is_better=True)


def test_the_leader_s_expected_mean_is_nearer_to_the_truth():
    """Six methods that are alike: the best mean of 12 clients is too good by chance."""
    rng = np.random.default_rng(0)
    errors = {"printed": [], "expected": []}
    for _ in range(30):
        clients = rng.normal(0.7, 0.1, (1, 1, 12))
        values = clients + rng.normal(0, 0.06, (6, 3, 12))
        method, seed, client = np.indices(values.shape)
        table = pl.DataFrame(
            {
                "method": method.ravel().astype(str),
                "seed": seed.ravel(),
                "client": client.ravel().astype(str),
                "value": values.ravel(),
            }
        )
        found = best_method(table, higher_is_better=True)
        truth = clients.mean()
        errors["printed"].append(found.means[found.leader] - truth)
        errors["expected"].append(found.expected - truth)
    printed, expected = (np.mean(errors[name]) for name in ("printed", "expected"))
    assert printed > 0.01 and abs(expected) < 0.6 * printed

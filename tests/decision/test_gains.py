"""Gains of clients: what they are, how often "helps" is false, and that a clear gain is
found.
"""

import numpy as np
import polars as pl
import pytest

from fedtailor.decision import client_gains, holm

KINDS = {"accuracy": "correct", "loss": "loss", "rmse": "squared_error"}


def simulate(metric, clients, rows, seeds, gap=0.0, seed_deviation=0.0, overlap=False):
    """Test rows of two methods: difficult and easy rows, and seeds in which a method is
    lucky with a client.
    """
    rng = np.random.default_rng(rows + seeds)
    pool = (
        2 * rows if overlap else rows
    )  # with overlap each seed has a split of its own
    shape = (2, seeds, clients, rows)
    number = np.array(
        [[rng.permutation(pool)[:rows] for _ in range(clients)] for _ in range(seeds)]
    )
    hardness = np.take_along_axis(rng.normal(0, 1, (1, clients, pool)), number, axis=2)
    luck = rng.normal(0, seed_deviation, (2, seeds, clients, 1))
    skill = 0.8 + hardness + luck + gap * np.arange(2)[:, None, None, None]
    noise = rng.normal(0, 1, shape)
    score = noise < skill if metric == "accuracy" else np.exp(noise - 0.7 * skill)
    method, seed, client, _ = np.indices(shape)
    return pl.DataFrame(
        {
            "method": np.array(["local", "other"])[method.ravel()],
            "seed": seed.ravel(),
            "client": client.ravel().astype(str),
            "row": np.broadcast_to(number, shape).ravel(),
            KINDS[metric]: score.ravel(),
        }
    )


@pytest.mark.parametrize(
    ("metric", "rows", "seeds", "deviation", "overlap"),
    [
        ("accuracy", 12, 1, 0, False),
        ("accuracy", 100, 1, 0, False),
        ("accuracy", 60, 3, 0, False),
        ("accuracy", 60, 3, 0.3, False),
        ("accuracy", 30, 3, 0.3, True),
        ("loss", 12, 1, 0, False),
        ("loss", 60, 3, 0.15, False),
        ("rmse", 40, 1, 0, False),
        ("rmse", 40, 3, 0.3, True),
    ],
)
def test_without_a_gain_verdicts_are_wrong_at_most_as_often_as_they_say(
    metric, rows, seeds, deviation, overlap
):
    clients = 300
    table = simulate(
        metric, clients, rows, seeds, seed_deviation=deviation, overlap=overlap
    )
    verdicts = client_gains(table, metric=metric, draws=300)["verdict"]
    helps, wrong = (verdicts == "helps").mean(), (verdicts != "cannot tell").mean()
    assert helps <= 0.025 + 3 * np.sqrt(0.025 * 0.975 / clients)
    assert wrong <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / clients)


@pytest.mark.parametrize(
    ("metric", "gap", "verdict"),
    [
        ("accuracy", 2, "helps"),
        ("accuracy", -2, "hurts"),
        ("loss", 3, "helps"),
        ("rmse", -3, "hurts"),
    ],
)
@pytest.mark.parametrize("seeds", [1, 4])
def test_a_clear_gain_is_found(metric, gap, verdict, seeds):
    found = client_gains(
        simulate(metric, 60, 80, seeds, gap, 0.05), metric=metric, draws=300
    )
    assert (found["verdict"] == verdict).mean() > 0.9
    assert ((found["gain"] > 0) == (gap > 0)).all()


def test_gains_are_differences_of_means_over_seeds():
    table = simulate("accuracy", 3, 20, 2, 0.5, overlap=True)
    found = client_gains(table).row(by_predicate=pl.col("client") == "1", named=True)
    means = (
        table.filter(client="1")
        .group_by("method", "seed")
        .agg(pl.col("correct").mean())
    )
    value, base = (
        means.filter(method=name)["correct"].mean() for name in ("other", "local")
    )
    np.testing.assert_allclose(
        [found["value"], found["base_value"], found["gain"]],
        [value, base, value - base],
    )
    assert found["low"] < found["gain"] < found["high"] and found["seeds"] == 2
    assert found["test_rows"] == table.filter(client="1")["row"].n_unique()


def test_a_client_s_interval_depends_on_nothing_else():
    table = simulate("loss", 4, 20, 2)
    alone = client_gains(table.filter(client="2"), metric="loss")
    assert alone.equals(client_gains(table, metric="loss").filter(client="2"))
    shuffled = client_gains(
        table.sample(fraction=1, shuffle=True, seed=1), metric="loss"
    ).filter(client="2")
    for name in ("gain", "low", "high", "p"):
        np.testing.assert_allclose(shuffled[name], alone[name], rtol=1e-9)
    assert not alone.equals(
        client_gains(table.filter(client="2"), metric="loss", seed=1)
    )


def test_a_seed_that_a_method_lacks_is_left_out_of_its_gain():
    table = simulate("accuracy", 2, 20, 3, 1.0)
    without = table.filter(~((pl.col("method") == "other") & (pl.col("seed") == 1)))
    got, kept = client_gains(without), client_gains(table.filter(pl.col("seed") != 1))
    assert got.equals(kept) and got["seeds"].to_list() == [2, 2]
    gone = client_gains(
        table.filter(~((pl.col("method") == "other") & (pl.col("client") == "1")))
    )
    assert gone["client"].to_list() == ["0"]


def test_tables_that_cannot_be_compared_are_refused():
    table = simulate("accuracy", 2, 5, 2)
    with pytest.raises(
        ValueError,
        match=(
            r"no test rows of 'alone' to compare with; run it too, or choose from"
            r" \['loc"
        ),
    ):
        client_gains(table, base="alone")
    with pytest.raises(
        ValueError,
        match=(
            "gains in 'roc_auc' do not follow from the table of rows; choose from"
            " accura"
        ),
    ):
        client_gains(table, metric="roc_auc")
    with pytest.raises(ValueError, match=r"lacks the columns \['loss'\]"):
        client_gains(table, metric="loss")
    with pytest.raises(ValueError, match="client '0' has a test row twice"):
        client_gains(pl.concat([table, table[:1]]))
    with pytest.raises(
        ValueError,
        match=(
            r"'other' and 'local' were not tested on the same rows of client '1'"
            r" \(seed 1"
        ),
    ):
        client_gains(table[:-1])


def test_holm_s_p_values():
    adjusted = holm(np.array([0.01, np.nan, 0.04, 0.03, 0.005]))  # Holm 1979: 4 tests
    np.testing.assert_allclose(adjusted, [0.03, np.nan, 0.06, 0.06, 0.02], rtol=1e-12)
    np.testing.assert_array_equal(holm(np.array([0.9, 0.8])), [1, 1])
    assert holm(np.zeros(0)).shape == (0,)

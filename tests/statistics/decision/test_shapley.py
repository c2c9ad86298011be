"""What clients give, beside closed forms."""

import itertools

import numpy as np
import polars as pl
import pytest

from fedtailor.statistics.decision import client_gains, hurt_clients, mean_gains
from fedtailor.statistics.decision.contributions import (
    _mean_gain,
    coalitions,
    mean_interval,
    sampled_shapley_values,
    shapley_values,
)
from fedtailor.statistics.decision.gains import find_score
from fedtailor.statistics.decision.paired import PairedRows


def test_coalitions_are_all_subsets():
    found = coalitions(4)
    assert len(found) == len(set(found)) == 16
    assert [len(it) for it in found] == sorted(len(it) for it in found)


def test_of_an_additive_game_each_has_its_own_worth():
    own = np.array([[3.0, 1.0], [-2.0, 0.5], [0.0, 7.0], [1.5, 1.5], [2.0, 2.0]])
    found = shapley_values(5, lambda members: own[sorted(members)].sum(axis=0))
    np.testing.assert_allclose(found, own, atol=1e-12)


def test_gloves():
    """Two left gloves and one right: pairs are worth 1 (Shapley's example)."""
    found = shapley_values(3, lambda it: np.array([float(2 in it and len(it) > 1)]))
    np.testing.assert_allclose(found[:, 0], [1 / 6, 1 / 6, 4 / 6], atol=1e-12)


def test_it_is_the_mean_over_all_orders():
    rng = np.random.default_rng(0)
    worths = {members: rng.normal(size=1) for members in coalitions(4)}
    expected = np.zeros(4)
    orders = list(itertools.permutations(range(4)))
    for order in orders:
        for place, player in enumerate(order):
            before = frozenset(order[:place])
            expected[player] += (worths[before | {player}] - worths[before])[0]
    found = shapley_values(4, worths.__getitem__)[:, 0]
    np.testing.assert_allclose(found, expected / len(orders), atol=1e-12)
    # They share out what all together are worth.
    everybody = worths[frozenset(range(4))] - worths[frozenset()]
    assert found.sum() == pytest.approx(everybody[0], abs=1e-12)


def test_samples_add_up_and_their_intervals_hold_the_values():
    rng = np.random.default_rng(1)
    own = rng.normal(size=10)
    pairs = rng.normal(size=(10, 10)) / 5

    def worth(members):
        chosen = sorted(members)
        return np.array([own[chosen].sum() + pairs[np.ix_(chosen, chosen)].sum()])

    # Of a game of pairs: half of each pair's worth.
    expected = own + (pairs + pairs.T).sum(axis=1) / 2 + 0 * np.diag(pairs)
    found = sampled_shapley_values(10, worth, 6, seed=0)
    everybody = worth(frozenset(range(10)))[0]
    np.testing.assert_allclose(found.sum(axis=1), everybody, atol=1e-12)
    # In a game of pairs an order and its reverse give the value itself.
    np.testing.assert_allclose(found, np.tile(expected, (3, 1)), atol=1e-12)


def test_intervals_of_sampled_values_cover_them():
    worths = dict(
        zip(coalitions(5), np.random.default_rng(2).normal(size=(32, 1)), strict=True)
    )
    exact = shapley_values(5, worths.__getitem__)[:, 0]
    covered = []
    for seed in range(60):
        found = sampled_shapley_values(5, worths.__getitem__, 20, seed)
        for player in range(5):
            interval = mean_interval(found[:, player])
            covered.append(interval.low <= exact[player] <= interval.high)
    assert 0.9 < np.mean(covered) <= 1


@pytest.mark.parametrize("permutations", [0, 2, 5])
def test_few_or_odd_permutations_are_refused(permutations):
    with pytest.raises(ValueError, match="an even number of 4 or more"):
        sampled_shapley_values(3, lambda it: np.zeros(1), permutations, 0)


def frame(seeds=3, clients=4, rows=60, gain=0.15, seed=0):
    """Two methods whose accuracy differs by `gain`, on the same rows."""
    rng = np.random.default_rng(seed)
    records = []
    for split, client in itertools.product(range(seeds), range(clients)):
        draws = rng.random(rows)
        for method, share in (("without", 0.6), ("with", 0.6 + gain)):
            records += [
                (method, split, f"c{client}", row, bool(draw < share))
                for row, draw in enumerate(draws)
            ]
    names = ["method", "seed", "client", "row", "correct"]
    return pl.DataFrame(records, schema=names, orient="row")


def test_the_mean_gain_is_that_of_clients_and_surer():
    rows = frame()
    by_client = client_gains(rows, "without", "accuracy")
    mean = mean_gains(rows, "without", "accuracy")["with"]
    # Centers have pseudo-rows, so that they are a little nearer to 0.
    assert mean.estimate == pytest.approx(by_client["gain"].mean(), rel=0.05)
    width = (by_client["high"] - by_client["low"]).mean()
    assert mean.low < mean.estimate < mean.high
    assert mean.high - mean.low < 0.75 * width


@pytest.mark.parametrize("metric", ["rmse", "r2"])
def test_the_mean_gain_is_in_the_metric_itself(metric):
    """By logarithms of errors, a client with small errors outvoted the other: -0.245
    instead of +0.1 of the errors below.
    """
    rng, frames = np.random.default_rng(0), []
    sizes = {"small": (1.0, 1.3), "large": (5.0, 4.5)}
    for split, client in itertools.product(range(3), sizes):
        target = 10 * rng.normal(size=200)
        noise = rng.normal(size=200)
        for method, size in zip(("without", "with"), sizes[client], strict=True):
            frames.append(
                pl.DataFrame(
                    {
                        "method": method,
                        "seed": split,
                        "client": client,
                        "row": np.arange(200),
                        "squared_error": np.square(size * noise),
                        "prediction": target,
                        "target": target,
                    }
                )
            )
    rows = pl.concat(frames)
    by_client = client_gains(rows, "without", metric)
    found = mean_gains(rows, "without", metric)["with"]
    assert found.estimate == pytest.approx(by_client["gain"].mean(), rel=0.02)
    assert found.low < found.estimate < found.high
    assert found.estimate > 0


def test_mean_gains_of_nothing_cover_0():
    excluded = 0
    for seed in range(40):
        rows = frame(gain=0.0, seed=seed, clients=3, rows=40)
        # The same accuracy, and other errors.
        shuffled = rows.filter(pl.col("method") == "with").with_columns(
            pl.col("correct").shuffle(seed).over("seed", "client")
        )
        rows = pl.concat([rows.filter(pl.col("method") == "without"), shuffled])
        interval = mean_gains(rows, "without", "accuracy")["with"]
        excluded += not interval.low <= 0 <= interval.high
    assert excluded <= 4


def test_only_some_clients_count():
    rows = frame()
    only = mean_gains(rows, "without", "accuracy", clients={"with": ["c1"]})["with"]
    one = client_gains(rows.filter(pl.col("client") == "c1"), "without", "accuracy")
    assert only.estimate == pytest.approx(one["gain"][0], rel=0.05)


@pytest.mark.parametrize("luck", [0.0, 0.5])
def test_intervals_of_mean_gains_cover_though_seeds_share_their_luck(luck):
    """Three seeds, which split the rows anew, of eight clients: each of their differences
    varies by 0.02 over rows, and each seed adds `luck` times that to all clients alike. By a common
    variance that was a difference of two, 88 % of intervals covered the mean gain.
    """
    rng, score, covered = np.random.default_rng(0), find_score("rmse"), []
    for _ in range(300):
        shared = rng.normal(size=3) * luck
        clients = {}
        for client in range(8):
            # Of logarithms of errors, so that gains are of another size for each client.
            differences = 0.02 * (shared + rng.normal(size=3))
            clients[str(client)] = PairedRows(
                values=np.full(3, np.nan),
                base_values=np.full(3, 1.0 + client),
                differences=differences,
                center=float(differences.mean()),
                row_variance=0.02**2 / 3,
                degrees=200,
                in_seed=0.02**2,
                between_seeds=0.02**2,
                overlap=1.0,
                rows=300,
                seeds=np.arange(3),
            )
        interval = _mean_gain(clients, score, 0.95)
        covered.append(interval.low <= 0 <= interval.high)
    assert np.mean(covered) > 0.93


def test_a_mean_that_rises_may_hide_who_falls():
    better, worse = frame(gain=0.3, clients=3), frame(gain=-0.3, clients=1, seed=1)
    worse = worse.with_columns(client=pl.lit("hurt"))
    gains = client_gains(pl.concat([better, worse]), "without", "accuracy")
    found = hurt_clients(gains, "with", "without")
    assert (found.clients, found.worse, found.shown) == (4, 1, 1)
    assert found.mean_gain == pytest.approx(gains["gain"].mean())
    assert found.mean_gain > 0
    with pytest.raises(ValueError, match="no gains by 'other'"):
        hurt_clients(gains, "other", "without")

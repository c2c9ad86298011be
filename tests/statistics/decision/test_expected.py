"""What a client may expect: the metric over seeds, with an interval."""

import numpy as np
import polars as pl
import pytest

from fedtailor.statistics.decision import SCORES, expected_metrics, metric_interval


def table(seed=0, rows=40, clients=3, seeds=1, correct=0.7, luck=0.0, shared=False):
    """Test rows of one method. With `shared`, all seeds have the same rows and models."""
    parts = []
    for client in range(clients):
        for s in range(seeds):
            rng = np.random.default_rng([seed, client, 0 if shared else s])
            truth = rng.random(rows) < 0.5
            is_right = rng.random(rows) < correct + luck * rng.normal()
            noise = rng.normal(size=rows)
            parts.append(
                pl.DataFrame(
                    {
                        "method": ["m"] * rows,
                        "seed": [s] * rows,
                        "client": [f"c{client}"] * rows,
                        "row": np.arange(rows) + (0 if shared else 1000 * s),
                        "correct": is_right,
                        "prediction": np.where(is_right, truth, ~truth).astype(int),
                        "log_odds": np.abs(np.sin(noise)),
                        "loss": np.abs(noise),
                        "squared_error": np.square(noise),
                        "target": 2 * rng.normal(size=rows),
                        "risk": noise,
                        "time": np.exp(rng.normal(size=rows) - noise),
                        "event": rng.random(rows) < 0.7,
                    }
                )
            )
    return pl.concat(parts)


@pytest.mark.parametrize("metric", SCORES)
def test_one_seed_is_the_interval_of_its_rows(metric):
    rows = table()
    for found in expected_metrics(rows, metric).iter_rows(named=True):
        own = rows.filter(pl.col("client") == found["client"])
        interval = metric_interval(own, SCORES[metric])
        expected = interval.estimate, interval.low, interval.high
        np.testing.assert_allclose(
            [found["value"], found["low"], found["high"]], expected, rtol=1e-12
        )


@pytest.mark.parametrize("metric", SCORES)
def test_seeds_that_repeat_one_another_add_nothing(metric):
    once = expected_metrics(table(shared=True), metric)
    thrice = expected_metrics(table(shared=True, seeds=3), metric)
    for name in ("value", "low", "high"):
        np.testing.assert_allclose(once[name], thrice[name], rtol=1e-10)
    assert thrice["test_rows"].to_list() == once["test_rows"].to_list()


@pytest.mark.parametrize("metric", ["rmse", "r2"])
def test_an_interval_is_that_of_the_mean_over_seeds(metric):
    """Errors that differ by much from seed to seed: on the scale of the interval, the
    mean stands in its middle.
    """
    rows = table(seeds=3).with_columns(
        squared_error=pl.col("squared_error") * 10.0 ** pl.col("seed")
    )
    for found in expected_metrics(rows, metric).iter_rows(named=True):
        ends = np.array([found["low"], found["value"], found["high"]])
        levels = np.log(ends if metric == "rmse" else 1 - ends)
        assert levels[1] == pytest.approx((levels[0] + levels[2]) / 2)
        assert ends[0] < ends[1] < ends[2]


def test_luck_of_seeds_widens_intervals():
    calm = expected_metrics(table(rows=200, seeds=3, clients=8))
    lucky = expected_metrics(table(rows=200, seeds=3, clients=8, luck=0.15))
    width = (calm["high"] - calm["low"]).mean()
    assert (lucky["high"] - lucky["low"]).mean() > 1.5 * width
    assert lucky["low"].min() >= 0 and lucky["high"].max() <= 1


@pytest.mark.parametrize(("correct", "luck"), [(0.7, 0.0), (0.9, 0.0), (0.75, 0.05)])
def test_intervals_cover_the_expected_accuracy(correct, luck):
    """Of 8 clients and 60 tables at least 93 % (the level is 95 %)."""
    covered = []
    for seed in range(60):
        found = expected_metrics(
            table(seed, rows=30, clients=8, seeds=3, correct=correct, luck=luck)
        )
        covered += ((found["low"] <= correct) & (correct <= found["high"])).to_list()
    assert np.mean(covered) >= 0.93


def test_a_client_without_the_metric_is_left_out():
    rows = table().with_columns(
        prediction=pl.when(pl.col("client") == "c0").then(1).otherwise("prediction"),
        correct=pl.when(pl.col("client") == "c0").then(True).otherwise("correct"),
    )
    assert expected_metrics(rows, "roc_auc")["client"].to_list() == ["c1", "c2"]

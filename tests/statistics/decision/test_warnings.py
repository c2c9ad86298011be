"""Warnings name what is wrong, and stay away where nothing is."""

import numpy as np
import pytest

from fedtailor.statistics.decision import (
    movement,
    warn_few_validation_rows,
    warn_grid_edges,
    warn_not_still,
    warn_repeated_rows,
    warn_small_tests,
    warn_still_falling,
)


def test_small_and_one_sided_test_splits():
    labels = {
        "a": np.arange(20) % 2,
        "b": np.zeros(20, int),
        "c": np.arange(9) % 2,
        "d": np.zeros(0, int),
    }
    none, few, single = warn_small_tests(labels)
    assert none.startswith("no test rows: d;") and few.startswith(
        "1 client has fewer than 10 test rows in one split (c): one row more or"
    )
    assert single.startswith("test rows of one class only: b;")
    assert warn_small_tests({"a": labels["a"]}) == []
    assert warn_small_tests({"b": labels["b"]}, classification=False) == []
    assert warn_small_tests({"c": labels["c"]}, classification=False)[0].endswith(
        "(c): one odd row moves their mean"
    )
    many = warn_small_tests({str(k): np.arange(3) for k in range(8)})
    assert "0, 1, 2 and 5 more" in many[0]


def test_rows_that_repeat_or_leak():
    x, y = np.arange(12.0).reshape(6, 2), np.arange(6)

    def rows(*numbers):
        return x[list(numbers)], y[list(numbers)]

    far = {"a": (x + 100, y), "b": (x + 100, y)}
    assert warn_repeated_rows({"a": rows(0, 1, 2), "b": rows(3, 4, 5)}, far) == []
    repeated, leaked = warn_repeated_rows(
        {"a": rows(0, 1, 1), "b": rows(2, 3)}, {"a": rows(4), "b": rows(3, 5)}
    )
    assert repeated.startswith("1 of 5 test rows repeat")
    assert leaked.startswith("1 of 5 test rows are in the training data")
    assert "(b)" in leaked
    # Another client's rows, and rows with another target, are not a leak.
    assert warn_repeated_rows({"a": rows(0, 1)}, {"b": rows(0, 1)}) == []
    assert warn_repeated_rows({"a": rows(0, 1)}, {"a": (x[:2], y[:2] + 1)}) == []


@pytest.mark.parametrize("classes", [2, None])
def test_rows_of_few_values_are_equal_by_chance(classes):
    # Two grades and an answer in common say nothing; a copied table does.
    rng = np.random.default_rng(0)

    def rows(count):
        x = rng.integers(0, 4, size=(count, 3)).astype(float)
        y = rng.integers(0, classes, count) if classes else x[:, 0].round()
        return x, y

    test, train = rows(36), rows(120)
    assert warn_repeated_rows({"a": test}, {"a": train}) == []
    fine = rng.normal(size=(120, 3)), train[1]
    (leaked,) = warn_repeated_rows({"a": (fine[0][:36], fine[1][:36])}, {"a": fine})
    assert leaked.startswith("36 of 36 test rows are in the training data")


def test_halving_by_few_rows():
    assert warn_few_validation_rows(2500) == warn_few_validation_rows(0) == []
    (warning,) = warn_few_validation_rows(160)
    deviation = 100 * np.random.default_rng(0).binomial(160, 0.5, 100_000).std() / 160
    assert "160 validation rows" in warning and "to 4.0 points" in warning
    assert deviation == pytest.approx(4.0, abs=0.1)


def test_settings_at_the_edge_of_their_grid():
    grid = {
        "lr": [0.1, 0.01, 1.0],
        "mu": [0.5],
        "kernel": ["eq9", "eq6"],
        "streams": [2, "auto"],
    }
    chosen = {"lr": 0.01, "mu": 0.5, "kernel": "eq9", "streams": 2}
    assert warn_grid_edges(chosen, grid) == [
        "lr=0.01 is the smallest value tried; try smaller ones"
    ]
    assert warn_grid_edges({"lr": 0.1}, grid) == []
    assert warn_grid_edges({"lr": 1.0}, grid) == [
        "lr=1.0 is the largest value tried; try larger ones"
    ]


@pytest.mark.parametrize("evaluations", [21, 200])
def test_curves_that_still_fall(evaluations):
    rounds = np.linspace(0, 100, evaluations)
    noise = 0.002 * np.random.default_rng(0).normal(size=evaluations)
    still = np.ones(evaluations)
    falling = 2 - rounds / 100
    rising = 1 + np.square(rounds / 100 - 0.5)
    assert movement(rounds, falling) == "falling"
    assert movement(rounds, rising) == "rising"
    assert movement(rounds, still) == "still"
    assert movement(rounds, 1 + np.exp(-rounds / 6)) == "still"
    assert movement(rounds, 1 + np.exp(-rounds / 6) + noise) == "wavering"
    assert movement(rounds, np.where(rounds > 90, np.nan, 1)) == "unknown"
    # A share of the loss counts, whatever its unit and the way that it has come.
    assert movement(rounds, 1000 * falling) == "falling"
    assert movement(rounds, np.where(rounds < 1, 1e4, falling)) == "falling"
    found = warn_still_falling(
        {"a": (rounds, falling), "b": (rounds, still), "c": (rounds, rising)}
    )
    assert found == ["validation loss was still falling: a; train for more rounds"]
    curves = {
        "a": [(rounds, still), (rounds, falling)],
        "b": [(rounds, still)],
        "c": [(rounds, falling), (rounds, rising)],
    }
    more, fewer = warn_not_still(curves, 100)
    assert more == (
        "training had not converged after 100 rounds: a; use more (--rounds)"
    )
    assert (
        "(overfitting): c (lowest after 50 rounds); use fewer rounds (--rounds 50)"
        in fewer
    )


def test_few_evaluations_say_nothing():
    assert movement([], []) == "unknown"
    assert movement(np.arange(6) * 20, 2 - np.arange(6) / 5) == "unknown"


def test_slow_changes_are_found_in_proportion_to_the_rounds():
    # 0.05 % of the loss in the last 50 of 150 rounds, and in the last 500 of 1,500.
    for rounds in (np.arange(0, 151, 5), np.arange(0, 1501, 50)):
        slope = np.linspace(0, 1, len(rounds))
        assert movement(rounds, 1 - 0.0012 * slope) == "still"
        assert movement(rounds, 1 - 0.012 * slope) == "falling"

"""Warnings name what is wrong, and stay away where nothing is."""

import numpy as np
import pytest

from fedtailor.decision import (
    still_falling,
    warn_few_validation_rows,
    warn_grid_edges,
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
        "fewer than 10 test rows in one split: c; one row more or"
    )
    assert single.startswith("test rows of one class only: b;")
    assert warn_small_tests({"a": labels["a"]}) == []
    assert warn_small_tests({"b": labels["b"]}, classification=False) == []
    assert warn_small_tests({"c": labels["c"]}, classification=False)[0].endswith(
        ": c; one odd row moves their mean"
    )
    many = warn_small_tests({str(k): np.arange(3) for k in range(8)})
    assert "0, 1, 2 and 5 more" in many[0]


def test_rows_that_repeat_or_leak():
    x = np.arange(12.0).reshape(6, 2)
    assert warn_repeated_rows({"a": x[:3], "b": x[3:]}, {"a": x + 100}) == []
    repeated, leaked = warn_repeated_rows({"a": x[:3], "b": x[2:4]}, {"c": x[3:5]})
    assert repeated.startswith("1 of 5 test rows repeat") and leaked.startswith(
        "1 of 5 test rows occur in training"
    )
    assert "(b)" in leaked


def test_halving_by_few_rows():
    assert warn_few_validation_rows(2500) == warn_few_validation_rows(0) == []
    (warning,) = warn_few_validation_rows(160)
    deviation = 100 * np.random.default_rng(0).binomial(160, 0.5, 100_000).std() / 160
    assert "160 validation rows" in warning and "known to 4.0 points" in warning
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
    assert (
        warn_grid_edges({"lr": 1.0}, grid, {"lr"}) == []
    )  # a limit: larger ones cannot be tried
    assert len(warn_grid_edges(chosen, grid, {"lr"})) == 1


@pytest.mark.parametrize("evaluations", [6, 21, 200])
def test_curves_that_still_fall(evaluations):
    rounds = np.linspace(0, 100, evaluations)
    noise = 0.002 * np.random.default_rng(0).normal(size=evaluations)
    assert still_falling(rounds, 2 - rounds / 100)
    assert not still_falling(
        rounds, 1 + np.exp(-rounds / 10) + noise
    )  # has come to rest
    assert not still_falling(
        rounds, 1 + np.square(rounds / 100 - 0.5)
    )  # rises: overfitting
    assert not still_falling(rounds, np.where(rounds > 90, np.nan, 1))
    assert not still_falling(rounds, np.ones(evaluations))
    found = warn_still_falling(
        {"a": (rounds, 2 - rounds / 100), "b": (rounds, np.ones(evaluations))}
    )
    assert found == ["validation loss was still falling: a; train for more rounds"]

"""Baselines on rows of weights: twice the weight is the row twice."""

from dataclasses import replace

import numpy as np
import pytest

from conformance.problems import EXACT
from fedtailor.lab.baselines import find_baseline
from fedtailor.lab.baselines.baseline import Problem
from fedtailor.statistics.boosting import GroupedRows, boost_groups
from fedtailor.statistics.boosting.boost import BoostingSettings


def problem(classes):
    rng = np.random.default_rng(0)
    # Few values, so that repeated rows have the same bins.
    x = [np.round(rng.normal(size=(size, 2)), 0) for size in (30, 40)]
    y = [it.sum(axis=1) + rng.normal(size=len(it)) for it in x]
    if classes:
        y = [(it > 0).astype(int) for it in y]
    counts = [rng.integers(0, 4, len(it)) for it in x]
    given = Problem(x, y, classes, 0)
    weighted = replace(given, weights=[it.astype(float) for it in counts])
    repeated = replace(
        given,
        x=[np.repeat(it, n, axis=0) for it, n in zip(x, counts, strict=True)],
        y=[np.repeat(it, n) for it, n in zip(y, counts, strict=True)],
    )
    return given, weighted, repeated


@pytest.mark.parametrize(
    ("name", "classes", "tolerance"),
    [
        ("linear-alone", None, 1e-10),
        ("linear-pooled", None, 1e-10),
        # Solvers of these end within their tolerances.
        ("linear-alone", 2, 1e-3),
        ("linear-pooled", 2, 1e-3),
        ("mixed", None, 1e-6),
    ],
)
def test_twice_the_weight_is_the_row_twice(name, classes, tolerance):
    given, weighted, repeated = problem(classes)
    baseline = find_baseline(name)
    for client in range(2):
        found = baseline.fit(weighted)(client, given.x[client])
        expected = baseline.fit(repeated)(client, given.x[client])
        np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)
        plain = baseline.fit(given)(client, given.x[client])
        assert np.abs(found - plain).max() > 1e-2


@pytest.mark.parametrize("classes", [2, 3, None])
def test_boosting_takes_a_row_twice_for_twice_the_weight(classes):
    rng = np.random.default_rng(1)
    x = rng.integers(0, 4, (80, 2)).astype(float)
    y = rng.integers(0, classes, 80) if classes else rng.normal(size=80)
    client = np.repeat([0, 1], 40)
    counts = rng.integers(1, 4, 80)
    trains = np.tile([True, True, True, False], 20)
    rows = GroupedRows(x, y, client, trains, classes, 2, counts.astype(float))
    repeated = GroupedRows(
        *(np.repeat(it, counts, axis=0) for it in (x, y, client, trains)), classes, 2
    )
    settings = BoostingSettings(
        trees=5, most_leaves=None, most_depth=2, least_rows=1, chooses=False
    )
    ends = [[np.array([0.5, 1.5, 2.5])] * 2]
    found, expected = (boost_groups(it, ends, settings) for it in (rows, repeated))
    np.testing.assert_allclose(
        np.repeat(found.raw, counts, axis=0), expected.raw, **EXACT
    )
    np.testing.assert_allclose(found.losses, expected.losses, **EXACT)


@pytest.mark.parametrize("name", ["trees-alone", "trees-personal", "trees-pooled"])
def test_trees_look_at_weights(name):
    given, weighted, _ = problem(2)
    baseline = find_baseline(name)
    plain = baseline.fit(given)(0, given.x[0])
    assert np.abs(baseline.fit(weighted)(0, given.x[0]) - plain).max() > 1e-3


def test_trees_over_machines_take_no_weights():
    _, weighted, _ = problem(2)
    with pytest.raises(ValueError, match="take no weights of rows"):
        find_baseline("trees-federated").fit(weighted)

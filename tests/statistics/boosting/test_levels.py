"""Trees of many clients at once are those that grow one after another, and with the client
as an input those of scikit-learn with a column of categories.
"""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
)

from fedtailor.statistics.boosting import (
    BoostingRows,
    BoostingSettings,
    bins_of_values,
    boost,
    levels,
)
from fedtailor.statistics.boosting.boost import sum_over
from fedtailor.statistics.boosting.levels import GroupedRows, boost_groups, own_after

CLIENTS, ROWS = 7, 320
SETTINGS = BoostingSettings(trees=5, most_leaves=None, most_depth=4, least_rows=6)


def data(kind, clients=CLIENTS, val=0, alike=False, decimals=1):
    """Rows whose targets depend on inputs and, unless they are alike, on the client. With
    inputs of no decimals there are many rows for each cell of a histogram.
    """
    rng = np.random.default_rng(3)
    size = ROWS + val
    x = np.round(rng.normal(size=(size, 4)), decimals)
    client = np.repeat(np.arange(clients), -(-size // clients))[:size]
    client = rng.permutation(client)
    shift = 0 if alike else np.sin(5 * client)
    score = np.sin(3 * x[:, 0]) + x[:, 1] + shift + 0.3 * rng.normal(size=size)
    trains = np.arange(size) < ROWS
    if kind is not None:
        score = np.digitize(score, np.quantile(score, np.arange(1, kind) / kind))
    return GroupedRows(x, score, client, trains, kind, clients)


def rows_of(rows, which):
    its, val = which & rows.trains, which & ~rows.trains
    return BoostingRows(
        rows.x[its], rows.y[its], rows.classes, rows.x[val], rows.y[val]
    )


@pytest.mark.parametrize("decimals", [0, 1])
@pytest.mark.parametrize("kind", [None, 2, 3])
def test_the_trees_of_all_clients_are_those_of_the_sums(kind, decimals):
    rows = data(kind, val=80, decimals=decimals)
    ends = bins_of_values(rows.x[rows.trains])
    found = boost_groups(rows, [ends], SETTINGS)
    clients = [rows_of(rows, rows.client == one) for one in range(CLIENTS)]
    expected = boost(sum_over(clients), 4, kind, SETTINGS, thresholds=ends)
    assert len(found.rounds) == len(expected.trees) > 0
    np.testing.assert_allclose(
        found.model(0).raw(rows.x), expected.raw(rows.x), rtol=0, atol=1e-12
    )
    np.testing.assert_allclose(found.raw, expected.raw(rows.x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", [None, 3])
def test_the_trees_of_each_client_are_those_of_its_rows(kind):
    rows = data(kind)
    ends = [bins_of_values(rows.x[rows.client == one]) for one in range(CLIENTS)]
    found = boost_groups(rows, ends, SETTINGS, by_client=True)
    for one in range(CLIENTS):
        its = rows_of(rows, rows.client == one)
        alone = boost(its.answer, 4, kind, SETTINGS, thresholds=ends[one])
        np.testing.assert_allclose(
            found.model(one).raw(rows.x), alone.raw(rows.x), rtol=0, atol=1e-12
        )


def test_own_trees_go_on_from_the_shared_ones():
    rows = data(None)
    ends = bins_of_values(rows.x)
    shared = boost_groups(rows, [ends], SETTINGS)
    found = own_after(rows, shared, SETTINGS)
    its = rows_of(rows, rows.client == 2)
    expected = boost(its.answer, 4, None, SETTINGS, start=shared.model(0))
    both = shared.model(0).raw(its.x) + found.model(2).raw(its.x) - found.baselines[2]
    np.testing.assert_allclose(both, expected.raw(its.x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", [None, 2, 3])
@pytest.mark.parametrize("clients", [2, CLIENTS, 40])
def test_with_the_client_as_an_input_trees_are_those_of_scikit_learn(kind, clients):
    """With 40 clients most have too few rows in a node for a group."""
    rows = data(kind, clients)
    ends = bins_of_values(rows.x)
    found = boost_groups(rows, [ends], SETTINGS, asks_client=True)
    estimator = (
        HistGradientBoostingRegressor
        if kind is None
        else (HistGradientBoostingClassifier)
    )
    both = np.column_stack([rows.x, rows.client])
    fitted = estimator(
        max_iter=SETTINGS.trees,
        max_leaf_nodes=None,
        max_depth=SETTINGS.most_depth,
        min_samples_leaf=SETTINGS.least_rows,
        early_stopping=False,
        categorical_features=[4],
    ).fit(both, rows.y)
    expected = fitted.predict(both) if kind is None else fitted.decision_function(both)
    expected = expected.reshape(found.raw.shape)
    np.testing.assert_allclose(found.raw, expected, rtol=0, atol=1e-10)
    for one in range(clients):
        its = rows.client == one
        np.testing.assert_allclose(
            found.model(0, one).raw(rows.x[its]), expected[its], rtol=0, atol=1e-10
        )
    # Whoever is no client has a tree without such questions, too.
    assert np.isfinite(found.model(0).raw(rows.x)).all()


@pytest.mark.parametrize("options", [{}, {"asks_client": True}, {"by_client": True}])
@pytest.mark.parametrize("kind", [None, 2, 3])
def test_histograms_that_are_differences_are_those_of_the_rows(
    monkeypatch, kind, options
):
    rows = data(kind, 2, val=80, decimals=0)
    ends = [bins_of_values(rows.x)] * (2 if "by_client" in options else 1)
    settings = replace(SETTINGS, trees=20, least_rows=1, chooses=False)
    found = boost_groups(rows, ends, settings, **options)
    # No histogram is kept for its children.
    monkeypatch.setattr(levels, "_ROWS_A_CELL", 10**9)
    expected = boost_groups(rows, ends, settings, **options)
    np.testing.assert_allclose(found.raw, expected.raw, rtol=0, atol=1e-12)
    for ours, theirs in zip(found.rounds, expected.rounds, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(one.input, other.input)
            np.testing.assert_array_equal(one.bin, other.bin)


def test_with_one_client_the_client_tells_nothing():
    rows = data(None, clients=1)
    ends = bins_of_values(rows.x)
    with_it = boost_groups(rows, [ends], SETTINGS, asks_client=True)
    alone = boost_groups(rows, [ends], SETTINGS, by_client=True)
    np.testing.assert_array_equal(with_it.raw, alone.raw)


def test_identical_clients_have_the_shared_trees():
    """Each has the same rows: no group of them gains by a split."""
    one = data(None, clients=1)
    rows = GroupedRows(
        np.tile(one.x, (4, 1)),
        np.tile(one.y, 4),
        np.repeat(np.arange(4), ROWS),
        np.ones(4 * ROWS, bool),
        None,
        4,
    )
    ends = bins_of_values(rows.x)
    shared = boost_groups(rows, [ends], SETTINGS)
    with_client = boost_groups(rows, [ends], SETTINGS, asks_client=True)
    np.testing.assert_allclose(with_client.raw, shared.raw, rtol=0, atol=1e-10)


def test_boosting_ends_where_the_validation_loss_no_longer_falls():
    rows = data(None, val=80)
    ends = bins_of_values(rows.x[rows.trains])
    many = BoostingSettings(trees=200, most_leaves=None, most_depth=4, rate=0.5)
    whole = boost_groups(rows, [ends], many)
    soon = boost_groups(rows, [ends], BoostingSettings(
        trees=200, most_leaves=None, most_depth=4, rate=0.5, patience=10
    ))  # fmt: skip
    assert len(soon.losses) == int(np.argmin(soon.losses)) + 11 < len(whole.losses)
    assert len(soon.rounds) <= len(whole.rounds) == int(np.argmin(whole.losses))
    np.testing.assert_allclose(soon.model(0).raw(rows.x), soon.raw, rtol=0, atol=1e-10)

"""The learning rates, the penalty and the rounds that comparisons on tables start with."""

import numpy as np
import polars as pl
import pytest
from sklearn.linear_model import LogisticRegression

import fedtailor as ft
from fedtailor.cli.table_experiment import (
    MAX_ROUNDS,
    TableComparisonOptions,
    default_rates,
    is_cross_validated,
    prepare_table_experiment,
    ridge_of,
)
from fedtailor.data.tables import from_table, stable_rate


def steep(y):
    """Two sites, the inputs of one of them far from the mean and correlated."""
    rng = np.random.default_rng(0)
    a = rng.normal(size=80) + np.repeat([0, 9], [60, 20])
    columns = {"a": a, "b": a + 0.1 * rng.normal(size=80), "y": y}
    return from_table(
        pl.DataFrame({"site": ["near"] * 60 + ["far"] * 20, **columns}),
        client="site",
        target="y",
    )


def design(table, client):
    """The inputs of a client's training rows, and a column of ones."""
    x = table.x[table.train[client]].astype(np.float64)
    return np.column_stack([x, np.ones(len(x))])


def test_it_is_half_of_the_edge_at_which_the_steepest_client_diverges():
    table = steep(np.random.default_rng(1).normal(size=80))
    edges = []
    for client in range(2):
        x = design(table, client)
        # The curvature of the mean of (x'w - y)^2.
        edges.append(2 / np.linalg.eigvalsh(2 * x.T @ x / len(x))[-1])
    assert stable_rate(table) == pytest.approx(min(edges) / 2, rel=1e-6)
    assert min(edges) < max(edges) / 2
    # Gradient descent on the steepest client: below the edge the weights settle, above
    # it they grow without end.
    far = table.names.index("far")
    x, y = design(table, far), table.y[table.train[far]].astype(np.float64)
    for rate, settles in (
        (stable_rate(table), True),
        (2.2 * stable_rate(table), False),
    ):
        w = np.zeros(3)
        for _ in range(400):
            w -= rate * 2 * x.T @ (x @ w - y) / len(x)
        assert (np.abs(w).max() < 1e3) == settles


def test_classes_allow_four_times_the_rate_of_squared_errors():
    # The curvature of the cross-entropy is at most half of that of x, and that of a
    # squared error twice as large.
    rng = np.random.default_rng(1)
    table = steep(rng.integers(0, 2, 80))
    steepest = max(
        np.linalg.eigvalsh(x.T @ x / len(x))[-1]
        for x in (design(table, client) for client in range(2))
    )
    assert stable_rate(table) == pytest.approx(2 / steepest, rel=1e-6)


def test_the_second_rate_is_a_third_of_the_first():
    table = steep(np.random.default_rng(1).normal(size=80))
    high, low = default_rates(table)
    assert high == pytest.approx(stable_rate(table), rel=0.05)
    assert low == pytest.approx(high / 3, rel=0.05)


def test_the_penalty_is_that_of_scikit_learn():
    rng = np.random.default_rng(1)
    assert ridge_of(steep(rng.normal(size=80))) == 2.0
    assert ridge_of(steep(rng.integers(0, 2, 80))) == 2.0
    assert ridge_of(steep(rng.integers(0, 3, 80))) == 1.0


def experiment_of(tmp_path, **options):
    path = tmp_path / "far.csv"
    rng = np.random.default_rng(1)
    pl.DataFrame(
        {"site": ["near", "far"] * 8, "a": range(16), "y": rng.normal(size=16)}
    ).write_csv(path)
    chosen = TableComparisonOptions(client="site", target="y", **options)
    return prepare_table_experiment(path, chosen)[0]


def test_by_default_rates_are_bracketed_and_trainings_end_when_they_stand_still(
    tmp_path,
):
    experiment = experiment_of(tmp_path)
    assert experiment.file.until_converged and experiment.file.bracket == ["sgd.lr"]
    assert {scenario.rounds for scenario in experiment.scenarios} == {MAX_ROUNDS}
    # The same local training for all methods that train locally, but for the penalty.
    settings = {
        (
            one.algorithm.sgd.steps,
            one.algorithm.sgd.momentum,
            one.algorithm.sgd.lr_halves_after,
        )
        for method in experiment.methods
        for one in method.candidates
    }
    assert settings == {(10, 0.9, 20)}


def test_a_small_table_is_cross_validated_unless_its_splits_are_given(tmp_path):
    experiment = experiment_of(tmp_path)
    assert list(experiment.file.seeds) == list(range(5))
    options = TableComparisonOptions(client="site", target="y")
    assert is_cross_validated(options, experiment)
    for given in ({"seeds": (4, 5)}, {"test": 0.3}, {"folds": 2}):
        seeds = experiment_of(tmp_path, **given).file.seeds
        assert list(seeds) == list(given.get("seeds", range(given.get("folds", 3))))
    path = tmp_path / "far.csv"
    parts = pl.Series("split", ["train", "train", "val", "test"] * 4)
    pl.read_csv(path).with_columns(parts).write_csv(path)
    experiment, _ = prepare_table_experiment(path, options)
    assert list(experiment.file.seeds) == [0, 1, 2]
    assert not is_cross_validated(options, experiment)


def test_the_penalty_belongs_to_a_model(tmp_path):
    """Of a model that all clients train together, each of them adds its share."""
    methods = ("local", "fedavg", "finetune", "ditto", "ucfl", "scaffold", "moon")
    experiment = experiment_of(tmp_path, algorithms=methods)
    ridges = {
        method.label: method.candidates[0].algorithm.sgd.ridge
        for method in experiment.methods
    }
    alone = dict.fromkeys(("local", "ditto", "ucfl"), 2.0)
    together = dict.fromkeys(("fedavg", "finetune", "scaffold", "moon"), 1.0)
    assert ridges == alone | together


def test_local_and_fedavg_come_to_the_models_of_scikit_learn(tmp_path):
    """Also of few rows and several clients, where the penalty makes a difference."""
    rng = np.random.default_rng(3)
    sites = np.repeat(["a", "b", "c", "d"], 24)
    x = rng.normal(size=(96, 3)) + 0.4 * rng.normal(size=(4, 3)).repeat(24, axis=0)
    y = x @ [1.0, -2.0, 0.5] + rng.normal(size=96) > 0
    path = tmp_path / "rows.csv"
    columns = {"site": sites, **dict(zip("abc", x.T, strict=True)), "y": y}
    pl.DataFrame(columns).write_csv(path)
    options = TableComparisonOptions(
        client="site", target="y", algorithms=("local", "fedavg"), seeds=(0,)
    )
    experiment, _ = prepare_table_experiment(path, options)
    table = from_table(path, client="site", target="y")

    def exact(rows):
        model = LogisticRegression(C=1.0, tol=1e-10, max_iter=10_000)
        return model.fit(table.x[rows], table.y[rows])

    pooled = exact(np.concatenate([client for client in table.train]))
    for method in experiment.methods:
        algorithm = method.candidates[0].algorithm
        model = experiment.scenarios[0].definition.model
        # With `until_converged` it would end where the validation loss begins to rise.
        run = ft.run(algorithm, table, model, MAX_ROUNDS, evaluate_every=MAX_ROUNDS)
        for client in table:
            alone = exact(table.train[client.index])
            best = alone if method.label == "local" else pooled
            found = run.personal(client.name).probabilities(client.test.x)[:, 1]
            expected = best.predict_proba(client.test.x)[:, 1]
            np.testing.assert_allclose(found, expected, atol=0.01)


def test_what_is_asked_for_is_taken_as_it_is(tmp_path):
    experiment = experiment_of(tmp_path, rounds=20, lr=(0.1, 0.2))
    assert not experiment.file.until_converged and experiment.file.bracket == []
    assert {scenario.rounds for scenario in experiment.scenarios} == {20}

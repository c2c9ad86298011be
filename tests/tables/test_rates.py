"""The learning rate that a regression starts from."""

import numpy as np
import polars as pl
import pytest

from fedtailor.cli.own_table import (
    CLASSIFICATION_RATES,
    TableComparisonOptions,
    default_rates,
    prepare_table_experiment,
)
from fedtailor.tables import from_table, stable_rate


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


def test_it_is_a_quarter_of_the_edge_at_which_the_steepest_client_diverges():
    table = steep(np.random.default_rng(1).normal(size=80))
    edges = []
    for client in range(2):
        x = np.column_stack(
            [table.x[table.train[client]], np.ones(len(table.train[client]))]
        ).astype(np.float64)
        edges.append(2 / np.linalg.eigvalsh(x.T @ x / len(x))[-1])
    assert (
        stable_rate(table) == pytest.approx(min(edges) / 4, rel=1e-6)
        and min(edges) < max(edges) / 2
    )
    # Gradient descent on the steepest client: below the edge the weights settle, above
    # it they grow without end.
    x, y = (
        getattr(table.client("far").train, part).astype(np.float64)
        for part in ("x", "y")
    )
    x = np.column_stack([x, np.ones(len(x))])
    for rate, settles in (
        (stable_rate(table), True),
        (4.4 * stable_rate(table), False),
    ):
        w = np.zeros(3)
        for _ in range(400):
            w -= rate * x.T @ (x @ w - y) / len(x)
        assert (np.abs(w).max() < 1e3) == settles


def test_classes_have_rates_of_their_own(tmp_path):
    rng = np.random.default_rng(1)
    assert default_rates(steep(rng.integers(0, 2, 80))) == CLASSIFICATION_RATES
    table = steep(rng.normal(size=80))
    # the largest one is a limit, of which no report says that larger ones should be
    # tried; nor of one's own
    path = tmp_path / "far.csv"
    pl.DataFrame(
        {"site": ["near", "far"] * 8, "a": range(16), "y": rng.normal(size=16)}
    ).write_csv(path)
    for lr, limited in ((None, ("sgd.lr",)), ((0.1, 0.2), ())):
        options = TableComparisonOptions(client="site", target="y", lr=lr)
        assert prepare_table_experiment(path, options)[0].limited == limited
    high, low = default_rates(
        table
    )  # of equally good ones the first is chosen: that which trains faster
    assert high == pytest.approx(stable_rate(table), rel=0.05) and low == pytest.approx(
        high / 5, rel=0.05
    )

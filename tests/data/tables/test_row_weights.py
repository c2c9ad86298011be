"""`weight` and `class_weights`: how much rows of a table count."""

import numpy as np
import polars as pl
import pytest
from sklearn.utils.class_weight import compute_class_weight

import fedtailor as ft
from fedtailor.cli.table_experiment import (
    TableComparisonOptions,
    prepare_table_experiment,
)


def frame(**columns):
    rng = np.random.default_rng(0)
    own = pl.DataFrame(
        {
            "client": np.repeat(["a", "b"], 30),
            "x": rng.normal(size=60),
            "label": np.where(rng.random(60) < 0.2, "ill", "well"),
            "count": rng.integers(1, 5, 60),
        }
    )
    return own.with_columns(**columns)


def test_the_weight_of_a_row_is_no_input():
    table = ft.tables.from_table(frame(), weight="count")
    assert table.preprocessing is not None and table.weights is not None
    assert table.preprocessing.inputs == ("x",)
    np.testing.assert_array_equal(table.weights, frame()["count"].to_numpy())
    assert table.preprocessing.ignored["count"] == "the weight column"
    assert any("'count' says how much a row counts" in note for note in table.notes)


def test_weights_belong_to_the_digest_and_to_a_file(tmp_path):
    table = ft.tables.from_table(frame(), weight="count", class_weights="balanced")
    plain = ft.tables.from_table(frame().drop("count"))
    assert table.digest != plain.digest
    found = ft.federation.load(ft.federation.save(table, tmp_path / "own.fed"))
    np.testing.assert_array_equal(found.weights, table.weights)
    assert found.class_weights == table.class_weights
    assert found.digest == table.digest


def test_balanced_classes_are_scikit_learns_of_all_training_rows():
    table = ft.tables.from_table(frame().drop("count"), class_weights="balanced")
    y = table.y[table.train.rows]
    expected = compute_class_weight("balanced", classes=np.array([0, 1]), y=y)
    np.testing.assert_allclose(table.class_weights, expected, rtol=1e-12)
    assert any("are too high" in note for note in table.notes)


def test_balanced_classes_count_weights():
    table = ft.tables.from_table(frame(), weight="count", class_weights="balanced")
    rows = table.train.rows
    y, counts = table.y[rows], frame()["count"].to_numpy()[rows]
    repeated = np.repeat(y, counts)
    expected = compute_class_weight("balanced", classes=np.array([0, 1]), y=repeated)
    np.testing.assert_allclose(table.class_weights, expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ([None, *[1.0] * 59], "'count' is missing in 1 of 60 rows, first in row 1"),
        (
            [1.0, -2.0, *[1.0] * 58],
            "'count' is below 0 in 1 of 60 rows, first in row 2",
        ),
        ([0.0] * 60, "'count' is 0 in all rows"),
        (["much"] * 60, "'count' holds 'much', not only numbers"),
        (["1.5", "much", *["2"] * 58], "'count' holds 'much', not only numbers"),
        (["007"] * 60, "'count' holds '007', not only numbers"),
        ([1e-9, *[1.0] * 59], "weights run from 1e-09 to 1"),
        ([*[0.0] * 30, *[1.0] * 30], "client 'a': all training rows have weight 0"),
    ],
)
def test_wrong_weights_are_named(cells, message):
    with pytest.raises(ValueError, match=message) as error:
        ft.tables.from_table(frame(count=pl.Series(cells)), weight="count")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weight": "label"}, "cannot be both target and weight"),
        ({"weight": "count", "features": ("x", "count")}, "is the weight column"),
        ({"weight": "wt"}, "there is no column 'wt' for weight"),
        ({"weight": "count", "event": "x"}, "times to an event take no weights"),
        ({"class_weights": "balanced", "event": "x"}, "leave out event"),
        ({"weight": "count", "window": 3, "time": "x"}, "windows of series take no"),
        ({"class_weights": "equal"}, "no class_weights 'equal'"),
        ({"class_weights": "balanced", "task": "regression"}, "task is regression"),
        ({"class_weights": "balanced", "target": "x"}, "'x' holds numbers"),
    ],
)
def test_what_takes_no_weights_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ft.tables.from_table(frame(), **options)


def test_a_diagnosis_counts_rows():
    model = ft.models.logistic()
    advice = [
        ft.diagnose(table, model)
        for table in (
            ft.tables.from_table(frame(), weight="count"),
            ft.tables.from_table(frame().drop("count")),
        )
    ]
    assert str(advice[0]) == str(advice[1])


def test_a_comparison_leaves_out_usual_methods_that_count_rows(tmp_path):
    frame().write_csv(tmp_path / "own.csv")
    options = TableComparisonOptions(weight="count")
    experiment, about = prepare_table_experiment(tmp_path / "own.csv", options)
    assert "ucfl" not in experiment.file.algorithms
    assert "fedavg" in experiment.file.algorithms
    assert "Left out: ucfl, as it takes no weights." in about


def test_a_comparison_refuses_methods_that_count_rows(tmp_path):
    frame().write_csv(tmp_path / "own.csv")
    options = TableComparisonOptions(
        weight="count", algorithms=("local", "ccvr", "ucfl")
    )
    with pytest.raises(ValueError, match="take no weights: ccvr, ucfl; leave"):
        prepare_table_experiment(tmp_path / "own.csv", options)

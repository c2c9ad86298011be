"""Tables as the inputs and the target of a regression."""

import numpy as np
import polars as pl
import pytest

from fedtailor.data.tables.design import read_design
from fedtailor.data.tables.options import make_options
from fedtailor.statistics.regression import fit_table

ROWS = pl.DataFrame(
    {
        "site": ["b", "a", "b", "a", "b", "a", "b", None],
        "age": [50, 60, 70, None, 40, 65, 55, 30],
        "kind": ["x", "y", "x", "x", "z", "y", "x", "x"],
        "smokes": [True, False, False, True, True, False, True, True],
        "since": ["2024-01-02", *["2024-01-01"] * 7],
        "stay": [3.5, 2.0, 4.0, 1.0, 2.5, 7.0, 1.5, 2.0],
        "died": ["no", "yes", "no", "no", "yes", "no", "yes", "no"],
    }
)


def design(**options):
    return read_design(ROWS, make_options({"client": "site", **options}))


def test_cells_are_in_their_own_units():
    read = design(target="stay", task="regression", drop=["died"])
    assert read.names == ("age", "kind=y", "kind=z", "smokes", "since")
    np.testing.assert_array_equal(read.x[:, 0], [50, 60, 70, 40, 65, 55])
    np.testing.assert_array_equal(read.x[:, 1], [0, 1, 0, 0, 1, 0])
    np.testing.assert_array_equal(read.x[:, 2], [0, 0, 0, 1, 0, 0])
    np.testing.assert_array_equal(read.x[:, 3], [1, 0, 0, 1, 0, 1])
    np.testing.assert_array_equal(np.diff(read.x[:, 4]), [-1, 0, 0, 0, 0])
    np.testing.assert_array_equal(read.y, [3.5, 2, 4, 2.5, 7, 1.5])
    assert read.clients == ("a", "b")
    np.testing.assert_array_equal(read.owner, [1, 0, 1, 1, 0, 1])
    assert read.notes == (
        "2 of 8 rows are left out, as a cell is missing (site 1, age 1).",
        "Categories are compared with the most frequent: kind x.",
    )


def test_gaps_in_columns_that_are_not_used_cost_no_row():
    read = design(target="stay", task="regression", features=["smokes"])
    assert read.names == ("smokes",) and len(read.y) == 7


def test_levels_that_are_as_frequent_are_sorted():
    rows = ROWS.with_columns(pl.Series("kind", list("zzyyxxwx"))).drop_nulls()
    options = make_options({"client": "site", "target": "stay", "features": ["kind"]})
    assert read_design(rows, options).names == ("kind=w", "kind=y", "kind=z")


def test_classes_are_0_and_1():
    read = design(target="died", task="classification", features=["age"])
    np.testing.assert_array_equal(read.y, [0, 1, 0, 1, 0, 1])
    assert "Odds are those of died yes against no." in read.notes
    turned = design(
        target="died", task="classification", features=["age"], positive="no"
    )
    np.testing.assert_array_equal(turned.y, 1 - read.y)


def test_times_and_events():
    read = design(target="stay", event="died", features=["age"])
    np.testing.assert_array_equal(read.y, [3.5, 2, 4, 2.5, 7, 1.5])
    np.testing.assert_array_equal(read.seen, [0, 1, 0, 1, 0, 1])


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"target": "kind", "task": "classification"}, r"3 classes \(x, y, z\)"),
        ({"target": "kind", "task": "regression"}, "not numbers"),
        ({"target": "stay", "features": ["agee"]}, "did you mean 'age'"),
        ({"target": "stay", "drop": [*ROWS.columns[1:5], "died"]}, "no column that is"),
    ],
)
def test_what_cannot_be_read_is_told(options, problem):
    with pytest.raises(ValueError, match=problem):
        design(**options)


def test_a_table_of_gaps_and_a_column_of_names():
    gaps = ROWS.with_columns(pl.lit(None).alias("age"))
    with pytest.raises(ValueError, match=r"each row has a missing cell .*age 8"):
        fit_table(gaps, "linear", client="site", target="stay", features=["age"])
    names = pl.DataFrame(
        {
            "site": ["a", "b"] * 30,
            "y": [*range(60)],
            "name": [f"n{i}" for i in range(60)],
        }
    )
    with pytest.raises(ValueError, match="60 different texts, more than 20"):
        fit_table(names, "linear", client="site", target="y")


def test_clients_that_say_nothing_are_named():
    rows = pl.DataFrame(
        {
            "site": ["a", "b", "c"] * 8,
            "x": [(5 * i) % 7 for i in range(24)],
            "y": [i % 3 and (i // 3) % 2 for i in range(24)],
        }
    )
    fitted, notes = fit_table(
        rows, "logistic", client="site", target="y", intercept="fixed"
    )
    assert fitted.clients == 2 and fitted.rows == 16
    assert notes[-1].startswith("Clients whose rows say nothing about the coef")
    assert notes[-1].endswith("are left out: a.")
    with pytest.raises(ValueError, match="event names the column of events for cox"):
        fit_table(rows, "cox", client="site", target="y")

"""`federation init --data`: a job's columns from a table."""

from datetime import date

import polars as pl
import pytest

from fedtailor.remote.client.policy import Policy
from fedtailor.remote.job.job import read_job
from fedtailor.remote.job.job_template import EXAMPLE, columns_of, template
from fedtailor.remote.job.statistics import read_table

ROWS = 40


def table(directory, **columns):
    path = directory / "rows.csv"
    pl.DataFrame(
        {
            "patient": [f"p{row:03}" for row in range(ROWS)],
            "age": [20.5 + row for row in range(ROWS)],
            "ward": [*["surgery", "medicine", None, "eyes"] * 9, *["teeth"] * 4],
            "came on": [f"2024-01-{1 + row % 28:02}" for row in range(ROWS)],
            "fever": ["true", "false"] * 20,
            'a "b" = c': [(row * 7) % 11 for row in range(ROWS)],
            "same": [1] * ROWS,
            "outcome": ["well", "ill"] * 20,
            **columns,
        }
    ).write_csv(path)
    return path


def read_back(directory, columns):
    path = directory / "job.toml"
    path.write_text(template("wards", "x.org:9092", 4, columns), encoding="utf-8")
    return read_job(path)


def test_columns_are_those_of_the_table(tmp_path):
    columns, notes = columns_of(table(tmp_path), "outcome")
    schema = read_back(tmp_path, columns).schema
    assert (schema.target, set(schema.classes)) == ("outcome", {"well", "ill"})
    assert dict(schema.kinds) == {
        "age": "number",
        "ward": "category",
        "came on": "date",
        "fever": "boolean",
        'a "b" = c': "number",
    }
    said, patient, same, rare = notes
    assert said.startswith("means and deviations, to two digits, and categories are")
    assert patient.startswith("'patient' is left out") and "'same'" in same
    assert rare.startswith(
        "1 of the categories of 'ward' not listed, as fewer than 5 rows"
    )
    # To two digits of the deviation: the mean of ages is 40.
    assert schema.scales["age"] == (40, 11)
    days = schema.scales["came on"][0] - (date(2024, 1, 1) - date(1970, 1, 1)).days
    assert 10 <= days <= 13
    assert schema.columns["ward"] == ("eyes", "medicine", "surgery")
    # No cell of few rows is in the file.
    text = (tmp_path / "job.toml").read_text()
    for cell in ("teeth", "p001", "20.5"):
        assert cell not in text


@pytest.mark.parametrize("codes", [0, 1, 4])
def test_no_code_of_few_rows_is_in_means_and_deviations(tmp_path, codes):
    """By a mean and a deviation of all cells, how many rows have the code 9999 followed."""
    dose = [50 + (row * 7) % 36 for row in range(ROWS - codes)] + [9999] * codes
    columns, _ = columns_of(table(tmp_path, dose=dose), "outcome")
    mean, deviation = read_back(tmp_path, columns).schema.scales["dose"]
    assert 64 <= mean <= 72 and 8 <= deviation <= 12


def test_columns_of_few_rows_are_left_out(tmp_path):
    few = [1.5, 2.5, 3.5, 4.5, *[None] * (ROWS - 4)]
    rare = ["one", "two", "three", "four"] + ["five"] * (ROWS - 4)
    columns, notes = columns_of(table(tmp_path, few=few, rare=rare), "outcome")
    assert not {"few", "rare"} & set(columns.inputs)
    assert sum("left out: fewer than" in note for note in notes) == 2


def test_a_column_of_the_clients_names_is_no_input(tmp_path):
    """Many tables with all clients' rows have one, which no client needs."""
    path = table(tmp_path, site=["north", "south"] * 20)
    columns, notes = columns_of(path, "outcome", clients=["north", "south", "west"])
    assert "site" not in columns.inputs
    assert "'site' is left out: its cells are names of clients" in notes
    numbered = table(tmp_path, site=[1, 2] * 20)
    assert "site" not in columns_of(numbered, "outcome", clients=["1", "2"])[0].inputs
    path = table(tmp_path, site=["north", "south"] * 20)
    assert "site" in columns_of(path, "outcome", clients=["north"])[0].inputs
    assert columns_of(path, "site", clients=["north", "south"])[0].target == "site"


def test_a_number_to_predict_has_no_classes(tmp_path):
    columns, _ = columns_of(table(tmp_path), "age")
    schema = read_back(tmp_path, columns).schema
    assert schema.classes is None and "outcome" in schema.columns
    assert schema.scales["age"] == (40, 11)


@pytest.mark.parametrize(
    ("target", "columns", "said"),
    [
        ("nobody", {}, "has no column 'nobody'; its columns are"),
        ("outcome", {"outcome": [None] * ROWS}, "missing in all rows"),
    ],
)
def test_a_table_that_does_not_fit_is_said_in_a_line(target, columns, said, tmp_path):
    with pytest.raises(ValueError) as refused:
        columns_of(table(tmp_path, **columns), target)
    assert said in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("has_table", [False, True])
def test_clients_take_part_by_the_default_policy(has_table, tmp_path):
    columns = columns_of(table(tmp_path), "outcome")[0] if has_table else EXAMPLE
    Policy().check_job(read_back(tmp_path, columns))


def test_without_a_table_there_is_an_example(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(template("wards", "x.org:9092", 4))
    assert dict(read_job(path).schema.columns) == {
        "age": None,
        "ward": ("surgery", "medicine"),
    }


def test_the_table_of_which_a_job_is_made_fits_it(tmp_path):
    """As pandas writes classes and categories: True, 1.0 and +1 beside a job's true and 1."""
    cells = {
        "outcome": ["True", "False"] * 20,
        "grade": ["1.0", "2.0", "1.5", ""] * 10,
        "sign": ["+1", "-1"] * 20,
        "ward": ["surgery", "medicine"] * 20,
    }
    path = table(tmp_path, **cells)
    columns, _ = columns_of(path, "outcome")
    schema = read_back(tmp_path, columns).schema
    assert set(schema.classes) == {"true", "false"}
    assert read_table(path, schema).y.tolist() == [1, 0] * 20
    columns, _ = columns_of(path, "sign")
    schema = read_back(tmp_path, columns).schema
    assert read_table(path, schema).y.tolist() == [1, 0] * 20

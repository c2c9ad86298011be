"""`federation init --data`: a job's columns from a table."""

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
            "ward": ["surgery", "medicine", None, "eyes"] * 10,
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
    assert len(notes) == 2
    assert notes[0].startswith("'patient' is left out") and "'same'" in notes[1]
    # No cell but the labels is in the file.
    text = (tmp_path / "job.toml").read_text()
    for cell in ("surgery", "medicine", "p001", "2024", "20.5"):
        assert cell not in text


def test_a_number_to_predict_has_no_classes(tmp_path):
    columns, _ = columns_of(table(tmp_path), "age")
    schema = read_back(tmp_path, columns).schema
    assert schema.classes is None and "outcome" in schema.columns


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
def test_clients_need_to_agree_with_statistics_only(has_table, tmp_path):
    columns = columns_of(table(tmp_path), "outcome")[0] if has_table else EXAMPLE
    job = read_back(tmp_path, columns)
    (reason,) = Policy().reasons_against(job)
    assert "federated_statistics" in reason
    Policy(federated_statistics=True).check_job(job)


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
    }
    path = table(tmp_path, **cells)
    columns, _ = columns_of(path, "outcome")
    schema = read_back(tmp_path, columns).schema
    assert set(schema.classes) == {"true", "false"}
    assert read_table(path, schema).y.tolist() == [1, 0] * 20
    columns, _ = columns_of(path, "sign")
    schema = read_back(tmp_path, columns).schema
    assert read_table(path, schema).y.tolist() == [1, 0] * 20

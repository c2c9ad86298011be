"""Columns that no model should see are left out, and said so."""

import numpy as np
import polars as pl
import pytest

from fedtailor.data.tables import from_table

ROLES = {"client": "site", "target": "y"}
N = 120


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    number = np.arange(N)
    return pl.DataFrame(
        {
            "site": [f"s{n % 3}" for n in number],
            "row": number + 1000,
            "Patient ID": rng.permutation(N) * 977,
            "name": [f"person {n}" for n in number],
            "ward": [f"s{n % 3}-{n % 2}" for n in number],
            "site no": number % 3 + 70,
            "fixed": [3.5] * N,
            "empty": [None] * N,
            "age": rng.integers(20, 90, N),
            "years": 0,
            "country": ["south" if n % 3 == 0 else "north" for n in number],
            "people": rng.choice(10_000, N, replace=False) * 31,
            "y": rng.integers(0, 2, N),
        }
    ).with_columns(years=pl.col("age").cast(pl.Float64))


REASONS = {
    "row": "a different whole number in every row",
    "Patient ID": "a different whole number in every row",
    "name": "different text in nearly all rows",
    "ward": "gives the client away",
    "site no": "gives the client away",
    "fixed": "the same in all training rows",
    "empty": "missing in all training rows",
    "years": "the same as 'age'",
}


def test_what_tells_nothing_is_left_out_and_said(frame):
    table = from_table(frame, **ROLES)
    assert table.preprocessing.inputs == (
        "age",
        "country = north",
        "country = south",
        "people",
    )
    said = " ".join(table.notes)
    for column, reason in REASONS.items():
        assert reason in table.preprocessing.ignored[column] and repr(column) in said
    rows = frame.drop("ward", "y")
    np.testing.assert_array_equal(table.preprocessing.transform(rows), table.x)


def test_what_is_asked_for_stays_with_a_warning(frame):
    table = from_table(frame, **ROLES, features=["age", "ward", "row", "years"])
    assert {"ward = s0-0", "row", "age"} <= set(table.preprocessing.inputs)
    assert sum("kept because it was asked for" in note for note in table.notes) == 2
    assert (
        table.preprocessing.ignored["years"] == "the same as 'age'"
    )  # a copy adds nothing, asked for or not
    assert table.preprocessing.ignored["country"] == "not among the features"
    np.testing.assert_array_equal(table.preprocessing.transform(frame), table.x)


def test_quantities_with_units_are_named():
    numbers = np.arange(60)
    texts = {
        "weight": [f"{n}.5 {'kg' if n % 9 else 'g'}" for n in numbers],
        "share": [f"{n}{'%' if n % 9 else ' kg'}" for n in numbers],
        "price": [f"$1,{n:03d}" for n in numbers],
        "name": [f"{n} Baker Street" for n in numbers],
    }
    frame = pl.DataFrame(
        {"site": ["a", "b"] * 30, "age": numbers % 7, **texts, "y": [0, 0, 1] * 20}
    )
    ignored = from_table(frame, **ROLES).preprocessing.ignored
    for name in ("weight", "share", "price"):
        assert (
            ignored[name].startswith("text such as '")
            and "(quantities must be plain" in ignored[name]
        )
    assert ignored["name"].startswith("different text")


def test_many_reasons_make_few_sentences():
    rng = np.random.default_rng(0)
    pixels = {
        f"pixel {n}": np.zeros(60) if n % 2 else rng.normal(size=60) for n in range(64)
    }
    table = from_table(
        pl.DataFrame({"site": ["a", "b"] * 30, **pixels, "y": [0, 0, 1] * 20}), **ROLES
    )
    about = [note for note in table.notes if "left out" in note]
    assert len(about) == 1 and "and 26 more" in about[0] and table.x.shape == (60, 32)


def test_a_running_number_is_known_by_its_range_whatever_its_name():
    """Numbers that differ in all rows: whole ones with few gaps are no inputs."""
    rows = np.random.default_rng(0).permutation(N)
    columns = {"dense": rows + 1000, "sparse": 3 * rows, "halves": rows / 2}

    def inputs(count):
        frame = pl.DataFrame(
            {
                "site": [f"s{n % 3}" for n in range(count)],
                **{name: values[:count] for name, values in columns.items()},
                "y": [n % 2 for n in rows[:count]],
            }
        )
        return from_table(frame, **ROLES, val=0, test=0.2).preprocessing.inputs

    assert inputs(N) == ("sparse", "halves")
    # In few rows all values may differ by chance.
    assert inputs(20) == ("dense", "sparse", "halves")

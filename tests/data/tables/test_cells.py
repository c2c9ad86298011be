"""Over machines a cell is read by itself: no other cell decides what it says."""

import itertools
from datetime import timedelta

import numpy as np
import polars as pl
import pytest

from fedtailor.data.tables.cells import (
    ordered_cells,
    read_cells,
    seen_cells,
    typed_cells,
)
from fedtailor.data.tables.kinds import category_text

WRITTEN = {
    "number": ["1.5", "1,234", "1.234", "1,5", "12", "007", "1e3", "x", "5 %"],
    "date": [
        *("2024-12-31", "31.12.2024", "01/02/2024", "13/02/2024", "2024-12-31 10:00"),
        *("2024-12-31T10:00:00Z", "2024-12-31T10:00:00+01:00", "31.12.24", "45000"),
    ],
    "boolean": ["yes", "True", "0", "1.0", "f", "maybe"],
    "category": ["1", "1.0", "1.5", "01", "True", "true", "1,234", "2024-12-31", "x"],
}


def read(path, *names):
    return read_cells(path, dict.fromkeys(names, ()))


def alone(kind, cell):
    """What a cell says by itself; None if it is named."""
    try:
        return typed_cells(pl.Series("c", [cell]), kind, "a.csv")[0]
    except ValueError as error:
        assert f"a.csv, row 1: 'c' is '{cell}', which is not" in str(error)
        return None


@pytest.mark.parametrize("kind", WRITTEN)
def test_a_cell_says_the_same_beside_every_other(kind):
    """Before, `1,234` was 1234 beside 1.5 and 1.234 beside 2,5: one cell changed all."""
    read = {cell: alone(kind, cell) for cell in WRITTEN[kind]}
    fit = [cell for cell, value in read.items() if value is not None]
    assert len(fit) > 2
    for size in (2, 3):
        for cells in itertools.product(fit, repeat=size):
            found = typed_cells(pl.Series("c", [None, *cells]), kind, "a.csv")
            assert found.to_list() == [None, *(read[cell] for cell in cells)]


def test_what_can_be_read_in_two_ways_is_named():
    for kind, cell in (
        *(("number", it) for it in ("1,234", "1,5", "5 %", "x")),
        *(("date", it) for it in ("01/02/2024", "13/02/2024", "31.12.24", "45000")),
        ("boolean", "maybe"),
    ):
        assert alone(kind, cell) is None
    assert alone("number", "1.234") == 1.234
    assert alone("boolean", "1.0") == alone("boolean", "TRUE") == 1
    with pytest.raises(ValueError, match=r"'c' of a\.csv holds List"):
        typed_cells(pl.Series("c", [[1, 2]]), "number", "a.csv")
    assert alone("date", "2024-12-31") == alone("date", "31.12.2024") == 20088
    assert alone("date", "2024-12-31T13:00:00+01:00") == 20088.5


def categories(cells, listed=()):
    return typed_cells(pl.Series("c", cells), "category", "a.csv", listed).to_list()


def test_durations_are_categories_by_their_microseconds():
    """Polars has no text for them."""
    cells = [timedelta(seconds=1), None]
    of_a_table = category_text(pl.Series("c", cells)).to_list()
    assert categories(cells) == of_a_table == ["1000000", None]


def test_categories_are_text_as_it_stands():
    """Codes that look like numbers are no numbers: of diseases 250 and 250.00."""
    codes = ["250", "250.00", "01", "1E5", "True", "900000000000207018"]
    assert categories(codes) == codes
    # A program that writes a column of which a cell is missing.
    assert categories(["1.0", "-20.0", "250.10", ".0", None]) == [
        *("1", "-20", "250.10", ".0", None)
    ]
    assert categories([1.0, 2.5, None]) == ["1", "2.5", None]
    assert categories([True, False, None]) == ["true", "false", None]
    many = pl.Series("c", [900000000000207018, 900000000000207008], pl.Int64)
    assert categories(many) == ["900000000000207018", "900000000000207008"]


def test_listed_categories_do_not_depend_on_the_program_that_wrote_them():
    assert categories(["1", "1.0", "+1", "2.0"], ["1.0", "2"]) == ["1.0"] * 3 + ["2"]
    assert categories(["1", "1.0"], ["1.0", "1"]) == ["1", "1.0"]
    assert categories(["-1.0", "1.00", "01"], ["-1", "1"]) == ["-1", "1.00", "01"]
    assert categories([True, False], ["True", "False"]) == ["True", "False"]
    assert categories(["TRUE", "False"], ["true", "false"]) == ["true", "false"]
    ids = ["900000000000207008", "900000000000207018"]
    assert categories(ids, ids[:1]) == ids


@pytest.mark.parametrize(
    ("positive", "expected"),
    [
        (("1",), [True, True, False, False]),
        (("dead", "1"), [True, True, True, False]),
        (("1.0",), [True, True, False, False]),
    ],
)
def test_labels_of_events_are_compared_cell_by_cell(positive, expected):
    cells = ["1", "1.0", "dead", "0.5"]
    for cell, is_seen in zip(cells, expected, strict=True):
        found = seen_cells(pl.Series("died", [cell]), positive, "a.csv")
        assert found.to_list() == [is_seen]
    found = seen_cells(pl.Series("died", cells), positive, "a.csv")
    assert found.to_list() == expected


def test_an_event_can_be_a_comparison():
    found = seen_cells(pl.Series("died", ["2", "0", "1.5"]), (">1",), "a.csv")
    assert found.to_list() == [True, False, True]
    found = seen_cells(pl.Series("died", ["2", None]), (">1",), "a.csv")
    assert found.to_list() == [True, None]
    for cells, positive in ((["True", "False"], "true"), ([True, False], "True")):
        found = seen_cells(pl.Series("died", cells), (positive,), "a.csv")
        assert found.to_list() == [True, False]
    with pytest.raises(ValueError, match=r"a\.csv, row 2: 'died' is 'x'"):
        seen_cells(pl.Series("died", ["2", "x"]), (">1",), "a.csv")


def test_rows_are_ordered_by_numbers_or_by_dates():
    numbers = ordered_cells(pl.Series("t", ["0830", "900", "1e3"]), "a.csv")
    np.testing.assert_array_equal(numbers, [830, 900, 1000])
    dates = ordered_cells(pl.Series("t", ["2024-12-31", "01.01.2025"]), "a.csv")
    np.testing.assert_array_equal(dates, [20088, 20089])
    with pytest.raises(ValueError, match="'t' is '5', which is not a date"):
        ordered_cells(pl.Series("t", ["2024-12-31", "5"]), "a.csv")


def test_the_header_says_what_separates_cells(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("age;note\n1.5;a,b,c\n2;d,e,f\n")
    assert read(path, "age", "note")["note"].to_list() == ["a,b,c", "d,e,f"]
    path.write_text("age,note\n1.5,a;b;c\n2,d;e;f\n")
    assert read(path, "age", "note")["note"].to_list() == ["a;b;c", "d;e;f"]
    with pytest.raises(ValueError, match="has no column 'dose'"):
        read(path, "age", "dose")


def test_line_ends_of_old_programs_are_named(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"age,ward\r1,a\r2,b\r")
    with pytest.raises(ValueError, match="lines end with a carriage return"):
        read(path, "age", "ward")


def test_a_listed_category_is_no_missing_cell(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("ward,age\nNA,1\n-,NA\n?,-\n")
    frame = read_cells(path, {"ward": ("NA", "-"), "age": ()})
    assert frame["ward"].to_list() == ["NA", "-", None]
    assert frame["age"].to_list() == ["1", None, None]


def test_text_is_utf8_and_nothing_else(tmp_path):
    """Read in another encoding for one cell's sake, the names of all others would change."""
    path = tmp_path / "a.csv"
    path.write_bytes("ward,age\nHNO-Süd,1\n".encode("cp1252"))
    with pytest.raises(ValueError, match="UTF-8") as error:
        read(path, "ward", "age")
    assert "\n" not in str(error.value)
    path.write_text("ward,age\nHNO-Süd,1\n", encoding="utf-8-sig")
    assert read(path, "ward", "age")["ward"].to_list() == ["HNO-Süd"]

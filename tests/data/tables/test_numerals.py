"""Numbers, codes and times are read as they are written, or it is said how."""

import datetime
import unicodedata

import numpy as np
import polars as pl
import pytest

from fedtailor.data.tables import from_table
from fedtailor.data.tables.kinds import parse_column
from fedtailor.data.tables.numerals import without_marks
from fedtailor.data.tables.options import TableOptions
from fedtailor.data.tables.reading import read

ROLES = {"client": "site", "target": "sick"}


def file(tmp_path, columns, separator=";"):
    """A file of 40 rows of two sites, with columns of text that repeat."""
    rows = 40
    cells = {"site": ["a", "b"], "sick": ["no", "yes", "yes"], **columns}
    lines = [separator.join(cells)]
    lines += [
        separator.join(values[row % len(values)] for values in cells.values())
        for row in range(rows)
    ]
    (tmp_path / "t.csv").write_text("\n".join(lines), encoding="utf-8")
    return tmp_path / "t.csv"


def cells(path, name, **options):
    frame = read(path, TableOptions(**options)).frame
    return frame[name].to_list()[:3]


def test_a_dot_before_three_digits_is_a_thousands_mark_beside_decimal_commas(tmp_path):
    path = file(
        tmp_path,
        {
            "people": ["10.267", "937", "1.204.001"],
            "rate": ["30,1", "1.204,5", "7"],
            "age": ["41", "52", "63"],
        },
    )
    for options in ({}, {"decimal": ","}, {"thousands": "."}):
        assert cells(path, "people", **options) == [10267, 937, 1204001]
        assert cells(path, "rate", **options) == [30.1, 1204.5, 7]
        assert cells(path, "age", **options) == [41, 52, 63]
    table = from_table(path, **ROLES)
    notes = " ".join(table.notes)
    assert (
        "decimal comma" in notes and "marks: people (10.267), rate (1.204,5)" in notes
    )
    # Rows to predict for are read alike.
    row = {"people": "10.267", "rate": "30,1", "age": "41"}
    x = table.preprocessing.transform(row)
    np.testing.assert_array_equal(x, table.x[:1])


def test_an_english_thousands_mark(tmp_path):
    path = file(tmp_path, {"people": ['"10,267"', "937", '"1,204,001"']}, ",")
    assert cells(path, "people") == [10267, 937, 1204001]
    path = file(tmp_path, {"people": ["10 267", "937", "1\u00a0204\u202f001"]})
    assert cells(path, "people", thousands=" ") == [10267, 937, 1204001]
    path = file(tmp_path, {"people": ["10'267.5", "937", "1'204"]})
    assert cells(path, "people", thousands="'") == [10267.5, 937, 1204]


def test_a_dot_that_can_be_read_in_two_ways_is_said(tmp_path):
    path = file(tmp_path, {"people": ["10.267", "937", "12"]})
    assert cells(path, "people") == [10.267, 937, 12]
    assert any(
        "people (10.267)" in note and "--thousands ." in note
        for note in read(path, TableOptions()).notes
    )
    assert cells(path, "people", thousands=".") == [10267, 937, 12]


def test_each_column_may_have_its_own_decimal_sign_but_not_two(tmp_path):
    path = file(tmp_path, {"rate": ["30,1", "2,5"], "mass": ["70.5", "81.25"]})
    assert cells(path, "rate")[:2] == [30.1, 2.5]
    assert cells(path, "mass")[:2] == [70.5, 81.25]
    path = file(tmp_path, {"rate": ["30,1", "2.55", "7", "1.25", "4,5"]})
    with pytest.raises(
        ValueError, match=r"'2\.55' and with a decimal comma such as '30,1'"
    ):
        from_table(path, **ROLES)


def test_codes_with_leading_zeros_are_categories(tmp_path):
    path = file(
        tmp_path, {"zip": ["00501", "10001", "02134"], "age": ["1", "2", "3", "4", "5"]}
    )
    table = from_table(path, **ROLES)
    assert "zip = 00501" in table.preprocessing.inputs
    assert any("leading zeros" in note and "zip" in note for note in table.notes)
    frame = read(path, TableOptions(client="site")).frame
    same = from_table(frame, **ROLES)
    assert same.preprocessing.inputs == table.preprocessing.inputs
    # A class is one, too; the numbers 0 and 0.5 have no leading zeros.
    path = file(
        tmp_path, {"grade": ["01", "02", "10"], "dose": ["0", "0.5", "1", "2", "3"]}
    )
    table = from_table(path, client="site", target="grade")
    assert table.class_names == ("01", "02", "10")
    assert "dose" in table.preprocessing.inputs


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2020-01-03T14:30:00+01:00", (2020, 1, 3, 13, 30)),
        ("2020-01-03T14:30:00.000Z", (2020, 1, 3, 14, 30)),
        ("2020-01-03 14:30:00+00", (2020, 1, 3, 14, 30)),
        ("2020-01-03 14:30:00.25+0530", (2020, 1, 3, 9, 0, 0, 250_000)),
        ("2020-01-03T14:30", (2020, 1, 3, 14, 30)),
        ("03JAN2020", (2020, 1, 3)),
        ("03-Jan-2020", (2020, 1, 3)),
        ("03JAN2020:14:30:00", (2020, 1, 3, 14, 30)),
        ("2020-01", (2020, 1, 1)),
    ],
)
def test_times_and_dates_of_other_systems(text, moment):
    parsed = parse_column(pl.Series("when", [text, None, text]))
    since = datetime.datetime(*moment) - datetime.datetime(1970, 1, 1)
    days = since / datetime.timedelta(days=1)
    assert parsed.kind == "date" and parsed.values[0] == pytest.approx(days, abs=1e-9)


def test_a_year_of_two_digits_is_refused():
    for text in ("03/17/62", "17.03.62", "03JAN62"):
        with pytest.raises(ValueError, match=f"'{text}', whose year has two digits"):
            parse_column(pl.Series("born", [text] * 3))


def test_a_time_that_is_none_says_what_is(tmp_path):
    path = file(tmp_path, {"when": ["early", "late"], "age": ["1", "2", "3"]})
    with pytest.raises(
        ValueError, match=r"such as 'early', .* write them as 2024-12-31"
    ):
        from_table(path, **ROLES, time="when")


def test_an_input_of_rare_values_only_is_left_out(tmp_path):
    path = file(
        tmp_path,
        {"who": [f"p{n}" for n in range(13)], "age": ["1", "2", "3"]},
    )
    table = from_table(path, **ROLES)
    assert not any("who" in name for name in table.preprocessing.inputs)
    assert any("'who' is left out: no value" in note for note in table.notes)
    with pytest.raises(ValueError, match="'who' is asked for, and no value"):
        from_table(path, **ROLES, features=["who"])


def test_letters_with_accents_are_one_name(tmp_path):
    composed, parts = (unicodedata.normalize(form, "Zürich") for form in ("NFC", "NFD"))
    path = file(tmp_path, {"site": [composed, "Bern", parts], "größe": ["1", "2", "3"]})
    table = from_table(
        path,
        client="site",
        target="sick",
        features=[unicodedata.normalize("NFD", "größe")],
    )
    assert table.names == ("Bern", composed)
    frame = pl.read_csv(path, separator=";")
    assert from_table(frame, **ROLES).names == ("Bern", composed)


def test_cells_that_are_no_numbers_stay_as_they_are():
    series = pl.Series(["1.204,5", "12.04.2020", "old", None])
    assert without_marks(series, ",").to_list() == ["1204.5", "12.04.2020", "old", None]


def test_values_that_differ_in_capitals_are_named_and_folded(tmp_path):
    columns = {
        "site": ["Basel", "BASEL", "Bern"],
        "sick": ["yes", "No", "Yes", "no", "no"],
        "sex": ["m", "M", "f  f", "f f"],
        "age": ["1", "2", "3", "4", "5", "6", "7"],
    }
    path = file(tmp_path, columns)
    (warning,) = [
        text for text in from_table(path, **ROLES).warnings if "capitals" in text
    ]
    for name in ("BASEL / Basel", "No / no", "M / m", "--fold-case"):
        assert name in warning
    table = from_table(
        path, **ROLES, fold_case=True, positive=("YES",), unseen=("BERN",)
    )
    assert table.names == ("basel", "bern") and table.class_names == ("no", "yes")
    assert not any("capitals" in text for text in table.warnings)
    rows = [{"sex": "F  f", "age": 1}, {"sex": "f f", "age": 1}]
    first, second = table.preprocessing.transform(rows)
    np.testing.assert_array_equal(first, second)
    stored = type(table.preprocessing).from_json(table.preprocessing.to_json())
    assert stored.fold_case


def test_one_unit_after_all_numbers_is_read(tmp_path):
    columns = {
        "share": ["93%", "41.3 %", "7%"],
        "age": ["53 years", "54 years", "9 years", "70 years"],
        "code": ["3A", "4A", "5A", "6A", "7A"],
    }
    table = from_table(file(tmp_path, columns), **ROLES)
    assert table.preprocessing.inputs[:2] == ("share", "age")
    assert "code = 3A" in table.preprocessing.inputs
    assert "Units stand after the numbers of: share (%), age (years)." in table.notes
    row = {"share": "93 %", "age": 53, "code": "3A"}
    np.testing.assert_array_equal(table.preprocessing.transform(row), table.x[:1])
    with pytest.raises(ValueError, match="'age' holds '53 days'"):
        table.preprocessing.transform({**row, "age": "53 days"})


def test_numbers_of_clients_are_whole(tmp_path):
    path = file(tmp_path, {"site": ["10.0", "11.0"], "age": ["1", "2", "3"]})
    assert from_table(path, **ROLES).names == ("10", "11")

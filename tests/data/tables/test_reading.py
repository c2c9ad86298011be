"""The same table in many files and frames gives the same federation."""

import gzip
import zipfile

import numpy as np
import polars as pl
import pytest

from fedtailor.data.tables import from_table
from fedtailor.data.tables.describing import describe_table
from fedtailor.data.tables.options import TableOptions
from fedtailor.data.tables.reading import read
from fedtailor.deployment.predictions import read_raw_rows

ROLES = {"client": "site", "target": "sick"}


@pytest.fixture(scope="module")
def frame():
    """Three sites, accents in a category, gaps, a date."""
    rng = np.random.default_rng(0)
    n = 90
    return pl.DataFrame(
        {
            "site": [f"00{number % 3 + 7}" for number in range(n)],
            "age": rng.integers(20, 80, n),
            "mass": [
                None if rng.random() < 0.1 else round(float(value), 2)
                for value in rng.normal(70, 9, n)
            ],
            "colour": rng.choice(["bleu", "doré", "écru"], n),
            "smoker": rng.random(n) < 0.4,
            "seen": [f"2024-0{month}-11" for month in rng.integers(1, 9, n)],
            "sick": rng.choice(["no", "yes"], n),
        }
    )


@pytest.fixture(scope="module")
def expected(frame):
    return from_table(frame, **ROLES)


def same(table, expected):
    assert table.preprocessing.inputs == expected.preprocessing.inputs
    np.testing.assert_array_equal(table.x, expected.x)
    np.testing.assert_array_equal(table.y, expected.y)
    for split in ("train", "val", "test"):
        np.testing.assert_array_equal(
            getattr(table, split).rows, getattr(expected, split).rows
        )
    assert (table.names, table.class_names) == (expected.names, expected.class_names)


def test_every_column_has_the_inputs_of_its_kind(expected):
    assert expected.preprocessing.inputs == (
        "age",
        "mass",
        "mass is missing",
        "colour = bleu",
        "colour = doré",
        "colour = écru",
        "smoker",
        "seen",
    )
    assert expected.names == ("007", "008", "009") and expected.class_names == (
        "no",
        "yes",
    )


@pytest.mark.parametrize(
    "encoding",
    ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp1252"],
)
def test_encodings_are_recognised(frame, expected, encoding, tmp_path):
    (tmp_path / "t.csv").write_bytes(frame.write_csv(null_value="?").encode(encoding))
    table = from_table(tmp_path / "t.csv", **ROLES)
    same(table, expected)
    assert table.name == "t" and any(
        "Windows-1252" in note for note in table.notes
    ) == (encoding == "cp1252")
    same(from_table(tmp_path / "t.csv", **ROLES, encoding=encoding), expected)


@pytest.mark.parametrize(
    ("name", "separator", "comma", "gap"),
    [
        ("t.csv", ",", False, ""),
        ("t.csv", ";", True, "NA"),
        ("t.csv", ";", False, "n/a"),
        ("t.csv", "\t", True, "-"),
        ("t.tsv", "\t", False, "NaN"),
        ("t.txt", "|", False, " ? "),
        ("t.csv.gz", ";", True, "."),
        ("t.CSV", ",", False, "null"),
    ],
)
def test_separators_decimals_and_words_for_gaps_are_recognised(
    frame, expected, name, separator, comma, gap, tmp_path
):
    text = (
        frame.write_csv(separator=separator, decimal_comma=comma, null_value=gap)
        .replace("\n", "\r\n")
        .encode()
    )
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    table = from_table(tmp_path / name, **ROLES)
    same(table, expected)
    assert any("decimal comma" in note for note in table.notes) == comma
    same(
        from_table(
            tmp_path / name, **ROLES, separator=separator, decimal="," if comma else "."
        ),
        expected,
    )


def test_quotes_blank_lines_spaces_and_names_of_rows(frame, expected, tmp_path):
    lines = frame.with_row_index("").write_csv(quote_style="always").splitlines()
    padded = [line.replace('","', '" , "').replace('"', "") for line in lines]
    for content in ("\n\n".join(lines) + "\n\n", "\n".join(padded)):
        (tmp_path / "t.csv").write_text(content)
        table = from_table(tmp_path / "t.csv", **ROLES)
        same(table, expected)
        assert (
            "Column without a name is left out: a different whole number in every row"
            " (an id or a running number)." in table.notes
        )


def test_a_cell_may_hold_more_than_pythons_limit_of_131072_characters(tmp_path):
    notes = [f"{row} " + "lorem " * 25_000 for row in range(6)]
    table = pl.DataFrame(
        {"client": ["a", "b"] * 3, "dose": [1.5, 2, 3, 4, 5, 6], "note": notes}
    )
    table.write_csv(tmp_path / "notes.csv")
    assert read(tmp_path / "notes.csv", TableOptions()).frame["note"].to_list() == [
        note.strip() for note in notes
    ]


def test_a_cell_far_below_decides_for_its_column(tmp_path):
    rows = 30_000
    mass = [str(number % 97) for number in range(rows)]
    mass[-1], late = "0.5", ["?"] * (rows - 40) + ["1.25", "2.5"] * 20
    frame = pl.DataFrame(
        {
            "site": ["a", "b"] * (rows // 2),
            "mass": mass,
            "late": late,
            "sick": [0, 0, 1] * 10_000,
        }
    )
    frame.write_csv(tmp_path / "t.csv")
    columns = {
        column.name: column
        for column in from_table(tmp_path / "t.csv", **ROLES).preprocessing.columns
    }
    assert (columns["mass"].kind, columns["late"].kind, columns["late"].indicator) == (
        "number",
        "number",
        True,
    )


def test_parquet_and_typed_frames(frame, expected, tmp_path):
    typed = frame.with_columns(
        pl.col("seen").str.to_date(),
        pl.col("colour").cast(pl.Categorical),
        pl.col("mass").fill_null(float("nan")),
    )
    typed.write_parquet(tmp_path / "t.parquet")
    same(from_table(tmp_path / "t.parquet", **ROLES), expected)
    decimals = typed.with_columns(pl.col("mass").fill_nan(None).cast(pl.Decimal(10, 2)))
    same(from_table(decimals.lazy(), **ROLES), expected)


@pytest.mark.extra
def test_pandas_frames(frame, expected):
    pandas = pytest.importorskip(
        "pandas", reason="pandas is not installed; fedtailor does not need it"
    )
    same(
        from_table(pandas.DataFrame(frame.to_dict(as_series=False)), **ROLES), expected
    )
    twice = pandas.DataFrame([[1, 2]], columns=["site", "site"])
    with pytest.raises(ValueError, match="several columns 'site'; rename"):
        from_table(twice, **ROLES)


def workbook(path, frame, *, titles=(), cover=None):
    """The smallest .xlsx file: a sheet, all text in the cells, perhaps after a cover.

    Args:
        path: the file.
        frame: the table on the sheet "visits".
        titles: lines above it.
        cover: the cell of a sheet of its own, the first one.
    """
    kinds = {True: '<c t="inlineStr"><is><t>{}</t></is></c>', False: "<c><v>{}</v></c>"}
    rows = [kinds[True].format(title) for title in titles]
    rows.append("".join(kinds[True].format(name) for name in frame.columns))
    for row in frame.rows():
        rows.append(
            "".join(
                kinds[isinstance(cell, str)].format("" if cell is None else cell)
                for cell in row
            )
        )
    sheet = "".join(f"<row>{row}</row>" for row in rows)
    sheets = {"visits": sheet}
    if cover is not None:
        first = f"<row>{kinds[True].format(cover)}</row>" if cover else ""
        sheets = {"cover": first, **sheets}
    main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    relations = "http://schemas.openxmlformats.org/package/2006/relationships"
    document = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    kind = "application/vnd.openxmlformats-officedocument.spreadsheetml"
    with zipfile.ZipFile(path, "w") as file:
        numbered = list(enumerate(sheets, 1))
        parts = "".join(
            f'<Override PartName="/xl/worksheets/sheet{number}.xml"'
            f' ContentType="{kind}.worksheet+xml"/>'
            for number, _ in numbered
        )
        file.writestr(
            "[Content_Types].xml",
            "<Types"
            ' xmlns="http://schemas.openxmlformats.org/package/2006/content-types"><Override'
            ' PartName="/xl/workbook.xml"'
            f' ContentType="{kind}.sheet.main+xml"/>{parts}</Types>',
        )
        file.writestr(
            "_rels/.rels",
            f'<Relationships xmlns="{relations}"><Relationship Id="r1"'
            f' Type="{document}/officeDocument"'
            ' Target="xl/workbook.xml"/></Relationships>',
        )
        listed = "".join(
            f'<sheet name="{name}" sheetId="{number}" r:id="r{number}"/>'
            for number, name in numbered
        )
        file.writestr(
            "xl/workbook.xml",
            f'<workbook xmlns="{main}" xmlns:r="{document}"><sheets>{listed}</sheets>'
            "</workbook>",
        )
        targets = "".join(
            f'<Relationship Id="r{number}" Type="{document}/worksheet"'
            f' Target="worksheets/sheet{number}.xml"/>'
            for number, _ in numbered
        )
        file.writestr(
            "xl/_rels/workbook.xml.rels",
            f'<Relationships xmlns="{relations}">{targets}</Relationships>',
        )
        for number, name in numbered:
            file.writestr(
                f"xl/worksheets/sheet{number}.xml",
                f'<worksheet xmlns="{main}"><sheetData>{sheets[name]}</sheetData>'
                "</worksheet>",
            )


def test_excel_sheets(frame, expected, tmp_path):
    pytest.importorskip("fastexcel", reason="the extra `excel` is not installed")
    workbook(
        tmp_path / "t.xlsx",
        frame.cast({"smoker": pl.String}).with_columns(
            pl.col("mass").cast(pl.String).fill_null("?")
        ),
    )
    same(from_table(tmp_path / "t.xlsx", **ROLES), expected)
    same(from_table(tmp_path / "t.xlsx", **ROLES, sheet="visits"), expected)
    with pytest.raises(
        ValueError, match=r"t\.xlsx called 'vists'.*did you mean.*visits"
    ):
        from_table(tmp_path / "t.xlsx", **ROLES, sheet="vists")


def test_a_sheet_behind_a_cover_and_names_below_titles(frame, expected, tmp_path):
    pytest.importorskip("fastexcel", reason="the extra `excel` is not installed")
    cells = frame.cast({"smoker": pl.String}).with_columns(
        pl.col("mass").cast(pl.String).fill_null("?")
    )
    workbook(tmp_path / "t.xlsx", cells, titles=("Our study", "2024"), cover="Cover")
    table = from_table(tmp_path / "t.xlsx", **ROLES)
    same(table, expected)
    assert "Sheet 'visits' is read, one of 2 (cover, visits)" in " ".join(table.notes)
    assert any("in row 3 of the sheet" in note for note in table.notes)
    with pytest.raises(ValueError, match=r"columns \(Cover\) and no rows"):
        from_table(tmp_path / "t.xlsx", **ROLES, sheet="cover")
    # Without the name of a column, too; a sheet and its reading can be named.
    described, notes = describe_table(tmp_path / "t.xlsx")
    assert list(described.kinds) == frame.columns
    assert any("in row 3 of the sheet" in note for note in notes)
    assert describe_table(tmp_path / "t.xlsx", sheet="visits")[0] == described
    with pytest.raises(ValueError, match="called 'vists'"):
        describe_table(tmp_path / "t.xlsx", sheet="vists")
    # Rows to predict are found by the columns of the model.
    rows = read_raw_rows(tmp_path / "t.xlsx", table.preprocessing)
    assert rows.columns == frame.columns and len(rows) == len(frame)
    workbook(tmp_path / "t.xlsx", cells, cover="")
    same(from_table(tmp_path / "t.xlsx", **ROLES), expected)


def test_columns_of_arrays_are_columns_of_numbers():
    images = np.random.default_rng(0).integers(0, 256, (60, 16)).astype(np.uint8)
    images[:, 3] = 7
    roles = {"site": ["a", "b"] * 30, "sick": [0, 0, 1] * 20}
    for kind in (pl.Array(pl.UInt8, 16), pl.List(pl.UInt8)):
        table = from_table(
            pl.DataFrame({**roles, "image": pl.Series(images).cast(kind)}), **ROLES
        )
        assert table.x.shape == (60, 15) and "image[3]" in table.preprocessing.ignored
        one = table.preprocessing.transform({"image": images[5]})
        np.testing.assert_array_equal(one[0], table.x[5])


def test_users_own_words_for_missing_cells(frame, expected, tmp_path):
    frame.with_columns(pl.col("mass").fill_null(-9)).write_csv(tmp_path / "t.csv")
    same(from_table(tmp_path / "t.csv", **ROLES, missing=["-9"]), expected)
    same(
        from_table(
            frame.with_columns(pl.col("mass").fill_null(-9)), **ROLES, missing=["-9"]
        ),
        expected,
    )

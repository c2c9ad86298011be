"""Tables and objects that cannot be used: each ends in one message that says what is
wrong, where, and what to do.
"""

import datetime
import gzip
import os
import zipfile

import numpy as np
import polars as pl
import pytest

from fedtailor.cli import main
from fedtailor.data.tables import from_table

ROLES = {"client": "site", "target": "sick"}
ROWS = 24


def csv(separator=",", header="site,age,sick", row="{site},{age},{sick}", change=None):
    """A good table of three sites as text; `change` replaces lines (0 is the
    header).
    """
    lines = [header] + [
        row.format(
            site="abc"[number % 3], age=30 + (7 * number) % 24, sick=number // 3 % 2
        )
        for number in range(ROWS)
    ]
    for number, line in (change or {}).items():
        lines[number] = line
    return "\n".join(lines).replace(",", separator).encode()


def frame(**columns):
    """The same table as a frame, with some columns replaced."""
    numbers = np.arange(ROWS)
    good = {
        "site": np.array(list("abc"))[numbers % 3],
        "age": 30.5 + (7 * numbers) % 24,
        "sick": numbers // 3 % 2,
    }
    return pl.DataFrame(
        {
            name: values
            for name, values in {**good, **columns}.items()
            if values is not None
        }
    )


def with_age(cells, **options):
    """A table with a wide range of ages, some of whose cells are given by row."""
    ages = [str(20 + number) for number in range(60)]
    for row, cell in cells.items():
        ages[row - 1] = cell
    sites, sick = (
        [["a", "b"][number % 2] for number in range(60)],
        [number // 2 % 2 for number in range(60)],
    )
    return pl.DataFrame({"site": sites, "age": ages, "sick": sick}), options


FILES = {
    "empty": (b"", {}, "is empty; it needs a line of column names"),
    "blank": (b"\n \n\n", {}, "is empty"),
    "header only": (
        b"site,age,sick\n",
        {},
        r"has columns \(site, age, sick\) and no rows; add one",
    ),
    "no header": (
        csv(header="1,2,0"),
        {},
        "first line holds numbers .1, 2, 0., not column names; add a line",
    ),
    "header twice": (
        csv(header="site,sick,sick"),
        {},
        "'sick' stands 2 times, in columns 2 and 3; rename",
    ),
    "nameless": (csv(header="site,,"), {}, "columns 2, 3 have no name; give each one"),
    "one column": (
        b"site\na\nb\n",
        {},
        "one column only, 'site', when separated by ','.*say what separates",
    ),
    "wrong separator": (
        csv(),
        {"separator": ";"},
        "one column only, 'site,age,sick', when separated by ';'",
    ),
    "long lines": (
        csv(change={5: "a,40,1,9", 7: "b,1,0,1"}),
        {},
        "2 of 25 lines .*line 6 has 4.; mend",
    ),
    "short lines": (
        csv(change={5: "a,40"}),
        {},
        "1 of 25 lines have other than the 3 cells .*line 6 has 2",
    ),
    "a quote that is not closed": (
        csv(change={5: 'a,"40,1'}),
        {},
        "a quote in line 6 is never closed; close it",
    ),
    "an open quote in the last column": (
        csv(change={9: 'a,40,"1'}),
        {},
        "a quote in line 10 is never closed; close it",
    ),
    "an open quote in the header": (
        csv(header='site,age,"sick'),
        {},
        "a quote in line 1 is never closed; close it",
    ),
    "a quote that ends later": (
        csv(change={5: "a,40,1,7", 7: 'a,"40,1', 9: 'a,40",1,1'}),
        {},
        "2 of 23 lines have other than the 3 cells .*line 6 has 4",
    ),
    "a row over several lines": (
        csv(change={7: 'a,"40,1', 9: 'a,40",1,1'}),
        {},
        "1 of 23 lines .*lines 8 to 10, by a quote one row, have 4",
    ),
    "zip": (
        b"PK\3\4" + b"x" * 99,
        {},
        "not a text file, it looks like .xlsx; give it that ending",
    ),
    "binary": (bytes(range(256)) * 9, {}, "not a text file; save the table as CSV"),
    "other encoding": (
        "site,age,sick\né,1,0\n".encode("latin-1"),
        {"encoding": "ascii"},
        "is not ascii: byte 14",
    ),
    "no client": (
        csv(header="ward,age,sick"),
        {},
        "no column 'site' for client .columns: ward.*name the client",
    ),
    "near client": (
        csv(header="Sites,age,sick"),
        {},
        "no column 'site' for client; did you mean 'Sites'?",
    ),
    "near target": (
        csv(header="site,age,sikc"),
        {},
        "'sick' for target; did you mean 'sikc'?.*name the column to",
    ),
    "near feature": (
        csv(),
        {"features": ["agee"]},
        "no column 'agee' for features; did you mean 'age'?",
    ),
    "near drop": (
        csv(),
        {"drop": ["agee"]},
        "no column 'agee' for drop; did you mean 'age'?",
    ),
    "client missing": (
        csv(change={4: "?,40,1"}),
        {},
        "client column 'site' is missing in 1 of 24 rows, first in row 4",
    ),
    "target missing": (
        csv(change={4: "b,40,?"}),
        {},
        "'sick' is missing in 1 of 24 rows, first in row 4 .client 'b'",
    ),
    "infinite": (
        csv(change={4: "b,inf,1"}),
        {},
        "column 'age' holds 1 infinite numbers, first in row 4; replace",
    ),
    "not to be standardised": (
        csv(change={4: "b,-1e155,1"}),
        {},
        "column 'age' holds numbers beyond 1e.150, first in row 4, which cannot be",
    ),
    "too large": (
        csv(change={4: "b,1e400,1"}),
        {},
        "column 'age' holds 1 infinite numbers, first in row 4",
    ),
}
FRAMES = {
    "one client": (
        frame(site=["a"] * ROWS),
        {},
        "'site' holds one client only, 'a'; a federation needs two",
    ),
    "all clients": (
        frame(site=list(map(str, range(ROWS)))),
        {},
        "another client in each of the 24 rows; a client nee",
    ),
    "decimal clients": (
        frame(site=np.arange(ROWS) / 7),
        {},
        "'site' holds decimal numbers such as 0.14",
    ),
    "decimal clients in single precision": (
        frame(site=np.full(ROWS, 3.6, np.float32)),
        {},
        "'site' holds decimal numbers such as 3.6;",
    ),
    "one class": (
        frame(sick=[1] * ROWS),
        {},
        "target column 'sick' holds one class only, 1; there is nothing",
    ),
    "one value": (
        frame(sick=[1.5] * ROWS),
        {},
        "target column 'sick' is 1.5 in all rows; there is nothing",
    ),
    "many classes": (
        frame(sick=[f"p{n}" for n in range(ROWS)]),
        {},
        "24 different values in 24 rows, too many",
    ),
    "numbers as classes": (
        frame(sick=np.arange(ROWS)),
        {"task": "classification"},
        "or say task regression",
    ),
    "text regressed": (
        frame(sick=["no", "yes"] * 12),
        {"task": "regression"},
        "not numbers; say task classification",
    ),
    "dates predicted": (
        frame(sick=[datetime.date(2020, 1, 1)] * ROWS),
        {},
        "'sick' holds Date.*must hold numbers",
    ),
    "NaN targets": (
        frame(sick=[np.nan, *np.ones(ROWS - 1)]),
        {},
        "missing in 1 of 24 rows, first in row 1",
    ),
    "huge target": (
        frame(sick=[1e155, *np.ones(ROWS - 1)]),
        {},
        "'sick' holds numbers beyond 1e.150, first in row 1",
    ),
    "infinite target": (
        frame(sick=[np.inf, *np.ones(ROWS - 1)]),
        {},
        "'sick' holds infinite numbers, first in row 1",
    ),
    "no positive": (
        frame(),
        {"positive": "2"},
        "positive names '2', which target column 'sick' never holds; .*0, 1",
    ),
    "all positive": (
        frame(),
        {"positive": ">=0"},
        "all rows of target column 'sick' are positive .>=0.; name other",
    ),
    "strange positive": (
        frame(),
        {"positive": "> x"},
        "after > stands a number, as in '>0'",
    ),
    "text compared": (
        frame(sick=["no", "yes"] * 12),
        {"positive": ">0"},
        "'sick' holds text; name its labels",
    ),
    "positive regression": (
        frame(),
        {"positive": "1", "task": "regression"},
        "positive is for classes, and task is",
    ),
    "empty column": (
        frame(age=[None] * ROWS),
        {},
        "no input column is left: 'age' is missing in all training rows",
    ),
    "empty and asked for": (
        frame(age=[None] * ROWS, mass=np.random.rand(ROWS)),
        {"features": ["age", "mass"]},
        "column 'age' is asked for and is missing in all training rows; fill it in",
    ),
    "constant": (
        frame(age=[1] * ROWS),
        {},
        "no input column is left: 'age' is the same in all training rows",
    ),
    "no inputs": (
        frame(age=None),
        {},
        "no input column besides site, sick; a model needs one",
    ),
    "mixed types": (
        *with_age({7: "old", 9: "young"}),
        "'age' mixes numbers with 2 cells of text such as 'old'; mend",
    ),
    "dates and text": (
        frame(
            age=[f"2024-01-{1 + day:02}" for day in range(22)] + ["2024-13-45", "?!"]
        ),
        {},
        "'age' mixes dates such as '2024-01-01' with 2 other cells such as '2024-13-45';"
        " mend",
    ),
    "text before dates": (
        frame(age=["unclear"] + [f"{1 + day}.02.2024" for day in range(23)]),
        {},
        "'age' mixes dates such as '1.02.2024' with 1 other cells such as 'unclear'; mend",
    ),
    "points and commas": (
        *with_age({7: "1,5", 9: "2.5"}),
        "with a decimal point such as '2.5' and with a decimal comma such as '1,5'",
    ),
    "bytes": (
        frame(age=[b"x"] * ROWS),
        {},
        "column 'age' holds Binary, not numbers.*drop or encode",
    ),
    "structs": (frame(age=[{"x": 1}] * ROWS), {}, "column 'age' holds Struct"),
    "ragged arrays": (
        frame(age=[[1.0]] * 23 + [[1.0, 2.0]]),
        {},
        "column 'age' holds List",
    ),
    "two dates": (
        frame(age=["03/04/2020"] * 23 + ["01/02/2020"]),
        {},
        "with the day or the month first; write them",
    ),
    "split words": (
        frame(part=["train", "tset"] * 12),
        {"split": "part"},
        "gives the split, and says tset in 12 rows",
    ),
    "all test": (
        frame(part=["train", "test", "test"] * 8),
        {"split": "part"},
        "clients b, c have no training rows",
    ),
    "no test": (
        frame(part=["train"] * ROWS),
        {"split": "part"},
        "no client has a row to test on",
    ),
    "straddling": (
        frame(part=["train"] * 12 + ["test"] * 12, who=np.arange(ROWS) % 6),
        {"split": "part", "group": "who"},
        (
            "6 groups of column 'who' have rows in more than one split .first the group"
            " of row 1"
        ),
    ),
    "no time": (
        frame(when=[None, *range(23)]),
        {"time": "when"},
        "time column 'when' is missing in 1 rows, first in r",
    ),
    "text time": (
        frame(when=["now", "then"] * 12),
        {"time": "when"},
        "'when' holds category values such as 'now', neither numbers",
    ),
    "unseen stranger": (
        frame(),
        {"unseen": ("d",)},
        "unseen names client 'd', which does not exist",
    ),
}
OPTIONS = {
    "long separator": ({"separator": "::"}, "separator is '::'; give one character"),
    "no encoding": ({"encoding": "utf-9"}, "no encoding 'utf-9'; try utf-8"),
    "shares": (
        {"test": 0.8, "val": 0.3},
        "test is 0.8 and val is 0.3; they are shares",
    ),
    "folds": ({"folds": 1}, "folds is 1; it must be 2 or more"),
    "two rules": ({"folds": 3, "time": "age"}, "time and folds exclude each other"),
    "time and group": (
        {"group": "who", "time": "age"},
        "time and group exclude each other",
    ),
    "roles": ({"client": "sick"}, "column 'sick' cannot be both client and target"),
    "target as input": (
        {"features": ["age", "sick"]},
        "'sick' is the target column; take it out of features",
    ),
    "in and out": (
        {"features": ["age"], "drop": ["age"]},
        "'age' is in both features and drop",
    ),
    "near option": (
        {"feature": ["age"]},
        "no option 'feature'; did you mean 'features'?",
    ),
}
OBJECTS = {
    "list": ([1, 2], "a table is a path, a polars or a pandas frame, not list"),
    "array": (np.zeros((3, 3)), "a polars or a pandas frame, not ndarray"),
    "none": (None, "not NoneType"),
}


def said(error):
    """The message: one line, or a numbered list; it never shows a traceback of the
    libraries below.
    """
    message = str(error.value)
    assert "Traceback" not in message and len(message) < 2000
    return message


@pytest.mark.parametrize("name", FILES)
def test_a_bad_file_is_named_with_what_to_do(name, tmp_path):
    content, options, message = FILES[name]
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        from_table(path, **{**ROLES, **options})
    assert str(path) in said(error)


@pytest.mark.parametrize("name", FRAMES)
def test_a_bad_frame_is_explained(name):
    table, options, message = FRAMES[name]
    with pytest.raises(ValueError, match=message) as error:
        from_table(table, **{**ROLES, **options})
    assert said(error).startswith(("the frame: ", "unseen"))


@pytest.mark.parametrize("name", OPTIONS)
def test_options_that_contradict_each_other_are_explained(name):
    options, message = OPTIONS[name]
    with pytest.raises(ValueError, match=message):
        from_table(frame(), **{**ROLES, **options})


@pytest.mark.parametrize("name", OBJECTS)
def test_other_objects_are_no_tables(name):
    thing, message = OBJECTS[name]
    with pytest.raises(ValueError, match=message):
        from_table(thing, **ROLES)


def test_what_is_no_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "notes.doc").write_text("x")
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(csv())[:-20])
    (tmp_path / "text.csv.gz").write_bytes(csv())
    (tmp_path / "damaged.parquet").write_bytes(b"PAR1 nonsense")
    for name, message in (
        ("pipe.csv", "is not a regular file"),
        ("folder.csv", "is a directory; give the file in it"),
        ("nowhere.csv", "no file .*nowhere.csv .No such file"),
        ("notes.doc", "of no known kind; give a file that ends in .csv"),
        ("cut.csv.gz", "cannot be read"),
        ("text.csv.gz", "cannot be read: Not a gzipped file"),
        ("damaged.parquet", "cannot be read as Parquet"),
    ):
        with pytest.raises(ValueError, match=message) as error:
            from_table(tmp_path / name, **ROLES)
        assert name in said(error)


def test_a_damaged_workbook_is_named(tmp_path):
    pytest.importorskip("fastexcel", reason="the extra `excel` is not installed")
    with zipfile.ZipFile(tmp_path / "odd.xlsx", "w") as file:
        file.writestr("nothing", "")
    with pytest.raises(ValueError, match=r"odd\.xlsx cannot be read as Excel"):
        from_table(tmp_path / "odd.xlsx", **ROLES)


def test_all_problems_are_told_at_once():
    ages = [str(20 + number) for number in range(59)] + ["old"]
    many = pl.DataFrame(
        {
            "site": ["a", "b"] * 30,
            "sick": [None, 1] * 30,
            "age": ages,
            "mass": [np.inf] * 60,
            "blob": [b"x"] * 60,
        }
    )
    with pytest.raises(ValueError, match="the frame: 4 problems:") as error:
        from_table(many, **ROLES)
    lines = said(error).splitlines()[1:]
    assert [line.split(".")[0].strip() for line in lines] == ["1", "2", "3", "4"]
    for line, column in zip(lines, ("sick", "age", "mass", "blob"), strict=True):
        assert f"column {column!r}" in line


def test_the_command_line_says_it_and_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.csv").write_bytes(csv(change={4: "?,40,?", 6: "a,inf,1"}))
    assert main(["compare", "bad.csv", "--client", "site", "--target", "sick"]) == 2
    shown = capsys.readouterr()
    assert (
        "bad.csv: 3 problems" in shown.err
        and "'site' is missing" in shown.err
        and "infinite" in shown.err
    )
    assert shown.out == "" and os.listdir() == ["bad.csv"]

"""Warnings about a table's content: they name what is there, and nothing else."""

import numpy as np
import polars as pl
import pytest

from fedtailor.cli.table_experiment import table_description
from fedtailor.data.tables import Preprocessing, from_table
from fedtailor.data.tables.describing import describe_table
from fedtailor.data.tables.suspicions import far_off_warnings, weight_warnings
from fedtailor.deployment.predictions import read_raw_rows
from fedtailor.engine.runs.baseline import data_warnings
from fedtailor.engine.training.binding import bind
from fedtailor.models import logistic

ROLES = {"client": "site", "target": "y"}
ROWS = 240


def frame(seed=0, rows=ROWS, **changed):
    """Three sites, measures, and a target that follows from them in part."""
    rng = np.random.default_rng(seed)
    mass = rng.normal(130, 12, rows).round(1)
    age = rng.integers(20, 90, rows)
    visits = rng.poisson(1.5, rows)
    y = 0.05 * mass + 0.03 * age + rng.normal(0, 1, rows)
    columns = {
        "site": [f"s{number % 3}" for number in range(rows)],
        "mass": mass,
        "age": age,
        "visits": visits,
        "smoker": rng.choice(["no", "yes", "once"], rows),
        "y": y.round(2),
    }
    return pl.DataFrame(columns | changed)


def binary(table, cut=None):
    y = table["y"].to_numpy()
    cut = np.median(y) if cut is None else cut
    return table.with_columns(y=pl.Series(np.where(y > cut, "ill", "well")))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("target", ["numbers", "classes"])
def test_nothing_is_said_of_an_ordinary_table(seed, target):
    table = frame(seed)
    if target == "classes":
        table = binary(table)
    assert from_table(table, **ROLES).warnings == ()


# codes for missing cells
# --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "code"), [("mass", -999), ("mass", 0), ("age", 999), ("age", -9)]
)
def test_codes_of_missing_cells_are_named(column, code):
    table = frame()
    values = table[column].to_list()
    values[:35] = [type(values[0])(code)] * 35
    table = table.with_columns(pl.Series(column, values))
    (warning,) = from_table(table, **ROLES).warnings
    assert warning.startswith(f"{column!r} is {code} in ")
    assert f"--missing {column}={code}" in warning
    # What is offered helps: the cells are missing, those of other columns are not.
    mended = from_table(table, **ROLES, missing=(f"{column}={code}",))
    assert mended.warnings == ()
    assert f"{column} is missing" in mended.preprocessing.inputs
    assert "visits is missing" not in mended.preprocessing.inputs


@pytest.mark.parametrize(
    ("column", "codes"),
    [
        ("mass", (-999, -998)),
        ("mass", (-9, 999)),
        ("mass", (9999, 0)),
        ("mass", (-99, -999)),
        ("age", (777, 888, 999)),
        ("visits", (99,)),
        ("visits", (88, 99)),
    ],
)
def test_codes_do_not_hide_each_other(column, codes):
    table = frame()
    values = table[column].to_list()
    for number, code in enumerate(codes):
        values[12 * number : 12 * (number + 1)] = [type(values[0])(code)] * 12
    table = table.with_columns(**{column: pl.Series(values)})
    warnings = from_table(table, **ROLES).warnings
    assert {int(warning.split()[2]) for warning in warnings} == {*codes}
    others = pl.Series([value for value in values if value not in codes])
    for warning in warnings:
        low, _, high = warning.split(", and ")[1].split()[:3]
        assert others.min() <= float(low) < float(high) <= others.max()
    missing = [f"{column}={code}" for code in codes]
    assert from_table(table, **ROLES, missing=missing).warnings == ()


def test_a_code_that_occurs_twice_is_far_away():
    table = frame()
    mass = table["mass"].to_list()
    mass[:6] = [-999.0] * 6
    (warning,) = from_table(table.with_columns(mass=pl.Series(mass)), **ROLES).warnings
    assert warning.startswith("'mass' is -999 in ")


def test_a_code_in_the_target_of_a_regression_is_named():
    table = frame()
    y = table["y"].to_list()
    y[:20] = [-999.0] * 20
    table = table.with_columns(y=pl.Series(y))
    (warning,) = from_table(table, **ROLES).warnings
    assert warning.endswith("say --missing y=-999 --skip-unlabelled")
    mended = from_table(table, **ROLES, missing=["y=-999"], skip_unlabelled=True)
    assert mended.warnings == ()
    assert len(mended.y) == ROWS - 20


def test_a_client_all_of_whose_cells_are_a_code_is_named():
    table = frame()
    mass = [
        0.0 if site == "s1" else value
        for site, value in zip(table["site"], table["mass"], strict=True)
    ]
    (warning,) = from_table(table.with_columns(mass=pl.Series(mass)), **ROLES).warnings
    assert "(all rows of s1)" in warning


def test_a_code_of_one_column_is_read_from_files_and_kept_for_predictions(tmp_path):
    table = frame(
        visits=[0, 1, 2] * 80, mass=[0.0] * 40 + [100.0 + n for n in range(200)]
    )
    path = tmp_path / "table.csv"
    table.write_csv(path)
    read = from_table(path, **ROLES, missing=("mass=0", "never"))
    inputs = read.preprocessing.inputs
    assert "mass is missing" in inputs and "visits is missing" not in inputs
    stored = Preprocessing.from_json(read.preprocessing.to_json())
    rows = stored.transform(table.head(1).drop("y", "site"))
    plain = stored.transform(table.tail(1).drop("y", "site"))
    assert rows.shape == plain.shape
    np.testing.assert_array_equal(rows, read.x[:1])


@pytest.mark.parametrize("as_file", [False, True])
def test_a_word_for_missing_cells_of_a_column_that_there_is_not_is_noted(
    tmp_path, as_file
):
    """It may be mistyped, or a word with "=" that stands in cells."""
    table = frame(note=["n=0", "low", "high", "low"] * 60)
    path = tmp_path / "table.csv"
    table.write_csv(path)
    words = ("n=0", "mass=0", "never")
    read = from_table(path if as_file else table, **ROLES, missing=words)
    said = "No column is called 'n': 'n=0' stands for a missing cell in all columns."
    assert [note for note in read.notes if "No column" in note] == [said]
    inputs = read.preprocessing.inputs
    assert "note = low" in inputs and "note = n=0" not in inputs
    # Rows to predict need not have a column that the words name.
    table.drop("mass", "y", "site").write_csv(path)
    assert len(read_raw_rows(path, read.preprocessing)) == len(table)


# columns that give the target away
# --------------------------------------------------------------------------------------


def test_a_part_of_the_target_is_named():
    # As motor_UPDRS is a part of total_UPDRS (r = .95).
    table = frame()
    part = table["y"] + np.random.default_rng(1).normal(0, 0.3, ROWS)
    (warning,) = from_table(table.with_columns(part=part), **ROLES).warnings
    assert warning.startswith("column 'part' alone predicts the target (it explains 9")
    assert "--drop part" in warning
    assert (
        from_table(table.with_columns(part=part), **ROLES, drop=["part"]).warnings == ()
    )


@pytest.mark.parametrize("recode", ["text", "number", "squared"])
def test_a_recoded_target_is_named(recode):
    table = frame()
    y = table["y"].to_numpy()
    if recode == "squared":
        table = table.with_columns(**{"the code": pl.Series((y - 9) ** 3)})
    else:
        table = binary(table)
        names = {"text": ("B", "A"), "number": (7.0, 3.0)}[recode]
        codes = [names[label == "ill"] for label in table["y"]]
        codes[:4] = [names[0]] * 4  # not the same in all rows
        table = table.with_columns(**{"the code": pl.Series(codes)})
    (warning,) = from_table(table, **ROLES).warnings
    assert warning.startswith("column 'the code' alone ")
    assert "--drop 'the code'" in warning


def test_two_columns_that_leak_do_not_hide_each_other():
    table = frame()
    columns = {"one": table["y"] * 2 + 1, "two": table["y"] ** 3}
    warnings = from_table(table.with_columns(**columns), **ROLES).warnings
    assert [warning.split("'")[1] for warning in warnings] == ["one", "two"]


def test_a_part_of_the_target_is_named_beside_other_good_predictors():
    # Twenty ranges of 84 rows do not show how near a line the rows are.
    table = frame()
    noise = np.random.default_rng(1).normal(0, 0.6, (2, ROWS))
    y = table["y"].to_numpy() * 2
    columns = {"good": y + 3 * noise[0], "part": y + 0.7 * noise[1], "y": y}
    warnings = from_table(table.with_columns(**columns), **ROLES).warnings
    assert [warning.split("'")[1] for warning in warnings] == ["part"]


def test_many_columns_that_grow_with_the_target_are_named_in_one_sentence():
    table = frame()
    noise = np.random.default_rng(1).normal(0, 0.2, (4, ROWS))
    y = table["y"].to_numpy()
    sizes = {f"size{number}": y + noise[number] for number in range(4)}
    (warning,) = from_table(table.with_columns(**sizes), **ROLES).warnings
    assert warning.startswith("each of the columns size0, size1, size2, size3 alone ")


def test_a_strong_predictor_among_strong_ones_is_none():
    # Of two halves of a sum, neither says more than the other columns together.
    table = frame()
    rng = np.random.default_rng(1)
    strong, weak = rng.normal(0, 1.9, ROWS), rng.normal(0, 1, ROWS)
    y = strong + weak + 0.05 * rng.normal(size=ROWS)
    columns = {"strong": strong, "weak": weak, "y": y}
    warnings = from_table(table.with_columns(**columns), **ROLES).warnings
    assert len(warnings) <= 1


# repeated rows
# --------------------------------------------------------------------------------------


def test_a_table_that_is_stacked_is_found():
    table = frame()
    stacked = pl.concat([table] * 4)
    (warning,) = from_table(stacked, **ROLES).warnings
    assert warning.startswith("960 of 960 rows occur more than once")
    assert "test rows are in the training data, too" in warning
    assert "--group" in warning


def test_equal_inputs_with_other_targets_or_clients_are_no_leak():
    table = frame()
    other = table.with_columns(
        y=pl.col("y") + 1000 * np.random.default_rng(0).random(ROWS)
    )
    assert from_table(pl.concat([table, other]), **ROLES).warnings == ()
    moved = table.with_columns(site=pl.col("site") + "'")
    assert from_table(pl.concat([table, moved]), **ROLES).warnings == ()


@pytest.mark.parametrize("rows", [60, 240, 2000])
def test_chance_explains_equal_rows_of_grades(rows):
    rng = np.random.default_rng(rows)
    grades = {name: rng.integers(1, 4, rows) for name in "abcd"}
    table = pl.DataFrame(
        {
            "site": [f"s{number % 3}" for number in range(rows)],
            **grades,
            "y": [
                ("no", "yes")[int(a + b > 4)]
                for a, b in zip(grades["a"], grades["b"], strict=True)
            ],
        }
    )
    assert not any(
        "more than once" in warning for warning in from_table(table, **ROLES).warnings
    )


def test_what_is_said_of_a_table_is_said_of_its_runs():
    table = from_table(pl.concat([binary(frame())] * 2), **ROLES)
    warnings = data_warnings(table, bind(logistic(), table))
    assert [w for w in warnings if "more than once" in w] == list(table.warnings)
    assert "Warning: 480 of 480 rows occur" in table_description(table)


# classes and clients
# --------------------------------------------------------------------------------------


def test_a_rare_class_is_named():
    table = frame(rows=1000)
    cut = np.sort(table["y"].to_numpy())[-11]
    (warning,) = from_table(binary(table, cut), **ROLES).warnings
    assert "% of the rows have the class well: always answering it" in warning
    assert "--metrics roc_auc" in warning


def test_clients_of_one_row_raise_an_eyebrow():
    rng = np.random.default_rng(0)
    # Three clients of many rows come first, and are not examples of those with one.
    site = [*range(100, 167), *rng.integers(0, 3, 30).tolist()]
    table = frame(rows=97).with_columns(site=pl.Series(site))
    warning = from_table(table, **ROLES).warnings[0]
    said = "67 of 70 clients have a single row, such as 100, 101, 102: is"
    assert warning.startswith(said)
    assert "is 'site' the column" in warning


# what is far off, lacking or repeated
# --------------------------------------------------------------------------------------


@pytest.mark.parametrize("column", ["y", "mass"])
def test_a_number_that_is_far_off_is_named(column):
    table = frame()
    values = table[column].to_list()
    values[3] = 1e9
    changed = table.with_columns(pl.Series(column, values))
    notes = describe_table(changed, client="site")[1]
    hidden = describe_table(changed, client="site", least=4)[1]
    # Whether the row trains or is tested.
    for seed in range(4):
        found = from_table(changed, **ROLES, seed=seed).warnings
        assert any(f"'{column}' is 1e+09 in 1 of {ROWS} rows" in text for text in found)
    assert any(f"'{column}' is 1e+09 in 1 of {ROWS} rows" in text for text in notes)
    assert not any("1e+09" in text for text in hidden)
    assert not any("--missing" in text or "skip" in text for text in found)


def test_columns_with_heavy_tails_are_not_far_off():
    """Incomes are log-normal with a deviation of .5 to 1; costs and lengths of stay, of 2."""
    rng, alarms = np.random.default_rng(0), 0
    for _ in range(20):
        for values in (
            np.exp(rng.normal(10, 2, 2000)),
            rng.pareto(1.5, 2000),
            rng.standard_t(2, 2000),
            np.where(rng.random(2000) < 0.8, 0, np.exp(rng.normal(8, 1, 2000))),
        ):
            alarms += len(far_off_warnings("cost", values))
    assert alarms == 0


def test_a_column_that_a_client_lacks_names_the_client():
    lacking = [None if row % 3 == 1 else float(row % 7) for row in range(ROWS)]
    table = from_table(frame(marker=lacking), **ROLES)
    assert "Missing in all rows of a client: marker (s1)." in table.notes


def test_several_rows_of_a_patient_are_named():
    pairs = [f"p{row // 6:03d}{row % 3}" for row in range(ROWS)]
    (warning,) = from_table(frame(visitor=pairs), **ROLES).warnings
    assert "'visitor' has 120 values in 240 rows" in warning
    assert "--group visitor" in warning
    assert from_table(frame(visitor=pairs), **ROLES, group="visitor").warnings == ()
    numbers = [1000 + row // 2 for row in range(ROWS)]  # at two clients
    (warning,) = from_table(frame(patient_id=numbers), **ROLES).warnings
    assert "--group patient_id" in warning


def test_long_numbers_that_all_differ_are_no_input():
    insured = [7_560_000_000_000 + 91_193 * row**2 for row in range(ROWS)]
    table = from_table(frame(ahv=insured), **ROLES)
    assert "a different whole number" in table.preprocessing.ignored["ahv"]


@pytest.mark.parametrize(
    ("name", "is_told"),
    [
        ("weight", True),
        ("Weights", True),
        ("case_weight", True),
        ("sampling weight", True),
        ("birth_weight", False),
        ("weight_kg", False),
    ],
)
def test_a_column_that_may_weigh_rows_is_named(name, is_told):
    """It is an input like any other, as rows have no weights here."""
    said = weight_warnings(["age", name])
    assert bool(said) == is_told
    if is_told:
        assert said[0].startswith(f"{name} is an input like any other")
        assert "leave it out (--drop " in said[0]

"""A file of raw rows goes in, labels or targets in their own unit come out; nothing is
guessed.
"""

import numpy as np
import polars as pl
import pytest

import fedtailor as ft
from deployment_helpers import NAMES, write_table
from fedtailor.deployment.opening import models_at
from fedtailor.deployment.predictions import predictions


@pytest.fixture(scope="module")
def models(trained):
    return models_at(trained[1])


@pytest.fixture
def table(tmp_path):
    return write_table(tmp_path / "new.csv", rows=12, seed=5)


def test_columns_are_found_by_name_and_labels_are_the_users(models, table):
    frame = pl.read_csv(table)
    found = predictions(models, table, NAMES[1], probabilities=True)
    expected = models[NAMES[1]].probabilities(
        models[NAMES[1]].preprocessing.transform(frame)
    )
    assert found.columns == ["row", "prediction", "probability", "p(ill)", "p(well)"]
    assert found["row"].to_list() == list(range(1, 13))
    np.testing.assert_allclose(found["p(ill)"], expected[:, 0])
    assert found["prediction"].to_list() == [
        "ill" if share > 0.5 else "well" for share in expected[:, 0]
    ]
    np.testing.assert_allclose(found["probability"], expected.max(axis=1))
    shuffled = table.with_name("shuffled.csv")
    frame.select("town", "mass", "age").write_csv(shuffled)
    assert predictions(models, shuffled, NAMES[1], probabilities=True).equals(found)


def test_further_columns_are_kept_on_request(models, table):
    plain, named = pl.read_csv(table), table.with_name("named.csv")
    plain.with_row_index("visit", 100).write_csv(named)
    for client in (NAMES[0], None):
        found = predictions(models, named, client, keep=("visit", "town"))
        assert found.columns[:3] == ["row", "visit", "town"]
        assert found["visit"].to_list() == list(range(100, 112))
        assert found["town"].to_list() == plain["town"].to_list()
        assert found.drop("visit", "town").equals(predictions(models, table, client))
    with pytest.raises(ValueError, match="no column 'ward' to keep"):
        predictions(models, named, None, keep=("ward",))


def test_each_row_has_its_own_clients_model(models, table):
    found = predictions(models, table, None)
    assert found["client"].to_list() == [NAMES[number % 3] for number in range(12)]
    for name in NAMES:
        own = predictions(models, table, name)
        mine = found.filter(pl.col("client") == name)
        own = own[(mine["row"] - 1).to_list()]
        assert mine["prediction"].to_list() == own["prediction"].to_list()
        np.testing.assert_allclose(mine["probability"], own["probability"], rtol=1e-6)
    table.write_text(table.read_text().replace(NAMES[0], "Nobody"))
    with pytest.raises(ValueError, match=r"no client with a model 'Nobody' .*enroll"):
        predictions(models, table, None)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("age", "wage", "no column 'age' for the model's inputs"),
        ("site,", "site,shoe,", "more|cells|shoe"),
        ("Oslo", "Paris", "column 'town' is 'Paris' in"),
        (
            "Oslo",
            "",
            (
                "column 'town' is missing in .* rows, first in row 2, and in training"
                " it never was"
            ),
        ),
        ("Oslo", "?", "column 'town' is missing in"),
    ],
)
def test_rows_unlike_those_of_training_are_refused(models, table, old, new, problem):
    table.write_text(table.read_text().replace(old, new))
    with pytest.raises(ValueError, match=problem):
        predictions(models, table, NAMES[0])


def test_what_is_asked_for_is_imputed(models, table):
    plain = predictions(models, table, NAMES[0], probabilities=True)
    table.write_text(
        table.read_text().replace("Rome", "?")
    )  # Oslo is the most frequent one
    imputed = predictions(models, table, NAMES[0], missing="impute", probabilities=True)
    as_oslo = table.with_name("oslo.csv")
    as_oslo.write_text(table.read_text().replace("?", "Oslo"))
    assert imputed.equals(predictions(models, as_oslo, NAMES[0], probabilities=True))
    assert not imputed.equals(plain)


def test_models_of_arrays_take_numbers_in_order(of_arrays, tmp_path):
    models, x = (
        models_at(of_arrays[1]),
        np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32),
    )
    name = next(iter(models))
    np.save(tmp_path / "rows.npy", x)
    pl.DataFrame(x, schema=list("abcd")).write_csv(tmp_path / "rows.csv")
    expected = models[name].predict(x).tolist()
    for file in ("rows.npy", "rows.csv"):
        assert (
            predictions(models, tmp_path / file, name)["prediction"].to_list()
            == expected
        )
    with pytest.raises(
        ValueError, match="name the client whose model predicts with --client"
    ):
        predictions(models, tmp_path / "rows.npy", None)
    pl.DataFrame(x, schema=list("abcd")).with_columns(b=None).write_csv(
        tmp_path / "gap.csv"
    )
    with pytest.raises(ValueError, match="the input is nan in row 0, column 1"):
        predictions(models, tmp_path / "gap.csv", name)
    pl.DataFrame(x[:, :3], schema=list("abc")).write_csv(tmp_path / "narrow.csv")
    with pytest.raises(
        ValueError, match=r"has 3 columns; these models .* take 4 numbers a row"
    ):
        predictions(models, tmp_path / "narrow.csv", name)
    for content in (
        b"no array",
        b"PK\x03\x04 no archive",
        of_numpy((2**50,), "<f8"),
        of_numpy((2**70,), "<f8"),
        of_numpy((1,), [("a", "<f8")]),
    ):
        (tmp_path / "rows.npy").write_bytes(content)
        with pytest.raises(ValueError, match=r"^[^\n]*holds no array[^\n]*$"):
            predictions(models, tmp_path / "rows.npy", name)


def of_numpy(shape, descr):
    """The bytes of a .npy file that says that it holds an array of this shape and type."""
    said = {"descr": descr, "fortran_order": False, "shape": shape}
    head = f"{said!r}".ljust(117) + "\n"
    return (
        b"\x93NUMPY\x01\x00"
        + len(head).to_bytes(2, "little")
        + head.encode()
        + bytes(8)
    )


def test_a_newcomers_rows_are_encoded_with_their_targets(trained):
    unit = ft.open(trained[1]).preprocessing
    rows = [
        {"age": 40.0, "mass": None, "town": "Rome", "verdict": verdict}
        for verdict in ("well", "ill", "well")
    ]
    x, y = unit.transform_labelled(rows)
    np.testing.assert_array_equal(x, unit.transform(rows))
    assert unit.decode(y).tolist() == ["well", "ill", "well"]
    with pytest.raises(
        ValueError,
        match="target column 'verdict' is 'sick' in row 2; training had no such class",
    ):
        unit.transform_labelled([rows[0], {**rows[0], "verdict": "sick"}])
    with pytest.raises(ValueError, match="target column 'verdict' is missing in row 1"):
        unit.transform_labelled({**rows[0], "verdict": None})
    with pytest.raises(
        ValueError, match="the rows have no column 'verdict', which is the target"
    ):
        unit.transform_labelled(
            {key: value for key, value in rows[0].items() if key != "verdict"}
        )

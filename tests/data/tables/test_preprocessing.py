"""What is learned from a table's training rows, kept as JSON, and applied to raw rows
by name.
"""

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from scipy.linalg import sqrtm
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from fedtailor.data.tables import Preprocessing, from_table
from fedtailor.data.tables.decorrelation import fit_decorrelation
from fedtailor.data.tables.notes import decorrelation_notes

ROLES = {"client": "site", "target": "y"}
N = 400


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(1)
    town = rng.choice(
        ["Rome", "Oslo", "Bern", "Wien", "Nice"], N, p=[0.4, 0.3, 0.28, 0.01, 0.01]
    )
    return pl.DataFrame(
        {
            "site": [f"s{number % 4}" for number in range(N)],
            "mass": [
                None if rng.random() < 0.1 else float(value)
                for value in rng.lognormal(4, 0.3, N)
            ],
            "town": [None if rng.random() < 0.05 else str(value) for value in town],
            "code": rng.integers(1, 4, N),
            "smoker": [
                None if rng.random() < 0.1 else bool(value)
                for value in rng.random(N) < 0.3
            ],
            "born": [
                f"{year}-0{month}-01"
                for year, month in rng.integers((1930, 1), (2000, 9), (N, 2))
            ],
            "y": rng.normal(100, 20, N),
        }
    )


@pytest.fixture(scope="module")
def table(frame):
    return from_table(
        frame, **ROLES, categories=["code"], unseen=["s3"], keep_correlated=True, seed=1
    )


@pytest.fixture(scope="module")
def decorrelated(frame):
    return from_table(frame, **ROLES, categories=["code"], unseen=["s3"], seed=1)


def training_rows(table):
    return np.sort(table.train.take(table.seen).rows)


def test_it_is_what_scikit_learns_pipeline_learns_from_the_training_rows(frame, table):
    train = training_rows(table)
    days = frame["born"].str.to_date().cast(pl.Int32).to_numpy().astype(float)
    raw = np.empty((N, 5), object)
    mass, smoker = (
        frame["mass"].fill_null(np.nan).to_numpy(),
        frame["smoker"].cast(pl.Float64).to_numpy(),
    )
    columns = (mass, frame["town"].to_numpy(), frame["code"].to_numpy(), smoker, days)
    for place, values in enumerate(columns):
        raw[:, place] = values
    one_hot = {
        "min_frequency": 5,
        "max_categories": 21,
        "handle_unknown": "infrequent_if_exist",
        "sparse_output": False,
    }
    fill_text = SimpleImputer(strategy="most_frequent", missing_values=None)
    expected = (
        ColumnTransformer(
            [
                (
                    "mass",
                    make_pipeline(StandardScaler(), SimpleImputer(strategy="mean")),
                    [0],
                ),
                ("town", make_pipeline(fill_text, OneHotEncoder(**one_hot)), [1]),
                ("code", OneHotEncoder(**one_hot), [2]),
                ("smoker", SimpleImputer(strategy="most_frequent"), [3]),
                ("born", StandardScaler(), [4]),
            ]
        )
        .fit(raw[train])
        .transform(raw)
        .astype(float)
    )
    inputs = table.preprocessing.inputs
    assert inputs == (
        "mass",
        "mass is missing",
        "town = Bern",
        "town = Oslo",
        "town = Rome",
        "town = (other)",
        "town is missing",
        "code = 1",
        "code = 2",
        "code = 3",
        "smoker",
        "smoker is missing",
        "born",
    )
    values = [
        place for place, name in enumerate(inputs) if not name.endswith("missing")
    ]
    np.testing.assert_allclose(table.x[:, values], expected, rtol=1e-6, atol=1e-6)
    for name in ("mass", "town", "smoker"):
        np.testing.assert_array_equal(
            table.x[:, inputs.index(f"{name} is missing")],
            frame[name].is_null().to_numpy(),
        )


def test_inputs_of_a_regression_are_decorrelated(frame, table, decorrelated):
    train, learned = training_rows(table), decorrelated.preprocessing
    x = table.x.astype(np.float64)
    centred = x - x[train].mean(axis=0)
    covariance = centred[train].T @ centred[train] / len(train)
    floor = 3e-3 * np.trace(covariance) / len(covariance)
    inverse_root = sqrtm(covariance).real @ np.linalg.inv(
        covariance + floor * np.eye(len(covariance))
    )
    np.testing.assert_allclose(decorrelated.x, centred @ inverse_root, atol=1e-5)
    # The categories of a column add up to one, so two directions are lost here; along
    # the others the spread is one.
    spread = np.linalg.eigvalsh(np.cov(decorrelated.x[train].T, bias=True))
    assert (spread[:2] < 1e-6).all() and (spread[2:] > 0.8).all() and spread[-1] < 1
    assert learned.inputs == table.preprocessing.inputs and any(
        "decorrelated" in note for note in decorrelated.notes
    )
    # One row is what it is among all, to the bit, also of what was read back; and what
    # lacks it was never so.
    again = Preprocessing.from_json(learned.to_json())
    assert again == learned
    np.testing.assert_array_equal(
        again.transform(frame.row(7, named=True)), decorrelated.x[7:8]
    )
    assert (
        table.preprocessing.decorrelation is None
        and "decorrelation" not in table.preprocessing.to_json()
    )
    np.testing.assert_array_equal(
        replace(learned, decorrelation=None).transform(frame), table.x
    )
    for damage in ([[1.0]], [[1.0], 2.0], None):
        damaged = json.loads(learned.to_json())
        damaged["decorrelation"]["matrix"] = damage
        with pytest.raises(ValueError, match="decorrelation is not of 13 inputs"):
            Preprocessing.from_json(json.dumps(damaged))


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        ({"fill": "a text"}, "become 'a text', which is no number"),
        ({"kind": "category", "fill": 1.0}, "become 1.0, which is no category"),
        (
            {"kind": "category", "fill": "a", "categories": ["a", "b", "a"]},
            "a category of .* stands there twice",
        ),
        ({"deviation": 0.0}, "the deviation of .* is not above 0"),
    ],
)
def test_a_file_of_somebody_else_says_nothing_impossible_of_a_column(
    frame, damage, line
):
    content = json.loads(from_table(frame, **ROLES).preprocessing.to_json())
    number = next(it for it in content["columns"] if it["kind"] == "number")
    number.update(damage)
    with pytest.raises(ValueError, match=line):
        Preprocessing.from_json(json.dumps(content))


def test_classes_single_inputs_and_wide_tables_stay_as_they_are(frame):
    classes = from_table(
        frame.with_columns(y=pl.Series(["a", "b"] * (N // 2))), **ROLES
    )
    single = from_table(frame, **ROLES, features=["born"])
    assert (
        classes.preprocessing.decorrelation is None
        and single.preprocessing.decorrelation is None
    )
    assert not any("correlated" in note for note in (*classes.notes, *single.notes))
    wide = np.random.default_rng(0).normal(size=(40, 101)).astype(np.float32)
    assert (
        fit_decorrelation(wide) is None and fit_decorrelation(wide[:, 1:]) is not None
    )
    assert decorrelation_notes(None, 101, "pooled") == [
        "The inputs stay correlated: they are 101, more than 100."
    ]


def test_nothing_is_learned_from_other_rows(frame, decorrelated):
    """Other values in the rows for validation, test and unseen clients change no
    encoding, and no training input.
    """
    table = decorrelated
    train = np.zeros(N, np.bool_)
    train[training_rows(table)] = True
    other = pl.Series(~train)
    changed = frame.with_columns(
        mass=pl.when(other).then(pl.lit(1e6)).otherwise("mass"),
        town=pl.when(other).then(pl.lit("Atlantis")).otherwise("town"),
        smoker=pl.when(other).then(None).otherwise("smoker"),
        born=pl.when(other).then(pl.lit("1900-01-01")).otherwise("born"),
        y=pl.when(other).then(pl.lit(-1e4)).otherwise("y"),
    )
    again = from_table(changed, **ROLES, categories=["code"], unseen=["s3"], seed=1)
    assert again.preprocessing == table.preprocessing
    np.testing.assert_array_equal(again.x[train], table.x[train])
    np.testing.assert_array_equal(again.y[train], table.y[train])
    assert np.abs(again.x[~train] - table.x[~train]).max() > 1e3


def test_targets_of_a_regression_are_standardised_and_come_back(frame, table):
    train, learned = training_rows(table), table.preprocessing
    np.testing.assert_allclose(
        [table.y[train].mean(), table.y[train].std()], [0, 1], atol=1e-6
    )
    np.testing.assert_allclose(
        learned.decode(table.y), frame["y"].to_numpy(), rtol=1e-6
    )
    y = frame["y"].to_numpy()[train]
    np.testing.assert_allclose(
        [learned.target_shift, learned.target_scale], [y.mean(), y.std()], rtol=1e-12
    )


def test_json_gives_the_same_preprocessing_back(frame, table, tmp_path):
    learned = table.preprocessing
    again = Preprocessing.from_json(learned.to_json())
    assert again == learned and again.to_json() == learned.to_json()
    np.testing.assert_array_equal(again.transform(frame), table.x)
    assert Preprocessing.load(learned.save(tmp_path / "preprocessing.json")) == learned
    for text, message in (
        ("{}", "holds no preprocessing"),
        ("[", "not a preprocessing, or a damaged"),
        ("3", "damaged"),
    ):
        with pytest.raises(ValueError, match=message):
            Preprocessing.from_json(text)
    damaged = json.loads(learned.to_json())
    del damaged["columns"][0]["mean"], damaged["columns"][0]["name"]
    (tmp_path / "damaged.json").write_text(json.dumps(damaged))
    with pytest.raises(ValueError, match=r"damaged\.json: this is not a preprocessing"):
        Preprocessing.load(tmp_path / "damaged.json")


def test_rows_are_read_by_name(frame, table):
    learned = table.preprocessing
    shuffled = frame.select("town", "born", "code", "smoker", "mass")
    np.testing.assert_array_equal(learned.transform(shuffled), table.x)
    np.testing.assert_array_equal(learned.transform(frame), table.x)
    np.testing.assert_array_equal(learned.transform(frame.rows(named=True)), table.x)
    texts = shuffled.cast(pl.String)
    np.testing.assert_array_equal(learned.transform(texts.rows(named=True)), table.x)
    np.testing.assert_array_equal(
        learned.transform(frame.row(7, named=True)), table.x[7:8]
    )
    typed = frame.with_columns(
        pl.col("born").str.to_date(),
        pl.col("code").cast(pl.Float64),
        pl.col("mass").cast(pl.Float64).fill_null(np.nan),
    )
    np.testing.assert_array_equal(learned.transform(typed), table.x)


@pytest.mark.extra
def test_pandas_rows(frame, table):
    pandas = pytest.importorskip(
        "pandas", reason="pandas is not installed; fedtailor does not need it"
    )
    np.testing.assert_array_equal(
        table.preprocessing.transform(pandas.DataFrame(frame.to_dict(as_series=False))),
        table.x,
    )


GOOD = {"mass": 70.0, "town": "Rome", "code": 1, "smoker": True, "born": "1960-05-01"}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            {key: value for key, value in GOOD.items() if key != "mass"},
            "no column 'mass' for the model's inputs",
        ),
        (
            [GOOD, {**GOOD, "code": None}],
            "'code' is missing in row 2, and in training it never was.*impute'",
        ),
        ({**GOOD, "born": float("nan")}, "'born' is missing in row 1"),
        (
            {**GOOD, "code": 9},
            "'code' is '9' in row 1, which no training row was; training had 1, 2, 3",
        ),
        (
            {**GOOD, "mass": "heavy"},
            "'mass' holds 'heavy' in row 1, which is not a number",
        ),
        (
            {**GOOD, "mass": float("inf")},
            "'mass' holds inf in row 1, which is not a number",
        ),
        (
            {**GOOD, "mass": 1e200},
            "'mass' holds 1e.200 in row 1, which is not a number",
        ),
        (
            {**GOOD, "mass": 1e60},
            "'mass' is 1e.60 in row 1, which is too far from what training had",
        ),
        (
            {**GOOD, "born": "last May"},
            "'born' holds 'last May' in row 1, which is not a date",
        ),
        ({**GOOD, "born": 7}, "'born' holds 7 in row 1, which is not a date"),
        (
            {**GOOD, "smoker": "often"},
            "'smoker' holds 'often' in row 1, which is not a boolean",
        ),
        ({**GOOD, "smoker": 2}, "'smoker' holds 2 in row 1, which is not a boolean"),
        ([GOOD, {"mass": 1.0}], "'town' is not given in row 2; use None"),
        ([GOOD, 3], "each row is a dict of column names and values, not int"),
        ([], "there are none; give one at least"),
        (pl.DataFrame({"mass": [1.0]}), "no column 'town'"),
        (7, "not int"),
    ],
)
def test_rows_that_do_not_fit_are_explained(table, rows, message):
    with pytest.raises(ValueError, match=message):
        table.preprocessing.transform(rows)


def test_what_is_imputed_is_asked_for_or_was_learned(table):
    learned = table.preprocessing
    x = learned.transform({**GOOD, "mass": "?", "town": None, "smoker": ""})[0]
    found = dict(zip(learned.inputs, x.tolist(), strict=True))
    assert (
        found["mass is missing"],
        found["town is missing"],
        found["smoker is missing"],
    ) == (1, 1, 1)
    assert found["town = Rome"] == 1 and found["smoker"] == 0
    other = dict(
        zip(
            learned.inputs,
            learned.transform({**GOOD, "town": "Atlantis"})[0].tolist(),
            strict=True,
        )
    )
    assert (
        other["town = (other)"] == 1
        and sum(value for name, value in other.items() if "town = " in name) == 1
    )
    x = learned.transform(
        {**GOOD, "born": None, "code": 9}, missing="impute", unknown="other"
    )[0]
    found = dict(zip(learned.inputs, x.tolist(), strict=True))
    assert [found[f"code = {code}"] for code in (1, 2, 3)] == [0, 0, 0]
    born = next(column for column in learned.columns if column.name == "born")
    np.testing.assert_allclose(
        found["born"], (born.fill - born.mean) / born.deviation, rtol=1e-6
    )


@pytest.mark.parametrize(
    ("labels", "options", "classes", "first"),
    [
        ([-1, 1], {}, (-1, 1), 0),
        ([1.0, 2.0], {}, (1, 2), 0),
        ([True, False], {}, (False, True), 1),
        (["yes", "no"], {"positive": ["yes"]}, ("no", "yes"), 1),
        (["yes", "no"], {"positive": ["no"]}, ("yes", "no"), 0),
        ([0, 1, 2, 4], {"positive": ">0"}, ("0", ">0"), 0),
        ([0, 1, 2, 4], {"positive": [1, 2]}, ("not 1 or 2", "1 or 2"), 0),
        ([0, 1, 2, 4], {}, (0, 1, 2, 4), 0),
    ],
)
def test_predictions_are_called_what_the_user_calls_them(
    labels, options, classes, first
):
    frame = pl.DataFrame(
        {
            "site": ["a"] * 40 + ["b"] * 40,
            "v": np.random.default_rng(0).normal(size=80),
            "y": labels * (80 // len(labels)),
        }
    )
    table = from_table(frame, **ROLES, **options)
    learned = Preprocessing.from_json(table.preprocessing.to_json())
    assert (
        table.classes == len(classes)
        and table.class_names == tuple(map(str, classes))
        and table.y[0] == first
    )
    assert tuple(learned.decode(np.arange(len(classes))).tolist()) == classes
    if not options:
        assert learned.decode(table.y).tolist() == frame["y"].to_list()
    with pytest.raises(
        ValueError, match=f"must be class numbers 0..{len(classes) - 1}"
    ):
        learned.decode([len(classes)])


def test_tasks_are_guessed_and_said():
    rng = np.random.default_rng(0)
    sites = {"site": ["a", "b"] * 150, "v": rng.normal(size=300)}
    for y, task in (
        (rng.normal(size=300), "regression"),
        (rng.integers(0, 5, 300), "classification"),
        (np.arange(300) % 62 + 0.0, "regression"),
        (rng.integers(18, 90, 300), "regression"),
        (np.arange(300) % 13, "classification"),
    ):
        table = from_table(pl.DataFrame({**sites, "y": y}), **ROLES)
        assert table.preprocessing.target.task == task and any(
            "The target 'y' holds" in note for note in table.notes
        )
    many = pl.DataFrame(
        {
            "site": ["a", "b"] * 1500,
            "v": rng.normal(size=3000),
            "y": np.arange(3000) % 62,
        }
    )
    assert from_table(many, **ROLES).classes is None
    assert from_table(many, **ROLES, task="classification").classes == 62


def test_further_targets_are_encoded_as_those_of_training(frame):
    numbers = from_table(frame, **ROLES, seed=1)
    rows = frame.head(5)
    x, y = numbers.preprocessing.transform_labelled(rows)
    where = [int(np.flatnonzero(numbers.rows == row)[0]) for row in range(5)]
    np.testing.assert_array_equal(y, numbers.y[where])
    np.testing.assert_array_equal(x, numbers.x[where])
    with pytest.raises(
        ValueError, match="target column 'y' holds more than finite numbers"
    ):
        numbers.preprocessing.transform_labelled(
            rows.with_columns(y=pl.lit(float("inf")))
        )
    for positive in (">100", "2"):
        classes = from_table(
            frame,
            client="site",
            target="y" if ">" in positive else "code",
            positive=positive,
        )
        again = Preprocessing.from_json(classes.preprocessing.to_json())
        assert again == classes.preprocessing
        assert 0 < again.transform_labelled(frame)[1].sum() < N
        np.testing.assert_array_equal(
            again.transform_labelled(frame)[1], classes.y[np.argsort(classes.rows)]
        )
    codes = from_table(frame, client="site", target="code").preprocessing
    as_text = frame.with_columns(
        pl.col("code").cast(pl.Float64).cast(pl.String)
    )  # "1.0", "2.0"
    assert (
        codes.transform_labelled(as_text)[1].tolist() == (frame["code"] - 1).to_list()
    )


def test_clients_that_are_not_asked_for_are_not_looked_at(frame):
    some = from_table(frame, **ROLES, clients=["s0", "s2"], seed=1)
    assert some.names == ("s0", "s2")
    assert set(some.rows % 4) == {0, 2}  # rows keep their numbers in the table
    alone = from_table(
        frame.filter(pl.col("site").is_in(["s0", "s2"])), **ROLES, seed=1
    )
    np.testing.assert_array_equal(some.x, alone.x)
    assert some.preprocessing == alone.preprocessing
    with pytest.raises(
        ValueError,
        match="client column 'site' never holds 's9', which clients asks for",
    ):
        from_table(frame, **ROLES, clients=["s0", "s9"])


def test_a_frame_cannot_be_fitted_to_fewer_clients():
    """Its preprocessing would keep what it learned of the others."""
    frame = pl.DataFrame(
        {"site": [*"aaaabbbbcccc"], "x": np.arange(12.0), "y": [0, 1] * 6}
    )
    table = from_table(frame, client="site", target="y")
    with pytest.raises(ValueError, match=r"read from a data frame.*from a file"):
        table.only(["a", "b"])

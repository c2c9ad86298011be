"""Personal models by themselves: what they refuse to predict, and that a disk gives
them back.
"""

import json

import jax
import numpy as np
import polars as pl
import pytest

import fedtailor as ft
from fedtailor.algorithms.knn_per import NearestNeighbors
from fedtailor.engine.storage import PersonalModel, check, export_models
from fedtailor.engine.storage.export import load_models, write_models
from fedtailor.models import logistic, mlp
from fedtailor.protocol import Mixture

FRAME = pl.DataFrame(
    {
        "site": ["a", "b"] * 20,
        "age": [20.0 + number for number in range(40)],
        "town": ["Rome", "Oslo", "Bern", "Bern"] * 10,
        "y": [100.0 + 3 * number for number in range(40)],
    }
)


def model_of(shape=(3,), outputs=2, **options):
    model = logistic().bind(shape, outputs, **options)
    return PersonalModel("Ada", np.asarray(model.init(jax.random.key(0))), model)


def test_nan_and_infinite_inputs_are_refused_with_their_place():
    model, x = model_of(), np.zeros((4, 3))
    assert model.predict(x).shape == (4,)
    x[2, 1], x[3, 0] = np.nan, np.inf
    with pytest.raises(
        ValueError,
        match=(
            "the input is nan in row 2, column 1, counted from 0; fill such places in"
        ),
    ):
        model.predict(x)
    with pytest.raises(ValueError, match="the input is inf in row 0, column 0"):
        model.probabilities(x[3:].astype(np.float32))
    with pytest.raises(
        ValueError, match=r"is 1e\+300 in row 0, column 2"
    ):  # infinite in single precision
        model.predict([[0.0, 0.0, 1e300]])
    image = np.zeros((2, 4, 4, 1), np.float32)
    image[1, 2, 3, 0] = -np.inf
    with pytest.raises(ValueError, match=r"is -inf in row 1, place \[2, 3, 0\]"):
        model_of((4, 4, 1)).predict(image)
    assert model_of((4, 4, 1)).predict(np.zeros((2, 4, 4, 1), np.uint8)).shape == (2,)


def table_model():
    table = ft.tables.from_table(FRAME, client="site", target="y", task="regression")
    model = logistic().bind(table.input_shape, 1, loss=ft.models.squared_error)
    theta = np.asarray(model.init(jax.random.key(1)))
    return table, PersonalModel("a", theta, model, preprocessing=table.preprocessing)


def test_raw_rows_are_predicted_in_the_targets_own_unit():
    table, model = table_model()
    rows = [{"town": "Rome", "age": 33.0}, {"town": "Oslo", "age": 50}]
    inputs = table.preprocessing.transform(rows)
    unit = table.preprocessing
    expected = (
        model.predict(inputs)[:, 0].astype(float) * unit.target_scale
        + unit.target_shift
    )
    np.testing.assert_allclose(model.predict_rows(rows), expected, rtol=1e-6)
    with pytest.raises(
        ValueError,
        match="column 'age' is missing in row 1, and in training it never was",
    ):
        model.predict_rows({"town": "Rome", "age": None})
    # Columns that the model was not trained on may be there.
    further = model.predict_rows({"town": "Rome", "age": 33.0, "wage": 1})
    np.testing.assert_array_equal(further, model.predict_rows(rows)[:1])
    with pytest.raises(ValueError, match="'age'"):
        model.predict_rows({"town": "Rome"})
    with pytest.raises(ValueError, match="'town' is 'Paris'"):
        model.predict_rows({"town": "Paris", "age": 3.0})
    imputed = model.predict_rows(
        {"town": "Rome", "age": float("nan")}, missing="impute"
    )
    np.testing.assert_allclose(
        imputed, model.predict_rows({"town": "Rome", "age": unit.columns[0].fill})
    )
    with pytest.raises(
        ValueError,
        match="was not trained on a table: its model takes arrays; use predict",
    ):
        model_of().predict_rows(rows)


def test_a_model_saves_itself_with_its_preprocessing(tmp_path):
    _, model = table_model()
    assert model.save(tmp_path / "a") == tmp_path / "a"
    again = ft.PersonalModel.load(tmp_path / "a")
    assert again.preprocessing == model.preprocessing
    rows = FRAME.drop("y", "site")
    np.testing.assert_array_equal(again.predict_rows(rows), model.predict_rows(rows))
    assert [one.whole for one in check(tmp_path / "a")] == [True]
    export_models(
        [model_of(), PersonalModel("Eve", model_of().theta, model_of().model)],
        tmp_path / "two",
    )
    with pytest.raises(
        ValueError, match="holds the models of 2 clients; use load_models"
    ):
        ft.PersonalModel.load(tmp_path / "two")
    (tmp_path / "a" / "preprocessing.json").write_text(
        model.preprocessing.to_json().replace("Rome", "Nice")
    )
    with pytest.raises(
        ValueError,
        match=r"preprocessing\.json is missing or damaged .its digest is wrong",
    ):
        ft.PersonalModel.load(tmp_path / "a")
    assert [one.whole for one in check(tmp_path / "a")] == [False]


def test_every_kind_of_predictor_comes_back(tmp_path):
    model, rng = mlp(4).bind((3,), 2), np.random.default_rng(0)
    theta = np.asarray(model.init(jax.random.key(0)))
    neighbors = NearestNeighbors(
        theta,
        rng.normal(size=(5, 4)).astype(np.float32),
        np.array([0, 1, 1, 0, 1], np.int32),
        np.array([True, True, True, True, False]),
        np.float32(0.4),
        np.float32(1.5),
        k=2,
    )
    mixture = Mixture(
        np.array([0.25, 0.75], np.float32), np.stack([theta, -theta]), logits=True
    )
    kinds = {"vector": theta, "mixture": mixture, "neighbors": neighbors}
    models = [
        PersonalModel(name, predictor, model, 0.5, (2.0, 1.0, 3.0))
        for name, predictor in kinds.items()
    ]
    write_models(models, tmp_path, "mine.json")
    found, x = (
        load_models(tmp_path, manifest_name="mine.json"),
        rng.normal(size=(6, 3)).astype(np.float32),
    )
    assert list(found) == list(kinds)
    for one in models:
        assert isinstance(found[one.name].predictor, type(one.predictor))
        np.testing.assert_array_equal(found[one.name].outputs(x), one.outputs(x))
    with pytest.raises(
        ValueError,
        match="predicts with a model and its own examples, which are not exported",
    ):
        export_models(models, tmp_path / "export")
    assert not (tmp_path / "export").exists()
    entries = json.loads((tmp_path / "mine.json").read_text())["clients"]
    assert [entry["kind"] for entry in entries.values()] == [
        "vector",
        "mixture",
        "model and 2 neighbors",
    ]

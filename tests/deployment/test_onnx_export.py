"""ONNX files give what the models give."""

import json

import jax
import numpy as np
import polars as pl
import pytest

import fedtailor as ft
from fedtailor.algorithms.knn_per import NearestNeighbors
from fedtailor.deployment.onnx_export import export_onnx, onnx_model
from fedtailor.engine.storage import PersonalModel, check
from fedtailor.engine.training.binding import bind
from fedtailor.models import squared_error
from fedtailor.models.survival import CoxHazards
from fedtailor.protocol import Mixture

onnx = pytest.importorskip("onnx", reason="the extra `onnx` is not installed")
pytestmark = pytest.mark.extra

MODELS = {
    "mlp": (ft.models.mlp((5, 3)), (7,)),
    "logistic, kept transposed": (ft.models.logistic(), (20,)),
    "lenet5": (ft.models.lenet5(), (17, 18)),
    "lenet5, max and group norm": (ft.models.lenet5("max", norm="group"), (16, 16, 3)),
    "lenet5, batch norm": (ft.models.lenet5(norm="batch"), (16, 16, 2)),
    "cnn": (ft.models.cnn(dropout=True), (9, 8)),
    "resnet": (ft.models.resnet(), (9, 11, 3)),
    "resnet, group norm": (ft.models.resnet(norm="group"), (8, 8, 3)),
    "conv1d": (ft.models.conv1d((6, 4), size=3), (21, 3)),
    "periodic_mlp": (ft.models.periodic_mlp(5, 3, 2, sigma=0.8), (7,)),
    "gru": (ft.models.gru(5), (9, 3)),
    "gru, two layers": (ft.models.gru(5, layers=2), (7, 2)),
    "Cox's model": (CoxHazards(), (3,)),
}


def ran(proto, x):
    """Output name -> values, by onnxruntime, or where that is not installed by the
    reference of the format.

    Args:
        proto: the graph.
        x: its input x, or its inputs by name.
    """
    given = x if isinstance(x, dict) else {"x": x}
    names = [output.name for output in proto.graph.output]
    try:
        import onnxruntime
    except ImportError:
        from onnx.reference import ReferenceEvaluator

        return dict(zip(names, ReferenceEvaluator(proto).run(None, given), strict=True))
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return dict(zip(names, session.run(names, given), strict=True))


def theta_of(model, seed=0):
    """Parameters of which none is a starting value, such as the zeros and ones of
    normalisation.
    """
    theta = np.asarray(model.init(jax.random.key(seed)))
    return theta + 0.01 * np.random.default_rng(seed).uniform(size=len(theta)).astype(
        np.float32
    )


@pytest.mark.parametrize("name", MODELS)
def test_outputs_are_equal(name):
    architecture, shape = MODELS[name]
    model, x = (
        architecture.bind(shape, 4),
        np.random.default_rng(1).normal(size=(5, *shape)).astype(np.float32),
    )
    personal = PersonalModel("Ada", theta_of(model), model, 0.3, 2.0)
    found, expected = ran(onnx_model(personal), x), personal.outputs(x)
    assert expected.std() > 0.01
    np.testing.assert_allclose(found["outputs"], expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(
        found["probabilities"], personal.probabilities(x), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("logits", [False, True])
def test_mixtures_are_equal(logits):
    model, x = (
        ft.models.mlp(3).bind((4,), 3),
        np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32),
    )
    models = np.stack([theta_of(model, seed) for seed in range(3)])
    personal = PersonalModel(
        "Ada", Mixture(np.array([0.2, 0.0, 0.8], np.float32), models, logits), model
    )
    found = ran(onnx_model(personal), x)
    np.testing.assert_allclose(
        found["outputs"], personal.outputs(x), rtol=1e-5, atol=1e-5
    )
    np.testing.assert_allclose(found["probabilities"].sum(axis=1), 1, rtol=1e-5)


def test_a_tables_models_take_their_preprocessing_along(trained, tmp_path):
    personal = list(trained[0].personal_models().values())
    files = export_onnx(personal, tmp_path / "new", encoded=True)
    assert [file.name for file in files] == [
        "000-Ada-Lovelace.onnx",
        "001-Emmy-Noether.onnx",
        "002-Grace-Hopper.onnx",
    ]
    unit = ft.tables.Preprocessing.load(tmp_path / "new" / "preprocessing.json")
    x = unit.transform(
        [
            {"age": 44.0, "mass": None, "town": "Rome"},
            {"age": 61.5, "mass": 70.0, "town": "Oslo"},
        ]
    )
    proto = onnx.load(files[1])
    np.testing.assert_allclose(
        ran(proto, x)["outputs"], personal[1].outputs(x), rtol=1e-5, atol=1e-5
    )
    said = {entry.key: entry.value for entry in proto.metadata_props}
    assert said["client"] == personal[1].name
    assert said["classes"] == '["ill", "well"]'
    with pytest.raises(ValueError, match="is not empty; name a new directory"):
        export_onnx(personal, tmp_path / "new")
    assert [found.whole for found in check(tmp_path / "new")] == [True]
    files[1].write_bytes(files[1].read_bytes()[:-1] + b"?")
    (found,) = check(tmp_path / "new")
    assert not found.whole and "001-Emmy-Noether.onnx" in found.what


def test_a_regressions_target_is_in_its_own_unit():
    frame = {
        "site": list("ab") * 20,
        "age": [20.0 + n for n in range(40)],
        "y": [100.0 + 3 * n for n in range(40)],
    }
    table = ft.tables.from_table(
        ft.tables.table.pl.DataFrame(frame),
        client="site",
        target="y",
        task="regression",
    )
    model = ft.models.logistic().bind(table.input_shape, 1, loss=squared_error)
    personal = PersonalModel(
        "a", theta_of(model), model, preprocessing=table.preprocessing
    )
    rows = [{"age": 33.0}, {"age": 60.0}]
    encoded = table.preprocessing.transform(rows)
    found = ran(onnx_model(personal, encoded=True), encoded)
    np.testing.assert_allclose(
        found["target"][:, 0], personal.predict_rows(rows), rtol=1e-5
    )


def columns_of(rows, preprocessing):
    """Rows as the inputs of a graph that takes raw columns."""
    kinds = {column.name: column.kind for column in preprocessing.columns}
    nothing = {"category": ""}
    return {
        name: np.array(
            [
                nothing.get(kind, np.nan) if row[name] is None else row[name]
                for row in rows
            ],
            object if kind == "category" else np.float64,
        )
        for name, kind in kinds.items()
    }


def test_a_graph_takes_the_columns_of_the_table(trained):
    personal = list(trained[0].personal_models().values())[1]
    rows = [
        {"age": 44.0, "mass": None, "town": "Rome"},
        {"age": 61.5, "mass": 70.0, "town": "Oslo"},
        {"age": 50.1, "mass": 66.0, "town": "Oslo"},
    ]
    x = personal.preprocessing.transform(rows)
    found = ran(onnx_model(personal), columns_of(rows, personal.preprocessing))
    np.testing.assert_allclose(
        found["outputs"], personal.outputs(x), rtol=1e-5, atol=1e-5
    )
    assert found["label"].tolist() == list(personal.predict_rows(rows))


def test_every_kind_of_column_is_in_the_graph():
    """Numbers with gaps, dates, booleans, rare and missing categories, decorrelated; a
    column that is called as an output is.
    """
    rng = np.random.default_rng(0)
    count = 120
    colours = rng.choice(["red", "blue", "green"], count).tolist()
    colours[:3], colours[3:6] = ["rare"] * 3, [None] * 3
    frame = ft.tables.table.pl.DataFrame(
        {
            "site": list("ab") * (count // 2),
            "outputs": [None, *rng.normal(size=count - 1)],
            "seen": [f"2024-{1 + n % 12:02}-{1 + n % 28:02}" for n in range(count)],
            "smokes": rng.random(count) < 0.4,
            "colour": colours,
            "y": rng.normal(100, 7, count),
        }
    )
    table = ft.tables.from_table(frame, client="site", target="y")
    assert table.preprocessing.decorrelation is not None
    model = ft.models.logistic().bind(table.input_shape, 1, loss=squared_error)
    personal = PersonalModel(
        "a", theta_of(model), model, preprocessing=table.preprocessing
    )
    raw = [
        {"outputs": 0.4, "seen": "2024-05-06", "smokes": True, "colour": "red"},
        {"outputs": None, "seen": "2024-12-01", "smokes": False, "colour": None},
        {"outputs": -1.0, "seen": "2024-01-28", "smokes": True, "colour": "mauve"},
    ]
    days = [19849.0, 20058.0, 19750.0]
    inputs = columns_of(
        [
            {**row, "seen": day, "smokes": float(row["smokes"])}
            for row, day in zip(raw, days, strict=True)
        ],
        table.preprocessing,
    )
    inputs["outputs_"] = inputs.pop("outputs")
    found = ran(onnx_model(personal), inputs)
    np.testing.assert_allclose(
        found["target"][:, 0], personal.predict_rows(raw), rtol=1e-5
    )


def test_what_cannot_be_exported_is_one_line(tmp_path):
    model = ft.models.lstm(5).bind((3,), 2)
    with pytest.raises(
        ValueError, match="models of SequenceLSTM cannot be exported to ONNX"
    ):
        export_onnx([PersonalModel("Ada", theta_of(model), model)], tmp_path / "new")
    model = ft.models.mlp(4).bind((3,), 2)
    array, theta = np.zeros(1, np.float32), theta_of(model)
    neighbors = NearestNeighbors(
        theta,
        np.zeros((1, 4), np.float32),
        array.astype(int),
        array > -1,
        array[0],
        array[0],
        1,
    )
    with pytest.raises(
        ValueError, match="client 'Ada' predicts with a model and 1 neighbors, whose"
    ):
        export_onnx([PersonalModel("Ada", neighbors, model)], tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("hazard", ["discrete", "cox"])
@pytest.mark.parametrize("architecture", [ft.models.linear(), ft.models.mlp(3)])
def test_risks_and_survival_of_a_table_are_equal(hazard, architecture):
    rng = np.random.default_rng(0)
    frame = pl.DataFrame(
        {
            "client": ["a", "b"] * 60,
            "days": rng.exponential(500, 120).round() + 1,
            "died": rng.random(120) < 0.6,
            "age": rng.normal(60, 9, 120),
            "stage": rng.choice(["early", "late"], 120),
        }
    )
    table = ft.tables.from_table(frame, target="days", event="died", hazard=hazard)
    model = bind(architecture, table)
    personal = PersonalModel(
        "a", theta_of(model), model, preprocessing=table.preprocessing
    )
    rows = frame.head(30)
    graph = onnx_model(personal)
    found = ran(graph, columns_of(rows.to_dicts(), personal.preprocessing))
    outputs = personal.outputs(table.preprocessing.transform(rows))
    same = {"rtol": 1e-5, "atol": 1e-5}
    np.testing.assert_allclose(found["outputs"], outputs, **same)
    np.testing.assert_allclose(found["risk"], model.task.predict(outputs), **same)
    metadata = {entry.key: entry.value for entry in graph.metadata_props}
    assert ("survival" in found) == ("ends" in metadata) == (hazard == "discrete")
    if hazard == "discrete":
        ends = json.loads(metadata["ends"])
        expected = model.task.survival_at(outputs, ends)
        np.testing.assert_allclose(found["survival"], expected, **same)
        assert expected.std() > 0.05


@pytest.mark.parametrize(
    "architecture", [ft.models.conv1d(4, size=3), ft.models.gru(3)]
)
def test_graphs_of_windows_take_the_rows_of_each_window(architecture):
    rng, count = np.random.default_rng(0), 160
    frame = pl.DataFrame(
        {
            "client": np.repeat(["a", "b"], count // 2),
            "t": list(range(count // 2)) * 2,
            "left": rng.normal(size=count),
            "right": rng.normal(3, 5, size=count),
            "label": np.where(np.arange(count) // 40 % 2, "walk", "rest"),
        }
    )
    table = ft.tables.from_table(frame, time="t", window=8)
    model = bind(architecture, table)
    personal = PersonalModel(
        "a", theta_of(model), model, preprocessing=table.preprocessing
    )
    rows = frame.filter(pl.col("client") == "a").head(40)
    outputs = personal.outputs(table.preprocessing.transform(rows))
    assert outputs.shape == (5, 2) and outputs.std() > 0.05
    graph = onnx_model(personal)
    found = ran(graph, columns_of(rows.to_dicts(), personal.preprocessing))
    np.testing.assert_allclose(found["outputs"], outputs, rtol=1e-5, atol=1e-5)
    names = table.preprocessing.decode(outputs.argmax(axis=1))
    assert found["label"].tolist() == names.tolist()
    metadata = {entry.key: entry.value for entry in graph.metadata_props}
    assert metadata["window"] == "8"

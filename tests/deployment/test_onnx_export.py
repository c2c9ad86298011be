"""ONNX files give what the models give."""

import jax
import numpy as np
import pytest

import fedtailor as ft
from fedtailor.deployment.onnx_export import export_onnx, onnx_model
from fedtailor.models import squared_error
from fedtailor.protocol import Mixture, NearestNeighbors
from fedtailor.storage import PersonalModel, check

onnx = pytest.importorskip("onnx", reason="the extra `onnx` is not installed")

MODELS = {
    "mlp": (ft.models.mlp((5, 3)), (7,)),
    "logistic, kept transposed": (ft.models.logistic(), (20,)),
    "lenet5": (ft.models.lenet5(), (17, 18)),
    "lenet5, max and group norm": (ft.models.lenet5("max", norm="group"), (16, 16, 3)),
    "lenet5, batch norm": (ft.models.lenet5(norm="batch"), (16, 16, 2)),
    "cnn": (ft.models.cnn(dropout=True), (9, 8)),
    "resnet": (ft.models.resnet(), (9, 11, 3)),
    "resnet, group norm": (ft.models.resnet(norm="group"), (8, 8, 3)),
}


def ran(proto, x):
    """Output name -> values, by onnxruntime, or where that is not installed by the
    reference of the format.
    """
    names = [output.name for output in proto.graph.output]
    try:
        import onnxruntime
    except ImportError:
        from onnx.reference import ReferenceEvaluator

        return dict(
            zip(names, ReferenceEvaluator(proto).run(None, {"x": x}), strict=True)
        )
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return dict(zip(names, session.run(names, {"x": x}), strict=True))


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
    files = export_onnx(personal, tmp_path / "new")
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
    found = ran(onnx_model(personal), table.preprocessing.transform(rows))
    np.testing.assert_allclose(
        found["target"][:, 0], personal.predict_rows(rows), rtol=1e-5
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
        ValueError, match="client 'Ada' predicts with its own examples, too"
    ):
        export_onnx([PersonalModel("Ada", neighbors, model)], tmp_path / "new")
    assert not (tmp_path / "new").exists()

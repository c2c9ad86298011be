"""A method of one's own that predicts with more than a model: `gated.py`."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedtailor as ft
from conformance.gated import Gate, Gated
from fedtailor.deployment.listing import list_models
from fedtailor.deployment.onnx_export import export_onnx
from fedtailor.deployment.opening import models_at
from fedtailor.engine.storage import export_models, load_models
from fedtailor.models import mlp
from fedtailor.protocol import SGD, Algorithm, CombinedPredictor, predictor
from fedtailor.testing import check_algorithm, classification
from fedtailor.testing.problems import mlp_model

# Other tests go over all methods that are registered.
Algorithm.registry.pop("gated")

PLAIN = SGD(lr=0.1, steps=3, batch_size=8)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    method = Gated(sgd=PLAIN, own=PLAIN)
    path = tmp_path_factory.mktemp("gated") / "run"
    federation = classification()
    return ft.run(method, federation, mlp(4), rounds=2, directory=path), path


def by_hand(run, client, x):
    """The logits of a client of `mlp(4)`, by NumPy."""
    held = run.personal(client).predictor
    shared, own = (
        [
            np.asarray(leaf)
            for leaf in jax.tree.leaves(run.model.params(jnp.asarray(theta)))
        ]
        for theta in held.models
    )
    (w, b, _, _), (own_w, own_b, head_w, head_b) = shared, own
    general, mine = np.maximum(x @ w + b, 0), np.maximum(x @ own_w + own_b, 0)
    weight, bias = float(held.gate["weight"]), float(held.gate["bias"])
    share = 1 / (1 + np.exp(-(weight * general + bias)))
    return (share * mine + (1 - share) * general) @ head_w + head_b


def test_a_client_predicts_with_its_gate(run):
    run, _ = run
    federation, client = run.federation, run.federation.names[0]
    held = run.personal(client).predictor
    assert isinstance(held, Gate) and abs(float(held.gate["weight"])) > 1e-4
    test = federation.client(0).test
    expected = by_hand(run, client, np.asarray(test.x, np.float64))
    np.testing.assert_allclose(
        run.personal(client).outputs(test.x), expected, atol=1e-5
    )
    # Evaluation measures this predictor.
    measured = run.frame().filter(
        (run.frame()["client"] == client)
        & (run.frame()["split"] == "test")
        & (run.frame()["metric"] == "accuracy")
    )
    accuracy = np.mean(expected.argmax(1) == test.y)
    assert measured.sort("round")["value"][-1] == pytest.approx(accuracy)


def test_it_is_stored_listed_and_exported(run, tmp_path):
    run, path = run
    x = run.federation.x[:5]
    again = models_at(path)
    exported = load_models(export_models(again.values(), tmp_path / "out"))
    for name, model in again.items():
        np.testing.assert_array_equal(model.outputs(x), run.personal(name).outputs(x))
        np.testing.assert_array_equal(exported[name].outputs(x), model.outputs(x))
    assert {entry["model"] for entry in list_models(path)} == {"Gate"}
    first = again[run.federation.names[0]]
    with pytest.raises(
        ValueError, match="predicts with a Gate, not with one model alone"
    ):
        _ = first.theta


def test_what_does_not_know_the_method_says_so(run, tmp_path, monkeypatch):
    run, path = run
    model = run.personal(0)
    pytest.importorskip("onnx")
    with pytest.raises(ValueError, match="a Gate, whose function ONNX cannot hold"):
        export_onnx([model], tmp_path / "onnx")
    monkeypatch.delitem(CombinedPredictor.registry, "conformance.gated.Gate")
    with pytest.raises(
        ValueError, match=r"with conformance\.gated\.Gate, which is not loaded; import"
    ):
        models_at(path)


def test_own_examples_stay_with_the_client(run, tmp_path):
    class WithExamples(Gate):
        holds_examples: ClassVar[bool] = True

    run, _ = run
    held = run.personal(0).predictor
    kept = predictor(WithExamples)(held.models, held.gate)
    CombinedPredictor.registry.popitem()
    model = ft.PersonalModel("Ada", kept, run.model)
    with pytest.raises(ValueError, match="its own examples, which are not exported"):
        export_models([model], tmp_path / "new")


def test_a_predictor_has_a_model():
    class Empty(CombinedPredictor):
        gate: float = 0.0

    with pytest.raises(ValueError, match="Empty needs a field `model` "):
        predictor(Empty)


@pytest.mark.slow
def test_the_method_has_the_properties_of_methods():
    checks = [
        "order",
        "empty round",
        "no trace",
        "never sampled",
        "test rows",
        "resume",
    ]
    method = Gated(sgd=PLAIN, own=PLAIN)
    network = {"a network with a hidden layer": mlp_model}
    passed = check_algorithm(method, only=checks, models=network, progress=False)
    assert passed == checks

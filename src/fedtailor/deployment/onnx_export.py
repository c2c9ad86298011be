"""Exports personal models as ONNX files, which need neither fedtailor nor JAX."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedtailor._files import private_folder, publish, reason
from fedtailor._version import __version__
from fedtailor.deployment.card import file_name
from fedtailor.deployment.onnx_layers import Graph, onnx_package, write_layer
from fedtailor.models.layered import Layered
from fedtailor.protocol import Mixture, NearestNeighbors, require
from fedtailor.storage import PersonalModel
from fedtailor.storage.digests import SUMS, sums_of
from fedtailor.storage.export import PREPROCESSING, make_new

INPUT, OUTPUT, PROBABILITIES, TARGET = "x", "outputs", "probabilities", "target"
"""The names of a graph's input and outputs."""

_OPSET, _IR = 17, 8
"""Versions of operators and format that runtimes have supported since 2022."""


def export_onnx(personal: Sequence[PersonalModel], directory: Path | str) -> list[Path]:
    """Write personal models to a new directory, one ONNX file for each client.

    The input of a graph is `x` [n, ...]: the inputs of the federation (for a table,
    those that `preprocessing.json` gives). The outputs are:

    * `outputs`: logits (log-probabilities for a mixture), or predicted targets;
    * `probabilities` [n, classes], for classes;
    * `target`: predictions in the target's own unit, for a regression on a table.

    The graph's metadata holds the names of the client, the inputs and the classes. The
    file `SHA256SUMS` holds the digests of all files.

    Returns:
        The ONNX files, in the order of the models.

    Raises:
        ValueError: the extra `onnx` is missing, a model cannot be exported, or the
            directory cannot be written.
    """
    onnx = onnx_package()
    require(len(personal) > 0, "there are no personal models to export")
    path = Path(directory)
    # Make all graphs before writing one, as a model may not be exportable.
    graphs = {
        f"{file_name(model.name, number)}.onnx": onnx_model(model)
        for number, model in enumerate(personal)
    }
    preprocessing = personal[0].preprocessing
    try:
        make_new(path)
        with private_folder(path, "export") as folder:
            if preprocessing is not None:
                preprocessing.save(folder / PREPROCESSING)
            for name, graph in graphs.items():
                onnx.save(graph, folder / name)
            sums = sums_of(folder)
            for file in sorted(folder.iterdir()):
                publish(file, path / file.name)
            # Write the digests last: they mark the export as complete.
            (folder / SUMS).write_text(sums, "utf-8")
            publish(folder / SUMS, path / SUMS)
    except OSError as error:
        raise ValueError(
            f"cannot write models to {path}: {reason(error)}; name another directory"
        ) from None
    return [path / name for name in graphs]


def onnx_model(personal: PersonalModel) -> Any:
    """Convert a personal model to an `onnx.ModelProto`, and check that.

    Raises:
        ValueError: the model cannot be exported.
    """
    onnx = onnx_package()
    helper, floats = onnx.helper, onnx.TensorProto.FLOAT
    model, graph = personal.model, Graph()
    x = _normalized(graph, personal)
    out = _predicted(graph, personal, x)
    shape = [None, model.outputs]
    outputs = [helper.make_tensor_value_info(out, floats, shape)]
    if model.classification:
        name = graph.node("Softmax", out, name=PROBABILITIES, axis=-1)
        outputs.append(helper.make_tensor_value_info(name, floats, shape))
    elif personal.preprocessing is not None:
        scale = graph.constant(personal.preprocessing.target_scale)
        shift = graph.constant(personal.preprocessing.target_shift)
        scaled = graph.node("Mul", out, scale)
        name = graph.node("Add", scaled, shift, name=TARGET)
        outputs.append(helper.make_tensor_value_info(name, floats, shape))
    inputs = [helper.make_tensor_value_info(INPUT, floats, [None, *model.input_shape])]
    proto = helper.make_model(
        helper.make_graph(
            graph.nodes, "personal model", inputs, outputs, graph.constants
        ),
        producer_name="fedtailor",
        producer_version=__version__,
        ir_version=_IR,
        opset_imports=[helper.make_opsetid("", _OPSET)],
    )
    helper.set_model_props(proto, _metadata(personal))
    onnx.checker.check_model(proto, full_check=True)
    return proto


def _normalized(graph: Graph, personal: PersonalModel) -> str:
    """Append the federation's normalization of inputs, unless it is the identity."""
    shift, scale = np.asarray(personal.shift), np.asarray(personal.scale)
    if not shift.any() and (scale == 1).all():
        return INPUT
    centred = graph.node("Sub", INPUT, graph.constant(shift))
    return graph.node("Mul", centred, graph.constant(scale))


def _predicted(graph: Graph, personal: PersonalModel, x: str) -> str:
    """Append the client's predictor, applied to the value x."""
    predictor = personal.predictor
    require(
        not isinstance(predictor, NearestNeighbors),
        f"client {personal.name!r} predicts with its own examples, too; such models are"
        " not exported",
    )
    if not isinstance(predictor, Mixture):
        y = _network(graph, personal, predictor, x)
        return graph.node("Identity", y, name=OUTPUT)
    weights = np.asarray(predictor.weights, np.float64)
    parts = []
    for weight, theta in zip(weights, np.asarray(predictor.models), strict=True):
        if weight == 0:
            continue
        y = _network(graph, personal, theta, x)
        if predictor.logits:
            y = graph.node("Mul", y, graph.constant(weight))
        else:
            y = graph.node("LogSoftmax", y, axis=-1)
            y = graph.node("Add", y, graph.constant(np.log(weight)))
        parts.append(graph.node("Unsqueeze", y, graph.constant([0], np.int64)))
    stacked = graph.node("Concat", *parts, axis=0)
    if predictor.logits:
        axes = graph.constant([0], np.int64)
        return graph.node("ReduceSum", stacked, axes, name=OUTPUT, keepdims=0)
    return graph.node("ReduceLogSumExp", stacked, name=OUTPUT, axes=[0], keepdims=0)


def _network(graph: Graph, personal: PersonalModel, theta: Any, x: str) -> str:
    architecture = personal.model.architecture
    if not isinstance(architecture, Layered):
        raise ValueError(
            f"models of {type(architecture).__name__} cannot be exported to ONNX (those"
            " of logistic, mlp, lenet5, cnn and resnet can); export safetensors"
            " instead"
        )
    return write_layer(graph, personal.model.network(jnp.asarray(theta)), x)


def _metadata(personal: PersonalModel) -> dict[str, str]:
    metadata = {"client": personal.name, "made by": f"fedtailor {__version__}"}
    if personal.preprocessing is not None:
        target = personal.preprocessing.target
        metadata["inputs"] = json.dumps(list(personal.preprocessing.inputs))
        metadata["target"] = target.name
        if target.classes:
            metadata["classes"] = json.dumps(list(target.classes))
    return metadata

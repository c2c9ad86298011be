"""Exports personal models as ONNX files, which need neither fedtailor nor JAX."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedtailor._base.choice import require
from fedtailor._base.digests import SUMS, sums_of
from fedtailor._base.files import private_folder, publish, reason
from fedtailor._version import __version__
from fedtailor.data.tables.kinds import FALSE_WORDS, TRUE_WORDS
from fedtailor.data.tables.target import label_text
from fedtailor.deployment.card import file_name
from fedtailor.deployment.onnx_layers import (
    Graph,
    onnx_package,
    write_gru,
    write_layer,
)
from fedtailor.deployment.onnx_table import ML_DOMAIN, ML_OPSET, write_preprocessing
from fedtailor.deployment.onnx_trees import write_trees
from fedtailor.engine.storage import PersonalModel
from fedtailor.engine.storage.export import PREPROCESSING, make_new
from fedtailor.models.architecture import Architecture
from fedtailor.models.boosted_trees import BoostedTrees
from fedtailor.models.layered import Layered
from fedtailor.models.series import SeriesGRU
from fedtailor.models.survival import (
    LOG_HAZARDS,
    RISK_PART,
    CoxHazards,
    ProportionalHazards,
)
from fedtailor.models.tasks import DiscreteTime, Survival
from fedtailor.protocol import CombinedPredictor, Mixture

INPUT, OUTPUT, PROBABILITIES, TARGET = "x", "outputs", "probabilities", "target"
LABEL = "label"
"""The names of a graph's input and outputs."""

RISK, SURVIVAL = "risk", "survival"
_NAMES = frozenset((INPUT, OUTPUT, PROBABILITIES, TARGET, LABEL, RISK, SURVIVAL))
_OPSET, _IR = 17, 8
"""Versions of operators and format that runtimes have supported since 2022."""


def export_onnx(
    personal: Sequence[PersonalModel], directory: Path | str, *, encoded: bool = False
) -> list[Path]:
    """Write personal models to a new directory, one ONNX file for each client.

    A graph of a table has an input [n] for each of its columns, under the column's name,
    and contains the preprocessing (see `onnx_table`). The input of other graphs is `x`
    [n, ...], the inputs of the federation. The outputs are:

    * `outputs`: logits (log-probabilities for a mixture), or predicted targets;
    * `probabilities` [n, classes], for classes;
    * `label` [n], the most probable class by its name, for classes of a table;
    * `target`: predictions in the target's own unit, for a regression on a table;
    * `risk` [n], and `survival` [n, intervals], the shares without the event at the ends
      of intervals (`ends` in the metadata), for times to an event.

    A graph of windows takes the rows of each window after one another, in the order of
    time, and has an output for each `window` (in the metadata) of them.

    The graph's metadata holds the names of the client, the columns, the inputs and the
    classes, and which words of a column of booleans are 1 and 0. The file `SHA256SUMS` holds the digests of all files.

    Args:
        personal: the models.
        directory: the directory, which is created if it does not exist.
        encoded: graphs of a table take `x` [n, inputs], too, the inputs that
            `preprocessing.json` gives.

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
        f"{file_name(model.name, number)}.onnx": onnx_model(model, encoded=encoded)
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


def onnx_model(personal: PersonalModel, *, encoded: bool = False) -> Any:
    """Convert a personal model to an `onnx.ModelProto`, and check that.

    Args:
        personal: the model.
        encoded: take the model's inputs instead of a table's columns.

    Raises:
        ValueError: the model cannot be exported.
    """
    onnx = onnx_package()
    helper, floats = onnx.helper, onnx.TensorProto.FLOAT
    model, graph = personal.model, Graph()
    inputs = [helper.make_tensor_value_info(INPUT, floats, [None, *model.input_shape])]
    x, columns = INPUT, {}
    if personal.preprocessing is not None and not encoded:
        inputs, columns, x = write_preprocessing(graph, personal.preprocessing, _NAMES)
        if personal.preprocessing.windowing is not None:
            shape = graph.constant([-1, *model.input_shape], np.int64)
            x = graph.node("Reshape", x, shape)
    x = _normalized(graph, personal, x)
    out = _predicted(graph, personal, x)
    shape = [None, model.outputs]
    outputs = [helper.make_tensor_value_info(out, floats, shape)]
    if model.classification:
        name = graph.node("Softmax", out, name=PROBABILITIES, axis=-1)
        outputs.append(helper.make_tensor_value_info(name, floats, shape))
        if personal.preprocessing is not None:
            classes = personal.preprocessing.target.classes
            names = graph.texts([label_text(label) for label in classes])
            number = graph.node("ArgMax", out, axis=-1, keepdims=0)
            name = graph.node("Gather", names, number, name=LABEL)
            strings = onnx.TensorProto.STRING
            outputs.append(helper.make_tensor_value_info(name, strings, [None]))
    elif isinstance(model.task, Survival):
        for name, size in _survival_outputs(graph, model.task, out):
            outputs.append(helper.make_tensor_value_info(name, floats, size))
    elif personal.preprocessing is not None:
        scale = graph.constant(personal.preprocessing.target_scale)
        shift = graph.constant(personal.preprocessing.target_shift)
        scaled = graph.node("Mul", out, scale)
        name = graph.node("Add", scaled, shift, name=TARGET)
        outputs.append(helper.make_tensor_value_info(name, floats, shape))
    opsets = [helper.make_opsetid("", _OPSET)]
    if any(node.domain == ML_DOMAIN for node in graph.nodes):
        opsets.append(helper.make_opsetid(ML_DOMAIN, ML_OPSET))
    proto = helper.make_model(
        helper.make_graph(
            graph.nodes, "personal model", inputs, outputs, graph.constants
        ),
        producer_name="fedtailor",
        producer_version=__version__,
        ir_version=_IR,
        opset_imports=opsets,
    )
    metadata = _metadata(personal)
    if columns:
        metadata["columns"] = json.dumps(columns)
    helper.set_model_props(proto, metadata)
    onnx.checker.check_model(proto, full_check=True)
    return proto


def _normalized(graph: Graph, personal: PersonalModel, x: str) -> str:
    """Append the federation's normalization of inputs, unless it is the identity."""
    shift, scale = np.asarray(personal.shift), np.asarray(personal.scale)
    if not shift.any() and (scale == 1).all():
        return x
    centred = graph.node("Sub", x, graph.constant(shift))
    return graph.node("Mul", centred, graph.constant(scale))


def _predicted(graph: Graph, personal: PersonalModel, x: str) -> str:
    """Append the client's predictor, applied to the value x."""
    predictor = personal.predictor
    if not isinstance(predictor, CombinedPredictor):
        y = _network(graph, personal, predictor, x)
        return graph.node("Identity", y, name=OUTPUT)
    if not isinstance(predictor, Mixture):
        raise ValueError(
            f"client {personal.name!r} predicts with a {predictor.kind}, whose function"
            " ONNX cannot hold; export safetensors instead"
        )
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
    network = personal.model.network(jnp.asarray(theta))
    return _architecture(graph, personal.model.architecture, network, x)


def _architecture(
    graph: Graph, architecture: Architecture, network: Any, x: str
) -> str:
    """Append a network of an architecture.

    Raises:
        ValueError: it cannot be exported.
    """
    if isinstance(architecture, ProportionalHazards):
        risk = _architecture(graph, architecture.inner, network[RISK_PART], x)
        return graph.node("Add", risk, graph.constant(network["log_odds"]))
    if isinstance(architecture, CoxHazards):
        return _cox_log_odds(graph, network, x)
    if isinstance(architecture, BoostedTrees):
        return write_trees(graph, architecture, network, x)
    if isinstance(architecture, SeriesGRU):
        return write_gru(graph, network, x)
    if isinstance(architecture, Layered):
        return write_layer(graph, network, x)
    raise ValueError(
        f"models of {type(architecture).__name__} cannot be exported to ONNX (those of"
        " linear, logistic, mlp, periodic_mlp, lenet5, cnn, the ResNets for small images,"
        " conv1d, gru, Cox's model and boosted trees can); export safetensors instead"
    )


def _cox_log_odds(graph: Graph, network: Any, x: str) -> str:
    """Append what `CoxHazards.apply` computes."""
    least, most = map(graph.constant, LOG_HAZARDS)
    columns = np.asarray(network["coefficients"])[:, None]
    risk = graph.node("MatMul", x, graph.constant(columns))
    hazards = graph.node("Add", risk, graph.constant(network["log_hazards"]))
    hazards = graph.node("Min", hazards, most)
    half = graph.node("Exp", graph.node("Max", hazards, least))
    half = graph.node("Mul", half, graph.constant(0.5))
    ratio = graph.node("Div", graph.node("Sinh", half), half)
    odds = graph.node("Add", hazards, half)
    return graph.node("Add", odds, graph.node("Log", ratio))


def _survival_outputs(graph: Graph, task: Survival, out: str) -> list[tuple[str, Any]]:
    """Append the risk, and the survival at the ends of intervals.

    Returns:
        The names and shapes of both, or of the risk if there are no intervals.
    """
    if not isinstance(task, DiscreteTime):
        axes = graph.constant([1], np.int64)
        return [(graph.node("Squeeze", out, axes, name=RISK), [None])]
    hazards = graph.node("Softplus", out)
    axes = graph.constant([1], np.int64)
    log_total = graph.node("Log", graph.node("ReduceSum", hazards, axes, keepdims=0))
    average = float(task.risk(jnp.zeros((1, len(task.ends))))[0])
    average -= float(np.log(len(task.ends) * np.log(2)))
    risk = graph.node("Add", log_total, graph.constant(average), name=RISK)
    cumulative = graph.node("CumSum", hazards, graph.constant(1, np.int64))
    survival = graph.node("Exp", graph.node("Neg", cumulative), name=SURVIVAL)
    return [(risk, [None]), (survival, [None, len(task.ends)])]


def _metadata(personal: PersonalModel) -> dict[str, str]:
    metadata = {"client": personal.name, "made by": f"fedtailor {__version__}"}
    if personal.preprocessing is not None:
        target = personal.preprocessing.target
        metadata["inputs"] = json.dumps(list(personal.preprocessing.inputs))
        columns = personal.preprocessing.columns
        booleans = [column.name for column in columns if column.kind == "boolean"]
        if booleans:
            words = {"1": TRUE_WORDS, "0": FALSE_WORDS}
            metadata["booleans"] = json.dumps({"columns": booleans, **words})
        metadata["target"] = target.name
        if target.classes:
            metadata["classes"] = json.dumps(list(target.classes))
        if personal.preprocessing.windowing is not None:
            metadata["window"] = str(personal.preprocessing.windowing.window)
    if isinstance(personal.model.task, DiscreteTime):
        metadata["ends"] = json.dumps(list(personal.model.task.ends))
    return metadata

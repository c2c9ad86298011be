"""Writes the preprocessing of a table into an ONNX graph, which then takes raw columns.

Each column of the table is an input [n] of the graph, under its own name:

* numbers are doubles, and NaN is a missing cell;
* dates are doubles, the days since 1970-01-01; NaN is a missing cell;
* booleans are doubles, 0 or 1; NaN is a missing cell;
* categories are strings, and "" is a missing cell.

A missing cell becomes what it became in training, the mean or the most frequent value. A
category that training never saw is "other", or none of the known ones.
"""

from typing import Any

import numpy as np

from fedtailor.data.tables import Preprocessing
from fedtailor.data.tables.encoding import ColumnEncoding
from fedtailor.deployment.onnx_layers import Graph, onnx_package

ML_DOMAIN = "ai.onnx.ml"
"""The domain of the operator that finds the number of a category."""
ML_OPSET = 2
_MISSING = ""
"""The missing cell of a column of categories."""


def write_preprocessing(
    graph: Graph, preprocessing: Preprocessing, taken: frozenset[str]
) -> tuple[list[Any], dict[str, str], str]:
    """Append the preprocessing of a table to a graph.

    Args:
        graph: the graph.
        preprocessing: how rows become inputs of the model.
        taken: names of values that no column may have.

    Returns:
        The graph's inputs, the column of each input's name, and the name of the model's
        inputs [n, inputs] in float32.
    """
    types = onnx_package().TensorProto
    helper = onnx_package().helper
    inputs, columns, parts = [], {}, []
    for column in preprocessing.columns:
        name = column.name
        while name in taken or name in columns:
            name += "_"
        columns[name] = column.name
        is_category = column.kind == "category"
        kind = types.STRING if is_category else types.DOUBLE
        inputs.append(helper.make_tensor_value_info(name, kind, [None]))
        cells = graph.node("Reshape", name, graph.constant([-1, 1], np.int64))
        write = _category if is_category else _number
        parts += write(graph, column, cells)
    x = graph.node("Concat", *parts, axis=1)
    if preprocessing.decorrelation is not None:
        # The model's inputs have been rounded to float32 before.
        x = graph.node("Cast", graph.node("Cast", x, to=types.FLOAT), to=types.DOUBLE)
        mean = graph.constant(preprocessing.decorrelation.mean, np.float64)
        matrix = graph.constant(preprocessing.decorrelation.matrix, np.float64)
        x = graph.node("MatMul", graph.node("Sub", x, mean), matrix)
    return inputs, columns, graph.node("Cast", x, to=types.FLOAT)


def _number(graph: Graph, column: ColumnEncoding, cells: str) -> list[str]:
    """The inputs of a column of numbers, in doubles [n, 1]."""
    types = onnx_package().TensorProto
    is_missing = graph.node("IsNaN", cells)
    fill = graph.constant([[column.fill]], np.float64)
    filled = graph.node("Where", is_missing, fill, cells)
    centred = graph.node("Sub", filled, graph.constant(column.mean, np.float64))
    scaled = graph.node("Div", centred, graph.constant(column.deviation, np.float64))
    if not column.indicator:
        return [scaled]
    return [scaled, graph.node("Cast", is_missing, to=types.DOUBLE)]


def _category(graph: Graph, column: ColumnEncoding, cells: str) -> list[str]:
    """The inputs of a column of categories, in doubles [n, width]."""
    types = onnx_package().TensorProto
    width = len(column.inputs) - column.indicator
    # As in `ColumnEncoding.encode`: other categories are the last input, or beyond it.
    beyond = width - column.other
    numbers = {name: number for number, name in enumerate(column.categories)}
    numbers.setdefault(_MISSING, numbers.get(str(column.fill), beyond))
    number = graph.node(
        "LabelEncoder",
        cells,
        domain=ML_DOMAIN,
        keys_strings=list(numbers),
        values_int64s=list(numbers.values()),
        default_int64=beyond,
    )
    each = graph.constant(np.arange(width)[None], np.int64)
    encoded = graph.node("Cast", graph.node("Equal", number, each), to=types.DOUBLE)
    if not column.indicator:
        return [encoded]
    flag = graph.node(
        "LabelEncoder",
        cells,
        domain=ML_DOMAIN,
        keys_strings=[_MISSING],
        values_int64s=[1],
        default_int64=0,
    )
    return [encoded, graph.node("Cast", flag, to=types.DOUBLE)]

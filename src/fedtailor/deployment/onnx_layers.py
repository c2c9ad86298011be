"""Converts the layers of `fedtailor.models` to nodes of an ONNX graph.

Images and planes are [c, h, w, b] in JAX, and [b, c, h, w] in the graph, as its
convolutions require. Vectors are [b, n] in both. Converters from JAX to ONNX (such as
jax2onnx) would translate each layer's operations, which are chosen for CPUs. One ONNX
operator for each layer makes smaller and faster graphs.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedtailor.models import layers, normalization, periodic, series
from fedtailor.models.resnet import GlobalAveragePool, Residual

_PREFIX = "fedtailor/"
"""Begins the names of values inside a graph, so that none is a table's column."""


def onnx_package() -> Any:
    """The package `onnx`.

    Raises:
        ValueError: it is not installed.
    """
    try:
        return import_module("onnx")
    except ImportError as error:
        raise ValueError(
            "ONNX files need `pip install 'fedtailor[onnx]'`; or export safetensors"
        ) from error


class Graph:
    """Nodes and constants of an ONNX graph; values are identified by their names."""

    def __init__(self) -> None:
        self._helper, self._numpy = onnx_package().helper, onnx_package().numpy_helper
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, value: ArrayLike, kind: Any = np.float32) -> str:
        """Append a constant array.

        Returns:
            Its name.
        """
        name = f"{_PREFIX}constant_{len(self.constants)}"
        self.constants.append(self._numpy.from_array(np.asarray(value, kind), name))
        return name

    def texts(self, values: list[str]) -> str:
        """Append a constant array of strings.

        Returns:
            Its name.
        """
        name = f"{_PREFIX}constant_{len(self.constants)}"
        strings = onnx_package().TensorProto.STRING
        data = [value.encode() for value in values]
        self.constants.append(
            self._helper.make_tensor(name, strings, [len(values)], data)
        )
        return name

    def node(
        self, operator: str, *inputs: str, name: str | None = None, **attributes: Any
    ) -> str:
        """Append an operator with one output.

        Returns:
            The name of the output.
        """
        output = name or f"{_PREFIX}{operator}_{len(self.nodes)}"
        node = self._helper.make_node(
            operator, list(inputs), [output], name=output, **attributes
        )
        self.nodes.append(node)
        return output


def write_layer(graph: Graph, layer: Any, x: str) -> str:
    """Append a layer, applied to the value x.

    Returns:
        The name of its output.

    Raises:
        ValueError: the layer cannot be exported.
    """
    for kind, write in _WRITERS.items():
        if isinstance(layer, kind):
            return write(graph, layer, x)
    raise ValueError(
        f"the layer {type(layer).__name__} cannot be exported to ONNX; export"
        " safetensors instead"
    )


def _stack(graph: Graph, layer: layers.Stack, x: str) -> str:
    for inner in layer.layers:
        x = write_layer(graph, inner, x)
    return x


def _reshape(graph: Graph, layer: layers.Reshape, x: str) -> str:
    return graph.node("Reshape", x, graph.constant([-1, *layer.shape], np.int64))


def _dense(graph: Graph, layer: layers.Dense, x: str) -> str:
    weight, bias = graph.constant(layer.weight), graph.constant(layer.bias)
    return graph.node("Gemm", x, weight, bias, transB=int(layer.transposed))


def _relu(graph: Graph, layer: layers.Relu, x: str) -> str:
    return graph.node("Relu", x)


def _identity(graph: Graph, layer: layers.Dropout, x: str) -> str:
    return x


def _planes(graph: Graph, layer: Any, x: str) -> str:
    return graph.node("Transpose", x, perm=[0, 3, 1, 2])


def _flatten(graph: Graph, layer: layers.FlattenFeatureMaps, x: str) -> str:
    return graph.node("Flatten", x, axis=1)


def _convolve(graph: Graph, layer: Any, x: str, **attributes: Any) -> str:
    """Append a convolution with a kernel [k, k, c, o], and its bias if it has one."""
    constants = [graph.constant(np.asarray(layer.weight).transpose(3, 2, 0, 1))]
    if hasattr(layer, "bias"):
        constants.append(graph.constant(layer.bias))
    return graph.node("Conv", x, *constants, **attributes)


def _pool(graph: Graph, kind: str, x: str) -> str:
    operator = "AveragePool" if kind == "average" else "MaxPool"
    return graph.node(operator, x, kernel_shape=[2, 2], strides=[2, 2])


def _conv(graph: Graph, layer: layers.Conv, x: str) -> str:
    return graph.node("Relu", _convolve(graph, layer, x))


def _conv_pool(
    graph: Graph, layer: layers.ConvPool | layers.ImageConvPool, x: str
) -> str:
    convolved = _convolve(graph, layer, x)
    return _pool(graph, layer.pool, graph.node("Relu", convolved))


def _image_conv_pool(graph: Graph, layer: layers.ImageConvPool, x: str) -> str:
    return _conv_pool(graph, layer, _planes(graph, layer, x))


def _relu_pool(graph: Graph, layer: layers.ReluPool, x: str) -> str:
    return _pool(graph, layer.pool, graph.node("Relu", x))


def _convolution(graph: Graph, layer: layers.Convolution, x: str) -> str:
    strides = [layer.stride] * 2
    return _convolve(graph, layer, x, pads=[layer.padding] * 4, strides=strides)


def _batch_norm(graph: Graph, layer: normalization.BatchNorm, x: str) -> str:
    variance = np.maximum(layer.running_variance, 0)
    values = (layer.scale, layer.bias, layer.running_mean, variance)
    return graph.node(
        "BatchNormalization",
        x,
        *map(graph.constant, values),
        epsilon=normalization.EPSILON,
    )


def _group_norm(graph: Graph, layer: normalization.GroupNorm, x: str) -> str:
    """Append a group normalization, as an instance normalization of groups.

    Older runtimes lack the operator for group normalization.
    """
    groups = layer.groups
    grouped = graph.node("Reshape", x, graph.constant([0, groups, -1], np.int64))
    normal = graph.node(
        "InstanceNormalization",
        grouped,
        graph.constant(np.ones(groups)),
        graph.constant(np.zeros(groups)),
        epsilon=normalization.EPSILON,
    )
    back = graph.node("Reshape", normal, graph.node("Shape", x))
    scale = graph.constant(np.asarray(layer.scale)[:, None, None])
    bias = graph.constant(np.asarray(layer.bias)[:, None, None])
    return graph.node("Add", graph.node("Mul", back, scale), bias)


def _residual(graph: Graph, layer: Residual, x: str) -> str:
    y = _stack(graph, layer.branch, x)
    first: Any = layer.branch.layers[0]
    before, after = first.weight.shape[2:]
    if first.stride == 2:
        # The shortcut takes every second pixel, and is padded with channels of zeros.
        starts, ends, axes, steps = [0, 0], [2**31 - 1] * 2, [2, 3], [2, 2]
        arguments = (starts, ends, axes, steps)
        constants = [graph.constant(values, np.int64) for values in arguments]
        x = graph.node("Slice", x, *constants)
        missing = after - before
        pads = [0, missing // 2, 0, 0, 0, missing - missing // 2, 0, 0]
        x = graph.node("Pad", x, graph.constant(pads, np.int64))
    return graph.node("Relu", graph.node("Add", y, x))


def _plane_means(graph: Graph, layer: GlobalAveragePool, x: str) -> str:
    return graph.node("Flatten", graph.node("GlobalAveragePool", x), axis=1)


def _over_time(graph: Graph, operator: str, x: str, *inputs: str, **more: Any) -> str:
    """Append an operator on series [b, t, c], which ONNX has as [b, c, t]."""
    channels_first = graph.node("Transpose", x, perm=[0, 2, 1])
    y = graph.node(operator, channels_first, *inputs, **more)
    return graph.node("Transpose", y, perm=[0, 2, 1])


def _conv1d(graph: Graph, layer: series.Conv1dRelu, x: str) -> str:
    weight = graph.constant(np.asarray(layer.weight).transpose(2, 1, 0))
    y = _over_time(graph, "Conv", x, weight, graph.constant(layer.bias))
    return graph.node("Relu", y)


def _max_pool1d(graph: Graph, layer: series.MaxPool1d, x: str) -> str:
    return _over_time(graph, "MaxPool", x, kernel_shape=[2], strides=[2])


def _mean_over_time(graph: Graph, layer: series.MeanOverTime, x: str) -> str:
    return graph.node("ReduceMean", x, axes=[1], keepdims=0)


def _periodic(graph: Graph, layer: periodic.PeriodicEmbedding, x: str) -> str:
    """Append an embedding of each input; its waves are [inputs, b, waves]."""
    inputs, waves, width = layer.weight.shape
    speeds = 2 * np.pi * np.asarray(layer.frequency).reshape(inputs, 1, waves // 2)
    columns = graph.node("Transpose", x, perm=[1, 0])
    columns = graph.node("Unsqueeze", columns, graph.constant([2], np.int64))
    angles = graph.node("Mul", columns, graph.constant(speeds))
    sines, cosines = graph.node("Sin", angles), graph.node("Cos", angles)
    both = graph.node("Concat", sines, cosines, axis=2)
    y = graph.node("MatMul", both, graph.constant(layer.weight))
    y = graph.node("Transpose", y, perm=[1, 0, 2])
    y = graph.node("Reshape", y, graph.constant([-1, inputs * width], np.int64))
    return graph.node("Relu", graph.node("Add", y, graph.constant(layer.bias)))


def write_gru(graph: Graph, network: Any, x: str) -> str:
    """Append the recurrent layers of `fedtailor.models.gru` and the dense one.

    Returns:
        The name of its output.
    """
    y = graph.node("Transpose", x, perm=[1, 0, 2])
    for layer in network["recurrent"]:
        y = _gru_layer(graph, layer, y)
    last = graph.node("Gather", y, graph.constant(-1, np.int64), axis=0)
    return write_layer(graph, network["classifier"], last)


def _gru_layer(graph: Graph, layer: series.GRULayer, x: str) -> str:
    """Append a recurrent layer [t, b, inputs] -> [t, b, hidden]."""
    hidden = layer.state_weight.shape[0]

    def in_order(values: ArrayLike) -> np.ndarray:
        # The gates are r, z, n here, and z, r, h in ONNX.
        reset, update, new = np.split(np.asarray(values).T, 3)
        return np.concatenate([update, reset, new])[None]

    biases = [in_order(layer.input_bias), in_order(layer.state_bias)]
    constants = [
        graph.constant(in_order(layer.input_weight)),
        graph.constant(in_order(layer.state_weight)),
        graph.constant(np.concatenate(biases, axis=1)),
    ]
    y = graph.node("GRU", x, *constants, hidden_size=hidden, linear_before_reset=1)
    return graph.node("Squeeze", y, graph.constant([1], np.int64))


_WRITERS: dict[type[Any], Callable[..., str]] = {
    layers.Stack: _stack,
    layers.Reshape: _reshape,
    layers.Dense: _dense,
    layers.Relu: _relu,
    layers.Dropout: _identity,
    layers.ToFeatureMaps: _planes,
    layers.FlattenFeatureMaps: _flatten,
    layers.Conv: _conv,
    layers.ConvPool: _conv_pool,
    layers.ImageConvPool: _image_conv_pool,
    layers.ReluPool: _relu_pool,
    layers.Convolution: _convolution,
    normalization.BatchNorm: _batch_norm,
    normalization.GroupNorm: _group_norm,
    Residual: _residual,
    GlobalAveragePool: _plane_means,
    series.Conv1dRelu: _conv1d,
    series.MaxPool1d: _max_pool1d,
    series.MeanOverTime: _mean_over_time,
    periodic.PeriodicEmbedding: _periodic,
}

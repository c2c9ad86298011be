"""PyTorch's dense layers, embeddings, dropout, convolutions and pooling in JAX.

Convolutions and pooling use this library's own fast forms where they can.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from fedtailor.models.convolution import convolve, convolve_stride_2, pad
from fedtailor.models.pooling import convolve_windows, pool_relu, windows
from fedtailor.models.pytorch.layout import (
    FeatureMaps,
    Value,
    as_feature_maps,
    as_images,
    torch_layout,
)
from fedtailor.models.pytorch.operations import Context, Unsupported, operation
from fedtailor.protocol import along_axis


@operation("linear")
def _linear(
    context: Context, x: Array, weight: Float[Array, "o i"], bias: Array | None = None
) -> Array:
    y = x @ weight.T
    return y if bias is None else y + bias


@operation("addmm")
def _addmm(context: Context, bias: Array, x: Array, y: Array) -> Array:
    return bias + x @ y


@operation("embedding")
def _embedding(
    context: Context, table: Array, rows: Array, padding: int = -1, *rest: Any
) -> Array:
    if padding >= 0:  # the row of padding gets no gradient
        table = table.at[padding].set(lax.stop_gradient(table[padding]))
    return table.at[rows].get(mode="fill", fill_value=jnp.nan)


@operation("dropout", "dropout_", "feature_dropout", "feature_dropout_", layout=True)
def dropout(context: Context, x: Value, rate: float = 0.5, train: bool = True) -> Value:
    key = context.next_key()
    if not train or key is None or rate == 0:
        return x
    array: Array = torch_layout(x)
    shape = array.shape
    if context.operation_name.startswith("feature"):
        shape = (*shape[:2], *[1] * (array.ndim - 2))
    if rate >= 1:
        return jnp.zeros_like(array)
    is_kept = jax.random.bernoulli(key, 1 - rate, shape)
    return jnp.where(is_kept, array / (1 - rate), 0)


# convolution and pooling
# --------------------------------------------------------------------------------------


@operation("conv2d", "conv1d", "conv3d", layout=True)
def _convolution(
    context: Context,
    x: Value,
    weight: Array,
    bias: Array | None = None,
    stride: Sequence[int] = (1,),
    padding: Any = (0,),
    dilation: Sequence[int] = (1,),
    groups: int = 1,
) -> Value:
    if _has_fast_form(weight, stride, padding, dilation, groups):
        function = convolve if _common(stride) == 1 else convolve_stride_2
        feature_maps = pad(as_feature_maps(x), _common(padding))
        y = function(feature_maps, weight.transpose(2, 3, 1, 0))
        return FeatureMaps(y if bias is None else y + bias[:, None, None, None])
    # All other convolutions are computed by XLA in PyTorch's layout, channels first.
    array: Array = torch_layout(x)
    ndim = weight.ndim - 2
    spatial = "DHW"[3 - ndim :]
    layout = (f"NC{spatial}", f"OI{spatial}", f"NC{spatial}")
    edges = (
        padding.upper()
        if isinstance(padding, str)
        else [(by, by) for by in _per_axis(padding, ndim)]
    )
    y = lax.conv_general_dilated(
        array,
        weight,
        _per_axis(stride, ndim),
        edges,
        rhs_dilation=_per_axis(dilation, ndim),
        dimension_numbers=layout,
        feature_group_count=groups,
    )
    return y if bias is None else y + along_axis(bias, 1, y.ndim)


def _common(values: Sequence[int]) -> int:
    """The value that all axes have in common; -1 if they differ."""
    return values[0] if len(set(values)) == 1 else -1


def _per_axis(values: Sequence[int], ndim: int) -> list[int]:
    """One value for each spatial axis, where PyTorch may give a single one for all."""
    return list(values) * ndim if len(values) == 1 else list(values)


def _has_fast_form(
    weight: Array, stride: Any, padding: Any, dilation: Any, groups: int
) -> bool:
    """Whether `fedtailor.models.convolution` can compute a convolution."""
    is_square = weight.ndim == 4 and weight.shape[2] == weight.shape[3]
    return (
        is_square
        and not isinstance(padding, str)
        and _common(padding) >= 0
        and _common(stride) in (1, 2)
        and _common(dilation) == 1
        and groups == 1
    )


@operation("conv_relu_pool", layout=True)
def _conv_relu_pool(
    context: Context,
    x: Value,
    weight: Array,
    bias: Array | None,
    padding: Sequence[int],
    pool: str,
) -> FeatureMaps:
    """A convolution of stride 1, ReLU and 2x2 pooling as one operation, which
    `convert.fuse` makes of three.
    """
    kernel = weight.transpose(2, 3, 1, 0)
    by = _common(padding)
    b, _, h, w = x.shape
    o, _, k, _ = weight.shape
    bias = jnp.zeros(o, weight.dtype) if bias is None else bias
    h = h + 2 * by - k + 1
    w = w + 2 * by - k + 1
    if not isinstance(x, FeatureMaps) and by == 0 and k % 2 == 1:
        y = convolve_windows(as_images(x), kernel)
    else:
        y = windows(convolve(pad(as_feature_maps(x), by), kernel))
    pooled = pool_relu(y, bias, "average" if pool == "average" else "max")
    return FeatureMaps(pooled.reshape(o, h // 2, w // 2, b))


@operation("max_pool2d", "max_pool1d", layout=True)
def _max_pool(
    context: Context,
    x: Value,
    size: Any,
    stride: Any = (),
    padding: Any = (0,),
    dilation: Any = (1,),
    ceil: bool = False,
) -> Value:
    if ceil or _common(dilation) != 1:
        raise Unsupported("max pooling with ceil_mode or dilation")
    if _is_two_by_two(x, size, stride, padding):
        b, c, h, w = x.shape
        maxima = _first_maximum(windows(as_feature_maps(x)))
        return FeatureMaps(maxima.reshape(c, h // 2, w // 2, b))
    return _reduce_window(torch_layout(x), lax.max, -jnp.inf, size, stride, padding)


def _first_maximum(y: Float[Array, "4 c n"]) -> Float[Array, "c n"]:
    """The maximum of each pooling window. The first of several equal maxima gets the
    derivative, as in PyTorch.
    """
    upper_left, upper_right, lower_left, lower_right = y
    upper = jnp.where(upper_left >= upper_right, upper_left, upper_right)
    lower = jnp.where(lower_left >= lower_right, lower_left, lower_right)
    return jnp.where(upper >= lower, upper, lower)


@operation("avg_pool2d", "avg_pool1d", layout=True)
def _average_pool(
    context: Context,
    x: Value,
    size: Any,
    stride: Any = (),
    padding: Any = (0,),
    ceil: bool = False,
    count_include_pad: bool = True,
    divisor: int | None = None,
) -> Value:
    if ceil or divisor or (_common(padding) != 0 and not count_include_pad):
        raise Unsupported(
            "average pooling with ceil_mode, divisor_override or"
            " count_include_pad=False"
        )
    if _is_two_by_two(x, size, stride, padding):
        b, c, h, w = x.shape
        return FeatureMaps(
            windows(as_feature_maps(x)).mean(0).reshape(c, h // 2, w // 2, b)
        )
    array: Array = torch_layout(x)
    sums = _reduce_window(array, lax.add, 0.0, size, stride, padding)
    return sums / math.prod(_per_axis(size, array.ndim - 2))


def _is_two_by_two(x: Value, size: Any, stride: Any, padding: Any) -> bool:
    """Whether pooling of images is over disjoint windows of 2x2 pixels."""
    is_image = len(x.shape) == 4
    return (
        is_image
        and _common(size) == 2
        and _common(stride or size) == 2
        and _common(padding) == 0
    )


def _reduce_window(
    x: Array,
    function: Callable[..., Array],
    start: float,
    size: Any,
    stride: Any,
    padding: Any,
) -> Array:
    """A reduction of x [b, c, ...] over windows given by PyTorch's arguments. An empty
    `stride` means the size of the window.
    """
    ndim = x.ndim - 2
    size, padding = _per_axis(size, ndim), _per_axis(padding, ndim)
    stride = _per_axis(stride, ndim) if stride else size
    edges = [(0, 0), (0, 0), *((by, by) for by in padding)]
    return lax.reduce_window(
        x,
        np.asarray(start, x.dtype)[()],
        function,
        (1, 1, *size),
        (1, 1, *stride),
        edges,
    )


@operation("adaptive_avg_pool2d", "adaptive_avg_pool1d", layout=True)
def _adaptive_average_pool(context: Context, x: Value, size: Any) -> Value:
    inputs = x.shape[2:]
    outputs = []
    for before, after in zip(inputs, _per_axis(size, len(inputs)), strict=True):
        outputs.append(before if after is None else after)
    if isinstance(x, FeatureMaps) and outputs == [1, 1]:
        return FeatureMaps(x.array.mean((1, 2), keepdims=True))
    # Each axis is split into two: the windows, and the pixels of a window.
    windows_shape = []
    for before, after in zip(inputs, outputs, strict=True):
        if before % after:
            raise Unsupported(
                f"adaptive average pooling from {tuple(inputs)} to {tuple(outputs)} (no"
                " equal windows)"
            )
        windows_shape += [after, before // after]
    array: Array = torch_layout(x)
    pixel_axes = tuple(range(3, 3 + 2 * len(inputs), 2))
    return array.reshape(*array.shape[:2], *windows_shape).mean(pixel_axes)

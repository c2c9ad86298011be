"""PyTorch's pooling layers in JAX. Pooling of 2x2 pixels uses this library's own form."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from fedtailor.models.pooling import windows
from fedtailor.models.pytorch.layout import (
    FeatureMaps,
    Value,
    as_feature_maps,
    torch_layout,
)
from fedtailor.models.pytorch.operations import Context, operation


def common(values: Sequence[int]) -> int:
    """The value that all axes have in common; -1 if they differ."""
    return values[0] if len(set(values)) == 1 else -1


def per_axis(values: Sequence[Any], ndim: int) -> list[Any]:
    """One value for each spatial axis, where PyTorch may give a single one for all."""
    return list(values) * ndim if len(values) == 1 else list(values)


@operation("max_pool1d", "max_pool2d", "max_pool3d", layout=True)
def _max_pool(
    context: Context,
    x: Value,
    size: Any,
    stride: Any = (),
    padding: Any = (0,),
    dilation: Any = (1,),
    ceil: bool = False,
) -> Value:
    is_even = not ceil or (x.shape[-1] % 2 == 0 and x.shape[-2] % 2 == 0)
    if common(dilation) == 1 and is_even and _is_two_by_two(x, size, stride, padding):
        b, c, h, w = x.shape
        maxima = _first_maximum(windows(as_feature_maps(x)))
        return FeatureMaps(maxima.reshape(c, h // 2, w // 2, b))
    return _reduce_window(
        torch_layout(x), lax.max, -jnp.inf, size, stride, padding, dilation, ceil
    )


def _first_maximum(y: Float[Array, "4 c n"]) -> Float[Array, "c n"]:
    """The maximum of each pooling window. The first of several equal maxima gets the
    derivative, as in PyTorch.
    """
    upper_left, upper_right, lower_left, lower_right = y
    upper = jnp.where(upper_left >= upper_right, upper_left, upper_right)
    lower = jnp.where(lower_left >= lower_right, lower_left, lower_right)
    return jnp.where(upper >= lower, upper, lower)


@operation("avg_pool1d", "avg_pool2d", "avg_pool3d", layout=True)
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
    is_plain = not ceil and divisor is None
    if is_plain and _is_two_by_two(x, size, stride, padding):
        b, c, h, w = x.shape
        return FeatureMaps(
            windows(as_feature_maps(x)).mean(0).reshape(c, h // 2, w // 2, b)
        )
    array: Array = torch_layout(x)
    ndim = array.ndim - 2
    size = per_axis(size, ndim)
    sums = _reduce_window(array, lax.add, 0.0, size, stride, padding, (1,), ceil)
    if divisor is not None:
        return sums / divisor
    if not ceil and (count_include_pad or common(padding) == 0):
        return sums / math.prod(size)
    # The number of entries of each window; what `ceil` adds does not count.
    ones = jnp.ones((1, 1, *array.shape[2:]), array.dtype)
    if count_include_pad:
        edges = [(by, by) for by in per_axis(padding, ndim)]
        ones = jnp.pad(ones, [(0, 0), (0, 0), *edges], constant_values=1)
        padding = (0,)
        count = _reduce_window(ones, lax.add, 0.0, size, stride, padding, (1,), ceil)
        count = count[(..., *(slice(0, length) for length in sums.shape[2:]))]
    else:
        count = _reduce_window(ones, lax.add, 0.0, size, stride, padding, (1,), ceil)
    return sums / count


def _is_two_by_two(x: Value, size: Any, stride: Any, padding: Any) -> bool:
    """Whether pooling of images is over disjoint windows of 2x2 pixels."""
    is_image = len(x.shape) == 4
    return (
        is_image
        and common(size) == 2
        and common(stride or size) == 2
        and common(padding) == 0
    )


def _reduce_window(
    x: Array,
    function: Callable[..., Array],
    start: float,
    size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil: bool,
) -> Array:
    """A reduction of x [b, c, ...] over windows given by PyTorch's arguments. An empty
    `stride` means the size of the window.
    """
    ndim = x.ndim - 2
    size, padding = per_axis(size, ndim), per_axis(padding, ndim)
    stride = per_axis(stride, ndim) if stride else size
    dilation = per_axis(dilation, ndim)
    edges: list[tuple[int, int]] = []
    for n, length, step, by, between in zip(
        x.shape[2:], size, stride, padding, dilation, strict=True
    ):
        reach = between * (length - 1) + 1
        more = 0
        if ceil:
            # One more window, if it starts inside of the input or the padding before it.
            count = -(-(n + 2 * by - reach) // step) + 1
            if (count - 1) * step >= n + by:
                count -= 1
            more = max((count - 1) * step + reach - n - 2 * by, 0)
        edges.append((by, by + more))
    if common(dilation) != 1:  # JAX has no derivative for this
        padded = jnp.pad(x, [(0, 0), (0, 0), *edges], constant_values=start)
        return _one_maximum(_entries_of_windows(padded, size, stride, dilation), 0)
    return lax.reduce_window(
        x,
        np.asarray(start, x.dtype)[()],
        function,
        (1, 1, *size),
        (1, 1, *stride),
        [(0, 0), (0, 0), *edges],
        window_dilation=(1, 1, *dilation),
    )


def _entries_of_windows(
    x: Array, size: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> Array:
    """For each place of a window, the entries there of all windows [places, b, c, ...]."""
    places = []
    for place in np.ndindex(*size):
        cut = [slice(None), slice(None)]
        for n, at, length, step, between in zip(
            x.shape[2:], place, size, stride, dilation, strict=True
        ):
            last = n - between * (length - 1)
            cut.append(slice(at * between, at * between + last, step))
        places.append(x[tuple(cut)])
    return jnp.stack(places)


@operation(
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", layout=True
)
def _adaptive_average_pool(context: Context, x: Value, size: Any) -> Value:
    if isinstance(x, FeatureMaps) and _outputs(x.shape[2:], size) == [1, 1]:
        return FeatureMaps(x.array.mean((1, 2), keepdims=True))
    return _by_axis(torch_layout(x), size, jnp.mean)


@operation("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def _adaptive_max_pool(context: Context, x: Array, size: Any) -> tuple[Array, None]:
    return _by_axis(x, size, _one_maximum), None


def _one_maximum(x: Array, axis: int) -> Array:
    """The maximum along an axis. One of several equal maxima gets the derivative."""
    index = x.argmax(axis, keepdims=True)
    return jnp.take_along_axis(x, index, axis).squeeze(axis)


def _outputs(inputs: Sequence[int], size: Any) -> list[int]:
    """The size of each axis after adaptive pooling; None keeps an axis as it is."""
    outputs = []
    for before, after in zip(inputs, per_axis(size, len(inputs)), strict=True):
        outputs.append(before if after is None else after)
    return outputs


def _by_axis(x: Array, size: Any, function: Callable[..., Array]) -> Array:
    """Adaptive pooling of x [b, c, ...], one axis after another."""
    for axis, after in enumerate(_outputs(x.shape[2:], size), 2):
        before = x.shape[axis]
        if before % after == 0:
            shape = (*x.shape[:axis], after, before // after, *x.shape[axis + 1 :])
            x = function(x.reshape(shape), axis=axis + 1)
            continue
        parts = []
        for index in range(after):
            start, end = index * before // after, -(-(index + 1) * before // after)
            part = lax.slice_in_dim(x, start, end, axis=axis)
            parts.append(function(part, axis=axis))
        x = jnp.stack(parts, axis)
    return x

"""PyTorch's normalisation layers in JAX."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from fedtailor.models.normalization import batch_statistics, without_noise
from fedtailor.models.pytorch.layout import FeatureMaps, Value, torch_layout
from fedtailor.models.pytorch.operations import Context, Unsupported, operation
from fedtailor.protocol import along_axis


@operation("_native_batch_norm_legit_functional", layout=True)
def _batch_norm(
    context: Context,
    x: Value,
    weight: Array | None,
    bias: Array | None,
    mean: Array,
    variance: Array,
    training: bool,
    momentum: float,
    epsilon: float,
) -> tuple[Any, ...]:
    if not training:
        y, *rest = _normalized_channels(
            context, x, weight, bias, mean, variance, momentum, epsilon
        )
        return y, *rest, mean, variance
    array, batch_axis, channel_axis = _axes(x)
    batch_mean, batch_variance, (mean, variance) = batch_statistics(
        array,
        _example_weight(context, x.shape[0], array.dtype),
        (mean, variance),
        momentum,
        batch_axis=batch_axis,
        channel_axis=channel_axis,
    )
    y, *rest = _normalized_channels(
        context, x, weight, bias, batch_mean, batch_variance, momentum, epsilon
    )
    return y, *rest, mean, variance


@operation("_native_batch_norm_legit_no_training", layout=True)
def _normalized_channels(
    context: Context,
    x: Value,
    weight: Array | None,
    bias: Array | None,
    mean: Array,
    variance: Array,
    momentum: float,
    epsilon: float,
) -> tuple[Any, ...]:
    array, _, channel_axis = _axes(x)

    def per_channel(values: Array) -> Array:
        return along_axis(values, channel_axis, array.ndim)

    scale = per_channel(lax.rsqrt(without_noise(variance) + epsilon))
    y = (array - per_channel(mean)) * scale
    if weight is not None:
        y = y * per_channel(weight)
    if bias is not None:
        y = y + per_channel(bias)
    return FeatureMaps(y) if isinstance(x, FeatureMaps) else y, mean, variance


@operation("_native_batch_norm_legit", layout=True)
def _batch_norm_without_statistics(
    context: Context,
    x: Value,
    weight: Array | None,
    bias: Array | None,
    training: bool,
    momentum: float,
    epsilon: float,
) -> tuple[Any, ...]:
    array, batch_axis, channel_axis = _axes(x)
    nothing = jnp.zeros(x.shape[1], array.dtype)
    mean, variance, _ = batch_statistics(
        array,
        _example_weight(context, x.shape[0], array.dtype),
        (nothing, nothing),
        momentum,
        batch_axis=batch_axis,
        channel_axis=channel_axis,
    )
    return _normalized_channels(
        context, x, weight, bias, mean, variance, momentum, epsilon
    )


def _axes(x: Value) -> tuple[Array, int, int]:
    """An array, and its axes of examples and of channels. Feature maps are [channel,
    height, width, example]; all else has PyTorch's layout [example, channel, ...].
    """
    return (x.array, 3, 0) if isinstance(x, FeatureMaps) else (torch_layout(x), 0, 1)


def _example_weight(context: Context, count: int, dtype: Any) -> Array:
    """The weight of each of `count` rows; a batch of sequences [b, t, ...] may have been
    reshaped to rows [b t, ...].
    """
    if context.weight is None:
        return jnp.ones(count, dtype)
    return jnp.repeat(context.weight, count // len(context.weight))


@operation("layer_norm")
def _layer_norm(
    context: Context,
    x: Array,
    shape: Sequence[int],
    weight: Array | None = None,
    bias: Array | None = None,
    epsilon: float = 1e-5,
    *rest: Any,
) -> Array:
    y = _normalized(x, tuple(range(x.ndim - len(shape), x.ndim)), epsilon)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


@operation("group_norm")
def _group_norm(
    context: Context,
    x: Array,
    groups: int,
    weight: Array | None = None,
    bias: Array | None = None,
    epsilon: float = 1e-5,
    *rest: Any,
) -> Array:
    grouped = x.reshape(len(x), groups, -1)
    y = _normalized(grouped, (2,), epsilon).reshape(x.shape)
    y = y if weight is None else y * along_axis(weight, 1, x.ndim)
    return y if bias is None else y + along_axis(bias, 1, x.ndim)


@operation("instance_norm")
def _instance_norm(
    context: Context,
    x: Array,
    weight: Array | None,
    bias: Array | None,
    mean: Array | None,
    variance: Array | None,
    use_input_stats: bool,
    momentum: float,
    epsilon: float,
    *rest: Any,
) -> Array:
    if mean is not None or not use_input_stats:
        raise Unsupported("InstanceNorm with track_running_stats=True")
    return _group_norm(context, x, x.shape[1], weight, bias, epsilon)


@operation("rms_norm")
def _rms_norm(
    context: Context,
    x: Array,
    shape: Sequence[int],
    weight: Array | None = None,
    epsilon: float | None = None,
) -> Array:
    epsilon = float(jnp.finfo(x.dtype).eps) if epsilon is None else epsilon
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    y = x * lax.rsqrt(jnp.square(x).mean(axes, keepdims=True) + epsilon)
    return y if weight is None else y * weight


@operation("_weight_norm")
def _weight_norm(
    context: Context, direction: Array, length: Array, dim: int = 0
) -> Array:
    axes = tuple(axis for axis in range(direction.ndim) if axis != dim % direction.ndim)
    norm = jnp.sqrt(jnp.square(direction).sum(axes, keepdims=True))
    return direction * (length / norm)


def _normalized(x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    """x minus its mean, divided by its standard deviation, both over some axes."""
    mean = x.mean(axes, keepdims=True)
    variance = jnp.square(x - mean).mean(axes, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + epsilon)

"""PyTorch's layers in JAX: dense, convolution and pooling (this library's own where
they fit), normalisation, dropout, embeddings, recurrent layers, attention."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from fedtailor.models.convolution import convolve, halve, pad
from fedtailor.models.normalization import batch_statistics
from fedtailor.models.pooling import convolve_windows, pool_relu, windows
from fedtailor.models.pytorch.layout import Planes, Value, as_images, as_planes, plain
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
def _dropout(
    context: Context, x: Value, rate: float = 0.5, train: bool = True
) -> Value:
    key = context.next_key()
    if not train or key is None or rate == 0:
        return x
    array: Array = plain(x)
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
    if _is_ours(weight, stride, padding, dilation, groups):
        padded = pad(as_planes(x), _all(padding))
        kernel = weight.transpose(2, 3, 1, 0)
        y = (
            convolve(padded, kernel)
            if _all(stride) == 1
            else convolve(*halve(padded, kernel))
        )
        return Planes(y if bias is None else y + bias[:, None, None, None])
    # Everything else is XLA's: channels first, in PyTorch's layout.
    array: Array = plain(x)
    sides = weight.ndim - 2
    letters = "DHW"[3 - sides :]
    layout = (f"NC{letters}", f"OI{letters}", f"NC{letters}")
    edges = (
        padding.upper()
        if isinstance(padding, str)
        else [(side, side) for side in _wide(padding, sides)]
    )
    y = lax.conv_general_dilated(
        array,
        weight,
        _wide(stride, sides),
        edges,
        rhs_dilation=_wide(dilation, sides),
        dimension_numbers=layout,
        feature_group_count=groups,
    )
    return y if bias is None else y + along_axis(bias, 1, y.ndim)


def _all(sides: Sequence[int]) -> int:
    """What all sides have in common; -1 where they differ."""
    return sides[0] if len(set(sides)) == 1 else -1


def _wide(values: Sequence[int], sides: int) -> list[int]:
    """One value for each side, where PyTorch may give a single one for all."""
    return list(values) * sides if len(values) == 1 else list(values)


def _is_ours(
    weight: Array, stride: Any, padding: Any, dilation: Any, groups: int
) -> bool:
    """Whether a convolution is one that this library has a faster form of."""
    square = weight.ndim == 4 and weight.shape[2] == weight.shape[3]
    plain_padding = not isinstance(padding, str) and _all(padding) >= 0
    return (
        square
        and plain_padding
        and _all(stride) in (1, 2)
        and _all(dilation) == 1
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
) -> Planes:
    """A convolution of stride 1, ReLU and 2x2 pooling in one: `convert.fused` writes
    it.
    """
    kernel = weight.transpose(2, 3, 1, 0)
    by = _all(padding)
    b, _, h, w = x.shape
    o, _, k, _ = weight.shape
    bias = jnp.zeros(o, weight.dtype) if bias is None else bias
    h = h + 2 * by - k + 1
    w = w + 2 * by - k + 1
    if not isinstance(x, Planes) and by == 0 and k % 2 == 1:
        y = convolve_windows(as_images(x), kernel)
    else:
        y = windows(convolve(pad(as_planes(x), by), kernel))
    pooled = pool_relu(y, bias, "average" if pool == "average" else "max")
    return Planes(pooled.reshape(o, h // 2, w // 2, b))


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
    if ceil or _all(dilation) != 1:
        raise Unsupported("max pooling with ceil_mode or dilation")
    if _is_two_by_two(x, size, stride, padding):
        four = windows(as_planes(x))
        b, c, h, w = x.shape
        return Planes(_first_maximum(four).reshape(c, h // 2, w // 2, b))
    return _windowed(plain(x), lax.max, -jnp.inf, size, stride, padding)


def _first_maximum(four: Float[Array, "4 c n"]) -> Float[Array, "c n"]:
    """The largest of each window; of equal ones the first gets the derivative, as in
    PyTorch.
    """
    first, second, third, fourth = four
    above = jnp.where(first >= second, first, second)
    below = jnp.where(third >= fourth, third, fourth)
    return jnp.where(above >= below, above, below)


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
    if ceil or divisor or (_all(padding) != 0 and not count_include_pad):
        raise Unsupported(
            "average pooling with ceil_mode, divisor_override or"
            " count_include_pad=False"
        )
    if _is_two_by_two(x, size, stride, padding):
        b, c, h, w = x.shape
        return Planes(windows(as_planes(x)).mean(0).reshape(c, h // 2, w // 2, b))
    array: Array = plain(x)
    return _windowed(array, lax.add, 0.0, size, stride, padding) / math.prod(
        _wide(size, array.ndim - 2)
    )


def _is_two_by_two(x: Value, size: Any, stride: Any, padding: Any) -> bool:
    is_image = len(x.shape) == 4
    return (
        is_image
        and _all(size) == 2
        and _all(stride or size) == 2
        and _all(padding) == 0
    )


def _windowed(
    x: Array,
    function: Callable[..., Array],
    start: float,
    size: Any,
    stride: Any,
    padding: Any,
) -> Array:
    """A reduction over windows of PyTorch's arguments, on [b, c, ...]; a stride that is
    not given is the size.
    """
    sides = x.ndim - 2
    size, padding = _wide(size, sides), _wide(padding, sides)
    stride = _wide(stride, sides) if stride else size
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
    sides = x.shape[2:]
    wanted = [
        side if want is None else want
        for side, want in zip(sides, _wide(size, len(sides)), strict=True)
    ]
    if isinstance(x, Planes) and wanted == [1, 1]:
        return Planes(x.array.mean((1, 2), keepdims=True))
    if any(side % want for side, want in zip(sides, wanted, strict=True)):
        raise Unsupported(
            f"adaptive average pooling from {tuple(sides)} to {tuple(wanted)} (no equal"
            " windows)"
        )
    # Equal windows: each side becomes (windows, pixels of a window), and the second is
    # averaged over.
    array: Array = plain(x)
    blocks = [
        part
        for side, want in zip(sides, wanted, strict=True)
        for part in (want, side // want)
    ]
    axes = tuple(range(3, 3 + 2 * len(sides), 2))
    return array.reshape(*array.shape[:2], *blocks).mean(axes)


# normalisation
# --------------------------------------------------------------------------------------


@operation("batch_norm", layout=True)
def _batch_norm(
    context: Context,
    x: Value,
    weight: Array | None,
    bias: Array | None,
    mean: Array | None,
    variance: Array | None,
    training: bool,
    momentum: float,
    epsilon: float,
    *rest: Any,
) -> Value:
    if mean is None or variance is None or momentum is None:
        raise Unsupported("BatchNorm with track_running_stats=False or momentum=None")
    array = x.array if isinstance(x, Planes) else plain(x)
    batch_axis, channel_axis = (3, 0) if isinstance(x, Planes) else (0, 1)
    if training:
        count = x.shape[0]
        example_weight = (
            jnp.ones(count, array.dtype) if context.weight is None else context.weight
        )
        mean, variance, (new_mean, new_variance) = batch_statistics(
            array,
            example_weight,
            (mean, variance),
            momentum,
            batch_axis=batch_axis,
            channel_axis=channel_axis,
        )
        context.renewed |= {context.path(3): new_mean, context.path(4): new_variance}

    def per_channel(values: Array) -> Array:
        return along_axis(values, channel_axis, array.ndim)

    y = (array - per_channel(mean)) * per_channel(lax.rsqrt(variance + epsilon))
    y = y if weight is None else y * per_channel(weight)
    y = y if bias is None else y + per_channel(bias)
    return Planes(y) if isinstance(x, Planes) else y


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
    y = _normal(x, tuple(range(x.ndim - len(shape), x.ndim)), epsilon)
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
    y = _normal(grouped, (2,), epsilon).reshape(x.shape)
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
    others = tuple(
        axis for axis in range(direction.ndim) if axis != dim % direction.ndim
    )
    return direction * (
        length / jnp.sqrt(jnp.square(direction).sum(others, keepdims=True))
    )


def _normal(x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    """x less its mean, over its deviation, both along some axes."""
    mean = x.mean(axes, keepdims=True)
    return (x - mean) * lax.rsqrt(
        jnp.square(x - mean).mean(axes, keepdims=True) + epsilon
    )


# sequences
# --------------------------------------------------------------------------------------


RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
"""Operations that run a recurrent layer over a sequence; their sixth argument is a rate
of dropout.
"""


@operation(*RECURRENT)
def _recurrent(
    context: Context,
    x: Array,
    state: Any,
    weights: Sequence[Array],
    biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool = False,
) -> tuple[Array, ...]:
    # Layer by layer, and in each the two directions; `weights` holds two matrices and
    # two biases for each of these.
    kind = context.operation_name
    states = state if kind == "lstm" else (state,)
    x = x.swapaxes(0, 1) if batch_first else x
    directions = 2 if bidirectional else 1
    number = 4 if biases else 2
    last: list[tuple[Array, ...]] = []
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            place = layer * directions + direction
            group = weights[place * number : (place + 1) * number]
            start = tuple(part[place] for part in states)
            after, seen = _unrolled(kind, x, start, group, reverse=direction == 1)
            outputs.append(seen)
            last.append(after)
        x = jnp.concatenate(outputs, -1)
        if layer < layers - 1:
            x = plain(_dropout(context, x, dropout, train))
    x = x.swapaxes(0, 1) if batch_first else x
    return x, *(jnp.stack(parts) for parts in zip(*last, strict=True))


def _unrolled(
    kind: str,
    x: Array,
    start: tuple[Array, ...],
    weights: Sequence[Array],
    reverse: bool,
) -> tuple[tuple[Array, ...], Array]:
    """One layer in one direction over a sequence [t, b, inputs].

    Returns:
        The state after the last step, and the hidden states of all steps [t, b,
        hidden].
    """
    of_input, of_state = weights[0].T, weights[1].T
    has_biases = len(weights) == 4
    input_bias, state_bias = (
        weights[2:] if has_biases else (jnp.zeros(()), jnp.zeros(()))
    )

    def step(state: tuple[Array, ...], now: Array) -> tuple[tuple[Array, ...], Array]:
        inner = state[0] @ of_state + state_bias
        if kind.startswith("rnn"):
            hidden = (jnp.tanh if kind == "rnn_tanh" else jax.nn.relu)(now + inner)
            return (hidden,), hidden
        if kind == "lstm":
            i, f, g, o = jnp.split(now + inner, 4, -1)
            cell = jax.nn.sigmoid(f) * state[1] + jax.nn.sigmoid(i) * jnp.tanh(g)
            hidden = jax.nn.sigmoid(o) * jnp.tanh(cell)
            return (hidden, cell), hidden
        r, z, n = jnp.split(now, 3, -1)
        inner_r, inner_z, inner_n = jnp.split(inner, 3, -1)
        r = jax.nn.sigmoid(r + inner_r)
        z = jax.nn.sigmoid(z + inner_z)
        hidden = (1 - z) * jnp.tanh(n + r * inner_n) + z * state[0]
        return (hidden,), hidden

    return lax.scan(step, start, x @ of_input + input_bias, reverse=reverse)


@operation("scaled_dot_product_attention")
def _attention(
    context: Context,
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None = None,
    dropout: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    **kwargs: Any,
) -> Array:
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = query @ key.swapaxes(-1, -2) * scale
    if is_causal:
        mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    if mask is not None:
        scores = (
            jnp.where(mask, scores, -jnp.inf) if mask.dtype == bool else scores + mask
        )
    return plain(_dropout(context, jax.nn.softmax(scores, -1), dropout)) @ value

"""PyTorch's dense layers, embeddings and convolutions in JAX.

Convolutions use this library's own fast forms where they can.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
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
from fedtailor.models.pytorch.pools import common, per_axis
from fedtailor.models.pytorch.shapes import safe_sqrt
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


@operation("embedding_bag")
def _embedding_bag(
    context: Context,
    table: Array,
    rows: Array,
    offsets: Array,
    scale_grad: bool = False,
    mode: int = 0,
    sparse: bool = False,
    weights: Array | None = None,
    has_last_offset: bool = False,
    padding: int | None = None,
) -> tuple[Array, ...]:
    if has_last_offset:
        offsets = offsets[:-1]
    bags = jnp.searchsorted(offsets, jnp.arange(len(rows)), side="right") - 1
    is_token = jnp.ones(len(rows), bool)
    if padding is not None and padding >= 0:
        is_token = rows != padding
    vectors = table[rows]
    if mode == 2:
        vectors = jnp.where(is_token[:, None], vectors, -jnp.inf)
        y = jax.ops.segment_max(vectors, bags, len(offsets))
        return (jnp.where(jnp.isneginf(y), 0, y),)
    weights = is_token.astype(table.dtype) * (1 if weights is None else weights)
    y = jax.ops.segment_sum(vectors * weights[:, None], bags, len(offsets))
    if mode == 1:
        count = jax.ops.segment_sum(is_token.astype(table.dtype), bags, len(offsets))
        y = y / jnp.maximum(count, 1)[:, None]
    return (y,)


@operation("bilinear")
def _bilinear(
    context: Context, x: Array, y: Array, weight: Array, bias: Array | None = None
) -> Array:
    z = jnp.einsum("...i,oij,...j->...o", x, weight, y)
    return z if bias is None else z + bias


@operation("baddbmm")
def _baddbmm(
    context: Context, z: Array, x: Array, y: Array, *, beta: Any = 1, alpha: Any = 1
) -> Array:
    return beta * z + alpha * (x @ y)


@operation("cosine_similarity")
def _cosine_similarity(
    context: Context, x: Array, y: Array, dim: int = 1, epsilon: float = 1e-8
) -> Array:
    def norm(values: Array) -> Array:
        length = safe_sqrt(jnp.square(values).sum(dim, keepdims=True))
        return jnp.maximum(length, epsilon)

    return (x / norm(x) * (y / norm(y))).sum(dim)


@operation("pairwise_distance")
def _pairwise_distance(
    context: Context,
    x: Array,
    y: Array,
    p: float = 2.0,
    epsilon: float = 1e-6,
    keepdim: bool = False,
) -> Array:
    difference = x - y + epsilon
    return jnp.linalg.norm(difference, p, -1, keepdims=keepdim)


@operation("cdist")
def _cdist(context: Context, x: Array, y: Array, p: float = 2.0, *rest: Any) -> Array:
    if p not in (1.0, 2.0):
        raise Unsupported(f"cdist with p={p}")
    difference = x[..., :, None, :] - y[..., None, :, :]
    if p == 1:
        return (difference * lax.stop_gradient(jnp.sign(difference))).sum(-1)
    return safe_sqrt(jnp.square(difference).sum(-1))


# convolution
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
        function = convolve if common(stride) == 1 else convolve_stride_2
        feature_maps = pad(as_feature_maps(x), common(padding))
        y = function(feature_maps, weight.transpose(2, 3, 1, 0))
        return FeatureMaps(y if bias is None else y + bias[:, None, None, None])
    # All other convolutions are computed by XLA in PyTorch's layout, channels first.
    array: Array = torch_layout(x)
    ndim = weight.ndim - 2
    edges = (
        padding.upper()
        if isinstance(padding, str)
        else [(by, by) for by in per_axis(padding, ndim)]
    )
    y = lax.conv_general_dilated(
        array,
        weight,
        per_axis(stride, ndim),
        edges,
        rhs_dilation=per_axis(dilation, ndim),
        dimension_numbers=_layout(ndim),
        feature_group_count=groups,
    )
    return y if bias is None else y + along_axis(bias, 1, y.ndim)


@operation("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def _transposed_convolution(
    context: Context,
    x: Array,
    weight: Array,
    bias: Array | None = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] = (0,),
    output_padding: Sequence[int] = (0,),
    groups: int = 1,
    dilation: Sequence[int] = (1,),
) -> Array:
    # A convolution with the mirrored kernel over x with zeros between its entries.
    ndim = weight.ndim - 2
    inputs, outputs, *size = weight.shape
    kernel = weight.reshape(groups, inputs // groups, outputs, *size).swapaxes(1, 2)
    kernel = kernel.reshape(groups * outputs, inputs // groups, *size)
    kernel = jnp.flip(kernel, range(2, kernel.ndim))
    dilation = per_axis(dilation, ndim)
    edges = []
    for length, between, by, more in zip(
        size,
        dilation,
        per_axis(padding, ndim),
        per_axis(output_padding, ndim),
        strict=True,
    ):
        reach = between * (length - 1)
        edges.append((reach - by, reach - by + more))
    y = lax.conv_general_dilated(
        x,
        kernel,
        [1] * ndim,
        edges,
        lhs_dilation=per_axis(stride, ndim),
        rhs_dilation=dilation,
        dimension_numbers=_layout(ndim),
        feature_group_count=groups,
    )
    return y if bias is None else y + along_axis(bias, 1, y.ndim)


def _layout(ndim: int) -> tuple[str, str, str]:
    """PyTorch's axes of images, kernels and images."""
    spatial = "DHW"[3 - ndim :]
    return f"NC{spatial}", f"OI{spatial}", f"NC{spatial}"


def _has_fast_form(
    weight: Array, stride: Any, padding: Any, dilation: Any, groups: int
) -> bool:
    """Whether `fedtailor.models.convolution` can compute a convolution."""
    is_square = weight.ndim == 4 and weight.shape[2] == weight.shape[3]
    return (
        is_square
        and not isinstance(padding, str)
        and common(padding) >= 0
        and common(stride) in (1, 2)
        and common(dilation) == 1
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
    by = common(padding)
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

"""PyTorch's operations that move pixels, in JAX: interpolation, shuffles, patches, grids."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array
from numpy.typing import NDArray

from fedtailor.models.pytorch.operations import Context, Unsupported, operation
from fedtailor.models.pytorch.pools import per_axis

CUBIC = -0.75
"""The coefficient of PyTorch's cubic interpolation."""


@operation(
    *(f"upsample_nearest{n}d" for n in (1, 2, 3)),
    *(f"_upsample_nearest_exact{n}d" for n in (1, 2, 3)),
)
def _nearest(
    context: Context, x: Array, size: Any, scales: Sequence[float] | None = None
) -> Array:
    shift = 0.5 if "exact" in context.operation_name else 0.0
    for axis, (after, scale) in enumerate(_sizes(x, size, scales), 2):
        # PyTorch computes places in float32.
        places = (np.arange(after, dtype=np.float32) + np.float32(shift)) * np.float32(
            scale
        )
        index = np.floor(places).astype(int).clip(max=x.shape[axis] - 1)
        x = jnp.take(x, index, axis)
    return x


@operation(
    "upsample_linear1d",
    "upsample_bilinear2d",
    "upsample_trilinear3d",
    "upsample_bicubic2d",
)
def _interpolate(
    context: Context,
    x: Array,
    size: Any,
    corners: bool,
    scales: Sequence[float] | None = None,
) -> Array:
    is_cubic = "cubic" in context.operation_name
    for axis, (after, scale) in enumerate(_sizes(x, size, scales), 2):
        before = x.shape[axis]
        matrix = _matrix(before, after, scale, corners, is_cubic)
        x = jnp.moveaxis(
            jnp.moveaxis(x, axis, -1) @ jnp.asarray(matrix.T, x.dtype), -1, axis
        )
    return x


def _sizes(
    x: Array, size: Any, scales: Sequence[float] | None
) -> list[tuple[int, float]]:
    """For each axis of pixels, its new length and the old length of a new pixel."""
    ndim = x.ndim - 2
    if size is None:
        assert scales is not None
        lengths = zip(x.shape[2:], per_axis(scales, ndim), strict=True)
        return [(int(before * scale), 1 / scale) for before, scale in lengths]
    pairs = zip(x.shape[2:], per_axis(size, ndim), strict=True)
    return [(after, before / after) for before, after in pairs]


def _matrix(
    before: int, after: int, scale: float, corners: bool, cubic: bool
) -> NDArray[np.float64]:
    """The weight [after, before] of each old pixel in each new one."""
    new = np.arange(after)
    if corners:
        places = new * ((before - 1) / (after - 1) if after > 1 else 0.0)
    else:
        places = scale * (new + 0.5) - 0.5
        places = places if cubic else places.clip(min=0)
    first = np.floor(places).astype(int)
    offset = places - first
    if cubic:
        taps = [(step - 1, _cubic(np.abs(offset - step + 1))) for step in range(4)]
    else:
        taps = [(0, 1 - offset), (1, offset)]
    matrix = np.zeros((after, before))
    for step, weight in taps:
        np.add.at(matrix, (new, (first + step).clip(0, before - 1)), weight)
    return matrix


def _cubic(distance: NDArray[np.float64]) -> NDArray[np.float64]:
    """The weight of a pixel in cubic interpolation, by its distance (below 2)."""
    a, t = CUBIC, distance
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
    return np.where(t <= 1, near, far)


@operation("pixel_shuffle")
def _pixel_shuffle(context: Context, x: Array, by: int) -> Array:
    *batch, c, h, w = x.shape
    x = x.reshape(*batch, c // by**2, by, by, h, w)
    x = jnp.moveaxis(x, (-4, -3), (-3, -1))
    return x.reshape(*batch, c // by**2, h * by, w * by)


@operation("pixel_unshuffle")
def _pixel_unshuffle(context: Context, x: Array, by: int) -> Array:
    *batch, c, h, w = x.shape
    x = x.reshape(*batch, c, h // by, by, w // by, by)
    x = jnp.moveaxis(x, (-3, -1), (-4, -3))
    return x.reshape(*batch, c * by**2, h // by, w // by)


@operation("im2col")
def _patches(
    context: Context,
    x: Array,
    size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Array:
    patches = lax.conv_general_dilated_patches(
        x,
        per_axis(size, 2),
        per_axis(stride, 2),
        [(by, by) for by in per_axis(padding, 2)],
        rhs_dilation=per_axis(dilation, 2),
    )
    return patches.reshape(*patches.shape[:2], -1)


@operation("col2im")
def _from_patches(
    context: Context, x: Array, output: Sequence[int], size: Sequence[int], *rest: Any
) -> Array:
    # It adds up what `im2col` copies: its transpose.
    channels = x.shape[1] // math.prod(per_axis(size, 2))
    images = jax.ShapeDtypeStruct((len(x), channels, *output), x.dtype)
    copy: Callable[[Array], Array] = lambda y: _patches(context, y, size, *rest)  # noqa: E731
    (y,) = jax.linear_transpose(copy, images)(x)
    return y


@operation("affine_grid_generator")
def _affine_grid(
    context: Context, theta: Array, size: Sequence[int], corners: bool
) -> Array:
    axes = []
    for length in reversed(size[2:]):  # x first
        places = jnp.linspace(-1, 1, length, dtype=theta.dtype)
        axes.append(places if corners else places * (length - 1) / length)
    grid = jnp.stack([*jnp.meshgrid(*axes, indexing="xy")], -1)
    if len(axes) == 3:
        grid = jnp.stack(jnp.meshgrid(*axes[::-1], indexing="ij")[::-1], -1)
    ones = jnp.ones((*grid.shape[:-1], 1), theta.dtype)
    points = jnp.concatenate([grid, ones], -1)
    return jnp.einsum("...k,bik->b...i", points, theta)


@operation("grid_sampler", "grid_sampler_2d")
def _sample_grid(
    context: Context, x: Array, grid: Array, mode: int, padding: int, corners: bool
) -> Array:
    if x.ndim != 4 or mode not in (0, 1) or padding not in (0, 1):
        raise Unsupported("grid_sample of volumes, bicubic or with reflection")
    _, _, height, width = x.shape
    places = []
    for values, length in ((grid[..., 1], height), (grid[..., 0], width)):
        place = (values + 1) / 2 * (length - 1)
        place = place if corners else ((values + 1) * length - 1) / 2
        places.append(place.clip(0, length - 1) if padding == 1 else place)

    def pixel(row: Array, column: Array) -> Array:
        """The pixels [b, c, ...] at some places, 0 outside of the image."""
        is_inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        row = row.clip(0, height - 1).astype(int)
        column = column.clip(0, width - 1).astype(int)
        pixels = jax.vmap(lambda image, i, j: image[:, i, j])(x, row, column)
        return jnp.where(is_inside[:, None], pixels, 0)

    if mode == 1:
        return pixel(jnp.round(places[0]), jnp.round(places[1]))
    top, left = (
        lax.stop_gradient(jnp.floor(places[0])),
        lax.stop_gradient(jnp.floor(places[1])),
    )
    down, right = places[0] - top, places[1] - left
    total = 0
    for row, by_row in ((top, 1 - down), (top + 1, down)):
        for column, by_column in ((left, 1 - right), (left + 1, right)):
            total = total + pixel(row, column) * (by_row * by_column)[:, None]
    return jnp.asarray(total)

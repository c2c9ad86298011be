"""Convolution where 2x2 pooling follows, in one pass over pooling windows, and the
pooling.

A pooling window is computed as one pixel with four times the channels: more arithmetic,
but on larger matrices and fewer columns (`convolve_windows`). As in `convolution`,
derivatives are written out.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from fedtailor.models.convolution import (
    KEEP,
    pad_zeros,
    spaced_apart,
    sum_columns,
    sum_rows,
    without_spaces,
)
from fedtailor.models.no_fuse import no_fuse

PoolKind = Literal["average", "max"]


@no_fuse
def windows(y: Float[Array, "o h w b"]) -> Float[Array, "4 o n"]:
    """The four members of every 2x2 pooling window, n = h/2 w/2 b windows; an odd last
    row or column is dropped.
    """
    o, h, w, b = y.shape
    even = y[:, : h // 2 * 2, : w // 2 * 2]
    pairs = even.reshape(o, h // 2, 2, w // 2, 2, b)
    return pairs.transpose(2, 4, 0, 1, 3, 5).reshape(4, o, -1)


@jax.custom_vjp
def convolve_windows(
    images: Float[Array, "b h w c"], kernel: Float[Array, "k k c o"]
) -> Float[Array, "4 o n"]:
    """`windows` of the convolution of `images`, for odd k: the fast form where pooling
    follows and channels are few.

    A pooling window is computed as one pixel with 4 o channels, whose kernel is the
    given one at four offsets in a patch of (k + 1)^2: 1.44 times the arithmetic for k =
    5, but on larger matrices and a third of the columns.
    """
    return _convolve_windows(images, kernel)[0]


def _convolve_windows(
    images: Array, kernel: Array
) -> tuple[Array, tuple[Array, Array, Array, Array]]:
    """The windows, and what their derivative needs."""
    b, height, width, channels = images.shape
    _, size, _, outputs = kernel.shape
    # A window's patch starts at an even pixel. With even and odd pixels apart,
    # neighbouring patches lie one number (times b) apart again, and columns are copies
    # of long runs.
    parities = _parities(spaced_apart(images), (height, width, channels), size)
    columns = _window_columns(parities, size, b)
    columns = columns.reshape((size + 1) ** 2 * channels, -1)
    wide = _at_four_offsets(kernel)
    y = (wide.T @ columns).reshape(4, outputs, -1)
    return y, (columns, wide, images, kernel)


def _convolve_windows_back(
    saved: tuple[Array, Array, Array, Array], g: Array
) -> tuple[Array, Array]:
    columns, wide, images, kernel = saved
    b, height, width, channels = images.shape
    _, size, _, outputs = kernel.shape
    half = (size + 1) // 2
    h = (height - size + 1) // 2
    w = (width - size + 1) // 2
    g = g.reshape(4 * outputs, -1)

    # The kernel stands in the wide one at four offsets: its derivative is the sum over
    # them.
    to_wide = (columns @ g.T).reshape(size + 1, size + 1, channels, 4, outputs)
    upper_left = to_wide[:size, :size, :, 0]
    upper_right = to_wide[:size, 1:, :, 1]
    lower_left = to_wide[1:, :size, :, 2]
    lower_right = to_wide[1:, 1:, :, 3]
    to_kernel = upper_left + upper_right + lower_left + lower_right

    # The transposes of the product and of `_window_columns`, in two halves as for
    # `convolve`, and pixels by parity put back in their places. The compiler removes
    # this where nobody asks for the images' derivative, as in training.
    patches = (wide @ g).reshape(half, 2, half, 2, channels, h, w * b)
    patches = patches.transpose(0, 2, 1, 3, 4, 5, 6)
    patches = patches.reshape(half, half, 4 * channels, h, w * b)
    parities = sum_columns(sum_rows(patches), b)
    parities = parities.reshape(2, 2, channels, h + size // 2, w + size // 2, b)
    to_images = parities.transpose(5, 3, 0, 4, 1, 2)
    to_images = to_images.reshape(b, 2 * h + size - 1, 2 * w + size - 1, channels)
    # an odd last row or column, which no window has read
    dropped_rows = height - to_images.shape[1]
    dropped_columns = width - to_images.shape[2]
    return (
        jnp.pad(to_images, ((0, 0), (0, dropped_rows), (0, dropped_columns), (0, 0))),
        to_kernel,
    )


convolve_windows.defvjp(_convolve_windows, _convolve_windows_back)


@partial(no_fuse, static=("shape", "size"))
def _parities(spaced: Array, shape: tuple[int, int, int], size: int) -> Array:
    """Pixels by the parity of their row and column: [b, h w c + SPARE] -> [2, 2, c,
    rows / 2, columns / 2 * b].
    """
    height, width, channels = shape
    # without a last row or column that no window reads
    rows = height - (height - size + 1) % 2
    columns = width - (width - size + 1) % 2
    pixels = without_spaces(spaced, shape)[:, :rows, :columns]
    pixels = pixels.reshape(-1, rows // 2, 2, columns // 2, 2, channels)
    return pixels.transpose(2, 4, 5, 1, 3, 0).reshape(2, 2, channels, rows // 2, -1)


@partial(no_fuse, static=("size", "b"))
def _window_columns(parities: Array, size: int, b: int) -> Array:
    """[2, 2, c, rows / 2, columns / 2 * b] -> [(size + 1)^2 c, h, w b] for h x w
    windows.
    """
    _, _, _, rows, width = parities.shape
    h = rows - size // 2
    run = width - size // 2 * b
    columns = []
    for i in range(size + 1):
        for j in range(size + 1):
            # pixel (i, j) of every window: of its parity, shifted by half as many
            # windows
            start = j // 2 * b
            of_rows = slice(i // 2, i // 2 + h)
            of_columns = slice(start, start + run)
            columns.append(parities[i % 2, j % 2, :, of_rows, of_columns])
    return lax.concatenate(columns, 0)


@no_fuse
def _at_four_offsets(kernel: Array) -> Array:
    """[k, k, c, o] -> [(k + 1)^2 c, 4 o]."""
    outputs = kernel.shape[3]
    moved = []
    for row in (0, 1):
        for column in (0, 1):
            moved.append(
                pad_zeros(
                    kernel, (row, 1 - row, 0), (column, 1 - column, 0), KEEP, KEEP
                )
            )
    return lax.concatenate(moved, 3).reshape(-1, 4 * outputs)


# pooling
# --------------------------------------------------------------------------------------


def pool_relu(
    y: Float[Array, "4 o n"], bias: Float[Array, " o"], kind: PoolKind
) -> Float[Array, "o n"]:
    """Bias, ReLU and pooling of `windows`; of equal maxima the first one gets the
    derivative, as in PyTorch.
    """
    pool = _average_pool_relu if kind == "average" else _max_pool_relu
    return pool(y, bias)


@no_fuse
def _average(y: Array, bias: Array) -> Array:
    """relu(y + bias), averaged over windows."""
    first, second, third, fourth = lax.max(y + bias[:, None], jnp.zeros((), y.dtype))
    return (first + second + third + fourth) * 0.25


@no_fuse
def _average_back(y: Array, bias: Array, g: Array) -> Array:
    """A quarter of the derivative for each member that the ReLU lets through."""
    return lax.select(
        y > -bias[:, None], jnp.broadcast_to(g * 0.25, y.shape), jnp.zeros_like(y)
    )


@no_fuse
def _max(y: Array, bias: Array) -> Array:
    """The largest of relu(y + bias), which is relu of the largest plus bias: one ReLU a
    window instead of four.
    """
    return lax.max(_largest(y) + bias[:, None], jnp.zeros((), y.dtype))


@no_fuse
def _max_back(y: Array, bias: Array, g: Array) -> Array:
    """The whole derivative for the first of the largest members."""
    largest = _largest(y)
    parts = []
    # where the derivative has yet to be given to a member: of equal maxima to the first
    # one, below the ReLU to none
    is_open = largest > -bias[:, None]
    for is_largest in y == largest:
        parts.append(lax.select(is_open & is_largest, g, jnp.zeros_like(g)))
        is_open = is_open & ~is_largest
    return jnp.stack(parts)


def _largest(y: Array) -> Array:
    first, second, third, fourth = y
    return lax.max(lax.max(first, second), lax.max(third, fourth))


def _with_derivative(
    forward: Callable[..., Array], backward: Callable[..., Array]
) -> Callable[[Array, Array], Array]:
    """A function of windows and bias whose derivative for the windows is `backward`."""

    def back(saved: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
        to_y = backward(*saved, g)
        return to_y, to_y.sum((0, 2))

    function = jax.custom_vjp(forward)
    function.defvjp(lambda y, bias: (forward(y, bias), (y, bias)), back)
    return function


_average_pool_relu = _with_derivative(_average, _average_back)
_max_pool_relu = _with_derivative(_max, _max_back)

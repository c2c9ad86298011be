"""2x2 pooling, and a convolution that computes whole pooling windows.

`convolve_windows` computes a pooling window as one pixel with four times the channels:
this is more arithmetic, but on larger matrices with fewer columns. As in `convolution`,
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
    sum_columns,
    sum_rows,
    with_gaps,
    without_gaps,
)
from fedtailor.models.no_fuse import no_fuse

PoolKind = Literal["average", "max"]


@jax.custom_vjp
def windows(y: Float[Array, "o h w b"]) -> Float[Array, "4 o n"]:
    """The four pixels of each of the n = h/2 w/2 b pooling windows of 2x2 pixels, row by
    row. An odd last row or column is dropped.
    """
    return _four_pixels(y)


def _windows_fwd(y: Array) -> tuple[Array, Array]:
    """The windows, and the input, whose shape alone is used."""
    return _four_pixels(y), y


def _windows_bwd(y: Array, g: Array) -> tuple[Array]:
    o, h, w, b = y.shape
    return (_from_four_pixels(g, (o, h, w, b)),)


@no_fuse
def _four_pixels(y: Array) -> Array:
    """As `windows`. One slice for each pixel is several times as fast as a transposition
    of all, whose innermost axis is only as long as the batch.
    """
    o, h, w, b = y.shape
    even = y[:, : h // 2 * 2, : w // 2 * 2]
    pairs = even.reshape(o * (h // 2), 2, w // 2, 2, b)
    pixels = []
    for row in (0, 1):
        for column in (0, 1):
            pixels.append(pairs[:, row, :, column])
    return jnp.stack(pixels).reshape(4, o, -1)


@partial(no_fuse, static=("shape",))
def _from_four_pixels(g: Array, shape: tuple[int, int, int, int]) -> Array:
    """The transpose of `_four_pixels`, with zeros for a row or column that was dropped."""
    o, h, w, b = shape
    pairs = g.reshape(2, 2, o, h // 2, w // 2, b).transpose(2, 3, 0, 4, 1, 5)
    even = pairs.reshape(o, h // 2 * 2, w // 2 * 2, b)
    return pad_zeros(even, KEEP, (0, h % 2, 0), (0, w % 2, 0), KEEP)


windows.defvjp(_windows_fwd, _windows_bwd)


@jax.custom_vjp
def convolve_windows(
    images: Float[Array, "b h w c"], kernel: Float[Array, "k k c o"]
) -> Float[Array, "4 o n"]:
    """`windows` of the convolution of `images`, for odd k. It is faster than both one
    after the other if the images have few channels.

    A pooling window is computed as one pixel with 4 o channels. Its kernel holds
    `kernel` at four offsets in a patch of (k + 1)^2 pixels: 1.44 times the arithmetic for
    k = 5, but on larger matrices and a third of the columns.
    """
    return _convolve_windows_fwd(images, kernel)[0]


def _convolve_windows_fwd(
    images: Array, kernel: Array
) -> tuple[Array, tuple[Array, Array, Array, Array]]:
    """The windows, and the residuals of their derivative."""
    b, height, width, channels = images.shape
    _, size, _, outputs = kernel.shape
    # The patch of a window starts at an even pixel. If even and odd pixels are separated,
    # the starts of neighbouring patches are neighbours in memory, and columns are copies
    # of long contiguous runs.
    by_parity = _separate_parities(with_gaps(images), (height, width, channels), size)
    columns = _window_columns(by_parity, size, b)
    columns = columns.reshape((size + 1) ** 2 * channels, -1)
    window_kernel = _window_kernel(kernel)
    y = (window_kernel.T @ columns).reshape(4, outputs, -1)
    return y, (columns, window_kernel, images, kernel)


def _convolve_windows_bwd(
    residuals: tuple[Array, Array, Array, Array], g: Array
) -> tuple[Array, Array]:
    columns, window_kernel, images, kernel = residuals
    b, height, width, channels = images.shape
    _, size, _, outputs = kernel.shape
    half = (size + 1) // 2
    h = (height - size + 1) // 2
    w = (width - size + 1) // 2
    g = g.reshape(4 * outputs, -1)

    # The window kernel holds the kernel at four offsets, so that the derivative is the
    # sum over the offsets.
    window_kernel_grad = columns @ g.T
    offsets = window_kernel_grad.reshape(size + 1, size + 1, channels, 4, outputs)
    upper_left = offsets[:size, :size, :, 0]
    upper_right = offsets[:size, 1:, :, 1]
    lower_left = offsets[1:, :size, :, 2]
    lower_right = offsets[1:, 1:, :, 3]
    kernel_grad = upper_left + upper_right + lower_left + lower_right

    # The transposes of the matrix product, of `_window_columns` (in two halves, as for
    # `convolve`) and of `_separate_parities`. The compiler removes them if the derivative
    # with respect to the images is not used, as in training.
    patches = (window_kernel @ g).reshape(half, 2, half, 2, channels, h, w * b)
    patches = patches.transpose(0, 2, 1, 3, 4, 5, 6)
    patches = patches.reshape(half, half, 4 * channels, h, w * b)
    by_parity = sum_columns(sum_rows(patches), b)
    by_parity = by_parity.reshape(2, 2, channels, h + size // 2, w + size // 2, b)
    images_grad = by_parity.transpose(5, 3, 0, 4, 1, 2)
    images_grad = images_grad.reshape(b, 2 * h + size - 1, 2 * w + size - 1, channels)
    # No window has read an odd last row or column.
    unread_rows = height - images_grad.shape[1]
    unread_columns = width - images_grad.shape[2]
    padding = ((0, 0), (0, unread_rows), (0, unread_columns), (0, 0))
    return jnp.pad(images_grad, padding), kernel_grad


convolve_windows.defvjp(_convolve_windows_fwd, _convolve_windows_bwd)


@partial(no_fuse, static=("shape", "size"))
def _separate_parities(
    flat_images: Array, shape: tuple[int, int, int], size: int
) -> Array:
    """Separate pixels by the parity of their row and column: [b, h w c + GAP] -> [2, 2,
    c, rows / 2, columns / 2 * b].
    """
    height, width, channels = shape
    # without a last row or column that no window reads
    rows = height - (height - size + 1) % 2
    columns = width - (width - size + 1) % 2
    pixels = without_gaps(flat_images, shape)[:, :rows, :columns]
    pixels = pixels.reshape(-1, rows // 2, 2, columns // 2, 2, channels)
    return pixels.transpose(2, 4, 5, 1, 3, 0).reshape(2, 2, channels, rows // 2, -1)


@partial(no_fuse, static=("size", "b"))
def _window_columns(by_parity: Array, size: int, b: int) -> Array:
    """[2, 2, c, rows / 2, columns / 2 * b] -> [(size + 1)^2 c, h, w b] for h x w
    windows.
    """
    _, _, _, rows, row_length = by_parity.shape
    h = rows - size // 2
    run_length = row_length - size // 2 * b
    columns = []
    for i in range(size + 1):
        for j in range(size + 1):
            # Pixel (i, j) of the patch of every window.
            start = j // 2 * b
            in_rows = slice(i // 2, i // 2 + h)
            in_columns = slice(start, start + run_length)
            columns.append(by_parity[i % 2, j % 2, :, in_rows, in_columns])
    return lax.concatenate(columns, 0)


@no_fuse
def _window_kernel(kernel: Array) -> Array:
    """The kernel at the offset of each pixel of a window: [k, k, c, o] -> [(k + 1)^2 c,
    4 o].
    """
    outputs = kernel.shape[3]
    shifted = []
    for row in (0, 1):
        for column in (0, 1):
            rows, columns = (row, 1 - row, 0), (column, 1 - column, 0)
            shifted.append(pad_zeros(kernel, rows, columns, KEEP, KEEP))
    return lax.concatenate(shifted, 3).reshape(-1, 4 * outputs)


# pooling
# --------------------------------------------------------------------------------------


def pool_relu(
    y: Float[Array, "4 o n"], bias: Float[Array, " o"], kind: PoolKind
) -> Float[Array, "o n"]:
    """Bias, ReLU and pooling of `windows`. The first of several equal maxima gets the
    derivative, as in PyTorch.
    """
    pool = _average_pool_relu if kind == "average" else _max_pool_relu
    return pool(y, bias)


@no_fuse
def _average(y: Array, bias: Array) -> Array:
    """relu(y + bias), averaged over windows."""
    y = lax.max(y + bias[:, None], jnp.zeros((), y.dtype))
    upper_left, upper_right, lower_left, lower_right = y
    return (upper_left + upper_right + lower_left + lower_right) * 0.25


@no_fuse
def _average_back(y: Array, bias: Array, g: Array) -> Array:
    """A quarter of the derivative for each pixel at which the ReLU is active."""
    return lax.select(
        y > -bias[:, None], jnp.broadcast_to(g * 0.25, y.shape), jnp.zeros_like(y)
    )


@no_fuse
def _max(y: Array, bias: Array) -> Array:
    """The maximum of relu(y + bias) over each window, computed as relu(max(y) + bias): one
    ReLU a window instead of four.
    """
    return lax.max(_window_max(y) + bias[:, None], jnp.zeros((), y.dtype))


@no_fuse
def _max_back(y: Array, bias: Array, g: Array) -> Array:
    """The whole derivative for the first maximum of each window, if its ReLU is active."""
    maximum = _window_max(y)
    y_grad = []
    # Whether no earlier pixel of the window has got the derivative.
    is_pending = maximum > -bias[:, None]
    for is_maximum in y == maximum:
        y_grad.append(lax.select(is_pending & is_maximum, g, jnp.zeros_like(g)))
        is_pending = is_pending & ~is_maximum
    return jnp.stack(y_grad)


def _window_max(y: Array) -> Array:
    """The maximum of each window: [4, o, n] -> [o, n]."""
    upper_left, upper_right, lower_left, lower_right = y
    return lax.max(lax.max(upper_left, upper_right), lax.max(lower_left, lower_right))


def _with_derivative(
    forward: Callable[..., Array], backward: Callable[..., Array]
) -> Callable[[Array, Array], Array]:
    """A function of windows and bias, whose derivative `backward` computes with
    respect to the windows.
    """

    def bwd(residuals: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
        y_grad = backward(*residuals, g)
        return y_grad, y_grad.sum((0, 2))

    function = jax.custom_vjp(forward)
    function.defvjp(lambda y, bias: (forward(y, bias), (y, bias)), bwd)
    return function


_average_pool_relu = _with_derivative(_average, _average_back)
_max_pool_relu = _with_derivative(_max, _max_back)

"""Convolution and pooling that are fast on a CPU with a client's own weights.

XLA's own CPU convolution is several times slower than a PyTorch loop at the batch sizes of federated learning. Here a
convolution is one matrix product with the columns of its input (im2col), in planes: [channels, height, width, batch].
The long axis is the last one in every product, so few channels waste no vector lanes, and columns are copies of long
runs. Derivatives are written out, for XLA's derivatives of overlapping slices are slow; they can be differentiated
again (Hessian-vector products as `jax.jvp` of `jax.grad`), but the functions have no forward-mode derivative.
"""

from collections.abc import Callable
from functools import partial, reduce
from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from fedtailor.models.no_fuse import no_fuse

PoolKind = Literal["average", "max"]

Padding = tuple[int, int, int]
"""Of one axis, in the form of `lax.pad`: before, after, between."""

KEEP: Padding = (0, 0, 0)
"""No padding of an axis."""
SPARE = 16
"""Numbers between the images of a batch: 32x32x3 floats apart, all would compete for the same lines of the cache."""


# convolution of planes ----------------------------------------------------------------------------------------------


def planes(images: Float[Array, "b h w c"]) -> Float[Array, "c h w b"]:
    """Images with the batch last."""
    b, h, w, c = images.shape
    return _turned(_spaced(images), (h, w, c)).reshape(c, h, w, b)


@jax.custom_vjp
def convolve(x: Float[Array, "c h w b"], kernel: Float[Array, "k k c o"]) -> Float[Array, "o h2 w2 b"]:
    """Cross-correlation with stride 1 and no padding, the "convolution" of deep learning: h2 = h - k + 1."""
    return _convolve(x, kernel)[0]


def _convolve(x: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    k, _, c, o = kernel.shape
    _, height, width, b = x.shape
    columns = _columns(x.reshape(c, height, -1), k, b).reshape(k * k * c, -1)
    y = kernel.reshape(-1, o).T @ columns
    return y.reshape(o, height - k + 1, width - k + 1, b), (columns, kernel)


def _convolve_back(saved: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
    columns, kernel = saved
    k, _, c, o = kernel.shape
    _, h, w, b = g.shape
    g = g.reshape(o, -1)
    patches = (kernel.reshape(-1, o) @ g).reshape(k, k, c, h, w * b)
    to_x = _sum_columns(_sum_rows(patches), b).reshape(c, h + k - 1, -1, b)
    to_kernel = (columns @ g.T).reshape(kernel.shape)
    return to_x, to_kernel


convolve.defvjp(_convolve, _convolve_back)


def pad(x: Float[Array, "c h w b"], by: int) -> Float[Array, "c h2 w2 b"]:
    """Planes with so many zeros on every side."""
    if by == 0:
        return x
    return _pad_zeros(x, KEEP, (by, by, 0), (by, by, 0), KEEP)


def _pad_zeros(x: Array, *axes: Padding) -> Array:
    return lax.pad(x, jnp.zeros((), x.dtype), axes)


def halve(
    x: Float[Array, "c h w b"], kernel: Float[Array, "k k c o"]
) -> tuple[Float[Array, "c4 h2 w2 b"], Float[Array, "k2 k2 c4 o"]]:
    """Planes and a kernel whose convolution is every second row and column of that of the given ones.

    Blocks of 2x2 pixels become channels, so that a step of one block is a step of two pixels; the kernel is padded to
    an even size, and becomes half as large on four times the channels.
    """
    c, height, width, b = x.shape
    k, _, _, o = kernel.shape
    size = -(-k // 2)

    def even(side: int) -> int:
        # Without an odd last pixel; or one block more, of zeros that only the kernel's padding reads, where the last
        # step needs it.
        last_step = (side - k) // 2 * 2
        return max(side // 2 * 2, last_step + 2 * size)

    rows, columns = even(height), even(width)
    x = _pad_zeros(x, KEEP, (0, rows - height, 0), (0, columns - width, 0), KEEP)
    blocks = x.reshape(c, rows // 2, 2, columns // 2, 2, b)
    blocks = blocks.transpose(2, 4, 0, 1, 3, 5).reshape(4 * c, rows // 2, columns // 2, b)

    even_kernel = _pad_zeros(kernel, (0, 2 * size - k, 0), (0, 2 * size - k, 0), KEEP, KEEP)
    small = even_kernel.reshape(size, 2, size, 2, c, o)
    small = small.transpose(0, 2, 1, 3, 4, 5).reshape(size, size, 4 * c, o)

    h = (height - k) // 2 + size
    w = (width - k) // 2 + size
    return blocks[:, :h, :w], small


@partial(no_fuse, static=("shape",))
def _turned(spaced: Array, shape: tuple[int, int, int]) -> Array:
    """[b, h w c + SPARE] -> [c, h, w b]; width and batch are merged so that memory has this order too."""
    return _images(spaced, shape).transpose(3, 1, 2, 0).reshape(shape[2], shape[0], -1)


@partial(no_fuse, static=("k", "b"))
def _columns(x: Array, k: int, b: int) -> Array:
    """[c, h, w b] -> [k k c, h2, w2 b], copied in runs of w2 b numbers."""
    _, height, row = x.shape
    h = height - k + 1
    run = row - (k - 1) * b
    shifted = [x[:, i : i + h, j * b : j * b + run] for i in range(k) for j in range(k)]
    return lax.concatenate(shifted, 0)


@no_fuse
def _sum_rows(patches: Array) -> Array:
    """The first half of the transpose of `_columns`: [k, k, c, h2, w2 b] -> [k, c, h, w2 b]."""
    k = len(patches)
    shifted = [_pad_zeros(patches[i], KEEP, KEEP, (i, k - 1 - i, 0), KEEP) for i in range(k)]
    return reduce(jnp.add, shifted)


@partial(no_fuse, static=("b",))
def _sum_columns(patches: Array, b: int) -> Array:
    """The second half: [k, c, h, w2 b] -> [c, h, w b]."""
    k = len(patches)
    shifted = [_pad_zeros(patches[j], KEEP, KEEP, (j * b, (k - 1 - j) * b, 0)) for j in range(k)]
    return reduce(jnp.add, shifted)


@no_fuse
def _spaced(images: Array) -> Array:
    """[b, h, w, c] -> [b, h w c + SPARE]."""
    return _pad_zeros(images.reshape(len(images), -1), KEEP, (0, SPARE, 0))


def _images(spaced: Array, shape: tuple[int, int, int]) -> Array:
    return spaced[:, :-SPARE].reshape(-1, *shape)


# convolution of images, by pooling windows --------------------------------------------------------------------------


@no_fuse
def windows(y: Float[Array, "o h w b"]) -> Float[Array, "4 o n"]:
    """The four members of every 2x2 pooling window, n = h/2 w/2 b windows; an odd last row or column is dropped."""
    o, h, w, b = y.shape
    even = y[:, : h // 2 * 2, : w // 2 * 2]
    pairs = even.reshape(o, h // 2, 2, w // 2, 2, b)
    return pairs.transpose(2, 4, 0, 1, 3, 5).reshape(4, o, -1)


@jax.custom_vjp
def convolve_windows(images: Float[Array, "b h w c"], kernel: Float[Array, "k k c o"]) -> Float[Array, "4 o n"]:
    """`windows` of the convolution of `images`, for odd k: the fast form where pooling follows and channels are few.

    A pooling window is computed as one pixel with 4 o channels, whose kernel is the given one at four offsets in a
    patch of (k + 1)^2: 1.44 times the arithmetic for k = 5, but on larger matrices and a third of the columns.
    """
    return _convolve_windows(images, kernel)[0]


def _convolve_windows(images: Array, kernel: Array) -> tuple[Array, tuple[Array, Array, Array, Array]]:
    b, height, width, c = images.shape
    k, o = kernel.shape[1], kernel.shape[3]
    parities = _parities(_spaced(images), (height, width, c), k)
    columns = _window_columns(parities, k, b).reshape((k + 1) ** 2 * c, -1)
    wide = _at_four_offsets(kernel)
    return (wide.T @ columns).reshape(4, o, -1), (columns, wide, images, kernel)


def _convolve_windows_back(saved: tuple[Array, Array, Array, Array], g: Array) -> tuple[Array, Array]:
    columns, wide, images, kernel = saved
    b, height, width, c = images.shape
    k, o = kernel.shape[1], kernel.shape[3]
    h = (height - k + 1) // 2
    w = (width - k + 1) // 2
    half = (k + 1) // 2
    g = g.reshape(4 * o, -1)

    # The kernel stands in the wide one at four offsets: its derivative is the sum over them.
    to_wide = (columns @ g.T).reshape(k + 1, k + 1, c, 4, o)
    upper_left = to_wide[:k, :k, :, 0]
    upper_right = to_wide[:k, 1:, :, 1]
    lower_left = to_wide[1:, :k, :, 2]
    lower_right = to_wide[1:, 1:, :, 3]
    to_kernel = upper_left + upper_right + lower_left + lower_right

    # What follows is removed by the compiler where nobody asks for the derivative of the images, as in training.
    patches = (wide @ g).reshape(half, 2, half, 2, c, h, w * b)
    patches = patches.transpose(0, 2, 1, 3, 4, 5, 6).reshape(half, half, 4 * c, h, w * b)
    parities = _sum_columns(_sum_rows(patches), b).reshape(2, 2, c, h + k // 2, w + k // 2, b)
    to_images = parities.transpose(5, 3, 0, 4, 1, 2).reshape(b, 2 * h + k - 1, 2 * w + k - 1, c)
    # an odd last row or column, which no window has read
    dropped_rows = height - to_images.shape[1]
    dropped_columns = width - to_images.shape[2]
    return jnp.pad(to_images, ((0, 0), (0, dropped_rows), (0, dropped_columns), (0, 0))), to_kernel


convolve_windows.defvjp(_convolve_windows, _convolve_windows_back)


@partial(no_fuse, static=("shape", "k"))
def _parities(spaced: Array, shape: tuple[int, int, int], k: int) -> Array:
    """Pixels by the parity of their row and column: [b, h w c + SPARE] -> [2, 2, c, rows / 2, columns / 2 * b]."""
    height, width, channels = shape
    # without a last row or column that no window reads
    rows = height - (height - k + 1) % 2
    columns = width - (width - k + 1) % 2
    pixels = _images(spaced, shape)[:, :rows, :columns]
    pixels = pixels.reshape(-1, rows // 2, 2, columns // 2, 2, channels)
    return pixels.transpose(2, 4, 5, 1, 3, 0).reshape(2, 2, channels, rows // 2, -1)


@partial(no_fuse, static=("k", "b"))
def _window_columns(parities: Array, k: int, b: int) -> Array:
    """[2, 2, c, rows / 2, columns / 2 * b] -> [(k + 1)^2 c, h, w b] for h x w windows."""
    rows, row = parities.shape[3:]
    h = rows - k // 2
    run = row - k // 2 * b
    columns = []
    for i in range(k + 1):
        for j in range(k + 1):
            # pixel (i, j) of every window: of its parity, shifted by half as many windows
            row_start = i // 2
            start = j // 2 * b
            columns.append(parities[i % 2, j % 2, :, row_start : row_start + h, start : start + run])
    return lax.concatenate(columns, 0)


@no_fuse
def _at_four_offsets(kernel: Array) -> Array:
    """[k, k, c, o] -> [(k + 1)^2 c, 4 o]."""
    o = kernel.shape[3]
    moved = [_pad_zeros(kernel, (i, 1 - i, 0), (j, 1 - j, 0), KEEP, KEEP) for i in (0, 1) for j in (0, 1)]
    return lax.concatenate(moved, 3).reshape(-1, 4 * o)


# pooling ------------------------------------------------------------------------------------------------------------


def pool_relu(y: Float[Array, "4 o n"], bias: Float[Array, " o"], kind: PoolKind) -> Float[Array, "o n"]:
    """Bias, ReLU and pooling of `windows`; of equal maxima the first one gets the derivative, as in PyTorch."""
    return (_average_pool_relu if kind == "average" else _max_pool_relu)(y, bias)


@no_fuse
def _average(y: Array, bias: Array) -> Array:
    first, second, third, fourth = lax.max(y + bias[:, None], jnp.zeros((), y.dtype))
    return (first + second + third + fourth) * 0.25


@no_fuse
def _average_back(y: Array, bias: Array, g: Array) -> Array:
    return lax.select(y > -bias[:, None], jnp.broadcast_to(g * 0.25, y.shape), jnp.zeros_like(y))


@no_fuse
def _max(y: Array, bias: Array) -> Array:
    return lax.max(_largest(y) + bias[:, None], jnp.zeros((), y.dtype))


@no_fuse
def _max_back(y: Array, bias: Array, g: Array) -> Array:
    largest = _largest(y)
    parts = []
    # where the derivative has yet to be given to a member: of equal maxima to the first one, below the ReLU to none
    is_open = largest > -bias[:, None]
    for is_largest in y == largest:
        parts.append(lax.select(is_open & is_largest, g, jnp.zeros_like(g)))
        is_open = is_open & ~is_largest
    return jnp.stack(parts)


def _largest(y: Array) -> Array:
    first, second, third, fourth = y
    return lax.max(lax.max(first, second), lax.max(third, fourth))


def _with_derivative(forward: Callable[..., Array], backward: Callable[..., Array]) -> Callable[[Array, Array], Array]:
    def back(saved: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
        to_y = backward(*saved, g)
        return to_y, to_y.sum((0, 2))

    function = jax.custom_vjp(forward)
    function.defvjp(lambda y, bias: (forward(y, bias), (y, bias)), back)
    return function


_average_pool_relu = _with_derivative(_average, _average_back)
_max_pool_relu = _with_derivative(_max, _max_back)

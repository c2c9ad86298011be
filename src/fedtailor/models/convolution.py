"""Convolution and pooling that are fast on a CPU with a client's own weights.

XLA's own CPU convolution is several times slower than a PyTorch loop at the batch sizes
of federated learning. Here a convolution is one matrix product with the columns of its
input (im2col). Feature maps are [channels, height, width, batch], called planes below:
with the batch last, the last axis of every product is long, so that few channels waste
no vector lanes, and the columns are copied in long contiguous pieces.

Derivatives are written out, since XLA's derivatives of overlapping slices are slow.
They can be differentiated again (Hessian-vector products as `jax.jvp` of `jax.grad`),
but the functions have no forward-mode derivative.
"""

from functools import partial, reduce

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from fedtailor.models.no_fuse import no_fuse

Padding = tuple[int, int, int]
"""Zeros to insert along one axis, as `lax.pad` takes them: (before, after, between)."""

KEEP: Padding = (0, 0, 0)
"""No padding of an axis."""
SPARE = 16
"""Numbers between the images of a batch: 32x32x3 floats apart, all would compete for
the same lines of the cache.
"""


def planes(images: Float[Array, "b h w c"]) -> Float[Array, "c h w b"]:
    """Images as feature maps, with the batch last."""
    # Two copies: first with spaces between the images, from which the second can gather
    # one pixel of every image without all of them competing for the same lines of the
    # cache.
    b, h, w, c = images.shape
    spaced = spaced_apart(images)
    return _batch_last(spaced, (h, w, c)).reshape(c, h, w, b)


@jax.custom_vjp
def convolve(
    x: Float[Array, "c h w b"], kernel: Float[Array, "k k c o"]
) -> Float[Array, "o h2 w2 b"]:
    """Cross-correlation with stride 1 and no padding, the "convolution" of deep
    learning: h2 = h - k + 1.
    """
    return _convolve(x, kernel)[0]


def _convolve(x: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    """The convolution, and what its derivative needs: the columns of the input, and the
    kernel.
    """
    size, _, channels, outputs = kernel.shape
    _, height, width, b = x.shape
    rows = x.reshape(channels, height, -1)
    # im2col: a column holds what one output pixel sees, so that all pixels of all
    # images are one matrix product.
    columns = _columns(rows, size, b).reshape(size * size * channels, -1)
    y = kernel.reshape(-1, outputs).T @ columns
    y = y.reshape(outputs, height - size + 1, width - size + 1, b)
    return y, (columns, kernel)


def _convolve_back(saved: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
    """Derivatives with respect to input and kernel, from g [o, h2, w2, b] with respect
    to the output.
    """
    columns, kernel = saved
    size, _, channels, outputs = kernel.shape
    _, height, width, b = g.shape
    g = g.reshape(outputs, -1)
    # The transpose of the matrix product gives the derivative of each patch (the input
    # pixels that one output pixel depends on). The transpose of `_columns` then adds
    # up, for each input pixel, the patches that hold it: first by rows, then by
    # columns.
    patches = kernel.reshape(-1, outputs) @ g
    patches = patches.reshape(size, size, channels, height, width * b)
    to_x = sum_columns(sum_rows(patches), b)
    to_x = to_x.reshape(channels, height + size - 1, -1, b)
    to_kernel = (columns @ g.T).reshape(kernel.shape)
    return to_x, to_kernel


convolve.defvjp(_convolve, _convolve_back)


def pad(x: Float[Array, "c h w b"], by: int) -> Float[Array, "c h2 w2 b"]:
    """Feature maps with `by` rows or columns of zeros on every side."""
    if by == 0:
        return x
    return pad_zeros(x, KEEP, (by, by, 0), (by, by, 0), KEEP)


def pad_zeros(x: Array, *axes: Padding) -> Array:
    """An array with zeros around and between the entries of each axis."""
    return lax.pad(x, jnp.zeros((), x.dtype), axes)


def halve(
    x: Float[Array, "c h w b"], kernel: Float[Array, "k k c o"]
) -> tuple[Float[Array, "c4 h2 w2 b"], Float[Array, "k2 k2 c4 o"]]:
    """A convolution of stride 2 as one of stride 1: the feature maps and the kernel
    whose convolution is every second row and column of that of the given ones.

    Blocks of 2x2 pixels become channels, so that a step of one block is a step of two
    pixels; the kernel is padded to an even size, and becomes half as large on four
    times the channels.
    """
    c, height, width, b = x.shape
    k, _, _, o = kernel.shape
    # of the halved kernel, rounded up
    size = -(-k // 2)

    def even(side: int) -> int:
        # Without an odd last pixel; or one block more, of zeros that only the kernel's
        # padding reads, where the last step needs it.
        last_step = (side - k) // 2 * 2
        return max(side // 2 * 2, last_step + 2 * size)

    rows, columns = even(height), even(width)
    x = pad_zeros(x, KEEP, (0, rows - height, 0), (0, columns - width, 0), KEEP)
    blocks = x.reshape(c, rows // 2, 2, columns // 2, 2, b)
    blocks = blocks.transpose(2, 4, 0, 1, 3, 5)
    blocks = blocks.reshape(4 * c, rows // 2, columns // 2, b)

    missing = 2 * size - k
    even_kernel = pad_zeros(kernel, (0, missing, 0), (0, missing, 0), KEEP, KEEP)
    small = even_kernel.reshape(size, 2, size, 2, c, o)
    small = small.transpose(0, 2, 1, 3, 4, 5)
    small = small.reshape(size, size, 4 * c, o)

    # no more blocks than the last step reaches
    h = (height - k) // 2 + size
    w = (width - k) // 2 + size
    return blocks[:, :h, :w], small


@partial(no_fuse, static=("shape",))
def _batch_last(spaced: Array, shape: tuple[int, int, int]) -> Array:
    """[b, h w c + SPARE] -> [c, h, w b]; width and batch are merged so that memory has
    this order too.
    """
    height, _, channels = shape
    images = without_spaces(spaced, shape)
    return images.transpose(3, 1, 2, 0).reshape(channels, height, -1)


@partial(no_fuse, static=("size", "b"))
def _columns(x: Array, size: int, b: int) -> Array:
    """[c, h, w b] -> [size size c, h2, w2 b], copied in runs of w2 b numbers."""
    _, height, width = x.shape
    h = height - size + 1
    run = width - (size - 1) * b
    # Entry (row, column) of the kernel sees the image shifted by so much; with the
    # batch last, a shift by one pixel is a shift by b numbers, and each shifted image
    # is copied in long runs.
    shifted = []
    for row in range(size):
        for column in range(size):
            start = column * b
            shifted.append(x[:, row : row + h, start : start + run])
    return lax.concatenate(shifted, 0)


@no_fuse
def sum_rows(patches: Array) -> Array:
    """The first half of the transpose of `_columns`: [k, k, c, h2, w2 b] -> [k, c, h,
    w2 b].
    """
    # Row i of the kernel saw the image shifted by i rows: shift back, with zeros
    # around, and add up.
    last = len(patches) - 1
    shifted = []
    for i in range(len(patches)):
        rows = (i, last - i, 0)
        shifted.append(pad_zeros(patches[i], KEEP, KEEP, rows, KEEP))
    return reduce(jnp.add, shifted)


@partial(no_fuse, static=("b",))
def sum_columns(patches: Array, b: int) -> Array:
    """The second half: [k, c, h, w2 b] -> [c, h, w b]."""
    last = len(patches) - 1
    shifted = []
    for j in range(len(patches)):
        columns = (j * b, (last - j) * b, 0)
        shifted.append(pad_zeros(patches[j], KEEP, KEEP, columns))
    return reduce(jnp.add, shifted)


@no_fuse
def spaced_apart(images: Array) -> Array:
    """[b, h, w, c] -> [b, h w c + SPARE]."""
    return pad_zeros(images.reshape(len(images), -1), KEEP, (0, SPARE, 0))


def without_spaces(spaced: Array, shape: tuple[int, int, int]) -> Array:
    """[b, h w c + SPARE] -> [b, h, w, c]."""
    return spaced[:, :-SPARE].reshape(-1, *shape)

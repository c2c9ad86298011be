"""Convolution and pooling that are fast on a CPU with a client's own weights.

XLA's own CPU convolution is several times slower than a PyTorch loop at the batch sizes
of federated learning. Here a convolution is one matrix product with the columns of its
input (im2col). Feature maps are [channels, height, width, batch]. With the batch last,
the last axis of every product is long, so that few channels waste no vector lanes, and
the columns are copied in long contiguous pieces.

Derivatives are written out, since XLA's derivatives of overlapping slices are slow. The
reverse-mode derivatives can be differentiated again (Hessian-vector products as `jax.jvp`
of `jax.grad`). The functions themselves have no forward-mode derivative.
"""

from functools import partial, reduce

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from fedtailor.models.no_fuse import no_fuse

Padding = tuple[int, int, int]
"""Zeros to insert along one axis, as `lax.pad` takes them: (before, after, between). A
negative number before or after removes entries instead.
"""

KEEP: Padding = (0, 0, 0)
"""No padding of an axis."""
GAP = 16
"""The number of zeros after each image of a batch. Without a gap, the same pixel of all
images of 32x32x3 floats would be mapped to the same lines of the cache.
"""


def to_feature_maps(images: Float[Array, "b h w c"]) -> Float[Array, "c h w b"]:
    """Images as feature maps, with the batch last."""
    # Two copies: the first one leaves gaps between the images. The second one gathers a
    # pixel of every image, and these then lie in different lines of the cache.
    b, h, w, c = images.shape
    return _batch_last(with_gaps(images), (h, w, c)).reshape(c, h, w, b)


@jax.custom_vjp
def convolve(
    x: Float[Array, "c h w b"], kernel: Float[Array, "k k c o"]
) -> Float[Array, "o h2 w2 b"]:
    """Cross-correlation with stride 1 and no padding, the "convolution" of deep
    learning: h2 = h - k + 1.
    """
    return _convolve_fwd(x, kernel)[0]


def _convolve_fwd(x: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    """The convolution, and the residuals of its derivative: the columns of the input, and
    the kernel.
    """
    size, _, channels, outputs = kernel.shape
    _, height, width, b = x.shape
    rows = x.reshape(channels, height, -1)
    # im2col: a column holds the input pixels that one output pixel depends on, so that
    # all pixels of all images are one matrix product.
    columns = _columns(rows, size, b).reshape(size * size * channels, -1)
    y = kernel.reshape(-1, outputs).T @ columns
    y = y.reshape(outputs, height - size + 1, width - size + 1, b)
    return y, (columns, kernel)


def _convolve_bwd(residuals: tuple[Array, Array], g: Array) -> tuple[Array, Array]:
    """Derivatives with respect to input and kernel, from the derivative g [o, h2, w2, b]
    with respect to the output.
    """
    columns, kernel = residuals
    size, _, channels, outputs = kernel.shape
    _, height, width, b = g.shape
    g = g.reshape(outputs, -1)
    # The transpose of the matrix product gives the derivative of each patch (the input
    # pixels that one output pixel depends on). The transpose of `_columns` then adds
    # up, for each input pixel, the patches that hold it: first by rows, then by
    # columns.
    patches = kernel.reshape(-1, outputs) @ g
    patches = patches.reshape(size, size, channels, height, width * b)
    x_grad = sum_columns(sum_rows(patches), b)
    x_grad = x_grad.reshape(channels, height + size - 1, -1, b)
    kernel_grad = (columns @ g.T).reshape(kernel.shape)
    return x_grad, kernel_grad


convolve.defvjp(_convolve_fwd, _convolve_bwd)


def pad(x: Float[Array, "c h w b"], by: int) -> Float[Array, "c h2 w2 b"]:
    """Feature maps with `by` rows or columns of zeros on every side."""
    if by == 0:
        return x
    return pad_zeros(x, KEEP, (by, by, 0), (by, by, 0), KEEP)


def pad_zeros(x: Array, *axes: Padding) -> Array:
    """An array with zeros around and between the entries of each axis."""
    return lax.pad(x, jnp.zeros((), x.dtype), axes)


def convolve_stride_2(
    x: Float[Array, "c h w b"], kernel: Float[Array, "k k c o"]
) -> Float[Array, "o h2 w2 b"]:
    """Every second row and column of `convolve(x, kernel)`.

    By space-to-depth: blocks of 2x2 pixels become channels, so that a step of one block
    is a step of two pixels. The kernel is padded to an even size, and becomes half as
    large on four times the channels.
    """
    c, height, width, b = x.shape
    k, _, _, o = kernel.shape
    size = (k + 1) // 2  # of the kernel on blocks
    # The numbers of rows and of columns of blocks that the convolution reads: those up to
    # its last step, and those that the kernel covers there.
    h = (height - k) // 2 + size
    w = (width - k) // 2 + size
    # An odd last row is removed if no step reads it. Otherwise a row of zeros completes
    # its blocks, which only the kernel's padding reads. The same holds for columns.
    x = pad_zeros(x, KEEP, (0, 2 * h - height, 0), (0, 2 * w - width, 0), KEEP)
    blocks = x.reshape(c, h, 2, w, 2, b)
    blocks = blocks.transpose(2, 4, 0, 1, 3, 5).reshape(4 * c, h, w, b)

    missing = 2 * size - k
    kernel = pad_zeros(kernel, (0, missing, 0), (0, missing, 0), KEEP, KEEP)
    kernel = kernel.reshape(size, 2, size, 2, c, o)
    kernel = kernel.transpose(0, 2, 1, 3, 4, 5).reshape(size, size, 4 * c, o)
    return convolve(blocks, kernel)


@partial(no_fuse, static=("shape",))
def _batch_last(flat_images: Array, shape: tuple[int, int, int]) -> Array:
    """[b, h w c + GAP] -> [c, h, w b]; width and batch are merged so that the result has
    this order in memory, too.
    """
    height, _, channels = shape
    images = without_gaps(flat_images, shape)
    return images.transpose(3, 1, 2, 0).reshape(channels, height, -1)


@partial(no_fuse, static=("size", "b"))
def _columns(x: Array, size: int, b: int) -> Array:
    """[c, h, w b] -> [size size c, h2, w2 b], copied in contiguous runs of w2 b numbers."""
    _, height, row_length = x.shape
    h = height - size + 1
    run_length = row_length - (size - 1) * b
    # Entry (row, column) of the kernel is multiplied with the image shifted by `row` rows
    # and `column` pixels. With the batch last, one pixel is b numbers.
    shifted = []
    for row in range(size):
        for column in range(size):
            start = column * b
            shifted.append(x[:, row : row + h, start : start + run_length])
    return lax.concatenate(shifted, 0)


@no_fuse
def sum_rows(patches: Array) -> Array:
    """The first half of the transpose of `_columns`: [k, k, c, h2, w2 b] -> [k, c, h,
    w2 b].
    """
    # Row i of the kernel was multiplied with the image shifted by i rows. Shift the
    # patches back, with zeros around them, and add them up.
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
def with_gaps(images: Array) -> Array:
    """[b, h, w, c] -> [b, h w c + GAP]."""
    return pad_zeros(images.reshape(len(images), -1), KEEP, (0, GAP, 0))


def without_gaps(flat_images: Array, shape: tuple[int, int, int]) -> Array:
    """[b, h w c + GAP] -> [b, h, w, c]."""
    return flat_images[:, :-GAP].reshape(-1, *shape)

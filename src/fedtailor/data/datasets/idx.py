"""The idx format of MNIST: gzipped big-endian arrays with a small header."""

import gzip
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtailor._base.files import reason, translate_read_errors
from fedtailor._base.memory import check_memory

_DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: Path, axes: int) -> NDArray[Any]:
    """Read an idx .gz file.

    Args:
        path: the file.
        axes: number of axes of its array.

    Returns:
        The array, in native byte order.

    Raises:
        ValueError: the file cannot be read, is not an idx file, or is shorter or longer
            than its header says.
    """
    start = 4 + 4 * axes
    try:
        with translate_read_errors(path), path.open("rb") as compressed:
            return _decode(path, compressed, start, axes)
    except (EOFError, zlib.error) as error:
        raise _no_gzip(path, error) from None


def _decode(path: Path, compressed: Any, start: int, axes: int) -> NDArray[Any]:
    """Decode an open file, whose array begins at byte `start`.

    No more bytes are decompressed than the header says: a small file may contain
    terabytes.
    """
    try:
        with gzip.GzipFile(fileobj=compressed) as content:
            # The header: two zeros, the dtype, the number of axes, and the length of
            # each axis in 4 bytes.
            header = content.read(start)
            is_idx = (
                len(header) == start and header[:2] == b"\0\0" and header[2] in _DTYPES
            )
            if not is_idx or header[3] != axes:
                raise ValueError(
                    f"{path} is not an idx file with {axes} axes; replace it by the"
                    " published one"
                )
            dtype = np.dtype(_DTYPES[header[2]])
            shape = tuple(np.frombuffer(header, ">u4", axes, 4).tolist())
            size = dtype.itemsize * math.prod(shape)
            check_memory(size, 1, f"{path}, of shape {shape} by its header,")
            data = content.read(size)
            more = content.read(1)
    except gzip.BadGzipFile as error:  # an OSError, but not of the disk
        raise _no_gzip(path, error) from None
    if len(data) != size or more:
        number = "more" if more else str(len(data))
        raise ValueError(
            f"{path} holds {number} bytes where its header, shape {shape}, promises"
            f" {size}; replace it by the published one"
        )
    return np.frombuffer(data, dtype).reshape(shape).astype(dtype.newbyteorder("="))


def _no_gzip(path: Path, error: Exception) -> ValueError:
    """The error for a file that cannot be decompressed."""
    return ValueError(
        f"{path} is truncated or no gzip file ({reason(error)}); replace it by the"
        " published one"
    )


def read_labelled(
    images: Path, labels: Path, classes: range
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Read images [n, 28, 28] and their labels [n].

    Raises:
        ValueError: the shapes or dtypes are wrong, or a label is not in `classes`.
    """
    x, y = read_idx(images, 3), read_idx(labels, 1)
    if x.dtype != np.uint8 or x.shape[1:] != (28, 28):
        raise ValueError(
            f"{images} holds {x.dtype} images of {x.shape[1:]} pixels, not bytes of"
            " (28, 28)"
        )
    if y.dtype != np.uint8:
        raise ValueError(
            f"{labels} holds labels of {y.dtype}, not bytes; replace it by the"
            " published one"
        )
    if len(x) != len(y):
        raise ValueError(
            f"{images} holds {len(x)} images and {labels.name} {len(y)} labels; they"
            " are not of one set"
        )
    smallest, largest = classes[0], classes[-1]
    if len(y) and (y.min() < smallest or y.max() > largest):
        raise ValueError(
            f"{labels} holds labels {y.min()} to {y.max()}, not {smallest} to {largest}"
        )
    return x, y

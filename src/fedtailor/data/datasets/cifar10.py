"""CIFAR-10 (Krizhevsky 2009), from its binary or its Python version.

Expected in the data directory: cifar-10-batches-bin/ with data_batch_1..5.bin and
test_batch.bin, or cifar-10-batches-py/ with data_batch_1..5 and test_batch. The
download (binary version, 170 MB, checked by SHA-256) has not been tested. Pickles are
read by an unpickler that can only create arrays.
"""

import io
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtailor._base.files import reason
from fedtailor.data.datasets.registry import register
from fedtailor.data.datasets.store import (
    Arrays,
    DataDir,
    Source,
    data_home,
    file_exists,
    read,
)
from fedtailor.data.federation.dataset import Dataset

_BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
_BINARY = Source(
    "CIFAR-10",
    ("cifar-10-batches-bin",),
    tuple(f"{batch}.bin" for batch in _BATCHES),
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    {
        "cifar-10-binary.tar.gz": (
            "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
        ),
    },
    archive_folder="cifar-10-batches-bin",
)
_PYTHON = Source("CIFAR-10", ("cifar-10-batches-py",), _BATCHES, None)
_IMAGES_PER_BATCH = 10_000
_PIXELS = 3 * 32 * 32
_CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
_UNPICKLING_ERRORS = (
    pickle.UnpicklingError,
    struct.error,
    AssertionError,
    AttributeError,
    EOFError,
    ImportError,
    LookupError,
    MemoryError,
    OverflowError,
    TypeError,
    ValueError,
)
"""Errors that unpickling a damaged file may raise."""
_MEAN = (0.4914, 0.4822, 0.4465)
_STD = (0.2470, 0.2435, 0.2616)


@register(_BINARY, _PYTHON)
def cifar10(data_dir: DataDir = None) -> Dataset:
    """60,000 colour images, uint8 [N, 32, 32, 3]; the last 10,000 are the published
    test set.

    Raises:
        MissingData: the files are missing and cannot be downloaded.
        ValueError: a file is damaged, or does not belong to CIFAR-10.
    """
    # Read the version that exists. If there is none, download the binary version, which
    # needs no unpickling.
    folder = data_home(data_dir) / _PYTHON.folders[0]
    is_pickled = all([file_exists(folder / name) for name in _PYTHON.files])
    arrays = (
        read(_PYTHON, _decode_python, data_dir)
        if is_pickled
        else read(_BINARY, _decode_binary, data_dir)
    )
    return Dataset(
        arrays["x"],
        arrays["y"],
        10,
        "CIFAR-10",
        np.arange(6 * _IMAGES_PER_BATCH) >= 5 * _IMAGES_PER_BATCH,
        shift=tuple(255 * mean for mean in _MEAN),
        scale=tuple(1 / (255 * std) for std in _STD),
        class_names=_CLASSES,
    )


def _decode_binary(paths: list[Path]) -> Arrays:
    """Decode the binary version: records of a label and 3,072 pixels, one byte each."""
    records = []
    for path in paths:
        expected = _IMAGES_PER_BATCH * (1 + _PIXELS)
        if path.stat().st_size != expected:
            raise ValueError(
                f"{path} has {path.stat().st_size} bytes, not {expected}; replace it by"
                " the published one"
            )
        records.append(
            np.fromfile(path, np.uint8).reshape(_IMAGES_PER_BATCH, 1 + _PIXELS)
        )
    pixels = [batch[:, 1:] for batch in records]
    labels = [batch[:, 0] for batch in records]
    return _concatenate(pixels, labels, paths)


def _decode_python(paths: list[Path]) -> Arrays:
    """Decode the Python version: pickled dicts of arrays."""
    pixels, labels = [], []
    for path in paths:
        content = io.BytesIO(path.read_bytes())
        try:
            batch = _ArrayUnpickler(content, encoding="latin1").load()
            pixels.append(np.asarray(batch["data"]).reshape(_IMAGES_PER_BATCH, _PIXELS))
            labels.append(np.asarray(batch["labels"]).reshape(_IMAGES_PER_BATCH))
        except _UNPICKLING_ERRORS as error:
            raise ValueError(
                f"{path} is not a batch of CIFAR-10 ({reason(error)}); replace it by the"
                " published one"
            ) from None
        if pixels[-1].dtype != np.uint8:
            raise ValueError(
                f"{path} holds {pixels[-1].dtype} pixels, not bytes; replace it by the"
                " published one"
            )
        if labels[-1].dtype.kind not in "iu":
            raise ValueError(
                f"{path} holds {labels[-1].dtype} labels, not integers; replace it by"
                " the published one"
            )
    return _concatenate(pixels, labels, paths)


def _concatenate(
    pixels: list[NDArray[np.uint8]], labels: list[NDArray[Any]], paths: list[Path]
) -> Arrays:
    """Concatenate the batches, and move the colour channel to the last axis.

    Raises:
        ValueError: the number of images of a class is not the published one.
    """
    for name, part in (("training", labels[:5]), ("test", labels[5:])):
        all_labels = np.concatenate(part)
        class_size = len(part) * _IMAGES_PER_BATCH // 10
        if (
            all_labels.min() < 0
            or np.bincount(all_labels).tolist() != [class_size] * 10
        ):
            raise ValueError(
                f"{paths[0].parent}: the {name} batches do not hold {class_size} images of"
                " each of 10 classes; replace them"
            )
    # The files hold the three colour planes one after another.
    planes = np.concatenate(pixels).reshape(-1, 3, 32, 32)
    images = planes.transpose(0, 2, 3, 1)
    all_labels = np.concatenate(labels)
    return {"x": np.ascontiguousarray(images), "y": all_labels.astype(np.uint8)}


class _ArrayUnpickler(pickle.Unpickler):
    """An unpickler of arrays, numbers, text and containers, which refuses all else."""

    _allowed = frozenset(
        {
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),
            ("numpy._core.numeric", "_frombuffer"),
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
            ("_codecs", "encode"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._allowed:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)

"""CIFAR-10 (Krizhevsky 2009), from its binary or its Python version.

Expected in the data directory: cifar-10-batches-bin/ with data_batch_1..5.bin and
test_batch.bin, or cifar-10-batches-py/ with data_batch_1..5 and test_batch. The address
of the download (binary version, 170 MB, checked by SHA-256) has not been tried. Pickles
are read by an unpickler that can build arrays and nothing else.
"""

import io
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtailor._files import reason
from fedtailor.federation.dataset import Dataset
from fedtailor.federation.datasets.registry import register
from fedtailor.federation.datasets.store import (
    Arrays,
    DataDir,
    Source,
    data_home,
    is_at_hand,
    read,
)

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
    inside="cifar-10-batches-bin",
)
_PYTHON = Source("CIFAR-10", ("cifar-10-batches-py",), _BATCHES, None)
_PER_BATCH, _PIXELS = 10_000, 3 * 32 * 32
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
_DAMAGED = (
    *(pickle.UnpicklingError, EOFError, ImportError, MemoryError, OverflowError),
    *(LookupError, ValueError, TypeError, AttributeError, AssertionError, struct.error),
)
"""What unpickling other bytes may end in."""
_MEAN, _DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


@register(_BINARY, _PYTHON)
def cifar10(data_dir: DataDir = None) -> Dataset:
    """60,000 colour images, uint8 [N, 32, 32, 3]; the last 10,000 are the published
    test set.

    Raises:
        MissingData: the files are not at hand and cannot be downloaded.
        ValueError: a file is damaged or not CIFAR-10's.
    """
    # whichever version is there; if neither is, the binary one is downloaded, which
    # needs no unpickling
    folder = data_home(data_dir) / _PYTHON.folders[0]
    pickled = all([is_at_hand(folder / name) for name in _PYTHON.files])
    arrays = (
        read(_PYTHON, _decode_python, data_dir)
        if pickled
        else read(_BINARY, _decode_binary, data_dir)
    )
    return Dataset(
        arrays["x"],
        arrays["y"],
        10,
        "CIFAR-10",
        np.arange(6 * _PER_BATCH) >= 5 * _PER_BATCH,
        shift=tuple(255 * mean for mean in _MEAN),
        scale=tuple(1 / (255 * deviation) for deviation in _DEVIATION),
        class_names=_CLASSES,
    )


def _decode_binary(paths: list[Path]) -> Arrays:
    """The binary version: records of a label and 3,072 pixels, one byte each."""
    records = []
    for path in paths:
        expected = _PER_BATCH * (1 + _PIXELS)
        if path.stat().st_size != expected:
            raise ValueError(
                f"{path} has {path.stat().st_size} bytes, not {expected}; replace it by"
                " the published one"
            )
        records.append(np.fromfile(path, np.uint8).reshape(_PER_BATCH, 1 + _PIXELS))
    pixels = [part[:, 1:] for part in records]
    labels = [part[:, 0] for part in records]
    return _arranged(pixels, labels, paths)


def _decode_python(paths: list[Path]) -> Arrays:
    """The Python version: pickled dicts of arrays."""
    pixels, labels = [], []
    for path in paths:
        content = io.BytesIO(path.read_bytes())
        try:
            batch = _ArraysOnly(content, encoding="latin1").load()
            pixels.append(np.asarray(batch["data"]).reshape(_PER_BATCH, _PIXELS))
            labels.append(np.asarray(batch["labels"]).reshape(_PER_BATCH))
        except _DAMAGED as error:
            raise ValueError(
                f"{path} is no batch of CIFAR-10 ({reason(error)}); replace it by the"
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
    return _arranged(pixels, labels, paths)


def _arranged(
    pixels: list[NDArray[np.uint8]], labels: list[NDArray[Any]], paths: list[Path]
) -> Arrays:
    """Colour planes to the last axis, and a look at the labels.

    Every class must have as many images as published.
    """
    for what, part in (("training", labels[:5]), ("test", labels[5:])):
        all_labels = np.concatenate(part)
        share = len(part) * _PER_BATCH // 10
        if all_labels.min() < 0 or np.bincount(all_labels).tolist() != [share] * 10:
            raise ValueError(
                f"{paths[0].parent}: the {what} batches do not hold {share} images of"
                " each of 10 classes; replace them"
            )
    # published as three colour planes one after another
    planes = np.concatenate(pixels).reshape(-1, 3, 32, 32)
    images = planes.transpose(0, 2, 3, 1)
    all_labels = np.concatenate(labels)
    return {"x": np.ascontiguousarray(images), "y": all_labels.astype(np.uint8)}


class _ArraysOnly(pickle.Unpickler):
    """Arrays, numbers, text and containers.

    A pickle that asks for anything else is refused.
    """

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

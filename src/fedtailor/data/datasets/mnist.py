"""MNIST, MNIST with writers (QMNIST), and Fashion-MNIST.

LeCun et al. 1998; Yadav and Bottou 2019; Xiao et al. 2017.

Expected in the data directory: mnist/ and fashion-mnist/ with the four original idx .gz
files each (or torchvision's MNIST/raw and FashionMNIST/raw); mnist-writers/ with
QMNIST's two label files. All are checked by SHA-256. The downloads have not been
tested.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from fedtailor.data.datasets.idx import read_idx, read_labelled
from fedtailor.data.datasets.registry import register
from fedtailor.data.datasets.store import Arrays, DataDir, Source, read
from fedtailor.data.federation.dataset import Dataset

_FILES = tuple(
    f"{part}-{what}-ubyte.gz"
    for part in ("train", "t10k")
    for what in ("images-idx3", "labels-idx1")
)
_MNIST = Source(
    "MNIST",
    ("mnist", "MNIST/raw"),
    _FILES,
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    {
        "train-images-idx3-ubyte.gz": (
            "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"
        ),
        "train-labels-idx1-ubyte.gz": (
            "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"
        ),
        "t10k-images-idx3-ubyte.gz": (
            "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"
        ),
        "t10k-labels-idx1-ubyte.gz": (
            "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"
        ),
    },
)
_FASHION = Source(
    "Fashion-MNIST",
    ("fashion-mnist", "FashionMNIST/raw"),
    _FILES,
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
    {
        "train-images-idx3-ubyte.gz": (
            "sha256:3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"
        ),
        "train-labels-idx1-ubyte.gz": (
            "sha256:a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"
        ),
        "t10k-images-idx3-ubyte.gz": (
            "sha256:346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"
        ),
        "t10k-labels-idx1-ubyte.gz": (
            "sha256:67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"
        ),
    },
)
_WRITERS = Source(
    "QMNIST's writers of MNIST",
    ("mnist-writers",),
    ("qmnist-train-labels-idx2-int.gz", "qmnist-test-labels-idx2-int.gz"),
    "https://raw.githubusercontent.com/facebookresearch/qmnist/master",
    {
        "qmnist-train-labels-idx2-int.gz": (
            "sha256:2c05dc77f6b916b38e455e97ab129a42a444f3dbef09b278a366f82904e0dd9f"
        ),
        "qmnist-test-labels-idx2-int.gz": (
            "sha256:9fbcbe594c3766fdf4f0b15c5165dc0d1e57ac604e01422608bb72c906030d06"
        ),
    },
)
_CLOTHES = (
    "T-shirt",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


@register(_MNIST)
def mnist(data_dir: DataDir = None) -> Dataset:
    """70,000 handwritten digits, uint8 [N, 28, 28], ink = 255; the last 10,000 are the
    published test set.

    Raises:
        MissingData: the files are missing and cannot be downloaded.
        ValueError: a file is not the published one.
    """
    return _read_images(_MNIST, "MNIST", 0.1307, 0.3081, tuple("0123456789"), data_dir)


@register(_FASHION)
def fashion_mnist(data_dir: DataDir = None) -> Dataset:
    """70,000 pictures of clothes, uint8 [N, 28, 28]; the last 10,000 are the published
    test set.

    Raises:
        MissingData: the files are missing and cannot be downloaded.
        ValueError: a file is not the published one.
    """
    return _read_images(_FASHION, "Fashion-MNIST", 0.2860, 0.3530, _CLOTHES, data_dir)


@register(_MNIST, _WRITERS)
def mnist_writers(data_dir: DataDir = None) -> Dataset:
    """MNIST with its 836 writers as natural clients: 539 wrote the training set, 297
    others the test set.

    Raises:
        MissingData: the files of MNIST or QMNIST are missing and cannot be downloaded.
        ValueError: a file is not the published one.
    """
    # QMNIST names the writers. Its labels must equal those of MNIST, which shows that
    # the examples are in the same order.
    data = mnist(data_dir)
    labels = read(_WRITERS, _decode_writers, data_dir)
    if not np.array_equal(labels["digit"], data.y):
        raise ValueError(
            "QMNIST's labels are not those of MNIST; replace the files in mnist-writers"
        )
    names = np.array([f"writer-{writer:04d}" for writer in labels["writer"]])
    return replace(data, name="MNIST writers", client=names)


def _read_images(
    source: Source,
    name: str,
    mean: float,
    std: float,
    classes: tuple[str, ...],
    data_dir: DataDir,
) -> Dataset:
    """Read 28x28 gray images of ten classes, normalized by the pixels' mean and std."""
    arrays = read(source, _decode, data_dir)
    scale = 1 / (255 * std)
    return Dataset(
        arrays["x"],
        arrays["y"],
        10,
        name,
        arrays["test"],
        shift=255 * mean,
        scale=scale,
        class_names=classes,
    )


def _decode(paths: list[Path]) -> Arrays:
    """Decode the training set and the test set from the files in `_FILES`."""
    train_x, train_y = read_labelled(paths[0], paths[1], range(10))
    test_x, test_y = read_labelled(paths[2], paths[3], range(10))
    y = np.concatenate([train_y, test_y])
    is_test = np.arange(len(y)) >= len(train_y)
    return {"x": np.concatenate([train_x, test_x]), "y": y, "test": is_test}


def _decode_writers(paths: list[Path]) -> Arrays:
    """Decode QMNIST's labels, whose columns are class, series, writer, number, ...

    Only the first 10,000 examples of its test set belong to MNIST.
    """
    train, test = (read_idx(path, 2) for path in paths)
    table = np.concatenate([train, test[:10_000]])
    return {"digit": table[:, 0].astype(np.uint8), "writer": table[:, 2]}

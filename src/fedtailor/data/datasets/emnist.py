"""EMNIST (Cohen et al. 2017): the characters of NIST Special Database 19.

Expected in the data directory: emnist/ (or emnist-SPLIT-test/, or torchvision's
EMNIST/raw) with the original files
emnist-SPLIT-{train,test}-{images-idx3,labels-idx1}-ubyte.gz. The
download (gzip.zip, 560 MB, checked by SHA-256) has not been tested.
"""

from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Literal, get_args

import numpy as np

from fedtailor._base.choice import check_choice
from fedtailor.data.datasets.idx import read_labelled
from fedtailor.data.datasets.registry import register
from fedtailor.data.datasets.store import Arrays, DataDir, Source, read
from fedtailor.data.federation.dataset import Dataset

EmnistSplit = Literal["byclass", "bymerge", "balanced", "letters", "digits", "mnist"]
EmnistPart = Literal["all", "train", "test"]

_URL = "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip"
_HASHES = {
    "gzip.zip": (
        "sha256:fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e"
    ),
    "emnist-byclass-test-images-idx3-ubyte.gz": (
        "sha256:5ec835bd5d5b1a66378a132e727fef20fe994b3cc666899befcca5ac766f50cd"
    ),
    "emnist-byclass-test-labels-idx1-ubyte.gz": (
        "sha256:501e305eeeacb093b162592d80e8a2632040872360fa6d85cfcb2200d91ca92a"
    ),
}
_CLASSES: dict[str, str] = {
    "byclass": digits + ascii_uppercase + ascii_lowercase,
    # The other letters look alike in both cases.
    "bymerge": digits + ascii_uppercase + "abdefghnqrt",
    "balanced": digits + ascii_uppercase + "abdefghnqrt",
    "letters": ascii_uppercase,
    "digits": digits,
    "mnist": digits,
}


def _source(split: EmnistSplit, part: EmnistPart) -> Source:
    """The files of a part of a split."""
    parts = _parts(part)
    files = tuple(
        f"emnist-{split}-{name}-{kind}-ubyte.gz"
        for name in parts
        for kind in ("images-idx3", "labels-idx1")
    )
    # The files of a single part may also be in a separate folder.
    part_folders = [f"emnist-{split}-{name}" for name in parts if part != "all"]
    folders = ("emnist", *part_folders, "EMNIST/raw")
    return Source(
        f"EMNIST {split}", folders, files, _URL, _HASHES, archive_folder="gzip"
    )


def _parts(part: EmnistPart) -> list[str]:
    return [name for name in ("train", "test") if part in ("all", name)]


@register(*(_source(split, "all") for split in get_args(EmnistSplit)))
def emnist(
    split: EmnistSplit = "byclass", part: EmnistPart = "all", data_dir: DataDir = None
) -> Dataset:
    """Upright characters, uint8 [N, 28, 28], ink = 255 (the published files hold them
    transposed).

    Args:
        split: "byclass" (62 classes, unbalanced), "bymerge" (47), "balanced" (47),
            "letters" (26, here 0 to 25), "digits" or "mnist" (10).
        part: the published training set, test set, or both.
        data_dir: the data directory.

    Returns:
        A data set, whose `test` marks the published test set.

    Raises:
        MissingData: the files are missing and cannot be downloaded.
        ValueError: the split or part is unknown, or a file is not the published one.
    """
    check_choice(split, _CLASSES, "split of EMNIST")
    check_choice(part, get_args(EmnistPart), "part of EMNIST")
    first = 1 if split == "letters" else 0
    labels = range(first, first + len(_CLASSES[split]))

    def decode(paths: list[Path]) -> Arrays:
        images, targets, is_test = [], [], []
        for number, name in enumerate(_parts(part)):
            image_file, label_file = paths[2 * number : 2 * number + 2]
            x, y = read_labelled(image_file, label_file, labels)
            # The published images are transposed.
            images.append(x.transpose(0, 2, 1))
            targets.append((y - first).astype(np.uint8))
            is_test.append(np.full(len(y), name == "test"))
        return {
            "x": np.ascontiguousarray(np.concatenate(images)),
            "y": np.concatenate(targets),
            "test": np.concatenate(is_test),
        }

    arrays = read(_source(split, part), decode, data_dir, f"-{split}-{part}")
    return Dataset(
        arrays["x"],
        arrays["y"],
        len(labels),
        f"EMNIST {split}" if part == "all" else f"EMNIST {split} ({part})",
        arrays["test"],
        shift=255 * 0.1736,
        scale=1 / (255 * 0.3317),
        class_names=tuple(_CLASSES[split]),
    )

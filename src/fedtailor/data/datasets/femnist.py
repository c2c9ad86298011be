"""FEMNIST of LEAF (Caldas et al. 2018): handwritten characters by writer.

Expected in the data directory: femnist/ with LEAF's output, train/*.json and
test/*.json (or data/train, data/test), or with femnist_leaf_subset.npz (289 writers;
arrays x, y, writer, is_test, dup, writer_name), checked by SHA-256. LEAF publishes
scripts, not files, so nothing is downloaded.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from fedtailor._base.files import existing_file, reason, translate_read_errors
from fedtailor.data.datasets.registry import register
from fedtailor.data.datasets.store import (
    Arrays,
    DataDir,
    Source,
    cached,
    data_home,
    read,
)
from fedtailor.data.federation.dataset import Dataset

_SUBSET = Source(
    "FEMNIST (or LEAF's train/*.json and test/*.json)",
    ("femnist",),
    ("femnist_leaf_subset.npz",),
    None,
    {
        "femnist_leaf_subset.npz": (
            "sha256:27228cfbef435fd94322bca1b91b2936a889b6c8b303e2db3eafdbc2d55ef0bf"
        )
    },
)
_CLASSES = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@register(_SUBSET)
def femnist(data_dir: DataDir = None) -> Dataset:
    """Characters by writer, uint8 [N, 28, 28] as LEAF has them: paper = 255, so the
    model's input is (255 - x) / 255.

    The writers are the natural clients, and `test` marks LEAF's test examples. The
    subset marks images that it contains twice with different labels; they are left out.

    Raises:
        MissingData: the files are missing.
        ValueError: a file is damaged, or is not a file of FEMNIST.
    """
    # LEAF's output is preferred, as it is complete.
    arrays = _read_leaf(data_dir) or read(_SUBSET, _decode_subset, data_dir)
    return Dataset(
        arrays["x"],
        arrays["y"],
        len(_CLASSES),
        "FEMNIST",
        arrays["test"],
        arrays["writer"],
        shift=255.0,
        scale=-1 / 255,
        class_names=tuple(_CLASSES),
    )


def _decode_subset(paths: list[Path]) -> Arrays:
    """Decode the subset, without images that occur twice with different labels."""
    with np.load(paths[0], allow_pickle=False) as archive:
        is_unique = archive["dup"] == 0
        arrays = {key: archive[key][is_unique] for key in ("x", "y")}
        test = archive["is_test"][is_unique] == 1
        writer = archive["writer_name"][archive["writer"][is_unique]]
    return {**arrays, "test": test, "writer": writer}


def _read_leaf(data_dir: DataDir) -> Arrays | None:
    """Read LEAF's JSON files; None if there are none."""
    root = data_home(data_dir) / "femnist"
    for folder in (root, root / "data"):
        train = sorted((folder / "train").glob("*.json"))
        test = sorted((folder / "test").glob("*.json"))
        if train and test:
            for path in (*train, *test):
                existing_file(path)  # reading a pipe of that name would block
            return cached(
                "femnist-leaf",
                [*train, *test],
                lambda train=train, test=test: _decode_leaf(train, test),
            )
    return None


def _decode_leaf(train: list[Path], test: list[Path]) -> Arrays:
    """Decode LEAF's files, and concatenate the examples of all writers."""
    parts: dict[str, list[Any]] = {"x": [], "y": [], "test": [], "writer": []}
    for path in (*train, *test):
        for writer, x, y in _read_writers(path):
            parts["x"].append(x)
            parts["y"].append(y)
            parts["test"].append(np.full(len(y), path in test))
            parts["writer"].append(np.full(len(y), writer))
    return {key: np.concatenate(arrays) for key, arrays in parts.items()}


def _read_writers(path: Path) -> list[tuple[str, Any, Any]]:
    """Read (writer, uint8 images, labels) from one of LEAF's files."""
    with translate_read_errors(path):
        text = path.read_bytes()
    try:
        content = json.loads(text)
        writers = []
        for writer in content["users"]:
            examples = content["user_data"][writer]
            x = np.asarray(examples["x"], np.float64).reshape(-1, 28, 28)
            y = np.asarray(examples["y"]).reshape(-1)
            if len(x) != len(y) or not ((x >= 0) & (x <= 1)).all():
                raise ValueError(
                    f"writer {writer}: {len(x)} images, {len(y)} labels, or pixels"
                    " outside [0, 1]"
                )
            if len(y) and not np.issubdtype(y.dtype, np.integer):
                raise ValueError(
                    f"writer {writer}: the labels are {y.dtype}, not whole numbers"
                )
            if y.min(initial=0) < 0 or y.max(initial=0) >= len(_CLASSES):
                raise ValueError(
                    f"writer {writer}: a label is outside 0..{len(_CLASSES) - 1}"
                )
            images = np.rint(255 * x).astype(np.uint8)
            writers.append((writer, images, y.astype(np.uint8)))
        return writers
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(
            f"{path} is not a FEMNIST file of LEAF ({reason(error)}); make it again with"
            " LEAF's scripts"
        ) from None

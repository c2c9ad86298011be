"""The file of boosted trees, which are no vector: arrays over all nodes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from fedtailor._files import atomic_write, reason
from fedtailor.boosting.boost import BoostedModel
from fedtailor.boosting.tree import FIELDS, Tree
from fedtailor.federation.storage import arrays_digest
from fedtailor.protocol import require

_FORMAT = "fedtailor boosted trees 1"


def save_boosted(model: BoostedModel, path: Path | str) -> Path:
    """Write boosted trees to a new file.

    Raises:
        ValueError: it cannot be written.
    """
    trees = [tree for trees in model.trees for tree in trees]
    arrays: dict[str, Any] = {"baseline": np.asarray(model.baseline, np.float64)}
    ends = [np.asarray(it, np.float64) for it in model.thresholds]
    arrays["thresholds"] = np.concatenate([np.zeros(0), *ends])
    arrays["bins"] = np.array([len(it) for it in ends], np.int64)
    arrays["nodes"] = np.array([len(tree.input) for tree in trees], np.int64)
    for name in FIELDS:
        parts = [getattr(tree, name) for tree in trees]
        kind = np.float64 if name in ("threshold", "value") else np.int64
        arrays[name] = np.concatenate([np.zeros(0), *parts]).astype(kind)
    about = {"format": _FORMAT, "classes": model.classes, "own": model.own}
    about["digest"] = arrays_digest(json.dumps(about), arrays)
    file = Path(path)
    try:
        with atomic_write(file) as temporary:
            save_file(arrays, temporary, {"about": json.dumps(about)})
    except (OSError, SafetensorError) as error:
        raise ValueError(
            f"cannot write {file}: {reason(error)}; name another file"
        ) from None
    return file


def load_boosted(path: Path | str) -> BoostedModel:
    """Read boosted trees.

    Raises:
        ValueError: the file is missing, damaged, or something else.
    """
    file = Path(path)
    require(file.is_file(), f"there is no file {file}; check the path")
    try:
        with safe_open(file, "numpy") as stored:
            about = json.loads((stored.metadata() or {}).get("about", "{}"))
            arrays = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        require(about.get("format") == _FORMAT, "it holds no boosted trees")
        digest = about.pop("digest")
        require(
            digest == arrays_digest(json.dumps(about), arrays), "its digest is wrong"
        )
        return _model(about, arrays)
    except (
        *(OSError, SafetensorError, ValueError, KeyError),
        *(TypeError, AttributeError, IndexError),
    ) as error:
        raise ValueError(
            f"{file} is damaged ({reason(error)}); save it again"
        ) from None


def _model(about: dict[str, Any], arrays: dict[str, Any]) -> BoostedModel:
    """The model of a file's content, whose nodes lead to leaves."""
    outputs = len(arrays["baseline"])
    ends = np.cumsum(arrays["bins"])[:-1]
    thresholds = np.split(arrays["thresholds"], ends)
    nodes = arrays["nodes"]
    parts = {name: np.split(arrays[name], np.cumsum(nodes)[:-1]) for name in FIELDS}
    require(
        len(nodes) % outputs == 0
        and all(len(arrays[name]) == nodes.sum() for name in FIELDS)
        and len(arrays["thresholds"]) == arrays["bins"].sum(),
        "its arrays differ in length",
    )
    trees = []
    for index in range(len(nodes)):
        tree = Tree(**{name: parts[name][index] for name in FIELDS})
        tree.check(len(thresholds))
        trees.append(tree)
    rounds = [
        tuple(trees[start : start + outputs]) for start in range(0, len(trees), outputs)
    ]
    classes = about["classes"]
    require(classes is None or classes >= 2, "it has less than two classes")
    return BoostedModel(
        classes, arrays["baseline"], tuple(rounds), thresholds, int(about["own"])
    )

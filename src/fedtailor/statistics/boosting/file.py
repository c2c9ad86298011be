"""The file of boosted trees, which are not one vector: arrays over all nodes."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from fedtailor._base.choice import require
from fedtailor._base.files import atomic_write, reason
from fedtailor.data.federation.storage import arrays_digest
from fedtailor.statistics.boosting.boost import BoostedModel, BoostingProgress
from fedtailor.statistics.boosting.tree import FIELDS, Tree

_FORMAT = "fedtailor boosted trees 1"


def save_boosted(model: BoostedModel, path: Path | str) -> Path:
    """Write boosted trees to a new file.

    Raises:
        ValueError: it cannot be written.
    """
    return _save(model, path, {})


def save_progress(
    progress: BoostingProgress, path: Path | str, origin: Mapping[str, Any]
) -> Path:
    """Write the rounds so far of a boosting that is under way.

    Args:
        progress: the rounds.
        path: the file; an existing one is replaced.
        origin: the boosting that they are from; values for JSON.

    Raises:
        ValueError: it cannot be written.
    """
    about = {"losses": list(progress.losses), "origin": dict(origin)}
    return _save(progress.model, path, about)


def load_progress(path: Path | str) -> tuple[BoostingProgress, dict[str, Any]]:
    """Read what `save_progress` wrote.

    Raises:
        ValueError: the file is missing, damaged, or something else.
    """
    model, about = _load(path)
    losses, origin = about.get("losses"), about.get("origin")
    require(
        isinstance(losses, list)
        and isinstance(origin, dict)
        and len(losses) == len(model.trees) + 1
        and all(type(loss) is float for loss in losses),
        f"{path} holds no boosting that is under way",
    )
    assert isinstance(losses, list) and isinstance(origin, dict)
    return BoostingProgress(model, tuple(losses)), origin


def load_boosted(path: Path | str) -> BoostedModel:
    """Read boosted trees.

    Raises:
        ValueError: the file is missing, damaged, or something else.
    """
    return _load(path)[0]


def _save(model: BoostedModel, path: Path | str, more: Mapping[str, Any]) -> Path:
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
    about = {"format": _FORMAT, "classes": model.classes, "own": model.own, **more}
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


def _load(path: Path | str) -> tuple[BoostedModel, dict[str, Any]]:
    """The model of a file, and what is said about it."""
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
        return _model(about, arrays), about
    except (
        *(OSError, SafetensorError, ValueError, KeyError),
        *(TypeError, AttributeError, IndexError, RecursionError),
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

"""Checkpoints: a tree of plain containers and arrays in one safetensors file, written whole or not at all."""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from fedtailor.protocol import ServerState, state_name

_FORMAT = "fedtailor checkpoint 2"


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` make a file beside `path`, then put it in its place: readers see the old file or the new one.

    The name of the unfinished file is always the same, so that what a killed process leaves behind is used again.
    Of several processes of one run the first writes, for all of them.
    """
    if jax.process_index() != 0:
        return
    temporary = path.with_name(f".{path.name}.part")
    try:
        write(temporary)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_directory(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _sync_directory(path: Path) -> None:
    """A new name is on the disk only when its directory is; before that, a power cut may bring the old file back."""
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def all_here(step: str) -> None:
    """Wait until every process of a run has come to this step."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(step)


def save_tree(path: Path, tree: Any) -> None:
    """Write a tree of dicts, lists, tuples, None, numbers, strings and arrays (host or device)."""
    arrays: dict[str, np.ndarray] = {}
    skeleton = json.dumps(_describe(tree, arrays))
    metadata = {"format": _FORMAT, "tree": skeleton, "digest": _digest(skeleton, arrays)}
    write_atomically(path, lambda file: save_file(arrays, file, metadata))


def load_tree(path: Path) -> Any:
    """The tree that `save_tree` wrote; arrays are on the device where they were.

    Raises:
        ValueError: the file is not a checkpoint, or it is damaged.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != _FORMAT:
                made = metadata.get("format", "nothing")
                raise ValueError(f"{path} was not written by this version of fedtailor ({made}); start the run again")
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
            if _digest(metadata["tree"], arrays) != metadata["digest"]:
                raise ValueError(f"{path} is damaged (its digest is wrong); remove the run's directory and start again")
            return _rebuild(json.loads(metadata["tree"]), arrays)
    except (SafetensorError, KeyError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is damaged ({error}); remove the run's directory and start again") from error


def _describe(tree: Any, arrays: dict[str, np.ndarray], path: str = "") -> Any:
    """The containers and plain values of a tree; its arrays go into `arrays` under their paths ("server/model")."""
    if isinstance(tree, dict):
        if not all(isinstance(key, str) for key in tree):
            raise TypeError(f"a state's dict has keys {list(tree)}; only strings can be written to a checkpoint")
        return {"dict": {key: _describe(value, arrays, f"{path}/{key}") for key, value in tree.items()}}
    if isinstance(tree, ServerState):
        parts = {field.name: getattr(tree, field.name) for field in fields(cast(Any, tree))}
        described = {name: _describe(value, arrays, f"{path}/{name}") for name, value in parts.items()}
        return {"state": state_name(type(tree)), "fields": described}
    if isinstance(tree, list | tuple) and type(tree) in (list, tuple):
        return {
            type(tree).__name__: [_describe(value, arrays, f"{path}/{number}") for number, value in enumerate(tree)]
        }
    if isinstance(tree, jax.Array | np.ndarray | np.generic):
        name = path.removeprefix("/")
        arrays[name] = np.asarray(tree, order="C")  # not ascontiguousarray, which makes a scalar a vector
        return {
            "device" if isinstance(tree, jax.Array) else "array" if isinstance(tree, np.ndarray) else "number": name
        }
    if tree is None or isinstance(tree, bool | int | float | str):
        return {"value": tree}
    raise TypeError(f"a {type(tree).__name__} cannot be written to a checkpoint; states are made of dicts, lists, "
                    "tuples, numbers, strings and arrays")  # fmt: skip


def _rebuild(skeleton: dict[str, Any], arrays: dict[str, np.ndarray]) -> Any:
    (kind, content), *_ = skeleton.items()
    if kind == "state":
        known = ServerState.registry.get(content)
        if known is None:
            raise ValueError(f"the checkpoint holds the state of a method that is not loaded ({content})")
        return known(**{name: _rebuild(value, arrays) for name, value in skeleton["fields"].items()})
    if kind == "dict":
        return {key: _rebuild(value, arrays) for key, value in content.items()}
    if kind in ("list", "tuple"):
        parts = [_rebuild(value, arrays) for value in content]
        return parts if kind == "list" else tuple(parts)
    if kind == "device":
        return jnp.asarray(arrays[content])
    if kind in ("array", "number"):
        return arrays[content] if kind == "array" else arrays[content][()]
    return content


def _digest(skeleton: str, arrays: dict[str, np.ndarray]) -> str:
    """A fingerprint of a tree: a bit that a disk lost must not become part of a result."""
    found = hashlib.sha256(skeleton.encode())
    for name in sorted(arrays):
        found.update(arrays[name].reshape(-1).view(np.uint8).data)
    return found.hexdigest()

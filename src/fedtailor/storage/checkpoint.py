"""Checkpoints: a tree of plain containers and arrays in one safetensors file, written
atomically.

safetensors stores named arrays and text, and runs no code when it is read (as pickle
does). The arrays of a tree are stored under their paths ("server/model"). Its structure is
a JSON text beside them, in which every node is an object:

    {"dict": {key: node, ...}}
    {"list": [node, ...]}, {"tuple": [node, ...]}
    {"state": name of a `ServerState` class, "fields": {field: node, ...}}
    {"device": name of an array}    a JAX array, which goes back to the device
    {"array": name of an array}     a NumPy array
    {"number": name of an array}    a NumPy scalar, stored as an array of shape ()
    {"value": value}                None, or a Python bool, int, float or string
"""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from fedtailor._files import reading, reason, replacing
from fedtailor.protocol import ServerState, state_name
from fedtailor.storage.digests import arrays_digest
from fedtailor.storage.errors import Damaged, Unusable

_FORMAT = "fedtailor checkpoint 2"
OLD_FORMAT = "fedtailor checkpoint 1"
"""Of fedtailor 0.1: without digests."""

_ERRORS_OF_DAMAGED_FILES = (
    # safetensors: the file, or one of its arrays
    SafetensorError,
    OSError,
    # the JSON text
    json.JSONDecodeError,
    RecursionError,
    # a part that is missing, or is of another type
    KeyError,
    TypeError,
)


def wait_for_all(step: str) -> None:
    """Wait until every process of a run has reached this step."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(step)


def save_tree(path: Path, tree: Any) -> None:
    """Write a tree of dicts, lists, tuples, server states, None, numbers, strings and
    arrays (host or device) atomically: when writing fails, an old file stays as it was.

    Raises:
        TypeError: the tree holds something else.
        OSError: the file cannot be written.
    """
    with replacing(path) as temporary:
        write_tree(temporary, tree)


def write_tree(path: Path, tree: Any) -> None:
    """As `save_tree`, but not atomically: for a temporary file that nobody reads yet."""
    # safetensors has no checksum, hence a digest of the JSON text and the arrays.
    arrays: dict[str, np.ndarray] = {}
    skeleton = json.dumps(_describe(tree, arrays))
    digest = arrays_digest(skeleton, arrays)
    save_file(arrays, path, {"format": _FORMAT, "tree": skeleton, "digest": digest})


def load_tree(path: Path) -> Any:
    """The tree that `save_tree` wrote; arrays are on the device where they were.

    Raises:
        Unusable: it cannot be read, or another version of fedtailor wrote it.
        Damaged: it is missing, not a fedtailor checkpoint, or not what was written.
        ValueError: it holds the state of a method that is not loaded.
    """
    if not path.exists():
        raise Damaged(f"{path} is missing; remove the run's directory and start again")
    # Open it here first: safetensors reports a permission error as a damaged file.
    with reading(path, Unusable):
        path.open("rb").close()
    try:
        return _read_tree(path)
    except _ERRORS_OF_DAMAGED_FILES as error:
        raise Damaged(
            f"{path} is damaged ({reason(error)}); remove the run's directory and start"
            " again"
        ) from error


def _read_tree(path: Path) -> Any:
    """`load_tree` without its handling of errors."""
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata() or {}
        refuse_other_format(path, metadata.get("format", "nothing"))
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    # safetensors has no checksum: without the digest a flipped bit would go unnoticed.
    if arrays_digest(metadata["tree"], arrays) != metadata["digest"]:
        raise Damaged(
            f"{path} is damaged (its digest is wrong); remove the run's directory"
            " and start again"
        )
    return _rebuild(json.loads(metadata["tree"]), arrays)


def refuse_other_format(path: Path, found_format: str) -> None:
    """Refuse a checkpoint that this version does not write.

    Args:
        path: the file, for messages.
        found_format: the format that its metadata state.

    Raises:
        Unusable: another version of fedtailor wrote it.
        Damaged: it is not a fedtailor checkpoint.
    """
    if found_format == OLD_FORMAT:
        raise Unusable(
            f"{path} was written by fedtailor 0.1, whose runs can be reported but not"
            " resumed; name another directory"
        )
    if not found_format.startswith("fedtailor checkpoint "):
        raise Damaged(
            f"{path} is damaged (it is no checkpoint); remove the run's directory and"
            " start again"
        )
    if found_format != _FORMAT:
        raise Unusable(
            f"{path} was not written by this version of fedtailor ({found_format}); name"
            " another directory"
        )


def checkpoint_format(path: Path) -> str | None:
    """The format that a checkpoint's metadata state; None where it cannot be read."""
    try:
        with safe_open(path, framework="numpy") as file:
            return (file.metadata() or {}).get("format")
    except (SafetensorError, OSError):
        return None


def _describe(tree: Any, arrays: dict[str, np.ndarray], path: str = "") -> Any:
    """The structure of a tree as nodes for JSON (see the table at the top).

    Args:
        tree: what to describe.
        arrays: its arrays are added here, under their paths.
        path: of the tree itself: "" or "/server/model".

    Raises:
        TypeError: it holds something that cannot be written.
    """
    if isinstance(tree, dict):
        if not all(isinstance(key, str) for key in tree):
            raise TypeError(
                f"a state's dict has keys {list(tree)}; only strings can be written to"
                " a checkpoint"
            )
        return {
            "dict": {
                key: _describe(value, arrays, f"{path}/{key}")
                for key, value in tree.items()
            }
        }
    if isinstance(tree, ServerState):
        described = {
            field.name: _describe(
                getattr(tree, field.name), arrays, f"{path}/{field.name}"
            )
            for field in fields(cast(Any, tree))
        }
        return {"state": state_name(type(tree)), "fields": described}
    # The exact types: a NamedTuple would come back as a tuple.
    if isinstance(tree, list | tuple) and type(tree) in (list, tuple):
        entries = [
            _describe(value, arrays, f"{path}/{number}")
            for number, value in enumerate(tree)
        ]
        return {type(tree).__name__: entries}
    if isinstance(tree, jax.Array | np.ndarray | np.generic):
        name = path.removeprefix("/")
        # not ascontiguousarray, which makes a scalar a vector
        arrays[name] = np.asarray(tree, order="C")
        # The kind of array is stored too: a resumed round must call the same compiled
        # programs with arguments of the same kind.
        if isinstance(tree, jax.Array):
            return {"device": name}
        if isinstance(tree, np.ndarray):
            return {"array": name}
        return {"number": name}
    if tree is None or isinstance(tree, bool | int | float | str):
        return {"value": tree}
    raise TypeError(
        f"a {type(tree).__name__} cannot be written to a checkpoint; states are made of"
        " dicts, lists, tuples, numbers, strings and arrays"
    )


def _rebuild(node: dict[str, Any], arrays: dict[str, np.ndarray]) -> Any:
    """The tree that `_describe` has described.

    Raises:
        ValueError: it holds the state of a method that is not loaded.
    """
    if "state" in node:
        return _rebuild_state(node["state"], node["fields"], arrays)
    # Every other node has one entry.
    ((kind, content),) = node.items()
    if kind == "dict":
        return {key: _rebuild(value, arrays) for key, value in content.items()}
    if kind in ("list", "tuple"):
        entries = [_rebuild(value, arrays) for value in content]
        return entries if kind == "list" else tuple(entries)
    if kind == "device":
        return jnp.asarray(arrays[content])
    if kind == "array":
        return arrays[content]
    if kind == "number":
        return arrays[content][()]  # a NumPy scalar, as it was
    return content


def _rebuild_state(
    name: str, nodes: dict[str, Any], arrays: dict[str, np.ndarray]
) -> ServerState:
    """A server state from the name of its class and the nodes of its fields."""
    state_class = ServerState.registry.get(name)
    if state_class is None:
        raise ValueError(
            f"the checkpoint holds the state of a method that is not loaded ({name})"
        )
    values = {field: _rebuild(node, arrays) for field, node in nodes.items()}
    return state_class(**values)

"""Checkpoints: a tree of plain containers and arrays in one safetensors file, written
atomically.

A safetensors file holds named arrays and text, and unlike pickle runs no code when it
is read. The arrays of a tree are stored under their paths ("server/model"). The
structure of the tree is stored as JSON text, in which every node is an object:

    node                                                    value
    {"dict": {key: node, ...}}                              dict with string keys
    {"list": [node, ...]}                                   list
    {"tuple": [node, ...]}                                  tuple
    {"state": class name, "fields": {field: node, ...}}     instance of a `ServerState` class
    {"device": array name}                                  JAX array
    {"array": array name}                                   NumPy array
    {"number": array name}                                  NumPy scalar (an array of shape ())
    {"value": value}                                        None, bool, int, float or string
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

from fedtailor._base.documentation import see
from fedtailor._base.files import atomic_write, reason, translate_read_errors
from fedtailor._base.tensors import read_tensors
from fedtailor.data.federation.storage import arrays_digest
from fedtailor.engine.storage.errors import Damaged, Unusable
from fedtailor.protocol import ServerState, state_name

_FORMAT = "fedtailor checkpoint 2"

_DAMAGE_ERRORS = (
    # safetensors: the file, or one of its arrays
    SafetensorError,
    OSError,
    # the JSON text
    json.JSONDecodeError,
    RecursionError,
    # a missing entry, or one of another type
    KeyError,
    TypeError,
    AttributeError,
)


def wait_for_all(step: str) -> None:
    """Wait until every process of a distributed run has reached this step."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(step)


def save_tree(path: Path, tree: Any) -> None:
    """Write a tree to a file, atomically.

    Args:
        path: the file.
        tree: nested dicts, lists, tuples and server states, with numbers, strings,
            None, NumPy arrays and JAX arrays as leaves.

    Raises:
        TypeError: the tree contains something else.
        OSError: the file cannot be written.
    """
    with atomic_write(path) as temporary:
        write_tree(temporary, tree)


def write_tree(path: Path, tree: Any) -> None:
    """Like `save_tree`, but not atomic: for temporary files."""
    # safetensors has no checksum, so the digest of text and arrays is added.
    arrays: dict[str, np.ndarray] = {}
    structure = json.dumps(_to_node(tree, arrays))
    digest = arrays_digest(structure, arrays)
    save_file(arrays, path, {"format": _FORMAT, "tree": structure, "digest": digest})


def load_tree(path: Path) -> Any:
    """Read a tree that `save_tree` wrote.

    JAX arrays are put on the default device; NumPy arrays stay NumPy arrays.

    Raises:
        Unusable: the file cannot be read, or another version of fedtailor wrote it.
        Damaged: the file is missing, is not a fedtailor checkpoint, or is damaged.
        ValueError: the tree contains the state of a method that is not imported.
    """
    if not path.exists():
        raise Damaged(f"{path} is missing; remove the run's directory and start again")
    # safetensors reports a permission error as a damaged file, so open the file first.
    with translate_read_errors(path, Unusable):
        path.open("rb").close()
    try:
        return _read_tree(path)
    except _DAMAGE_ERRORS as error:
        raise Damaged(
            f"{path} is damaged ({reason(error)}); remove the run's directory and start"
            " again"
        ) from error


def _read_tree(path: Path) -> Any:
    """`load_tree` without error handling."""
    with safe_open(path, framework="numpy") as file:
        refuse_other_format(path, (file.metadata() or {}).get("format", "nothing"))
    arrays, metadata = read_tensors(path)
    # safetensors has no checksum: without the digest a flipped bit would go unnoticed.
    if arrays_digest(metadata["tree"], arrays) != metadata["digest"]:
        raise Damaged(
            f"{path} is damaged (its digest is wrong); remove the run's directory"
            " and start again"
        )
    return _from_node(json.loads(metadata["tree"]), arrays)


def refuse_other_format(path: Path, file_format: str) -> None:
    """Refuse a checkpoint in a format other than the current one.

    Args:
        path: the file, for messages.
        file_format: the format in the file's metadata.

    Raises:
        Unusable: another version of fedtailor wrote the file.
        Damaged: the file is not a fedtailor checkpoint.
    """
    if not file_format.startswith("fedtailor checkpoint "):
        raise Damaged(
            f"{path} is damaged (it is not a checkpoint); remove the run's directory and"
            " start again"
        )
    if file_format != _FORMAT:
        raise Unusable(
            f"{path} was not written by this version of fedtailor ({file_format}); name"
            f" another directory{see('errors#a-run-of-another-version')}"
        )


def checkpoint_format(path: Path) -> str | None:
    """The format in a checkpoint's metadata; None if the file cannot be read."""
    try:
        with safe_open(path, framework="numpy") as file:
            return (file.metadata() or {}).get("format")
    except (SafetensorError, OSError):
        return None


def _to_node(tree: Any, arrays: dict[str, np.ndarray], path: str = "") -> Any:
    """Describe a tree by a JSON node (see the table at the top of this module).

    Args:
        tree: the tree, or a subtree of it.
        arrays: a dict to which the arrays of the tree are added, under their paths.
        path: the path of the subtree, such as "/server/model"; "" for the whole tree.

    Raises:
        TypeError: the tree contains something that cannot be written.
    """
    if isinstance(tree, dict):
        if not all(isinstance(key, str) for key in tree):
            raise TypeError(
                f"a state's dict has keys {list(tree)}; only strings can be written to"
                " a checkpoint"
            )
        return {
            "dict": {
                key: _to_node(value, arrays, f"{path}/{key}")
                for key, value in tree.items()
            }
        }
    if isinstance(tree, ServerState):
        nodes = {
            field.name: _to_node(
                getattr(tree, field.name), arrays, f"{path}/{field.name}"
            )
            for field in fields(cast(Any, tree))
        }
        return {"state": state_name(type(tree)), "fields": nodes}
    # No subclasses: a NamedTuple would be read as a plain tuple.
    if isinstance(tree, list | tuple) and type(tree) in (list, tuple):
        entries = [
            _to_node(value, arrays, f"{path}/{index}")
            for index, value in enumerate(tree)
        ]
        return {type(tree).__name__: entries}
    if isinstance(tree, jax.Array | np.ndarray | np.generic):
        name = path.removeprefix("/")
        # np.ascontiguousarray would turn a scalar into a vector.
        arrays[name] = np.asarray(tree, order="C")
        # The kind of array is stored as well, so that a resumed round calls the same
        # compiled programs with arguments of the same kind.
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


def _from_node(node: dict[str, Any], arrays: dict[str, np.ndarray]) -> Any:
    """Build the tree that a node describes; the inverse of `_to_node`.

    Raises:
        ValueError: the tree contains the state of a method that is not imported.
    """
    if "state" in node:
        return _state_from_node(node["state"], node["fields"], arrays)
    # A node of any other kind has a single key.
    ((kind, content),) = node.items()
    if kind == "dict":
        return {key: _from_node(value, arrays) for key, value in content.items()}
    if kind in ("list", "tuple"):
        entries = [_from_node(value, arrays) for value in content]
        return entries if kind == "list" else tuple(entries)
    if kind == "device":
        return jnp.asarray(arrays[content])
    if kind == "array":
        return arrays[content]
    if kind == "number":
        return arrays[content][()]  # [()] makes a NumPy scalar of an array of shape ()
    return content


def _state_from_node(
    name: str, nodes: dict[str, Any], arrays: dict[str, np.ndarray]
) -> ServerState:
    """Build a server state from its class name and the nodes of its fields."""
    state_class = ServerState.registry.get(name)
    if state_class is None:
        raise ValueError(
            f"the checkpoint holds the state of a method that is not loaded ({name})"
        )
    values = {field: _from_node(node, arrays) for field, node in nodes.items()}
    return state_class(**values)

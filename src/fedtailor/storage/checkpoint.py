"""Checkpoints: a tree of plain containers and arrays in one safetensors file, written
whole or not at all.
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


def wait_for_all(step: str) -> None:
    """Wait until every process of a run has reached this step."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(step)


def save_tree(path: Path, tree: Any) -> None:
    """Write a tree of dicts, lists, tuples, None, numbers, strings and arrays (host or
    device), whole or not at all.
    """
    with replacing(path) as temporary:
        write_tree(temporary, tree)


def write_tree(path: Path, tree: Any) -> None:
    """Write a tree, as `save_tree` does, to a file that nobody reads yet."""
    # safetensors knows named arrays and text only, and runs no code when it is read (as
    # pickle does): the containers become a JSON text beside the arrays. It has no
    # checksum either, hence a digest over both.
    arrays: dict[str, np.ndarray] = {}
    skeleton = json.dumps(_describe(tree, arrays))
    digest = arrays_digest(skeleton, arrays)
    save_file(arrays, path, {"format": _FORMAT, "tree": skeleton, "digest": digest})


def load_tree(path: Path) -> Any:
    """The tree that `save_tree` wrote; arrays are on the device where they were.

    Raises:
        Unusable: it cannot be read, or another version of fedtailor wrote it.
        Damaged: it is missing, no checkpoint, or not what was written.
    """
    if not path.exists():
        raise Damaged(f"{path} is missing; remove the run's directory and start again")
    # safetensors calls a file damaged that it has no permission to read.
    with reading(path, Unusable):
        path.open("rb").close()
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            refuse_other_format(path, metadata.get("format", "nothing"))
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        # A flipped bit in an array would be trained on without a word.
        if arrays_digest(metadata["tree"], arrays) != metadata["digest"]:
            raise Damaged(
                f"{path} is damaged (its digest is wrong); remove the run's directory"
                " and start again"
            )
        return _rebuild(json.loads(metadata["tree"]), arrays)
    except (
        SafetensorError,
        OSError,
        KeyError,
        TypeError,
        RecursionError,
        json.JSONDecodeError,
    ) as error:
        raise Damaged(
            f"{path} is damaged ({reason(error)}); remove the run's directory and start"
            " again"
        ) from error


def refuse_other_format(path: Path, made: str) -> None:
    """Refuse a checkpoint that this version does not write.

    Raises:
        Unusable: with the reason.
        Damaged: it is none of fedtailor's.
    """
    if made == OLD_FORMAT:
        raise Unusable(
            f"{path} was written by fedtailor 0.1, whose runs can be reported but not"
            " resumed; name another directory"
        )
    if not made.startswith("fedtailor checkpoint "):
        raise Damaged(
            f"{path} is damaged (it is no checkpoint); remove the run's directory and"
            " start again"
        )
    if made != _FORMAT:
        raise Unusable(
            f"{path} was not written by this version of fedtailor ({made}); name"
            " another directory"
        )


def checkpoint_format(path: Path) -> str | None:
    """What a checkpoint says that it is; None where it cannot be read."""
    try:
        with safe_open(path, framework="numpy") as file:
            return (file.metadata() or {}).get("format")
    except (SafetensorError, OSError):
        return None


def _describe(tree: Any, arrays: dict[str, np.ndarray], path: str = "") -> Any:
    """The containers and plain values of a tree; its arrays go into `arrays` under
    their paths ("server/model").
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
        # Where an array was is written too: a resumed round must call the same compiled
        # programs with arguments of the same kind.
        if isinstance(tree, jax.Array):
            return {"device": name}
        return {"array" if isinstance(tree, np.ndarray) else "number": name}
    if tree is None or isinstance(tree, bool | int | float | str):
        return {"value": tree}
    raise TypeError(
        f"a {type(tree).__name__} cannot be written to a checkpoint; states are made of"
        " dicts, lists, tuples, numbers, strings and arrays"
    )


def _rebuild(skeleton: dict[str, Any], arrays: dict[str, np.ndarray]) -> Any:
    """The opposite of `_describe`."""
    (kind, content), *_ = skeleton.items()
    if kind == "state":
        state_class = ServerState.registry.get(content)
        if state_class is None:
            raise ValueError(
                "the checkpoint holds the state of a method that is not loaded"
                f" ({content})"
            )
        state_fields = {
            name: _rebuild(value, arrays) for name, value in skeleton["fields"].items()
        }
        return state_class(**state_fields)
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

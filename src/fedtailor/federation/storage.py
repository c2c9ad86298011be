"""A federation as one file with a digest.

The format is safetensors: plain arrays and text, nothing that could run code.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from fedtailor._files import AnyPath, existing_file, reading, reason, replacing
from fedtailor.federation.checks import SPLITS
from fedtailor.federation.federation import Federation, Ragged

_FORMAT = "fedtailor federation 2"
_WITHOUT_DIGEST = "fedtailor federation 1"  # of fedtailor 0.1
_PLAIN = ("names", "classes", "shift", "scale", "name", "class_names")
_DAMAGED = (
    *(SafetensorError, json.JSONDecodeError, RecursionError),
    *(KeyError, TypeError, AttributeError),
)
"""What reading other bytes as a federation may end in."""


def save(federation: Federation, path: AnyPath) -> Path:
    """Write a federation to one file, whole or not at all.

    An older file of that name is replaced.

    Returns:
        The path, with `~` expanded.

    Raises:
        ValueError: the file cannot be written; an older one stays as it is.
    """
    arrays: dict[str, NDArray[Any]] = {
        "x": federation.x,
        "y": federation.y,
        "unseen": federation.unseen,
    }
    if federation.groups is not None:
        arrays["groups"] = federation.groups
    for split in SPLITS:
        ragged = getattr(federation, split)
        arrays |= {f"{split}.rows": ragged.rows, f"{split}.offsets": ragged.offsets}
    # safetensors writes the memory of an array as it lies; text and numbers that are no
    # arrays go into its metadata.
    arrays = {key: np.ascontiguousarray(array) for key, array in arrays.items()}
    header = json.dumps({key: getattr(federation, key) for key in _PLAIN})
    metadata = {
        "format": _FORMAT,
        "federation": header,
        "digest": _digest(header, arrays),
    }
    try:
        target = Path(path).expanduser()
        with replacing(target) as temporary:
            save_file(arrays, temporary, metadata)
    except (OSError, RuntimeError, SafetensorError) as error:
        raise ValueError(
            f"cannot write {path}: {reason(error)}; make room, or name another file"
        ) from None
    return target


def load(path: AnyPath) -> Federation:
    """Read a federation that `save` wrote.

    Raises:
        ValueError: the file is missing, cannot be read, is damaged or something else.
    """
    path = existing_file(path)
    try:
        with reading(path):
            # safetensors calls a file damaged that it may not read: open it first, for
            # the right message.
            path.open("rb").close()
            header, arrays = _content(path)
        # JSON knows no tuples.
        plain = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in header.items()
        }
        splits = {}
        for split in SPLITS:
            rows = arrays.pop(f"{split}.rows")
            offsets = arrays.pop(f"{split}.offsets")
            splits[split] = Ragged(rows, offsets)
        pool: Any = {"groups": None, **arrays, **splits, **plain}
        return Federation(**pool)
    except _DAMAGED as error:
        raise ValueError(
            f"{path} is damaged or holds no federation ({reason(error)}); save it again"
        ) from None


def _content(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The plain fields and the arrays of a file, as they were written."""
    with safe_open(path, framework="numpy") as file:
        about = file.metadata() or {}
        if about.get("format") not in (_FORMAT, _WITHOUT_DIGEST):
            raise ValueError(
                f"{path} holds no federation; give a file that fedtailor's save wrote"
            )
        arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (no mapping)
    has_digest = about["format"] == _FORMAT
    if has_digest and _digest(about["federation"], arrays) != about["digest"]:
        raise ValueError(
            f"{path} is damaged (its digest is wrong); save the federation again"
        )
    return json.loads(about["federation"]), arrays


def _digest(header: str, arrays: dict[str, NDArray[Any]]) -> str:
    """SHA-256 of the plain fields, and of all arrays with names, types and shapes."""
    digest = hashlib.sha256(header.encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"\0{name}\0{array.dtype.str}\0{array.shape}\0".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()

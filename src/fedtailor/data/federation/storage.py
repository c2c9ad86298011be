"""Save and load a federation as one file with a digest.

The format is safetensors, which holds arrays and text and runs no code when it is read.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from fedtailor._base.files import (
    AnyPath,
    atomic_write,
    existing_file,
    reason,
    translate_read_errors,
)
from fedtailor.data.federation.checks import SPLITS
from fedtailor.data.federation.federation import Federation, Ragged
from fedtailor.models.inputs import Inputs
from fedtailor.models.tasks import loss_of, plain_loss

_FORMAT = "fedtailor federation 2"
_METADATA_FIELDS = ("names", "classes", "shift", "scale", "name", "class_names")
DAMAGE_ERRORS = (
    *(SafetensorError, json.JSONDecodeError, RecursionError),
    *(KeyError, TypeError, AttributeError),
)
"""Errors that reading a damaged file may raise."""


def save(federation: Federation, path: AnyPath) -> Path:
    """Write a federation to one file, atomically.

    A file of that name is replaced.

    Returns:
        The path, with `~` expanded.

    Raises:
        ValueError: the file cannot be written, or only the user's code knows the loss;
            an existing file is unchanged.

    Example:
        >>> ft.federation.save(federation, "digits.npz").name
        'digits.npz'
    """
    arrays: dict[str, NDArray[Any]] = {
        "x": federation.x,
        "y": federation.y,
        "unseen": federation.unseen,
    }
    if federation.groups is not None:
        arrays["groups"] = federation.groups
    if federation.public is not None:
        arrays["public"] = federation.public
    if federation.weights is not None:
        arrays["weights"] = federation.weights
    for split in SPLITS:
        ragged = getattr(federation, split)
        arrays |= {f"{split}.rows": ragged.rows, f"{split}.offsets": ragged.offsets}
    # safetensors writes the raw memory of an array, so arrays must be contiguous. Text
    # and numbers go into the metadata of the file.
    arrays = {key: np.ascontiguousarray(array) for key, array in arrays.items()}
    fields = {key: getattr(federation, key) for key in _METADATA_FIELDS}
    if federation.loss is not None:
        fields["loss"] = plain_loss(federation.loss)
        loss_of(fields["loss"])  # refuses a loss that could not be read again
    if federation.class_weights is not None:
        fields["class_weights"] = federation.class_weights
    if federation.inputs is not None:
        fields["inputs"] = asdict(federation.inputs)
    header = json.dumps(fields)
    # For processes that read some clients only, and cannot compute it.
    of_federation = federation.digest
    metadata = {
        "format": _FORMAT,
        "federation": header,
        "digest": arrays_digest(header + of_federation, arrays),
        "federation_digest": of_federation,
    }
    try:
        target = Path(path).expanduser()
        with atomic_write(target) as temporary:
            save_file(arrays, temporary, metadata)
    except (OSError, RuntimeError, SafetensorError) as error:
        raise ValueError(
            f"cannot write {path}: {reason(error)}; make room, or name another file"
        ) from None
    return target


def load(path: AnyPath) -> Federation:
    """Read a federation that `save` wrote.

    Raises:
        ValueError: the file is missing, cannot be read, is damaged or holds no
            federation.

    Example:
        >>> path = ft.federation.save(federation, "digits.npz")
        >>> len(ft.federation.load(path))
        20
    """
    path = existing_file(path)
    try:
        with translate_read_errors(path):
            # safetensors reports a permission error as a damaged file. Opening the
            # file first raises the right error.
            path.open("rb").close()
            metadata, arrays = _read(path)
        splits = {}
        for split in SPLITS:
            rows = arrays.pop(f"{split}.rows")
            offsets = arrays.pop(f"{split}.offsets")
            splits[split] = Ragged(rows, offsets)
        arguments: Any = {"groups": None, **arrays, **splits, **metadata}
        return Federation(**arguments)
    except DAMAGE_ERRORS as error:
        raise ValueError(
            f"{path} is damaged or holds no federation ({reason(error)}); save it again"
        ) from None


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read the metadata fields and the arrays of a file, and check its digest."""
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata() or {}
        fields = fields_of(path, metadata)
        arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a mapping)
    text = metadata["federation"] + metadata["federation_digest"]
    if arrays_digest(text, arrays) != metadata["digest"]:
        raise ValueError(
            f"{path} is damaged (its digest is wrong); save the federation again"
        )
    return fields, arrays


def fields_of(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    """The fields of a federation that are not arrays, from the texts of its file.

    Raises:
        ValueError: the file holds no federation.
    """
    if metadata.get("format") != _FORMAT:
        raise ValueError(
            f"{path} holds no federation; give a file that this version's save wrote"
        )
    # JSON has lists instead of tuples.
    fields = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in json.loads(metadata["federation"]).items()
    }
    if "loss" in fields:
        fields["loss"] = loss_of(fields["loss"])
    if "inputs" in fields:
        stored: Any = fields["inputs"]
        shapes = tuple(map(tuple, stored["shapes"]))
        fields["inputs"] = Inputs(
            tuple(stored["names"]), shapes, tuple(stored["dtypes"])
        )
    return fields


def arrays_digest(header: str, arrays: Mapping[str, NDArray[Any]]) -> str:
    """SHA-256 of a text, and of arrays with their names, types and shapes."""
    digest = hashlib.sha256(header.encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"\0{name}\0{array.dtype.str}\0{array.shape}\0".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()

"""The files in which processes keep the states of their own clients: one for each process
and checkpoint, which any number of processes can read again.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save_file

from fedtailor._base.choice import require
from fedtailor._base.files import (
    file_digest,
    private_folder,
    publish,
    reason,
    sync_tree,
)
from fedtailor._base.tensors import TensorFile

_IDS = "clients"
_PATTERN = "states-*.safetensors"
_DIGITS = 32
"""How much of a file's digest is in its name."""


def write_states(
    directory: Path, ids: NDArray[np.uint64], leaves: list[NDArray[Any]]
) -> str:
    """Write the states of some clients to a file that is named by its content.

    Args:
        directory: where to write it.
        ids: [k] of the clients.
        leaves: the arrays of their states, [k, ...] each.

    Returns:
        The name of the file.

    Raises:
        OSError: it cannot be written.
    """
    arrays = {str(number): leaf for number, leaf in enumerate(leaves)}
    with private_folder(directory, "states") as folder:
        part = folder / "states"
        save_file({_IDS: ids, **arrays}, part)
        name = _PATTERN.replace("*", file_digest(part)[:_DIGITS])
        sync_tree(folder)
        publish(part, directory / name)
    return name


def read_states(
    directory: Path, names: list[str], ids: NDArray[np.uint64]
) -> list[NDArray[Any]]:
    """Read the states of some clients, whichever files they are in.

    Args:
        directory: where the files are.
        names: of all files of a checkpoint.
        ids: [k] of the clients.

    Returns:
        The arrays of their states, [k, ...] each.

    Raises:
        ValueError: a file is missing or damaged, or a client is in none.
    """
    found: list[NDArray[Any]] = []
    is_found = np.zeros(len(ids), bool)
    for name in names:
        path = directory / name
        try:
            file = TensorFile(path)
            there = file[_IDS]
            _, wanted, rows = np.intersect1d(ids, there, return_indices=True)
            if not len(rows):
                continue
            require(
                file_digest(path).startswith(name.split("-")[1].split(".")[0]),
                f"{path} is damaged (its digest is wrong); start the run again",
            )
            order = np.argsort(rows)
            wanted, rows = wanted[order], rows[order]
            parts = [file.rows(str(number), rows) for number in range(len(file) - 1)]
        except (OSError, SafetensorError, KeyError) as error:
            raise ValueError(
                f"{path} is missing or damaged ({reason(error)}); start the run again"
            ) from None
        if not found:
            found = [np.empty((len(ids), *it.shape[1:]), it.dtype) for it in parts]
        for leaf, part in zip(found, parts, strict=True):
            leaf[wanted] = part
        is_found[wanted] = True
    require(
        bool(is_found.all()),
        f"the checkpoint in {directory} lacks the states of {int((~is_found).sum())}"
        " clients; start the run again",
    )
    return found


def remove_other_states(directory: Path, needed: Collection[str]) -> None:
    """Remove the files of all checkpoints that need none of these names."""
    for path in directory.glob(_PATTERN):
        if path.name not in needed:
            path.unlink(missing_ok=True)

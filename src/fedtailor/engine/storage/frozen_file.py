"""The file with the frozen arrays of a model, stored once, next to a run and in an export."""

from collections.abc import Sequence
from pathlib import Path

from safetensors import SafetensorError
from safetensors.numpy import save_file

from fedtailor._base.files import atomic_write, reason
from fedtailor._base.tensors import TensorFile
from fedtailor.engine.storage.errors import Damaged
from fedtailor.models import Model
from fedtailor.models.frozen_arrays import FrozenArrays

FROZEN = "frozen.safetensors"
"""The name of the file. Runs and exports of models without frozen arrays have none."""


def write_frozen(model: Model, folder: Path) -> bool:
    """Write the arrays that a model needs besides its description, if it needs any.

    Returns:
        Whether a file was written.

    Raises:
        OSError: the file cannot be written.
        SafetensorError: likewise.
    """
    held = model.architecture.held
    if not held:
        return False
    tensors = {
        f"{index}/{name}": array
        for index, arrays in enumerate(held)
        for name, array in arrays.items()
    }
    with atomic_write(folder / FROZEN) as temporary:
        save_file(tensors, temporary)
    return True


def read_frozen(folder: Path) -> Sequence[FrozenArrays]:
    """Read the arrays that `write_frozen` wrote; empty if there is no file.

    Descriptions of models name them by their digests, so that changed arrays fit none.

    Raises:
        Damaged: the file is damaged.
    """
    path = folder / FROZEN
    if not path.exists():
        return ()
    try:
        indices = sorted({key.partition("/")[0] for key in TensorFile(path)}, key=int)
        return [FrozenArrays(TensorFile(path, f"{index}/")) for index in indices]
    except (OSError, SafetensorError, ValueError) as error:
        raise Damaged(f"{path} is damaged ({reason(error)})") from None

"""A method's diagnostics at the end of a run.

Numbers and text are in `diagnostics.json`, arrays in `diagnostics.safetensors`.
"""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from fedtailor._base.files import atomic_write
from fedtailor.protocol.diagnostics import (
    Diagnostic,
    LineDiagnostic,
    MatrixDiagnostic,
    TreeDiagnostic,
)

DIAGNOSTICS = "diagnostics.json"
ARRAYS = "diagnostics.safetensors"

_KINDS: dict[str, type[Any]] = {
    "matrix": MatrixDiagnostic,
    "line": LineDiagnostic,
    "tree": TreeDiagnostic,
}


def write_diagnostics(directory: Path, diagnostics: Sequence[Diagnostic]) -> None:
    """Write diagnostics to a run directory, replacing any that are there.

    The field FIELD of diagnostic number NUMBER is stored in the JSON file, or, if it is
    an array, in the safetensors file under the name "NUMBER/FIELD". No files are
    written if there are no diagnostics.

    Raises:
        OSError: a file cannot be written.
        TypeError: a diagnostic is of none of the three kinds.
    """
    entries = []
    arrays: dict[str, np.ndarray] = {}
    for number, diagnostic in enumerate(diagnostics):
        kind = next(
            (name for name, cls in _KINDS.items() if isinstance(diagnostic, cls)), None
        )
        if kind is None:
            raise TypeError(
                "a diagnostic is a matrix, a line or a tree, not"
                f" {type(diagnostic).__name__}"
            )
        entry: dict[str, Any] = {"kind": kind}
        for field in dataclasses.fields(diagnostic):
            value = getattr(diagnostic, field.name)
            if isinstance(value, str | float | int | None):
                entry[field.name] = value
            else:
                arrays[f"{number}/{field.name}"] = np.asarray(value, order="C")
        entries.append(entry)
    if not entries:
        (directory / DIAGNOSTICS).unlink(missing_ok=True)
        (directory / ARRAYS).unlink(missing_ok=True)
        return
    # Write the arrays first, so that they exist whenever the JSON file does.
    with atomic_write(directory / ARRAYS) as file:
        save_file(arrays, file)
    with atomic_write(directory / DIAGNOSTICS) as file:
        file.write_text(json.dumps(entries, indent=1))


def read_diagnostics(directory: Path) -> list[Diagnostic]:
    """Read what `write_diagnostics` wrote; an empty list if there are no files.

    Raises:
        ValueError: a file is damaged.
        OSError: a file cannot be read.
    """
    path = directory / DIAGNOSTICS
    if not path.exists():
        return []
    try:
        arrays = load_file(directory / ARRAYS)
        diagnostics: list[Diagnostic] = []
        for number, entry in enumerate(json.loads(path.read_text())):
            kind = _KINDS[entry.pop("kind")]
            array_fields = {
                field.name: arrays[f"{number}/{field.name}"]
                for field in dataclasses.fields(kind)
                if field.name not in entry
            }
            diagnostics.append(kind(**entry, **array_fields))
        return diagnostics
    except (
        SafetensorError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
    ) as error:
        first_line = (str(error).splitlines() or [""])[0]
        raise ValueError(f"{path} is damaged ({first_line}); repeat the run") from None

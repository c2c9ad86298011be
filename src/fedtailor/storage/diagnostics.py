"""The diagnostics of a method at the end of a run: `diagnostics.json`, its arrays in
`diagnostics.safetensors`.
"""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from fedtailor._files import replacing
from fedtailor.protocol.diagnostics import (
    Diagnostic,
    LineDiagnostic,
    MatrixDiagnostic,
    TreeDiagnostic,
)

DIAGNOSTICS, ARRAYS = "diagnostics.json", "diagnostics.safetensors"

_KINDS: dict[str, type[Any]] = {
    "matrix": MatrixDiagnostic,
    "line": LineDiagnostic,
    "tree": TreeDiagnostic,
}


def write_diagnostics(directory: Path, diagnostics: Sequence[Diagnostic]) -> None:
    """Write diagnostics into a run directory, in place of those that it has.

    Numbers and texts go into the JSON file, arrays into the other one under
    "NUMBER/FIELD". A method without diagnostics leaves no file.

    Raises:
        OSError: they cannot be written.
        TypeError: something is none of the three kinds of diagnostics.
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
    # The arrays first: a reader who finds the description must find its arrays.
    with replacing(directory / ARRAYS) as file:
        save_file(arrays, file)
    with replacing(directory / DIAGNOSTICS) as file:
        file.write_text(json.dumps(entries, indent=1))


def read_diagnostics(directory: Path) -> list[Diagnostic]:
    """What `write_diagnostics` wrote; empty where it wrote nothing.

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
            own_arrays = {
                field.name: arrays[f"{number}/{field.name}"]
                for field in dataclasses.fields(kind)
                if field.name not in entry
            }
            diagnostics.append(kind(**entry, **own_arrays))
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

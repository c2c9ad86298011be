"""Digests of files, tables, arrays and JSON objects.

Neither a bit that a disk lost nor a file of another run may become part of a result.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

SEAL = "digest"
"""The key under which a JSON object carries the digest of all its other entries."""

SUMS = "SHA256SUMS"
"""The file that holds digests of its folder's other files, as `sha256sum --check
SHA256SUMS` reads it.
"""


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sums_of(folder: Path) -> str:
    """What `SUMS` says of the files of a folder.

    Raises:
        OSError: one cannot be read.
    """
    return "".join(
        f"{file_digest(path)}  {path.name}\n"
        for path in sorted(folder.iterdir())
        if path.name != SUMS
    )


def frame_digest(frame: pl.DataFrame) -> str:
    """SHA-256 of the names, types and values of a frame.

    Of the values and not of the Parquet file: a run that goes on appends rows, and the
    digest of the first ones must not depend on how a version of Polars compresses them.
    """
    digest = hashlib.sha256(f"{len(frame)}".encode())
    for column in frame.iter_columns():
        digest.update(f"\0{column.name}\0{column.dtype}\0".encode())
        digest.update(column.is_null().to_numpy().tobytes())
        if column.dtype == pl.String:
            # The lengths too: ("ab", "c") and ("a", "bc") are different columns.
            lengths = column.str.len_bytes().fill_null(0).cast(pl.Int64)
            digest.update(lengths.to_numpy().tobytes())
            digest.update(str(column.fill_null("").str.join("")[0]).encode())
        else:
            values = column.fill_null(0).to_numpy()
            digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()


def arrays_digest(header: str, arrays: Mapping[str, NDArray[Any]]) -> str:
    """SHA-256 of a text and of arrays with their names, types and shapes."""
    digest = hashlib.sha256(header.encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"\0{name}\0{array.dtype.str}\0{array.shape}\0".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with its own digest; NaN and infinity, which JSON does not know,
    become null.
    """
    plain = finite({key: value for key, value in content.items() if key != SEAL})
    return {**plain, SEAL: _json_digest(plain)}


def is_sealed(content: Mapping[str, Any]) -> bool:
    """Whether an object is what `sealed` made; True for one without a digest, as
    fedtailor 0.1 wrote them.
    """
    if SEAL not in content:
        return True
    plain = {key: value for key, value in content.items() if key != SEAL}
    return content[SEAL] == _json_digest(plain)


def finite(value: Any) -> Any:
    """A value with None in place of NaN and infinity, which JSON does not know; in
    dicts and lists too.
    """
    if isinstance(value, dict):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _json_digest(content: Mapping[str, Any]) -> str:
    """SHA-256 of a JSON object, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

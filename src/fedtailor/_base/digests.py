"""SHA-256 digests of folders, tables and JSON objects.

They detect damaged files, and files that belong to another run.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fedtailor._base.files import file_digest

DIGEST_KEY = "digest"
"""The key of a JSON object that holds the digest of all its other entries."""

SUMS = "SHA256SUMS"
"""The file with the digests of all other files in its folder, in the format of
`sha256sum --check SHA256SUMS`.
"""


def sums_of(folder: Path) -> str:
    """The content of the file `SUMS` for a folder, one line for each file.

    Raises:
        OSError: a file cannot be read.
    """
    return "".join(
        f"{file_digest(path)}  {path.name}\n"
        for path in sorted(folder.iterdir())
        if path.name != SUMS
    )


def frame_digest(frame: pl.DataFrame) -> str:
    """SHA-256 of the column names, types and values of a frame.

    It is computed from the values, not from the Parquet file. A resumed run appends
    rows, and the digest of the first rows must not depend on how Polars compresses
    them.
    """
    digest = hashlib.sha256(f"{len(frame)}".encode())
    for column in frame.iter_columns():
        digest.update(f"\0{column.name}\0{column.dtype}\0".encode())
        digest.update(column.is_null().to_numpy().tobytes())
        if column.dtype == pl.String:
            # Include the lengths: ("ab", "c") and ("a", "bc") are different columns.
            lengths = column.str.len_bytes().fill_null(0).cast(pl.Int64)
            digest.update(lengths.to_numpy().tobytes())
            digest.update(str(column.fill_null("").str.join("")[0]).encode())
        else:
            values = column.fill_null(0).to_numpy()
            digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()


def with_digest(content: Mapping[str, Any]) -> dict[str, Any]:
    """Add the digest of a JSON object to the object, under the key `DIGEST_KEY`.

    NaN and infinity, which JSON does not have, become None.
    """
    entries = finite(
        {key: value for key, value in content.items() if key != DIGEST_KEY}
    )
    return {**entries, DIGEST_KEY: json_digest(entries)}


def has_valid_digest(content: Any) -> bool:
    """Whether content is a JSON object that matches the digest that it contains."""
    if not isinstance(content, dict) or DIGEST_KEY not in content:
        return False
    entries = {key: value for key, value in content.items() if key != DIGEST_KEY}
    return content[DIGEST_KEY] == json_digest(entries)


def finite(value: Any) -> Any:
    """Replace NaN and infinity by None, in nested dicts and lists, too."""
    if isinstance(value, dict):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def json_digest(content: Any) -> str:
    """SHA-256 of what JSON can hold; it does not depend on the order of the keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

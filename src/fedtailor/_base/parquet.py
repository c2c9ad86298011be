"""Parquet files that contain their own digest, which detects damage before reading."""

import hashlib
import io
import mmap
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    import polars as pl

_KEY = "fedtailor.sha256"
# The file's metadata contain the key, two bytes of Thrift (the type of the value and
# its length, 64) and the value.
_DIGEST_PREFIX = _KEY.encode() + b"\x18@"
_NO_DIGEST = b"0" * 64


def write_parquet(frame: "pl.DataFrame", path: Path) -> None:
    """Write a table, with the SHA-256 of the file in the file's own metadata.

    The digest is computed with 64 zeros at its own position.

    Raises:
        OSError: the file cannot be written.
    """
    buffer = io.BytesIO()
    frame.write_parquet(buffer, metadata={_KEY: _NO_DIGEST.decode()})
    data = buffer.getvalue()
    start = _digest_position(data)
    digest = hashlib.sha256(data).hexdigest().encode()
    path.write_bytes(data[:start] + digest + data[start + len(digest) :])


def read_parquet(path: Path) -> "pl.DataFrame":
    """Read a Parquet file of a run.

    Raises:
        OSError: the file cannot be read.
        polars.exceptions.PolarsError: it is not a Parquet file; a `ComputeError` if its
            digest is wrong.
    """
    import polars as pl

    # Polars reports a file without read permission as one that is not Parquet. Opening
    # the file raises the right error.
    with path.open("rb") as file:
        if not _has_valid_digest(file):
            raise pl.exceptions.ComputeError("it is not what was written")
    return pl.read_parquet(path, glob=False)


def read_foreign_parquet(path: Path) -> "pl.DataFrame":
    """Read a Parquet file that any program may have written.

    A damaged file can make polars panic, which prints several lines to stderr, or ask
    for so much memory that the process is killed. So a subprocess reads the file first.

    Raises:
        OSError, polars.exceptions.PolarsError: as for `read_parquet`.
    """
    import polars as pl

    if not _is_readable(path):
        raise pl.exceptions.ComputeError(
            "the reader breaks down at it: it is damaged, or larger than the memory"
        )
    return read_parquet(path)


# The subprocess succeeds after an exception, which `read_parquet` will raise again.
_READ_SCRIPT = """
import contextlib, sys
import polars
with contextlib.suppress(Exception):
    polars.read_parquet(sys.argv[1], glob=False)
"""


def _is_readable(path: Path) -> bool:
    """Whether a subprocess can read the file without a panic or a crash."""
    command = [sys.executable, "-P", "-c", _READ_SCRIPT, str(path)]
    return subprocess.run(command, capture_output=True).returncode == 0


def _has_valid_digest(file: BinaryIO) -> bool:
    """Whether a file matches the digest that it contains.

    True for a file without a digest, which another program has written.
    """
    if os.fstat(file.fileno()).st_size == 0:
        return True  # an empty file cannot be mapped
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        start = _digest_position(mapped)
    if start < 0:
        return True
    data = file.read()
    end = start + len(_NO_DIGEST)
    digest = hashlib.sha256(data[:start] + _NO_DIGEST + data[end:]).hexdigest()
    return digest.encode() == data[start:end]


def _digest_position(data: bytes | mmap.mmap) -> int:
    """The position of the digest in a file; -1 if the file has no digest."""
    # Parquet's metadata are at the end of the file.
    prefix = data.rfind(_DIGEST_PREFIX)
    return prefix if prefix < 0 else prefix + len(_DIGEST_PREFIX)

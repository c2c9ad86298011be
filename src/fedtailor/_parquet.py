"""Parquet files that contain their own digest, so that a damaged one is noticed before
it is read.
"""

import hashlib
import io
import mmap
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from fedtailor._files import reason

if TYPE_CHECKING:
    import polars as pl

_KEY = "fedtailor.sha256"
# The metadata of the file hold the key, two bytes of Thrift (the type of the value and
# its length, 64) and the value.
_BEFORE_DIGEST = _KEY.encode() + b"\x18@"
_NO_DIGEST = b"0" * 64


def write_parquet(frame: "pl.DataFrame", path: Path) -> None:
    """Write a table, with the SHA-256 of the file in the file's own metadata.

    The digest is that of the file's bytes with 64 zeros in the place of the digest.

    Raises:
        OSError: the file cannot be written.
    """
    buffer = io.BytesIO()
    frame.write_parquet(buffer, metadata={_KEY: _NO_DIGEST.decode()})
    data = buffer.getvalue()
    place = _place_of_digest(data)
    digest = hashlib.sha256(data).hexdigest().encode()
    path.write_bytes(data[:place] + digest + data[place + len(digest) :])


def read_parquet(path: Path) -> "pl.DataFrame":
    """Read a Parquet file of a run.

    Raises:
        OSError: the file cannot be read.
        polars.exceptions.PolarsError: it is no Parquet; a `ComputeError` if it is not
            what `write_parquet` wrote, or if polars panics.
    """
    import polars as pl

    # Polars takes a file without permission to read for one that is no Parquet; opening
    # it raises the right error.
    with path.open("rb") as file:
        if not _is_what_was_written(file):
            raise pl.exceptions.ComputeError("it is not what was written")
    try:
        return pl.read_parquet(path)
    # at a damaged file without a digest, as fedtailor 0.1 wrote them
    except pl.exceptions.PanicException as error:
        raise pl.exceptions.ComputeError(reason(error)) from None


def read_foreign_parquet(path: Path) -> "pl.DataFrame":
    """Read a Parquet file that any program may have written.

    Damaged files can make polars panic, which prints several lines on the standard
    error, or end the process, when it asks for more memory than there is. So another
    process reads the file first.

    Raises:
        OSError, polars.exceptions.PolarsError: as `read_parquet`.
    """
    import polars as pl

    if not _reader_survives(path):
        raise pl.exceptions.ComputeError(
            "the reader breaks down at it: it is damaged, or larger than the memory"
        )
    return read_parquet(path)


# The process succeeds after an exception, which reading the file again will raise.
_READ = """
import contextlib, sys
import polars
with contextlib.suppress(Exception):
    polars.read_parquet(sys.argv[1])
"""


def _reader_survives(path: Path) -> bool:
    """Whether another process can read the file without a panic or its own end."""
    command = [sys.executable, "-P", "-c", _READ, str(path)]
    return subprocess.run(command, capture_output=True).returncode == 0


def _is_what_was_written(file: BinaryIO) -> bool:
    """Whether the digest in a file is its own; True without a digest, as other programs
    write files.
    """
    if os.fstat(file.fileno()).st_size == 0:
        return True  # an empty file cannot be mapped
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        place = _place_of_digest(mapped)
    if place < 0:
        return True
    data = file.read()
    end = place + len(_NO_DIGEST)
    digest = hashlib.sha256(data[:place] + _NO_DIGEST + data[end:]).hexdigest()
    return digest.encode() == data[place:end]


def _place_of_digest(data: bytes | mmap.mmap) -> int:
    """The position of the digest in a file; -1 if it has none."""
    # from the end, where Parquet's metadata are
    key = data.rfind(_BEFORE_DIGEST)
    return key if key < 0 else key + len(_BEFORE_DIGEST)

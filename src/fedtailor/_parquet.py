"""Tables in Parquet files that carry their own digest: a bit that a disk lost is found
before they are read.
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
# In the file, its metadata hold the key, two bytes of Thrift (the type, the length of
# the value: 64) and the value.
_BEFORE_DIGEST = _KEY.encode() + b"\x18@"
_NO_DIGEST = b"0" * 64


def write_parquet(frame: "pl.DataFrame", path: Path) -> None:
    """Write a table with the SHA-256 of its own file in the file's metadata.

    The digest is of the file's bytes with 64 zeros in the place of the digest.

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
    """A Parquet file of a run, refused in an exception where it is not what
    `write_parquet` wrote.

    Raises:
        OSError, polars.exceptions.PolarsError: it cannot be read, or is no Parquet; a
            file that is not what was written, or at which polars fails, is a
            `ComputeError`.
    """
    import polars as pl

    # Opened here, too: polars says of a file that may not be read that it is no
    # Parquet.
    with path.open("rb") as file:
        if not _is_what_was_written(file):
            raise pl.exceptions.ComputeError("it is not what was written")
    try:
        return pl.read_parquet(path)
    except (
        pl.exceptions.PanicException
    ) as error:  # of fedtailor 0.1, whose files carry no digest
        raise pl.exceptions.ComputeError(reason(error)) from None


def read_foreign_parquet(path: Path) -> "pl.DataFrame":
    """A Parquet file that any program may have written, refused in an exception alone
    where it is damaged.

    At some damaged files polars panics (Rust prints several lines on the standard error
    before Python hears of it), at a few it ends the process, as it asks for more memory
    than there is. So another process reads the file first.

    Raises:
        OSError, polars.exceptions.PolarsError: as `read_parquet`.
    """
    import polars as pl

    if not _is_survived(path):
        raise pl.exceptions.ComputeError(
            "the reader breaks down at it: it is damaged, or larger than the memory"
        )
    return read_parquet(path)


# An exception is left to the reading that follows, which raises it again.
_READ = """
import contextlib, sys
import polars
with contextlib.suppress(Exception):
    polars.read_parquet(sys.argv[1])
"""


def _is_survived(path: Path) -> bool:
    """Whether a process that reads the file goes on: there was no panic, and nothing
    ended it.
    """
    return (
        subprocess.run(
            [sys.executable, "-P", "-c", _READ, str(path)], capture_output=True
        ).returncode
        == 0
    )


def _is_what_was_written(file: BinaryIO) -> bool:
    """Whether the digest in a file is its own; True for a file without one, as other
    programs write them.
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
    """Where the digest stands in a file; -1 if it has none. (Parquet's metadata are at
    the end, after all cells.)
    """
    key = data.rfind(_BEFORE_DIGEST)
    return key if key < 0 else key + len(_BEFORE_DIGEST)

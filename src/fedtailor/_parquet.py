"""Tables in Parquet files that carry their own digest: a bit that a disk lost is found before they are read."""

import hashlib
import io
import mmap
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from fedtailor._files import reason

if TYPE_CHECKING:
    import polars as pl

_KEY = "fedtailor.sha256"
# In the file, its metadata hold the key, two bytes of Thrift (the type, the length of the value: 64) and the value.
_BEFORE_DIGEST = _KEY.encode() + b"\x18@"
_NO_DIGEST = b"0" * 64
_one_at_a_time = threading.Lock()


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
    """A Parquet file, refused in an exception alone where it is damaged.

    Polars panics at some damaged files: Rust prints several lines on the standard error before Python hears of it. At a
    few it asks for more memory than there is, which ends the process: what `write_parquet` wrote is checked first.

    Raises:
        OSError, polars.exceptions.PolarsError: it cannot be read, or is no Parquet; a panic, and a file that is not
            what was written, is a `ComputeError`.
    """
    import polars as pl

    # Opened here, too: polars says of a file that may not be read that it is no Parquet.
    with path.open("rb") as file:
        unchanged = _is_what_was_written(file)
    if not unchanged:
        raise pl.exceptions.ComputeError("it is not what was written")
    try:
        with _quiet_if_it_fails():
            return pl.read_parquet(path)
    except pl.exceptions.PanicException as error:
        raise pl.exceptions.ComputeError(reason(error)) from None


@contextmanager
def _quiet_if_it_fails() -> Iterator[None]:
    """What libraries print on the standard error in the block: dropped where it raises, else printed after it."""
    with _one_at_a_time, tempfile.TemporaryFile() as said:
        try:
            before = os.dup(2)
        except OSError:  # there is no standard error
            yield
            return
        with suppress(OSError, ValueError):
            sys.stderr.flush()
        os.dup2(said.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(before, 2)
            os.close(before)
        said.seek(0)
        with suppress(OSError):
            os.write(2, said.read())


def _is_what_was_written(file: BinaryIO) -> bool:
    """Whether the digest in a file is its own; True for a file without one, as other programs write them."""
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
    """Where the digest stands in a file; -1 if it has none. (Parquet's metadata are at the end, after all cells.)"""
    key = data.rfind(_BEFORE_DIGEST)
    return key if key < 0 else key + len(_BEFORE_DIGEST)

"""Find, download, decode and cache the files of public data sets.

The data directory is the argument `data_dir`, or else the environment variable
FEDTAILOR_DATA, or else `data` in the user's cache directory (XDG_CACHE_HOME is
respected). Missing files are downloaded, unless FEDTAILOR_OFFLINE forbids it. Decoded
arrays are cached in the user's cache directory, as memory-mapped .npy files with
checksums, until the original files change.
"""

import hashlib
import json
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
from numpy.typing import NDArray

from fedtailor._base.choice import require
from fedtailor._base.documentation import see
from fedtailor._base.files import (
    AnyPath,
    atomic_write,
    existing_file,
    reason,
    translate_read_errors,
)
from fedtailor.data.datasets.download import ARCHIVES, download, sha256

DataDir = AnyPath | None
Arrays = dict[str, NDArray[Any]]
_CACHE_VERSION = "1"  # increase it when the return value of a decoder changes
_DIGESTS = "digests.json"
_CHUNK = 2**20


class MissingData(FileNotFoundError, ValueError):
    """A data set is not in the data directory and could not be downloaded.

    The message says which files are expected in which folder.
    """


@dataclass(frozen=True)
class Source:
    """The files of a public data set.

    Attributes:
        title: name of the data set in messages.
        folders: folders of the data directory that may contain the files. Downloads go
            to the first one.
        files: names of the files.
        url: https address of a folder with the files, or of an archive (.zip, .tar.gz);
            None if they cannot be downloaded.
        hashes: "sha256:..." of files and of the archive, by name. They are required for
            downloads.
        archive_folder: the folder in the archive that contains the files.

    Raises:
        ValueError: the address is not https, or a hash is missing.
    """

    title: str
    folders: tuple[str, ...]
    files: tuple[str, ...]
    url: str | None
    hashes: Mapping[str, str] = field(default_factory=dict)
    archive_folder: str = ""

    def __post_init__(self) -> None:
        if self.url is None:
            return
        require(
            self.url.startswith("https://"),
            f"{self.title}: {self.url} is not an https address",
        )
        downloads = (
            [self.url.rsplit("/", 1)[1]] if self.url.endswith(ARCHIVES) else self.files
        )
        for name in downloads:
            require(
                self.hashes.get(name, "").startswith("sha256:"),
                f"{self.title}: {name} is downloaded and needs a SHA-256",
            )


def data_home(data_dir: DataDir = None) -> Path:
    """The data directory.

    Raises:
        ValueError: it starts with `~` and the name of a user who does not exist.
    """
    path = data_dir or os.environ.get("FEDTAILOR_DATA")
    try:
        return (
            Path(path).expanduser()
            if path
            else platformdirs.user_cache_path("fedtailor") / "data"
        )
    except RuntimeError as error:
        raise ValueError(
            f"there is no data directory {path}: {reason(error)}; name another"
        ) from None


def find(source: Source, data_dir: DataDir = None) -> list[Path]:
    """Find the files of a data set, and download them if they are missing.

    Raises:
        MissingData: the files are missing and cannot be downloaded.
        ValueError: a path is a folder, or cannot be accessed.
    """
    # All files must be in the same folder, as different folders may have different
    # versions of the data set.
    root = data_home(data_dir)
    for folder in source.folders:
        paths = [root / folder / name for name in source.files]
        if all([file_exists(path) for path in paths]):
            return paths
    folder = root / source.folders[0]
    missing = [name for name in source.files if not file_exists(folder / name)]
    try:
        if source.url is None:
            raise OSError("it has no public address")
        download(source.url, missing, folder, source.hashes, source.archive_folder)
    except (OSError, ValueError) as error:
        raise MissingData(
            f"{source.title} is not at hand and was not downloaded"
            f" ({reason(error)[:200]}); expected {', '.join(source.files)} in {folder}:"
            " put them there, or point data_dir or FEDTAILOR_DATA at the directory"
            f" above {source.folders[0]}{see('errors#data-that-are-not-at-hand')}"
        ) from None
    return [folder / name for name in source.files]


def file_exists(path: Path) -> bool:
    """Whether there is a regular file.

    Raises:
        ValueError: the path is a folder or a pipe, or cannot be accessed.
    """
    with translate_read_errors(path):
        if not path.exists():
            return False
    existing_file(path)
    return True


def read(
    source: Source,
    decode: Callable[[list[Path]], Arrays],
    data_dir: DataDir,
    variant: str = "",
) -> Arrays:
    """Read the arrays of a data set from its files, or from the cache.

    Args:
        source: the files, whose hashes are checked.
        decode: paths of the files -> arrays by name.
        data_dir: the data directory.
        variant: a suffix for the name in the cache, which distinguishes the settings of
            `decode`.

    Raises:
        MissingData: the files are missing and cannot be downloaded.
        ValueError: a file cannot be read, is not the published one, or is damaged.
    """
    paths = find(source, data_dir)

    def check_and_decode() -> Arrays:
        for path in paths:
            with translate_read_errors(path):
                _verify(path, source.hashes.get(path.name))
        with translate_read_errors(paths[0].parent):
            return decode(paths)

    return cached(f"{source.folders[0]}{variant}", paths, check_and_decode)


def cached(name: str, paths: Sequence[Path], decode: Callable[[], Arrays]) -> Arrays:
    """Cache the return value of `decode` until one of the files changes.

    If the cached files do not match their checksums, the data are decoded again. If the
    cache cannot be written, they are decoded every time.
    """
    # Changes are detected by size and modification time. Reading whole files to compare
    # their content would take longer than decoding them.
    stats = [
        (str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns)
        for path in paths
    ]
    key = hashlib.sha256(repr((_CACHE_VERSION, stats)).encode()).hexdigest()[:16]
    entry = (
        platformdirs.user_cache_path("fedtailor")
        / "decoded"
        / f"{name.replace(os.sep, '-')}-{key}"
    )
    arrays = _read_cache(entry)
    if arrays is None:
        arrays = decode()
        _write_cache(entry, arrays)
    return arrays


def _read_cache(entry: Path) -> Arrays | None:
    """Read the arrays of a cache entry; None if it is missing or damaged."""
    try:
        digests = json.loads((entry / _DIGESTS).read_text("utf-8"))
        if any(_checksum(entry / name) != digest for name, digest in digests.items()):
            return None
        return {
            Path(name).stem: np.asarray(np.load(entry / name, mmap_mode="r"))
            for name in digests
        } or None
    except (OSError, ValueError, EOFError, AttributeError, TypeError):
        return None


def _checksum(path: Path) -> int:
    """CRC-32 of a file, which takes a third of the time of SHA-256."""
    checksum = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            checksum = zlib.crc32(chunk, checksum)
    return checksum


def _write_cache(entry: Path, arrays: Arrays) -> None:
    """Write a cache entry, atomically."""
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(entry) as folder:
            folder.mkdir()
            for name, array in arrays.items():
                np.save(folder / f"{name}.npy", array, allow_pickle=False)
            digests = {
                f"{name}.npy": _checksum(folder / f"{name}.npy") for name in arrays
            }
            (folder / _DIGESTS).write_text(json.dumps(digests), "utf-8")
    except OSError:  # a full disk or a read-only cache is no error
        pass


def _verify(path: Path, expected_hash: str | None) -> None:
    """Require that a file can be read, and has the expected hash if there is one."""
    if expected_hash is None:
        path.open("rb").close()
        return
    actual = sha256(path)
    if actual != expected_hash:
        raise ValueError(
            f"{path} is not the published file ({actual[:19]}..., published"
            f" {expected_hash[:19]}...); it is damaged or another file of that name: delete it,"
            f" and it is downloaded again{see('errors#a-file-that-is-not-the-published-one')}"
        )

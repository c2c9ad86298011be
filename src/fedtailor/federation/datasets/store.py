"""Where the files of public data sets are, and how they get there.

The data directory is the argument `data_dir`, else the environment variable
FEDTAILOR_DATA, else `data` in the user's cache directory (XDG_CACHE_HOME is honoured).
Files that are not there are downloaded to it, unless FEDTAILOR_OFFLINE forbids it.
Decoded arrays are kept in the user's cache directory, as memory-mapped .npy files with
their checksums, until the files they came from change.
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

from fedtailor._files import AnyPath, existing_file, reading, reason, replacing
from fedtailor.federation.datasets.download import ARCHIVES, download, sha256
from fedtailor.protocol import require

DataDir = AnyPath | None
Arrays = dict[str, NDArray[Any]]
_VERSION = "1"  # of the decoded arrays: raise it when a decoder changes what it returns
_DIGESTS = "digests.json"
_CHUNK = 2**20


class MissingData(FileNotFoundError, ValueError):
    """A data set is not in the data directory and could not be downloaded.

    The message says what is expected where.
    """


@dataclass(frozen=True)
class Source:
    """The files of a public data set.

    Attributes:
        title: what messages call it.
        folders: where the files may lie in the data directory; downloads go to the
            first.
        files: their names.
        url: https address of the folder that holds the files, or of an archive (.zip,
            .tar.gz) with them; None: no public address has them in this form.
        hashes: "sha256:..." of files and of the archive. What is downloaded has one.
        inside: the folder of the archive that holds the files.

    Raises:
        ValueError: an address that is not https, or something to download without
            SHA-256.
    """

    title: str
    folders: tuple[str, ...]
    files: tuple[str, ...]
    url: str | None
    hashes: Mapping[str, str] = field(default_factory=dict)
    inside: str = ""

    def __post_init__(self) -> None:
        if self.url is None:
            return
        require(
            self.url.startswith("https://"),
            f"{self.title}: {self.url} is no https address",
        )
        wanted = (
            [self.url.rsplit("/", 1)[1]] if self.url.endswith(ARCHIVES) else self.files
        )
        for name in wanted:
            known = self.hashes.get(name, "")
            require(
                known.startswith("sha256:"),
                f"{self.title}: {name} is downloaded and needs a SHA-256",
            )


def data_home(data_dir: DataDir = None) -> Path:
    """The data directory.

    Raises:
        ValueError: it starts with the `~` of somebody who is not there.
    """
    given = data_dir or os.environ.get("FEDTAILOR_DATA")
    try:
        return (
            Path(given).expanduser()
            if given
            else platformdirs.user_cache_path("fedtailor") / "data"
        )
    except RuntimeError as error:
        raise ValueError(
            f"there is no data directory {given}: {reason(error)}; name another"
        ) from None


def find(source: Source, data_dir: DataDir = None) -> list[Path]:
    """The paths of a data set's files, downloaded if need be.

    Raises:
        MissingData: they are not there and cannot be downloaded.
        ValueError: a folder or the like has the name of a file.
    """
    # Everything in one folder, or nothing: half a data set in each of two would be a
    # mixture of versions.
    root = data_home(data_dir)
    for folder in source.folders:
        paths = [root / folder / name for name in source.files]
        if all([is_at_hand(path) for path in paths]):
            return paths
    folder = root / source.folders[0]
    missing = [name for name in source.files if not is_at_hand(folder / name)]
    try:
        if source.url is None:
            raise OSError("it has no public address")
        download(source.url, missing, folder, source.hashes, source.inside)
    except (OSError, ValueError) as error:
        raise MissingData(
            f"{source.title} is not at hand and was not downloaded"
            f" ({reason(error)[:200]}); expected {', '.join(source.files)} in {folder}:"
            " put them there, or point data_dir or FEDTAILOR_DATA at the directory"
            f" above {source.folders[0]}"
        ) from None
    return [folder / name for name in source.files]


def is_at_hand(path: Path) -> bool:
    """Whether a file is there.

    Raises:
        ValueError: something else is (a folder, a pipe), or there is no access to it.
    """
    with reading(path):
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
    """The decoded arrays of a data set.

    They come from the cache, or from its files, whose known hashes are checked.

    Raises:
        MissingData: the files are not there.
        ValueError: a file cannot be read, is not the published one, or is damaged.
    """
    paths = find(source, data_dir)

    def checked() -> Arrays:
        for path in paths:
            with reading(path):
                _verify(path, source.hashes.get(path.name))
        with reading(paths[0].parent):
            return decode(paths)

    return cached(f"{source.folders[0]}{variant}", paths, checked)


def cached(name: str, paths: Sequence[Path], decode: Callable[[], Arrays]) -> Arrays:
    """What `decode` returns, kept until one of the files changes.

    What the cache holds is compared with its checksums: damaged, it is decoded again.
    Without a writable cache it is decoded every time.
    """
    # A file that changed has another size or time: to read all of it at every start
    # would cost more than to decode it.
    stats = [
        (str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns)
        for path in paths
    ]
    key = hashlib.sha256(repr((_VERSION, stats)).encode()).hexdigest()[:16]
    entry = (
        platformdirs.user_cache_path("fedtailor")
        / "decoded"
        / f"{name.replace(os.sep, '-')}-{key}"
    )
    kept = _kept(entry)
    if kept is not None:
        return kept
    arrays = decode()
    _keep(entry, arrays)
    return arrays


def _kept(entry: Path) -> Arrays | None:
    """The arrays of an entry of the cache.

    None where it is not there or not what was written.
    """
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
    """CRC-32 of a file.

    It need not resist an attacker, and takes a third of the time of SHA-256 at every
    start.
    """
    checksum = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            checksum = zlib.crc32(chunk, checksum)
    return checksum


def _keep(entry: Path, arrays: Arrays) -> None:
    """Write an entry of the cache, whole or not at all."""
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with replacing(entry) as folder:
            folder.mkdir()
            for name, array in arrays.items():
                np.save(folder / f"{name}.npy", array, allow_pickle=False)
            digests = {
                f"{name}.npy": _checksum(folder / f"{name}.npy") for name in arrays
            }
            (folder / _DIGESTS).write_text(json.dumps(digests), "utf-8")
    except OSError:  # a full disk or a read-only cache only costs time
        pass


def _verify(path: Path, known: str | None) -> None:
    """Refuse a file that cannot be read, or is not the published one.

    The latter where that is known.
    """
    if known is None:
        path.open("rb").close()
        return
    actual = sha256(path)
    if actual != known:
        raise ValueError(
            f"{path} is not the published file ({actual[:19]}..., published"
            f" {known[:19]}...); it is damaged or another file of that name: delete it,"
            " and it is downloaded again"
        )

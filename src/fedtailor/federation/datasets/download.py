"""Downloads: files and archives from public addresses, checked by SHA-256.

They are announced, and prevented when offline.
"""

import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from fedtailor._files import private_folder, publish, reason

OFFLINE = "FEDTAILOR_OFFLINE"
"""The environment variable that forbids downloads (1, yes, true, on)."""

ARCHIVES = (".zip", ".tar.gz", ".tgz")
_TIMEOUT = 30  # seconds without an answer


def set_offline(offline: bool = True) -> None:
    """Forbid downloads, or allow them again.

    For this process and those that it starts.
    """
    os.environ[OFFLINE] = "1" if offline else "0"


def is_offline() -> bool:
    """Whether downloads are forbidden."""
    return os.environ.get(OFFLINE, "").strip().lower() not in (
        "",
        "0",
        "no",
        "false",
        "off",
    )


def download(
    url: str,
    files: Sequence[str],
    folder: Path,
    hashes: Mapping[str, str],
    inside: str = "",
) -> None:
    """Download files to a folder: from the address of a folder, or out of an archive.

    Args:
        url: of a folder that holds the files, or of an archive (.zip, .tar.gz).
        files: their names.
        folder: where they go, whole or not at all; it is made if need be. An archive is
            kept there.
        hashes: "sha256:..." of each file, or of the archive.
        inside: the folder of the archive that holds the files.

    Raises:
        OSError: downloads are forbidden, there is no network, or the folder cannot be
            written.
        ValueError: what came is not what was published.
    """
    if is_offline():
        raise OSError(f"{OFFLINE} is set")
    archive = url.rsplit("/", 1)[1] if url.endswith(ARCHIVES) else None
    wanted = files if archive is None else [archive]
    unknown = [
        name for name in wanted if not hashes.get(name, "").startswith("sha256:")
    ]
    if unknown:
        raise ValueError(
            f"no SHA-256 of {unknown[0]} is known, and nothing is downloaded unchecked"
        )
    folder.mkdir(parents=True, exist_ok=True)
    # Single files, or an archive, which is kept: a file that goes missing is unpacked
    # again, and not downloaded.
    if archive is None:
        for name in files:
            _fetch(url, name, folder, hashes[name])
        return
    if not is_published(folder / archive, hashes[archive]):
        _fetch(url.rsplit("/", 1)[0], archive, folder, hashes[archive])
    _unpack(folder / archive, hashes[archive], files, inside)


def is_published(path: Path, known: str) -> bool:
    """Whether a file is there and has the SHA-256 that is known ("sha256:...")."""
    return path.is_file() and known == sha256(path)


def sha256(path: Path) -> str:
    """ "sha256:..." of a file.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def _fetch(address: str, name: str, folder: Path, known: str) -> None:
    """One file of a public folder."""
    import pooch  # here, because a run without downloads needs no HTTP client

    print(
        f"fedtailor downloads {address}/{name} to {folder} ({OFFLINE}=1 forbids it)",
        file=sys.stderr,
        flush=True,
    )
    pooch.get_logger().setLevel("ERROR")
    bar: Any = _Bar(name)
    downloader: Any = pooch.HTTPDownloader(progressbar=bar, timeout=_TIMEOUT)
    with private_folder(folder, name) as part:
        try:
            pooch.create(part, f"{address}/", registry={name: known}).fetch(
                name, downloader=downloader
            )
        except OSError as error:
            # the client's errors are OSErrors too: with an answer of the server, or
            # else without a number of the system
            if error.errno is not None or getattr(error, "response", None) is not None:
                raise OSError(f"{name}: {reason(error)}") from None
            raise OSError(f"no connection to {address.split('/')[2]}") from None
        publish(part / name, folder / name)


def _unpack(archive: Path, known: str, files: Sequence[str], inside: str) -> None:
    """Take files out of an archive that has been checked."""
    import pooch

    kind = pooch.Unzip if archive.suffix == ".zip" else pooch.Untar
    members = [f"{inside}/{name}" if inside else name for name in files]
    with private_folder(archive.parent, archive.name) as part:
        store = pooch.create(archive.parent, "", registry={archive.name: known})
        store.fetch(archive.name, processor=kind(members, str(part.resolve())))
        missing = [
            name
            for name, member in zip(files, members, strict=True)
            if not (part / member).is_file()
        ]
        if missing:
            raise ValueError(f"{archive} holds no {missing[0]}")
        for name, member in zip(files, members, strict=True):
            publish(part / member, archive.parent / name)


class _Bar:
    """The progress bar of a download, in the form that pooch expects.

    It has a total, update, reset and close.
    """

    def __init__(self, name: str) -> None:
        self.total = 0
        console = Console(stderr=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TimeRemainingColumn(),
        )
        self._progress = Progress(
            *columns, console=console, disable=not console.is_terminal
        )
        self._task = self._progress.add_task(name)

    def update(self, done: int) -> None:
        self._progress.start()
        self._progress.update(self._task, total=self.total, advance=done)

    def reset(self) -> None:
        self._progress.reset(self._task)

    def close(self) -> None:
        self._progress.stop()

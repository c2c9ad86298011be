"""Download files and archives, and check them by SHA-256.

Every download is announced on stderr. Downloads can be forbidden.
"""

import os
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

from fedtailor._base.files import file_digest, private_folder, publish, reason
from fedtailor._base.printable import say_status

OFFLINE = "FEDTAILOR_OFFLINE"
"""The environment variable that forbids downloads (1, yes, true, on)."""

ARCHIVES = (".zip", ".tar.gz", ".tgz")
_TIMEOUT = 30  # seconds without an answer


def set_offline(offline: bool = True) -> None:
    """Forbid or allow downloads in this process and the processes that it starts."""
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
    archive_folder: str = "",
) -> None:
    """Download files to a folder.

    Args:
        url: address of a folder with the files, or of an archive (.zip, .tar.gz).
        files: names of the files.
        folder: the local folder, which is created if it does not exist. Files are
            written atomically. An archive is kept there, too.
        hashes: "sha256:..." of each file, or of the archive, by name.
        archive_folder: the folder in the archive that contains the files.

    Raises:
        OSError: downloads are forbidden, there is no network, or the folder cannot be
            written.
        ValueError: a downloaded file is not the published one.
    """
    if is_offline():
        raise OSError(f"{OFFLINE} is set")
    archive = url.rsplit("/", 1)[1] if url.endswith(ARCHIVES) else None
    downloads = files if archive is None else [archive]
    unknown = [
        name for name in downloads if not hashes.get(name, "").startswith("sha256:")
    ]
    if unknown:
        raise ValueError(
            f"no SHA-256 of {unknown[0]} is known, and nothing is downloaded unchecked"
        )
    folder.mkdir(parents=True, exist_ok=True)
    # An archive is kept, so that missing files can be unpacked without a download.
    if archive is None:
        for name in files:
            _fetch(url, name, folder, hashes[name])
        return
    if not is_published(folder / archive, hashes[archive]):
        _fetch(url.rsplit("/", 1)[0], archive, folder, hashes[archive])
    _unpack(folder / archive, hashes[archive], files, archive_folder)


def is_published(path: Path, expected_hash: str) -> bool:
    """Whether a file exists and has the expected hash ("sha256:...")."""
    return path.is_file() and expected_hash == sha256(path)


def sha256(path: Path) -> str:
    """The hash of a file, as "sha256:...".

    Raises:
        OSError: the file cannot be read.
    """
    return f"sha256:{file_digest(path)}"


def _fetch(address: str, name: str, folder: Path, expected_hash: str) -> None:
    """Download one file from a public folder."""
    import pooch  # most runs need no HTTP client

    say_status(
        f"fedtailor downloads {address}/{name} to {folder} ({OFFLINE}=1 forbids it)"
    )
    pooch.get_logger().setLevel("ERROR")
    bar: Any = _Bar(name)
    downloader: Any = pooch.HTTPDownloader(progressbar=bar, timeout=_TIMEOUT)
    with private_folder(folder, name) as part:
        try:
            pooch.create(part, f"{address}/", registry={name: expected_hash}).fetch(
                name, downloader=downloader
            )
        except OSError as error:
            # Errors of the HTTP client are OSErrors without errno. They have a response
            # if the server has answered.
            if error.errno is not None or getattr(error, "response", None) is not None:
                raise OSError(f"{name}: {reason(error)}") from None
            raise OSError(f"no connection to {address.split('/')[2]}") from None
        publish(part / name, folder / name)


def _unpack(
    archive: Path, expected_hash: str, files: Sequence[str], archive_folder: str
) -> None:
    """Unpack files of an archive into the archive's directory."""
    import pooch

    kind = pooch.Unzip if archive.suffix == ".zip" else pooch.Untar
    prefix = f"{archive_folder}/" if archive_folder else ""
    members = [f"{prefix}{name}" for name in files]
    with private_folder(archive.parent, archive.name) as part:
        store = pooch.create(archive.parent, "", registry={archive.name: expected_hash})
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
    """A progress bar with the interface that pooch expects."""

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

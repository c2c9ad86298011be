"""Atomic writes of files and folders, and readable errors of the file system."""

import errno
import hashlib
import os
import shutil
import socket
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

AnyPath = str | os.PathLike[str]

_SUFFIX = ".part"
_DAY = 24 * 60 * 60
_HOST = f"{zlib.crc32(socket.gethostname().encode()):08x}"
_folder_numbers = count()


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Write a file or a folder atomically.

    The block writes to the temporary path that it is given, which replaces `path` when
    the block ends.

    Readers see either the old content or the new content, even after a power cut: the
    data are flushed to the disk before the rename. If the block raises, or the process
    is killed, the old content stays. File modes follow the umask.

    Raises:
        OSError: the file cannot be written, or `path` is a pipe or a device, which must
            not be replaced.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    with private_folder(path.parent, path.name) as folder:
        temporary = folder / path.name
        yield temporary
        publish(temporary, path)


def create_secret(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, unless there is one.

    It is there as a whole or not at all, and another process that writes it at the same
    time does not replace it.

    Raises:
        OSError: the file cannot be written.
    """
    with private_folder(path.parent, path.name) as folder:
        written = folder / path.name
        descriptor = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(written, path)
        except FileExistsError:
            pass  # a link does not replace what another process has written
        except OSError:  # this file system has no links
            written.replace(path)


def publish(source: Path, path: Path) -> None:
    """Move a finished file or folder to `path`, in the same file system.

    An older folder there is replaced by two renames: whenever the process is killed, one
    of both is there as a whole, or neither is.

    Raises:
        OSError: the file cannot be written.
    """
    if source.is_file():
        # Some libraries write files that only their owner can read.
        source.chmod(_default_file_mode(source.parent))
    sync_tree(source)
    if source.is_dir() and path.is_dir():
        with private_folder(path.parent, "replaced") as folder:
            older = folder / path.name
            path.replace(older)
            try:
                source.replace(path)
            except BaseException:
                older.replace(path)
                raise
            _sync(path.parent)
        return
    source.replace(path)
    _sync(path.parent)


@contextmanager
def private_folder(parent: Path, purpose: str) -> Iterator[Path]:
    """A temporary folder in `parent` for unfinished files, removed after the block.

    If the process is killed, the next call removes the folder. Temporary files that
    libraries create next to their output are removed with it.
    """
    remove_leftovers(parent)
    # `_is_abandoned` reads host and process from the name, which is short enough for
    # every file system.
    short_purpose = os.fsdecode(os.fsencode(purpose)[:100])
    owner = f"{_HOST}.{os.getpid()}.{next(_folder_numbers)}"
    folder = parent / f".{short_purpose}.{owner}{_SUFFIX}"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_leftovers(folder: Path) -> None:
    """Remove the private folders of processes that were killed.

    Whether a process of another machine is still running is unknown, so its folders are
    removed when they are a day old.
    """
    with suppress(OSError):
        for path in folder.glob(f".*{_SUFFIX}"):
            if _is_abandoned(path):
                shutil.rmtree(path, ignore_errors=True)


def existing_file(path: AnyPath) -> Path:
    """The path of a regular file, with `~` expanded.

    Raises:
        ValueError: there is no such file, it is a folder or a pipe, or permissions do
            not allow access to it.
    """
    try:
        file = Path(path).expanduser()
        if file.is_file():
            return file
        if not file.exists():
            raise ValueError(f"there is no file {path}; check the path")
    # A parent folder cannot be read, the name is too long, or there is no such home.
    except (OSError, RuntimeError) as error:
        raise ValueError(
            f"{path} cannot be reached: {reason(error)}; check the path and its"
            " permissions"
        ) from None
    kind = "a folder" if file.is_dir() else "not a regular file"
    raise ValueError(f"{path} is {kind}; give a file")


@contextmanager
def translate_read_errors(
    path: Path, error_type: type[ValueError] = ValueError
) -> Iterator[None]:
    """Turn the block's OSErrors of reading `path` into errors of one line.

    It separates failures of the disk and of permissions from damaged content.

    Raises:
        ValueError: of type `error_type`, instead of the block's OSError.
    """
    try:
        yield
    except OSError as error:
        raise error_type(
            f"{path} cannot be read: {reason(error)}; check its permissions and its"
            " disk"
        ) from None


def reason(error: BaseException) -> str:
    """An error's message in one line, without errno and file name."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(text).split())


def _is_abandoned(path: Path) -> bool:
    parts = path.name.removesuffix(_SUFFIX).split(".")[-3:]
    if len(parts) < 3 or not (parts[1].isdigit() and parts[2].isdigit()):
        return False  # a folder of another program
    host, process = parts[0], int(parts[1])
    if host != _HOST:
        return time.time() - path.stat().st_mtime > _DAY
    try:
        os.kill(process, 0)  # sends no signal, only checks that the process exists
    except (OSError, OverflowError) as error:
        # Other errors: the process is another user's, or the number is not a process
        # id.
        return isinstance(error, ProcessLookupError)
    return False


def _default_file_mode(folder: Path) -> int:
    """The mode of a new file under the current umask.

    A file is created to find it: reading the umask would set it for all threads.
    """
    probe = folder / ".mode"
    probe.touch()
    mode = probe.stat().st_mode & 0o777
    probe.unlink()
    return mode


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_tree(path: Path) -> None:
    """Flush a file, or a folder with everything in it, to the disk.

    Raises:
        OSError: the data cannot be written to the disk.
    """
    if path.is_dir():
        for entry in path.iterdir():
            sync_tree(entry)
    _sync(path)


def _sync(path: Path) -> None:
    """Flush one file, or the entries of a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

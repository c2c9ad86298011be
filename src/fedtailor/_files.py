"""Files and folders that are written whole or not at all, and what may go wrong when
one is read.
"""

import errno
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
_numbers = count()


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Where to write a file or a folder that takes the place of `path` when the block
    ends.

    Readers see the old content or the new one, also after a power cut (all is on the
    disk before the name changes). When the block fails, or the process is killed, the
    old content stays. Modes follow the umask.

    Raises:
        OSError: the file cannot be written, or is a pipe or a device, which a file must
            not take the place of.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    with private_folder(path.parent, path.name) as folder:
        temporary = folder / path.name
        yield temporary
        publish(temporary, path)


def publish(written: Path, path: Path) -> None:
    """Move what is written whole to where it belongs, in the same file system.

    Raises:
        OSError: the file cannot be written.
    """
    if written.is_file():
        written.chmod(
            _mode_of_new_files(written.parent)
        )  # libraries write files that only their owner can read
    sync_tree(written)
    if (
        written.is_dir() and path.is_dir()
    ):  # a folder that holds something cannot be replaced in one step
        shutil.rmtree(path)
    written.replace(path)
    _sync(path.parent)


@contextmanager
def private_folder(parent: Path, purpose: str) -> Iterator[Path]:
    """A new folder in `parent` for unfinished files, removed after the block (or, after
    a kill, by the next call).

    Libraries have temporary files of their own beside what they write: here they are
    found again.
    """
    remove_leftovers(parent)
    folder = (
        parent
        / f".{os.fsdecode(os.fsencode(purpose)[:100])}.{_HOST}.{os.getpid()}.{next(_numbers)}{_SUFFIX}"
    )
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_leftovers(folder: Path) -> None:
    """Remove the private folders whose process was killed.

    Those of other machines that share the folder go when they are a day old: nobody
    here knows whether they run.
    """
    with suppress(OSError):
        for path in folder.glob(f".*{_SUFFIX}"):
            if _is_abandoned(path):
                shutil.rmtree(path, ignore_errors=True)


def existing_file(path: AnyPath) -> Path:
    """The path of a regular file, with `~` expanded.

    Raises:
        ValueError: there is nothing, something else (a folder, a pipe), or no access to
            it.
    """
    try:
        file = Path(path).expanduser()
        if file.is_file():
            return file
        if not file.exists():
            raise ValueError(f"there is no file {path}; check the path")
    except (
        OSError,
        RuntimeError,
    ) as error:  # no access to a folder on the way, a name too long, no such home
        raise ValueError(
            f"{path} cannot be reached: {reason(error)}; check the path and its"
            " permissions"
        ) from None
    what = "a folder" if file.is_dir() else "no regular file"
    raise ValueError(f"{path} is {what}; give a file")


@contextmanager
def reading(path: Path, error_type: type[ValueError] = ValueError) -> Iterator[None]:
    """A file that cannot be read is not a damaged one: failures of the disk and of
    permissions say so.

    Raises:
        ValueError: of `error_type`, in place of the block's OSError.
    """
    try:
        yield
    except OSError as error:
        raise error_type(
            f"{path} cannot be read: {reason(error)}; check its permissions and its"
            " disk"
        ) from None


def reason(error: BaseException) -> str:
    """Why it failed, in one line without the number of the error and the file's
    name.
    """
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(text).split())


def _is_abandoned(path: Path) -> bool:
    parts = path.name.removesuffix(_SUFFIX).split(".")[-3:]
    if len(parts) < 3 or not (parts[1].isdigit() and parts[2].isdigit()):
        return False  # another program's
    host, process = parts[0], int(parts[1])
    if host != _HOST:
        return time.time() - path.stat().st_mtime > _DAY
    try:
        os.kill(process, 0)  # sends nothing: asks whether the process is there
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):  # it is another user's
        return False
    return False


def _mode_of_new_files(folder: Path) -> int:
    """What the umask leaves (it cannot be asked without setting it, which would reach
    other threads).
    """
    probe = folder / ".mode"
    probe.touch()
    mode = probe.stat().st_mode & 0o777
    probe.unlink()
    return mode


def sync_tree(path: Path) -> None:
    """Bring a file, or a folder with all that is in it, to the disk itself.

    Raises:
        OSError: the disk does not take it.
    """
    if path.is_dir():
        for entry in path.iterdir():
            sync_tree(entry)
    _sync(path)


def _sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk itself."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

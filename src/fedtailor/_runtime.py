"""What JAX must be told before its backend starts. Whatever the user has set stays as
it is.
"""

import logging
import os
import zlib
from contextlib import suppress
from pathlib import Path

import jax
import platformdirs

_CPU_DEVICES = "jax_num_cpu_devices"
_CACHE_DIRECTORY = "jax_compilation_cache_dir"
_SECONDS_WORTH_KEEPING = "jax_persistent_cache_min_compile_time_secs"
_ENTRY_SUFFIX = "-cache"
_CHECKED = "fedtailor-checked"
_CLOCK_SLACK = (
    10**10
)  # nanoseconds: file systems round times, and a process may have been writing at the last look
# the first byte of what zlib compressed, which JAX does where zstandard is not
# installed
_ZLIB = b"\x78"
_DEFAULTS = {_CPU_DEVICES: -1, _CACHE_DIRECTORY: None, _SECONDS_WORTH_KEEPING: 1.0}

_log = logging.getLogger("fedtailor")


def configure_jax() -> None:
    """Make every core a device, and keep compiled programs of all sizes in the user's
    cache directory.

    What the user chose, through `jax.config`, a `JAX_...` environment variable or
    `XLA_FLAGS`, is left alone. Never fails: a backend that runs already keeps its
    devices, and without a writable directory nothing is kept.
    """
    if _is_default(
        _CPU_DEVICES
    ) and "xla_force_host_platform_device_count" not in os.getenv("XLA_FLAGS", ""):
        with suppress(RuntimeError):  # the backend runs already
            jax.config.update(_CPU_DEVICES, _cores())
    if _is_default(_CACHE_DIRECTORY):
        directory = _cache_directory()
        jax.config.update(
            _CACHE_DIRECTORY, None if directory is None else str(directory)
        )
        if directory is not None:
            _remove_unreadable(directory)
    if _is_default(_SECONDS_WORTH_KEEPING):
        jax.config.update(_SECONDS_WORTH_KEEPING, 0.0)


def _is_default(name: str) -> bool:
    return (
        name.upper() not in os.environ and getattr(jax.config, name) == _DEFAULTS[name]
    )


def _cores() -> int:
    """Cores that this process may use (Linux), or that the machine has."""
    return (
        len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1
    )


def _cache_directory() -> Path | None:
    directory = platformdirs.user_cache_path("fedtailor") / "jax"
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return directory if os.access(directory, os.W_OK) else None


def _remove_unreadable(directory: Path) -> None:
    """Remove the entries of the compilation cache that a killed process or a full disk
    left damaged.

    JAX neither replaces nor removes them: it would warn of each of them in every
    process, and compile it anew. Only those that changed since the last look are read,
    which takes milliseconds; the time of that look is the time of the file `CHECKED`.
    """
    stamp = directory / _CHECKED
    try:
        before = stamp.stat().st_mtime_ns - _CLOCK_SLACK if stamp.exists() else 0
        stamp.touch()
        entries = [
            entry
            for entry in os.scandir(directory)
            if entry.name.endswith(_ENTRY_SUFFIX)
        ]
    except OSError:
        return
    removed = 0
    for entry in entries:
        with suppress(
            OSError
        ):  # another process may have removed it, or its directory may not be ours to change
            if entry.stat().st_mtime_ns >= before and not _is_readable(
                Path(entry.path)
            ):
                os.unlink(entry.path)
                removed += 1
    if removed:
        _log.warning(
            "fedtailor: removed %d damaged entries of the compilation cache in %s",
            removed,
            directory,
        )


def _is_readable(path: Path) -> bool:
    """Whether an entry can be decompressed; entries in a format that is not known here
    count as readable.
    """
    try:
        content = path.read_bytes()
        if content[:1] == _ZLIB:
            zlib.decompress(content)
    except (OSError, zlib.error):
        return False
    return bool(content)

"""Settings of JAX, made before its backend starts. Whatever the user has set is left
alone.
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
_CLOCK_SLACK = 10**10
"""Nanoseconds: file systems round times, and a process may have been writing at the last
look.
"""
_ZLIB = b"\x78"
"""The first byte of zlib's format, which JAX uses where zstandard is not installed."""
_DEFAULTS = {_CPU_DEVICES: -1, _CACHE_DIRECTORY: None, _SECONDS_WORTH_KEEPING: 1.0}

_log = logging.getLogger("fedtailor")


def configure_jax() -> None:
    """Make every core a device, and cache compiled programs of all sizes in the user's
    cache directory.

    What the user chose, through `jax.config`, a `JAX_...` environment variable or
    `XLA_FLAGS`, is left alone. Never fails: a backend that runs already keeps its
    devices, and without a writable directory nothing is cached.
    """
    flags = os.getenv("XLA_FLAGS", "")
    flags_set_devices = "xla_force_host_platform_device_count" in flags
    if _is_default(_CPU_DEVICES) and not flags_set_devices:
        with suppress(RuntimeError):  # the backend runs already
            jax.config.update(_CPU_DEVICES, _cores())
    if _is_default(_CACHE_DIRECTORY):
        directory = _cache_directory()
        if directory is not None:
            jax.config.update(_CACHE_DIRECTORY, str(directory))
            _remove_unreadable(directory)
    if _is_default(_SECONDS_WORTH_KEEPING):
        jax.config.update(_SECONDS_WORTH_KEEPING, 0.0)


def _is_default(name: str) -> bool:
    if name.upper() in os.environ:
        return False
    return getattr(jax.config, name) == _DEFAULTS[name]


def _cores() -> int:
    """Cores that this process may use (Linux), or that the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cache_directory() -> Path | None:
    """The directory of the compilation cache, if it can be written."""
    directory = platformdirs.user_cache_path("fedtailor") / "jax"
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return directory if os.access(directory, os.W_OK) else None


def _remove_unreadable(directory: Path) -> None:
    """Remove the damaged entries of the compilation cache, which a killed process or a
    full disk leaves.

    JAX neither replaces nor removes them: every process would warn of them and compile
    their programs again. Only entries that changed since the last look are read, which
    takes milliseconds; the time of that look is that of the file `_CHECKED`.
    """
    stamp = directory / _CHECKED
    try:
        last_look = stamp.stat().st_mtime_ns - _CLOCK_SLACK if stamp.exists() else 0
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
        # Another process may have removed it, or its directory is not ours to change.
        with suppress(OSError):
            is_new = entry.stat().st_mtime_ns >= last_look
            if is_new and not _is_readable(Path(entry.path)):
                os.unlink(entry.path)
                removed += 1
    if removed:
        _log.warning(
            "fedtailor: removed %d damaged entries of the compilation cache in %s",
            removed,
            directory,
        )


def _is_readable(path: Path) -> bool:
    """Whether an entry can be decompressed; entries in an unknown format count as
    readable.
    """
    try:
        content = path.read_bytes()
        if content[:1] == _ZLIB:
            zlib.decompress(content)
    except (OSError, zlib.error):
        return False
    return bool(content)

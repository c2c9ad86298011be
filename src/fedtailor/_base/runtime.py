"""JAX settings, made before its backend starts. Settings of the user are kept."""

import logging
import os
import zlib
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import platformdirs

_CPU_DEVICES = "jax_num_cpu_devices"
_CACHE_DIRECTORY = "jax_compilation_cache_dir"
_MIN_COMPILE_SECONDS = "jax_persistent_cache_min_compile_time_secs"
_ENTRY_SUFFIX = "-cache"
_TIMESTAMP_FILE = "fedtailor-checked"
_CLOCK_SLACK = 10**10
"""Nanoseconds: file systems round times, and another process may have been writing an
entry during the last check.
"""
_ZLIB = b"\x78"
"""The first byte of zlib's format, which JAX uses where zstandard is not installed."""
_DEFAULTS = {_CPU_DEVICES: -1, _CACHE_DIRECTORY: None, _MIN_COMPILE_SECONDS: 1.0}

_log = logging.getLogger("fedtailor")


def configure_jax() -> None:
    """Make every CPU core a device, and cache all compiled programs on the disk.

    Settings that the user made through `jax.config`, a `JAX_...` environment variable
    or `XLA_FLAGS` are kept. This function never fails: a backend that has started keeps
    its devices (`local_devices` has others), and nothing is cached if the cache
    directory cannot be written.
    """
    if _devices_are_default():
        with suppress(RuntimeError):  # the backend has started
            jax.config.update(_CPU_DEVICES, _cores())
    if _is_default(_CACHE_DIRECTORY):
        directory = _cache_directory()
        if directory is not None:
            jax.config.update(_CACHE_DIRECTORY, str(directory))
            _remove_unreadable(directory)
    if _is_default(_MIN_COMPILE_SECONDS):
        jax.config.update(_MIN_COMPILE_SECONDS, 0.0)


def local_devices() -> list[Any]:
    """The devices of this process: one for each core, even where the program called JAX
    before it ran anything here.

    JAX counts a CPU as one device from its first call on. Such a program gets devices of
    a second client of XLA, whose arrays JAX copies to and from its own.
    """
    devices = jax.local_devices()
    is_late = devices[0].platform == "cpu" and len(devices) == 1 and _cores() > 1
    # A setting that `configure_jax` could make is no longer the default.
    if not is_late or not _devices_are_default() or jax.process_count() > 1:
        return devices
    return _second_devices() or devices


@lru_cache(maxsize=1)
def _second_devices() -> list[Any]:
    """Devices in addition to those of JAX, one for each core; none if this release of JAX cannot
    make them, which is said.
    """
    try:
        # JAX has no public function for it.
        from jaxlib import xla_client

        return xla_client.make_cpu_client(num_devices=_cores()).local_devices()
    except Exception as error:  # whatever another release raises
        _log.warning(
            "fedtailor: JAX was called before the first run, so that one of %d cores is"
            " used (%s); put `import fedtailor.engine.executors` above the first call of JAX,"
            " or set JAX_NUM_CPU_DEVICES=%d",
            _cores(),
            error,
            _cores(),
        )
        return []


def _devices_are_default() -> bool:
    """Whether the user left the number of devices to this package."""
    flags = os.getenv("XLA_FLAGS", "")
    return _is_default(_CPU_DEVICES) and (
        "xla_force_host_platform_device_count" not in flags
    )


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
    """Remove damaged entries of the compilation cache.

    A killed process or a full disk leaves them. JAX neither replaces nor removes them:
    every process would warn about them and compile their programs again. Only entries
    that changed since the last check are read, which takes milliseconds. The file
    `_TIMESTAMP_FILE` holds the time of the last check.
    """
    stamp = directory / _TIMESTAMP_FILE
    try:
        last_check = stamp.stat().st_mtime_ns - _CLOCK_SLACK if stamp.exists() else 0
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
        # Another process may have removed the entry, or it belongs to another user.
        with suppress(OSError):
            is_new = entry.stat().st_mtime_ns >= last_check
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
    """Whether an entry can be decompressed; True for an unknown format."""
    try:
        content = path.read_bytes()
        if content[:1] == _ZLIB:
            zlib.decompress(content)
    except (OSError, zlib.error):
        return False
    return bool(content)

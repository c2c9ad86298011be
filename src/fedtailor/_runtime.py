"""What JAX must be told before its backend starts. Whatever the user has set stays as it is."""

import os
from contextlib import suppress

import jax
import platformdirs

_CPU_DEVICES = "jax_num_cpu_devices"
_CACHE_DIRECTORY = "jax_compilation_cache_dir"
_SECONDS_WORTH_KEEPING = "jax_persistent_cache_min_compile_time_secs"
_DEFAULTS = {_CPU_DEVICES: -1, _CACHE_DIRECTORY: None, _SECONDS_WORTH_KEEPING: 1.0}


def configure_jax() -> None:
    """Make every core a device, and keep compiled programs of all sizes in the user's cache directory.

    What the user chose, through `jax.config`, a `JAX_...` environment variable or `XLA_FLAGS`, is left alone. Never
    fails: a backend that runs already keeps its devices, and without a writable directory nothing is kept.
    """
    if _is_default(_CPU_DEVICES) and "xla_force_host_platform_device_count" not in os.getenv("XLA_FLAGS", ""):
        with suppress(RuntimeError):  # the backend runs already
            jax.config.update(_CPU_DEVICES, _cores())
    if _is_default(_CACHE_DIRECTORY):
        jax.config.update(_CACHE_DIRECTORY, _cache_directory())
    if _is_default(_SECONDS_WORTH_KEEPING):
        jax.config.update(_SECONDS_WORTH_KEEPING, 0.0)


def _is_default(name: str) -> bool:
    return name.upper() not in os.environ and getattr(jax.config, name) == _DEFAULTS[name]


def _cores() -> int:
    """Cores that this process may use (Linux), or that the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cache_directory() -> str | None:
    directory = platformdirs.user_cache_path("fedtailor") / "jax"
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return str(directory) if os.access(directory, os.W_OK) else None

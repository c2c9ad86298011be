"""Less memory for a process that shares its machine with other work. Whatever the user has set stays as it is."""

import ctypes
import os
from contextlib import suppress

import jax

_EMITTERS = "xla_cpu_use_fusion_emitters"
_EMITTERS_UNTIL = (0, 11)
"""Of JAX: its later releases may not know the flag, and XLA ends the process at a flag that it does not know."""

_ARENA_MAX, _MMAP_THRESHOLD = -8, -3
"""Names of glibc's settings in its malloc.h."""


def save_memory() -> None:
    """Have programs compiled, and memory handed out, such that the process stays small.

    The newer of XLA's two emitters of CPU kernels loads all of MLIR, which takes more memory than anything else that a
    client of a federation does; the older one's programs gave the same bits. With one heap for all threads, and large
    blocks outside of it, what compilation frees is used again or given back. To be called before JAX's backend starts.
    Never fails.
    """
    if not any(name.startswith("MALLOC_") for name in os.environ):
        with suppress(AttributeError, OSError):  # another C library than glibc has no such function
            set_option = ctypes.CDLL(None).mallopt
            set_option(_ARENA_MAX, 1)
            set_option(_MMAP_THRESHOLD, 128 * 1024)
    flags = os.getenv("XLA_FLAGS", "")
    if _EMITTERS not in flags and jax.__version_info__ < _EMITTERS_UNTIL:
        os.environ["XLA_FLAGS"] = f"{flags} --{_EMITTERS}=false".strip()

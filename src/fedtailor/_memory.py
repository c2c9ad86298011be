"""Settings with which a process takes less memory. Whatever the user has set is left
alone.
"""

import ctypes
import os
from contextlib import suppress

import jax

_FLAGS = {
    "xla_cpu_use_fusion_emitters": "false",
    "xla_cpu_parallel_codegen_split_count": "1",
}
_FLAGS_UNTIL = (0, 11)
"""The first release of JAX that is not given the flags: it may not know them, and XLA
ends the process at an unknown flag.
"""

_ARENA_MAX, _MMAP_THRESHOLD = -8, -3
"""Names of glibc's settings in its malloc.h."""


def save_memory() -> None:
    """Make XLA's compiler and the allocator save memory. Call it before JAX's backend
    starts; it never fails.

    The newer of XLA's two emitters of CPU kernels loads all of MLIR, which takes more
    memory than anything else that a client of a federation does; the older one's
    programs gave the same bits. A program is compiled in one piece instead of one on
    each core. With one heap for all threads, and large blocks outside of it, memory that
    compilation frees is used again or given back.
    """
    if not any(name.startswith("MALLOC_") for name in os.environ):
        # Other C libraries than glibc have no such function.
        with suppress(AttributeError, OSError):
            set_option = ctypes.CDLL(None).mallopt
            set_option(_ARENA_MAX, 1)
            set_option(_MMAP_THRESHOLD, 128 * 1024)
    if jax.__version_info__ < _FLAGS_UNTIL:
        flags = os.getenv("XLA_FLAGS", "")
        for name, value in _FLAGS.items():
            if name not in flags:
                flags += f" --{name}={value}"
        os.environ["XLA_FLAGS"] = flags.strip()

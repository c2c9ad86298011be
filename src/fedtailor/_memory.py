"""Less memory for a process that shares its machine with other work. Whatever the user
has set stays as it is.
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
"""Of JAX: later releases may not know the flags, and XLA ends the process at a flag
that it does not know.
"""

_ARENA_MAX, _MMAP_THRESHOLD = -8, -3
"""Names of glibc's settings in its malloc.h."""


def save_memory() -> None:
    """Have programs compiled, and memory handed out, such that the process stays small.

    The newer of XLA's two emitters of CPU kernels loads all of MLIR, which takes more
    memory than anything else that a client of a federation does; the older one's
    programs gave the same bits. A program is compiled in one piece instead of one on
    each core. With one heap for all threads, and large blocks outside of it, what
    compilation frees is used again or given back. To be called before JAX's backend
    starts; never fails.
    """
    if not any(name.startswith("MALLOC_") for name in os.environ):
        with suppress(
            AttributeError, OSError
        ):  # another C library than glibc has no such function
            set_option = ctypes.CDLL(None).mallopt
            set_option(_ARENA_MAX, 1)
            set_option(_MMAP_THRESHOLD, 128 * 1024)
    if jax.__version_info__ < _FLAGS_UNTIL:
        given = os.getenv("XLA_FLAGS", "")
        ours = [
            f"--{name}={value}" for name, value in _FLAGS.items() if name not in given
        ]
        os.environ["XLA_FLAGS"] = " ".join([*([given] if given else []), *ours])

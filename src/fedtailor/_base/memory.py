"""The memory of this machine, and process settings that save it.

Settings that the user has made are kept.
"""

import ctypes
import os
from contextlib import suppress
from pathlib import Path

import jax

from fedtailor._base.choice import require
from fedtailor._base.xla_flags import FIRST_JAX_WITHOUT_OLD_EMITTERS, add_flags

_FLAGS = {
    "xla_cpu_use_fusion_emitters": "false",
    "xla_cpu_parallel_codegen_split_count": "1",
}

_ARENA_MAX, _MMAP_THRESHOLD = -8, -3
"""Names of glibc's options, from its malloc.h."""


_MAPS = Path("/proc/self/maps")
"""The memory maps of this process on Linux, one a line."""

_MANY_MAPS = 30_000
"""Of 65,530 that Linux gives a process."""

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
"""The limit of this process's container on Linux, in bytes, or the word "max"."""


def forget_programs_in_time() -> None:
    """Forget compiled programs before Linux gives no more memory maps.

    Each program takes some, and XLA ends the process where there are none left: after some
    seventy runs of different methods.
    """
    if _MAPS.exists() and _MAPS.read_bytes().count(b"\n") > _MANY_MAPS:
        jax.clear_caches()


def total_memory() -> int:
    """Bytes of memory that this process may use; 2^40 if they are unknown."""
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        memory = 2**40
    with suppress(OSError, ValueError):
        memory = min(memory, int(_CGROUP_LIMIT.read_text()))
    return memory


def check_memory(count: float, itemsize: int, name: str) -> None:
    """Require that arrays fit into the memory of this machine.

    A mistyped size would freeze the machine otherwise.

    Args:
        count: number of entries of the arrays.
        itemsize: bytes per entry.
        name: what needs the arrays, for the message.

    Raises:
        ValueError: the arrays need more bytes than the machine has.
    """
    required = count * itemsize
    installed = total_memory()
    require(
        required <= installed,
        f"{name} needs {required / 2**30:,.0f} GiB of memory, and this machine has"
        f" {installed / 2**30:.0f}",
    )


_CGROUP_USAGE = Path("/sys/fs/cgroup/memory.current")
_CGROUP_DETAILS = Path("/sys/fs/cgroup/memory.stat")
_MEMINFO = Path("/proc/meminfo")


def available_memory() -> int:
    """Bytes of memory that this process may still take without others losing theirs;
    `total_memory()` where the system does not tell.
    """
    available = total_memory()
    with suppress(OSError, ValueError, KeyError):
        available = min(available, 1024 * _numbers(_MEMINFO)["MemAvailable:"])
    with suppress(OSError, ValueError, KeyError):
        # The page cache can be reclaimed.
        spare = _numbers(_CGROUP_DETAILS)["inactive_file"]
        left = int(_CGROUP_LIMIT.read_text()) - int(_CGROUP_USAGE.read_text()) + spare
        available = min(available, left)
    return max(available, 0)


def _numbers(path: Path) -> dict[str, int]:
    """The first number of each line of a file, by its first word."""
    lines = (line.split() for line in path.read_text().splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1}


def save_memory() -> None:
    """Make XLA's compiler and the allocator use less memory.

    Call this where a process's work begins, before JAX's backend starts, never while a
    module is imported: processes started later inherit the settings. It never fails.

    The newer of XLA's two CPU kernel emitters loads all of MLIR, which takes more
    memory than anything else that a client of a federation does. The older emitter's
    programs may round differently, so the coordinator uses it, too. A program is
    compiled in one piece, not in one piece per core. All threads share one heap and
    large blocks are allocated outside of it, so that memory that the compiler frees is
    reused or returned to the system.
    """
    if not any(name.startswith("MALLOC_") for name in os.environ):
        # C libraries other than glibc have no such function.
        with suppress(AttributeError, OSError):
            set_option = ctypes.CDLL(None).mallopt
            set_option(_ARENA_MAX, 1)
            set_option(_MMAP_THRESHOLD, 128 * 1024)
    if jax.__version_info__ < FIRST_JAX_WITHOUT_OLD_EMITTERS:
        add_flags(_FLAGS)

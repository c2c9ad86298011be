"""Flags of XLA's compiler, which it reads once, when JAX's backend starts.

Set them where a process's work begins, never while a module is imported: processes
started later inherit them. This module does not import JAX, which takes a second.
"""

import os
from collections.abc import Mapping

_NO_WAIT_IS_TOO_LONG = {
    "xla_cpu_collective_call_warn_stuck_timeout_seconds": "100000000",
    "xla_cpu_collective_call_terminate_timeout_seconds": "100000000",
}

FIRST_JAX_WITHOUT_OLD_EMITTERS = (0, 11)
"""From this release of JAX on, the older of XLA's two emitters of CPU kernels is not asked
for: XLA aborts the process at a flag that it does not know.
"""


def add_flags(flags: Mapping[str, str]) -> None:
    """Add flags, by their names, to `XLA_FLAGS`; those that the user has set stay."""
    present = os.getenv("XLA_FLAGS", "")
    added = [
        f"--{name}={value}" for name, value in flags.items() if name not in present
    ]
    os.environ["XLA_FLAGS"] = " ".join([present, *added]).strip()


def wait_without_limit() -> None:
    """Let a device wait for others as long as it takes.

    XLA ends the process where one device has waited 40 seconds for another at a sum over
    devices, as it does where clients are of unequal sizes or a core is busy.
    """
    add_flags(_NO_WAIT_IS_TOO_LONG)

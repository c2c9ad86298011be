"""Where clients run: executors, who answer the exchanges of a run. They own the
examples and the clients' states.
"""

from fedtailor._runtime import configure_jax
from fedtailor.executors.debug import DebugExecutor
from fedtailor.executors.device_executor import DeviceExecutor
from fedtailor.executors.guest import guest_executor
from fedtailor.executors.kinds import executor_kind
from fedtailor.executors.lockstep import LockstepGroup
from fedtailor.executors.settings import Settings
from fedtailor.executors.share_executor import ShareExecutor

configure_jax()

__all__ = [
    "DebugExecutor",
    "DeviceExecutor",
    "LockstepGroup",
    "Settings",
    "ShareExecutor",
    "executor_kind",
    "guest_executor",
]

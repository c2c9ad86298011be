"""Where clients run: executors, who answer the exchanges of a run. They own the
examples and the clients' states.
"""

from fedtailor._base.runtime import configure_jax
from fedtailor.engine.executors.debug import DebugExecutor
from fedtailor.engine.executors.device_executor import DeviceExecutor
from fedtailor.engine.executors.devices import Place
from fedtailor.engine.executors.kinds import executor_kind
from fedtailor.engine.executors.lockstep import LockstepGroup, place_together
from fedtailor.engine.executors.newcomer import newcomer_executor
from fedtailor.engine.executors.settings import Settings
from fedtailor.engine.executors.shard_executor import ShardExecutor

configure_jax()

__all__ = [
    "DebugExecutor",
    "DeviceExecutor",
    "LockstepGroup",
    "Place",
    "Settings",
    "ShardExecutor",
    "executor_kind",
    "newcomer_executor",
    "place_together",
]

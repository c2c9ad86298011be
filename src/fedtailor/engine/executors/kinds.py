"""The kinds of executors of simulations."""

from fedtailor.engine.executors.debug import DebugExecutor
from fedtailor.engine.executors.device_executor import DeviceExecutor
from fedtailor.engine.executors.settings import Settings


def executor_kind(settings: Settings) -> type[DeviceExecutor]:
    """The class of executor that runs as `settings` say.

    Example:
        >>> from fedtailor.engine.executors import executor_kind
        >>> executor_kind(ft.Settings()).__name__
        'DeviceExecutor'
    """
    return DebugExecutor if settings.debug else DeviceExecutor

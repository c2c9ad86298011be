"""The kinds of executors of simulations."""

from fedtailor.executors.debug import DebugExecutor
from fedtailor.executors.device_executor import DeviceExecutor
from fedtailor.executors.pytorch import TorchExecutor
from fedtailor.executors.settings import Settings
from fedtailor.models import Model


def executor_kind(model: Model, settings: Settings) -> type[DeviceExecutor]:
    """The class of executor that can run a model as `settings` say.

    Example:
        >>> from fedtailor.executors import executor_kind
        >>> executor_kind(run.training.model, ft.Settings()).__name__
        'DeviceExecutor'
    """
    if model.in_python:
        return TorchExecutor
    return DebugExecutor if settings.debug else DeviceExecutor

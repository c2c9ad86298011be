"""PyTorch modules: see `from_torch`."""

from fedtailor.models.pytorch.from_module import from_torch, save_state_dict, state_dict
from fedtailor.models.pytorch.module import TorchModule
from fedtailor.models.pytorch.operations import OPERATIONS, Unsupported, operation

__all__ = [
    "OPERATIONS",
    "TorchModule",
    "Unsupported",
    "from_torch",
    "operation",
    "save_state_dict",
    "state_dict",
]

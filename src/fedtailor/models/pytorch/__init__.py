"""PyTorch modules: see `from_torch`."""

from fedtailor.models.pytorch.engine import TorchEngine
from fedtailor.models.pytorch.from_module import from_torch, save_state_dict, state_dict
from fedtailor.models.pytorch.host_call import NotDifferentiable
from fedtailor.models.pytorch.live import LiveModule
from fedtailor.models.pytorch.module import TorchModule
from fedtailor.models.pytorch.operations import OPERATIONS, Unsupported, operation

__all__ = [
    "OPERATIONS",
    "LiveModule",
    "NotDifferentiable",
    "TorchEngine",
    "TorchModule",
    "Unsupported",
    "from_torch",
    "operation",
    "save_state_dict",
    "state_dict",
]

"""PyTorch, an optional dependency."""

import importlib
from typing import Any

TorchModuleType = Any
"""A `torch.nn.Module`; `Any`, as PyTorch may not be installed."""
Tensor = Any
"""A `torch.Tensor`."""


def pytorch() -> Any:
    """The package `torch`.

    Raises:
        ValueError: it is not installed.
    """
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise ValueError(
            "PyTorch modules need PyTorch; install it with: pip install"
            " 'fedtailor[torch]'"
        ) from error

"""`from_torch`: a PyTorch module as a model, converted or run by PyTorch itself; and
models as state dicts.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtailor.models.model import Model
from fedtailor.models.pytorch.check import check_conversion, random_like
from fedtailor.models.pytorch.convert import convert, export
from fedtailor.models.pytorch.engine import TorchEngine
from fedtailor.models.pytorch.inspection import (
    inspect_module,
    require_trainable,
    run_example,
)
from fedtailor.models.pytorch.module import MICRO_BATCH, TorchModule
from fedtailor.models.pytorch.operations import Unsupported
from fedtailor.models.pytorch.optional import Tensor, TorchModuleType, pytorch
from fedtailor.models.pytorch.start import Start, copy_module, first_line, initializer
from fedtailor.protocol import check_choice

ENGINES = ("jax", "torch")
"""What can run a module: this library's own engine (by JAX), or PyTorch."""


def from_torch(
    module: TorchModuleType | Callable[[], TorchModuleType],
    example_input: Any,
    *,
    pretrained: bool = False,
    check: bool = True,
    engine: Literal["jax", "torch"] = "jax",
) -> TorchModule | TorchEngine:
    """A PyTorch module as a model; for example

        models.from_torch(lambda: MyNet(classes=10), torch.zeros(1, 3, 32, 32))

    By default it is trained by this library's own engine, at its speed: the module is
    traced by `torch.export`, once in training and once in evaluation mode, and its
    operations are run in JAX, convolutions in this library's own. The result is checked
    against PyTorch in double precision on a random batch: outputs, gradients and
    running statistics, to 1e-5 relative, in both modes (dropout off). PyTorch is not
    needed for training itself, but for the start of it.

    A module that cannot be converted is trained by PyTorch itself with
    `engine="torch"`: local training, losses, gradients and predictions of one client
    after another, on the CPU; all else is as for other models. The two engines end at
    the same model up to rounding, where there is no dropout, whose draws differ.

    Running statistics of BatchNorm are entries of theta; parameters with
    `requires_grad=False` and other buffers stay as they are. Models that come from one
    function `module` are equal, and share compiled programs.

    Args:
        module: a function that makes the module, as which a class without arguments
            will do: every seed starts from parameters of its own; or a module: every
            seed starts from its layers' `reset_parameters`.
        example_input: a batch [b, ...] of inputs as the module takes them (images with
            channels first); the data may have channels last.
        pretrained: start every seed, and every client, from the module's present
            values.
        check: compare a conversion with PyTorch; do not turn this off but for speed,
            for modules that have passed it.
        engine: "jax" converts the module, "torch" leaves it to PyTorch.

    Returns:
        The architecture; `bind` it to inputs, or pass it to `run`.

    Raises:
        ValueError: PyTorch is missing; the module cannot be converted (the message
            names the operation), or the result differs from PyTorch's; or, with
            `engine="torch"`, it has parameters that are not float32 on the CPU, fails
            on the example or does not give one tensor [b, ...].
    """
    torch = pytorch()
    check_choice(engine, ENGINES, "engine")
    instance: Any = module if isinstance(module, torch.nn.Module) else module()
    if not isinstance(instance, torch.nn.Module):
        raise ValueError(
            "from_torch takes a torch.nn.Module, or a function that makes one, not"
            f" {module!r}"
        )
    name = type(instance).__name__
    require_trainable(instance)
    if not any(parameter.requires_grad for parameter in instance.parameters()):
        raise ValueError(
            f"{name} has no parameters that require a gradient, so that there is"
            " nothing to train"
        )
    example = _example(instance, example_input)
    make = None if pretrained else initializer(module, instance)
    if engine == "torch":
        facts = inspect_module(instance, example)
        start = Start(make, instance, [path for path, _ in facts.shapes])
        return TorchEngine(repr(instance), start, facts, start.constants())
    try:
        return _convert(instance, make, example, check)
    except Unsupported as error:
        raise ValueError(
            f"{name} cannot be converted: {error}; replace it in the module, register"
            " it with fedtailor.models.pytorch.operation, or let PyTorch train the"
            ' module, which is slower: from_torch(..., engine="torch")'
        ) from None


def _example(module: TorchModuleType, given: Any) -> Tensor:
    """A batch of inputs in the precision of the module's parameters.

    Raises:
        ValueError: it is no batch of numbers.
    """
    torch = pytorch()
    try:
        example = torch.as_tensor(given)
    except Exception as error:  # PyTorch raises many kinds
        raise ValueError(
            "example_input is one tensor [b, ...], a batch of inputs:"
            f" {first_line(error)}"
        ) from None
    if example.ndim == 0 or not len(example):
        raise ValueError(
            "example_input is a batch [b, ...] with an input in it, not"
            f" {list(example.shape)}"
        )
    kinds = [one.dtype for one in module.parameters() if one.is_floating_point()]
    return example.to(kinds[0]) if example.is_floating_point() else example


def _convert(
    instance: TorchModuleType,
    make: Callable[[], TorchModuleType] | None,
    example: Tensor,
    check: bool,
) -> TorchModule:
    # What PyTorch itself refuses is no matter of the conversion: it says so in its own
    # words.
    run_example(
        copy_module(instance),
        random_like(example).to(example.dtype),
        training=False,
        name=type(instance).__name__,
    )
    both = [export(instance, example, training) for training in (True, False)]
    training, evaluation = map(convert, both)
    if check:
        check_conversion(both, (training, evaluation), example)
    # Parameters in the order of theta, also those that one of the two modes does not
    # use.
    paths = sorted(
        {path for program in (training, evaluation) for _, path in program.names}
    )
    convolves = any(one.name.startswith("conv") for one in training.operations)
    kind = "float32" if example.is_floating_point() else "int32"
    shape = tuple(example.shape[1:])
    return TorchModule(
        training,
        evaluation,
        Start(make, instance, paths),
        shape,
        kind,
        MICRO_BATCH if convolves else None,
    )


def state_dict(model: Model, theta: ArrayLike) -> dict[str, NDArray[Any]]:
    """A model vector theta [d] as the state dict of the PyTorch module, as NumPy
    arrays.

    Raises:
        ValueError: the model does not come from `from_torch`.
    """
    if not isinstance(model.architecture, TorchModule | TorchEngine):
        raise ValueError(
            "this model does not come from from_torch, so that there is no state dict"
            " of it"
        )
    start: Start = model.architecture.start
    params: Mapping[str, Any] = model.params(jnp.asarray(theta))
    values = {path: np.asarray(values) for path, values in params.items()}
    # what no training changes has no path, and is as it was in the module
    return {
        name: values[path] if path else start.present[name]
        for name, path in start.names.items()
    }


def save_state_dict(model: Model, theta: ArrayLike, path: Path | str) -> Path:
    """Write `state_dict` as a safetensors file, which plain PyTorch reads:

        module.load_state_dict(safetensors.torch.load_file(path))

    Raises:
        ValueError: as `state_dict`, or the file cannot be written.
    """
    from safetensors.numpy import save_file

    path = Path(path)
    arrays = {
        name: np.ascontiguousarray(values)
        for name, values in state_dict(model, theta).items()
    }
    try:
        save_file(arrays, path)
    except OSError as error:
        raise ValueError(
            f"cannot write {path}: {error.strerror}; name another file"
        ) from None
    return path

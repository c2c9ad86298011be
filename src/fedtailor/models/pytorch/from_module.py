"""`from_torch`: a PyTorch module as a model; and models as state dicts."""

import copy
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtailor._base.choice import require
from fedtailor._base.documentation import see
from fedtailor._base.files import atomic_write
from fedtailor.models.inputs import Inputs
from fedtailor.models.model import Model
from fedtailor.models.pytorch.check import check_conversion
from fedtailor.models.pytorch.convert import (
    convert,
    export_program,
    is_mixing,
)
from fedtailor.models.pytorch.inspection import require_trainable, statistics_of
from fedtailor.models.pytorch.module import MICRO_BATCH, TorchModule
from fedtailor.models.pytorch.operations import Unsupported
from fedtailor.models.pytorch.optional import Tensor, TorchModuleType, pytorch
from fedtailor.models.pytorch.start import Start, first_line, initializer

OTHER_FORMATS = (".pt", ".pth", ".ckpt", ".bin", ".pkl", ".npz", ".npy", ".h5", ".onnx")
"""Endings of files that are not safetensors."""


def from_torch(
    module: TorchModuleType | Callable[[], TorchModuleType],
    example_input: Any,
    *,
    pretrained: bool | None = None,
    check: bool = True,
) -> TorchModule:
    """A PyTorch module as a model; for example

        models.from_torch(lambda: MyNet(classes=10), torch.zeros(1, 3, 32, 32))

    The module is converted to JAX, and trained as fast as the models of this
    library. `torch.export` traces it once in training and once in evaluation mode, and
    its operations are replaced by JAX's, convolutions by this library's own. The
    conversion is checked against PyTorch in double precision on a random batch: outputs,
    gradients and running statistics must agree to 1e-5 relative in both modes, without
    dropout. PyTorch is needed to draw initial parameters, but not for training.

    Running statistics of BatchNorm are entries of theta. Parameters with
    `requires_grad=False` and other buffers do not change. Models of the same function
    `module` are equal, and share compiled programs.

    Args:
        module: a function (or class) without arguments that makes the module, so that
            every seed starts from its own parameters; or a module, from whose present
            values every seed starts.
        example_input: a batch [b, ...] of inputs as the module takes them (images with
            channels first); the data may have channels last. Of a module with several
            inputs, a batch of each by the name of its argument, {"ids": ids, "mask":
            mask}, or in the order of `forward` as a tuple; the data then have inputs of
            the same names (`Inputs`).
        pretrained: whether every seed, and every client, starts from the module's present
            values; None = if it is a module and no function. If not, every seed draws new
            parameters; those of a module are drawn by the `reset_parameters` of its
            layers.
        check: compare the conversion with PyTorch. Turn this off only to save time for a
            module that has passed the check.

    Returns:
        The architecture; `bind` it to inputs, or pass it to `run`.

    Raises:
        ValueError: PyTorch is missing; the module cannot be converted (the message
            names the operation and what to change), or the result differs from
            PyTorch's.

    Example:
        >>> import torch
        >>> model = ft.models.from_torch(lambda: torch.nn.Linear(4, 3), torch.zeros(1, 4))
        >>> model.bind((4,), 3).size
        15
    """
    torch = pytorch()
    instance: Any = module if isinstance(module, torch.nn.Module) else _made(module)
    if not isinstance(instance, torch.nn.Module):
        raise ValueError(
            "from_torch takes a torch.nn.Module, or a function that makes one, not"
            f" {module!r}"
        )
    name = type(instance).__name__
    _require_plain(instance)
    inputs, example = _example(instance, example_input)
    require_trainable(instance)
    if not any(parameter.requires_grad for parameter in instance.parameters()):
        raise ValueError(
            f"{name} has no parameters that require a gradient, so that there is"
            " nothing to train"
        )
    if pretrained is None:
        pretrained = instance is module
    start = instance, None if pretrained else initializer(module, instance)
    if inputs is not None:
        instance = _of_one_tensor(instance, inputs)
    statistics = statistics_of(instance, example, inputs)
    try:
        return _convert(instance, start, example, inputs, statistics, check)
    except Unsupported as error:
        raise ValueError(
            f"{name} cannot be converted: {error}; {error.advice}"
            f"{see('models#what-cannot-be-converted')}"
        ) from None


def _made(make: Any) -> Any:
    """What a function of the user makes; a module without one is returned as it is.

    Raises:
        ValueError: the function wants arguments.
    """
    if not callable(make):
        return make
    try:
        signature(make).bind()
    except TypeError as error:
        name = getattr(make, "__name__", repr(make))
        raise ValueError(
            f"from_torch calls {name} without arguments, and it has a {error}; pass a"
            f" function that makes the module, such as lambda: {name}(...)"
        ) from None
    except ValueError:  # a function of C, whose arguments are not known
        pass
    return make()


def _require_plain(module: Any) -> None:
    """Refuse what is around a module, in a line that says where the module is.

    Raises:
        ValueError: there is something around it.
    """
    torch = pytorch()
    kinds = {
        torch.nn.DataParallel: "on one device; pass the module in it, `.module`",
        torch.nn.parallel.DistributedDataParallel: (
            "in one process; pass the module in it, `.module`"
        ),
        torch.jit.ScriptModule: (
            "by XLA, from a module's code, which TorchScript has not; pass the"
            " torch.nn.Module that it was made from"
        ),
    }
    for kind, advice in kinds.items():
        if isinstance(module, kind):
            raise ValueError(
                f"from_torch takes a plain module, not a {kind.__name__}: clients train"
                f" {advice}"
            )
    if hasattr(module, "_orig_mod"):
        raise ValueError(
            "from_torch takes a module that torch.compile has not compiled, as XLA"
            " compiles it; pass the module that was given to torch.compile"
        )


def _of_one_tensor(module: TorchModuleType, inputs: Inputs) -> TorchModuleType:
    """The module, with the same parameters, as one whose `forward` takes its inputs side
    by side.
    """
    kind = type(module)

    class OfOneTensor(kind):
        def forward(self, packed: Any) -> Any:
            return kind.forward(self, **inputs.unpack(packed))

    OfOneTensor.__name__ = kind.__name__
    module = copy.copy(module)
    module.__class__ = OfOneTensor
    return module


def _example(
    module: TorchModuleType, example_input: Any
) -> tuple[Inputs | None, Tensor]:
    """The example input in the precision of the module's parameters, and what the inputs
    are if there are several.

    Raises:
        ValueError: it is not a batch of numbers, or the module takes other inputs.
    """
    inputs = None
    named = _named_inputs(module, example_input)
    if named is not None:
        arrays = {name: _tensor(values).numpy() for name, values in named.items()}
        inputs = Inputs.of(arrays)
        example_input = inputs.pack(arrays)
    example = _tensor(example_input)
    if example.ndim == 0 or not len(example):
        raise ValueError(
            "example_input is a batch [b, ...] with an input in it, not"
            f" {list(example.shape)}"
        )
    dtypes = [
        parameter.dtype
        for parameter in module.parameters()
        if parameter.is_floating_point()
    ]
    if example.is_floating_point() and dtypes:
        example = example.to(dtypes[0])
    return inputs, example


def _tensor(values: Any) -> Tensor:
    torch = pytorch()
    try:
        return torch.as_tensor(values).detach()
    except Exception as error:  # PyTorch raises many kinds of errors
        raise ValueError(
            "example_input is one tensor [b, ...], a batch of inputs (of several inputs a"
            f" tensor of each, by name): {first_line(error)}"
        ) from None


def _named_inputs(module: TorchModuleType, example: Any) -> Mapping[str, Any] | None:
    """Several inputs by the names of the arguments of `forward`; None if there is one.

    Raises:
        ValueError: the module takes other arguments.
    """
    torch = pytorch()
    is_several = isinstance(example, Mapping) or (
        isinstance(example, tuple | list)
        and any(isinstance(part, torch.Tensor) and part.ndim > 0 for part in example)
    )
    name = type(module).__name__
    try:
        call = signature(module.forward)
    except (TypeError, ValueError):  # a function of C, whose arguments are not known
        require(
            not is_several,
            f"{name}.forward does not say which inputs it takes; write a module around it"
            " that does",
        )
        return None
    taken = ", ".join(call.parameters)
    try:
        if not is_several:
            call.bind(example)
            return None
        if isinstance(example, Mapping):
            return call.bind(**example).arguments
        return call.bind(*example).arguments
    except TypeError as error:
        raise ValueError(
            f"{name}.forward takes {taken}, and the example does not fit ({error}); give"
            f" each of its inputs by name: example_input={{{taken.split(', ')[0]!r}: ...}}"
        ) from None


def _convert(
    instance: TorchModuleType,
    start: tuple[TorchModuleType, Callable[[], TorchModuleType] | None],
    example: Tensor,
    inputs: Inputs | None,
    statistics: Sequence[str],
    check: bool,
) -> TorchModule:
    given, make = start
    training, evaluation = (
        convert(export_program(instance, example, training), instance, statistics)
        for training in (True, False)
    )
    if training.statistics != statistics or evaluation.statistics:
        changed = {*training.statistics, *evaluation.statistics}
        path = next(iter(changed.symmetric_difference(statistics)), statistics[:1])
        raise Unsupported(f"torch.export loses where it changes its buffer {path!r}")
    if check:
        check_conversion(instance, (training, evaluation), example, inputs)
    # In the order of theta, including parameters that only one of the two modes uses.
    paths = sorted(
        {path for program in (training, evaluation) for _, path in program.names}
    )
    has_convolutions = any(
        operation.name.startswith("conv") for operation in training.operations
    )
    return TorchModule(
        training,
        evaluation,
        start=Start(make, given, paths),
        example_shape=tuple(example.shape[1:]),
        input_dtype="float32" if example.is_floating_point() else "int32",
        micro_batch=MICRO_BATCH
        if has_convolutions and not is_mixing(training)
        else None,
        inputs=inputs,
    )


def state_dict(model: Model, theta: ArrayLike) -> dict[str, NDArray[Any]]:
    """A model vector theta [d] as the state dict of the PyTorch module, as NumPy
    arrays.

    Raises:
        ValueError: the model does not come from `from_torch`.

    Example:
        >>> import torch
        >>> model = ft.models.from_torch(lambda: torch.nn.Linear(4, 3), torch.zeros(1, 4))
        >>> list(ft.models.state_dict(model.bind((4,), 3), np.zeros(15)))
        ['weight', 'bias']
    """
    if not isinstance(model.architecture, TorchModule):
        raise ValueError(
            "this model does not come from from_torch, so that there is no state dict"
            " of it"
        )
    start: Start = model.architecture.start
    params: Mapping[str, Any] = model.params(jnp.asarray(theta))
    # A name without a path is an array that training does not change.
    return {
        name: np.asarray(params[path]) if path else start.present[name]
        for name, path in start.names.items()
    }


def save_state_dict(model: Model, theta: ArrayLike, path: Path | str) -> Path:
    """Write `state_dict` as a safetensors file, which plain PyTorch reads:

        module.load_state_dict(safetensors.torch.load_file(path))

    Raises:
        ValueError: as `state_dict`, the path has an ending of another format, or the
            file cannot be written.

    Example:
        >>> import torch
        >>> model = ft.models.from_torch(lambda: torch.nn.Linear(4, 3), torch.zeros(1, 4))
        >>> from pathlib import Path
        >>> path = ft.models.save_state_dict(
        ...     model.bind((4,), 3), np.zeros(15), "own.safetensors"
        ... )
        >>> Path("own.safetensors").exists()
        True
    """
    from safetensors.numpy import save_file

    path = Path(path)
    require(
        path.suffix not in OTHER_FORMATS,
        f"{path} is named like a file of another format, and this is a safetensors file:"
        f" name it {path.with_suffix('.safetensors').name}",
    )
    arrays = {
        name: np.ascontiguousarray(values)
        for name, values in state_dict(model, theta).items()
    }
    try:
        with atomic_write(path) as temporary:
            save_file(arrays, temporary)
    except OSError as error:
        raise ValueError(
            f"cannot write {path}: {error.strerror}; name another file"
        ) from None
    return path

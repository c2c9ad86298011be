"""What makes a PyTorch module impossible to train, and its running statistics, found by
running it.
"""

import warnings
from collections.abc import Sequence
from itertools import pairwise

from fedtailor._base.choice import require
from fedtailor.models.inputs import Inputs
from fedtailor.models.pytorch.check import random_like
from fedtailor.models.pytorch.optional import Tensor, TorchModuleType, pytorch
from fedtailor.models.pytorch.start import (
    COUNTER,
    copy_module,
    first_line,
)


def statistics_of(
    module: TorchModuleType, example: Tensor, inputs: Inputs | None
) -> tuple[str, ...]:
    """The paths of the running statistics, sorted: of the buffers that a pass in training
    mode changes. A copy of the module is run in both modes.

    Raises:
        ValueError: it cannot be trained; the message says why, in one line.
    """
    name = type(module).__name__
    trained = [
        path for path, parameter in module.named_parameters() if parameter.requires_grad
    ]
    _require_separate(module, trained, name)
    module = copy_module(module)
    x = random_like(example, inputs).to(example.dtype)

    # A pass in evaluation mode must neither change buffers nor draw random numbers.
    before = _buffers(module)
    parameters = {path: one.detach().clone() for path, one in module.named_parameters()}
    is_random = _run_example(module, x, training=False, name=name)
    require(
        not is_random,
        f"{name} draws random numbers in evaluation mode, where outputs must be fixed;"
        " use nn.Dropout, or pass training=self.training to the function",
    )
    changed = _changed(before, module)
    require(
        not changed,
        f"{name} changes its buffer {next(iter(changed), '')!r} in evaluation mode,"
        " where it must stay",
    )
    # What the first pass sets stays, such as the size of a cache.
    numbers, written = _numbers(module), _versions(module)
    _run_example(module, x, training=True, name=name)
    # PyTorch does not count how often BatchNorm writes its statistics.
    changed = {*_changed(before, module), *_written(written, module)}
    statistics = tuple(sorted(path for path in changed if not path.endswith(COUNTER)))
    for path in statistics:
        kind = str(before[path].dtype).removeprefix("torch.")
        require(
            before[path].is_floating_point(),
            f"{name} changes its buffer {path!r} in training, which is {kind}, and only"
            " floating-point numbers can be averaged; make it float32",
        )
        require(
            path in module.state_dict(),
            f"{name} changes its buffer {path!r} in training, which is not an entry of its"
            " state dict; leave persistent=False out",
        )
    attribute = next(iter(_numbers(module).items() - numbers.items()), None)
    require(
        attribute is None,
        f"{name} changes its attribute {(attribute or [''])[0]!r} in a pass, which is"
        " no buffer, so that it would be neither sent nor kept; register a float32 buffer",
    )
    changed_parameter = _changed(parameters, module)
    require(
        not changed_parameter,
        f"{name} changes its parameter {next(iter(changed_parameter), '')!r} itself, and"
        " not by a gradient; take what changes it (max_norm of an embedding, say) out",
    )
    return statistics


def require_trainable(module: TorchModuleType) -> None:
    """Refuse a module whose parameters are not real numbers of 32 or 64 bits on the
    CPU.

    Raises:
        ValueError: with the first such parameter.
    """
    torch, name = pytorch(), type(module).__name__
    for path, tensor in [*module.named_parameters(), *module.named_buffers()]:
        lazy = isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin)
        require(
            not lazy, f"{name} has no shape for {path} yet; run it once on an example"
        )
        require(
            tensor.device.type == "cpu",
            f"{name} has {path} on {tensor.device}; move it to the CPU: module.cpu()",
        )
        is_usable = (
            tensor.dtype in (torch.float32, torch.float64) or not tensor.requires_grad
        )
        kind = str(tensor.dtype).removeprefix("torch.")
        require(
            is_usable,
            f"{name} has {path} as {kind}; parameters must be float32: module.float()",
        )
    for layer in module.modules():
        counts_all_batches = (
            getattr(layer, COUNTER, None) is not None
            and getattr(layer, "momentum", 0) is None
        )
        require(
            not counts_all_batches,
            f"{name} has a {type(layer).__name__} with momentum=None, whose average"
            " counts all batches ever seen; give it a momentum",
        )


def _run_example(module: TorchModuleType, x: Tensor, training: bool, name: str) -> bool:
    """Run a module on a batch.

    Returns:
        Whether random numbers were drawn.

    Raises:
        ValueError: the module fails, or does not give one tensor [b, ...] of
            floating-point numbers.
    """
    torch = pytorch()
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the insides of PyTorch's own layers
        before = torch.random.get_rng_state()
        try:
            outputs = module.train(training)(x)
        except Exception as error:  # whatever the module's own code raises
            raise ValueError(f"PyTorch fails in {name}: {first_line(error)}") from None
        is_random = not torch.equal(before, torch.random.get_rng_state())
    if not isinstance(outputs, torch.Tensor):
        raise ValueError(
            f"{name} gives a {type(outputs).__name__}; wrap it in a module that gives"
            " one tensor [b, ...]"
        )
    fits = outputs.ndim >= 1 and len(outputs) == len(x) and outputs.is_floating_point()
    require(
        fits,
        f"{name} gives {outputs.dtype} {list(outputs.shape)} for a batch of {len(x)};"
        " it must give floating-point numbers [b, ...]",
    )
    require(
        outputs.requires_grad,
        f"{name} gives outputs that do not depend on its parameters: no gradient"
        " reaches them",
    )
    return is_random


def _buffers(module: TorchModuleType) -> dict[str, Tensor]:
    """Copies of all buffers, by path."""
    return {path: tensor.clone() for path, tensor in module.named_buffers()}


def _numbers(module: TorchModuleType) -> dict[str, float]:
    """The numbers that modules hold as attributes, by path."""
    found = {}
    for path, layer in module.named_modules():
        for name, value in vars(layer).items():
            if isinstance(value, int | float) and name != "training":
                found[f"{path}.{name}".removeprefix(".")] = value
    return found


def _changed(before: dict[str, Tensor], module: TorchModuleType) -> list[str]:
    """The paths of the buffers that have other values than before."""
    torch = pytorch()
    now = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return [
        path for path, tensor in before.items() if not torch.equal(tensor, now[path])
    ]


def _versions(module: TorchModuleType) -> dict[str, tuple[Tensor, int]]:
    """The tensor of each buffer, and how often it has been written."""
    return {path: (one, one._version) for path, one in module.named_buffers()}


def _written(
    before: dict[str, tuple[Tensor, int]], module: TorchModuleType
) -> list[str]:
    """The paths of the buffers that have been written or replaced, also by the values
    that they had: an average of weights starts from these.
    """
    now = _versions(module)
    return [
        path
        for path, (tensor, version) in before.items()
        if now[path][0] is not tensor or now[path][1] != version
    ]


def _require_separate(
    module: TorchModuleType, trained: Sequence[str], name: str
) -> None:
    """Refuse different parameters whose memory overlaps.

    Tied layers have one parameter in common, and the slices of one vector that
    `torch.nn.utils.vector_to_parameters` makes do not overlap; both are accepted.
    """
    parameters = dict(module.named_parameters())
    # In the order of addresses, only neighbours can overlap.
    regions = sorted(
        (*_memory(parameters[path]), path)
        for path in trained
        if parameters[path].numel()
    )
    for (_, end, path), (start, _, other) in pairwise(regions):
        require(
            start >= end,
            f"{name} has {path} and {other} in one piece of memory; let both layers"
            " have the same nn.Parameter, or give each its own",
        )


def _memory(tensor: Tensor) -> tuple[int, int]:
    """The addresses of a tensor's first entry and past its last one."""
    last = sum(
        (size - 1) * stride
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()

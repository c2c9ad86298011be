"""The layers and properties of a PyTorch module, found by running it, for modules that
PyTorch itself trains.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from fedtailor.models.pytorch.check import BATCH, random_like
from fedtailor.models.pytorch.optional import Tensor, TorchModuleType, pytorch
from fedtailor.models.pytorch.start import (
    COUNTER,
    copy_module,
    first_line,
    owner_of,
)
from fedtailor.protocol import require


@dataclass(frozen=True)
class Facts:
    """Properties of a module.

    Attributes:
        shapes: (path, shape) of trained parameters and running statistics, sorted by
            path, which is their order in theta.
        statistics: paths of the running statistics: the buffers that a pass in training
            mode changes.
        head: path of the last layer with a trained matrix, if it is a dense one that is
            called once; else None.
        norms: paths of normalisation layers.
        order: layers with parameters, in the order in which they are last called.
        stochastic: whether training differs from evaluation by more than statistics
            (dropout).
        example_shape: shape of one input.
        integers: whether inputs are integers (tokens).
        output_shape: shape of one example's outputs.
        feature_shape: shape of the head's input for one example; None without a head.
    """

    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    statistics: tuple[str, ...]
    head: str | None
    norms: tuple[str, ...]
    order: tuple[str, ...]
    stochastic: bool
    example_shape: tuple[int, ...]
    integers: bool
    output_shape: tuple[int, ...]
    feature_shape: tuple[int, ...] | None


def inspect_module(module: TorchModuleType, example: Tensor) -> Facts:
    """Find the properties of a module by running a copy of it in both modes.

    Raises:
        ValueError: it cannot be trained; the message says why, in one line.
    """
    torch, name = pytorch(), type(module).__name__
    trained = [
        path for path, parameter in module.named_parameters() if parameter.requires_grad
    ]
    _require_separate(module, trained, name)
    module = copy_module(module)
    x = random_like(example).to(example.dtype)

    # A pass in evaluation mode must neither change buffers nor draw random numbers. The
    # buffers that a pass in training mode changes are statistics, and if it draws random
    # numbers there is dropout.
    calls = _Calls(module)
    before = _buffers(module)
    parameters = {path: one.detach().clone() for path, one in module.named_parameters()}
    evaluation, is_random = run_example(module, x, training=False, name=name)
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
    calls.remove()
    # What the first pass sets stays, such as the size of a cache.
    numbers, written = _numbers(module), _versions(module)
    outputs, stochastic = run_example(module, x, training=True, name=name)
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
            f"{name} changes its buffer {path!r} in training, which is no entry of its"
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
    # Randomness that does not come from PyTorch's generator changes the outputs. This
    # cannot be seen if there are statistics, which change them, too.
    if not statistics:
        stochastic = stochastic or not torch.equal(outputs, evaluation)
    shapes = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    head = calls.head(trained)
    return Facts(
        shapes=tuple(
            (path, tuple(shapes[path].shape))
            for path in sorted([*trained, *statistics])
        ),
        statistics=statistics,
        head=head,
        norms=_norms(module),
        order=calls.order([*trained, *statistics]),
        stochastic=stochastic,
        example_shape=tuple(example.shape[1:]),
        integers=not example.is_floating_point(),
        output_shape=tuple(evaluation.shape[1:]),
        feature_shape=None if head is None else tuple(calls.inputs[head].shape[1:]),
    )


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


class _Calls:
    """Records which layers a pass calls, and in which order."""

    def __init__(self, module: TorchModuleType) -> None:
        self._modules = dict(module.named_modules())
        self._paths = {id(layer): path for path, layer in self._modules.items()}
        self._called: list[str] = []
        self._outputs: dict[str, Any] = {}
        self.inputs: dict[str, Tensor] = {}
        self._hooks = [
            layer.register_forward_hook(self._record) for layer in module.modules()
        ]

    def _record(
        self, layer: TorchModuleType, arguments: Sequence[Any], outputs: Any
    ) -> None:
        path = self._paths[id(layer)]
        self._called.append(path)
        if arguments:
            self.inputs[path] = arguments[0]
        self._outputs[path] = outputs

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def head(self, trained: Sequence[str]) -> str | None:
        """The last layer with a trained matrix, if it is a dense one with a matrix of its
        own that is called once, with one row for each example; else None.
        """
        parameters = dict(self._modules[""].named_parameters())
        matrices: dict[str, list[Tensor]] = {}
        for path in trained:
            if parameters[path].ndim > 1:
                matrices.setdefault(owner_of(path), []).append(parameters[path])
        called = [path for path in self._called if path in matrices]
        if not called or called.count(called[-1]) > 1:
            return None
        last = called[-1]
        given, outputs = self.inputs.get(last), self._outputs[last]
        if not hasattr(outputs, "shape") or getattr(given, "ndim", 0) != outputs.ndim:
            return None
        assert given is not None
        sizes = {given.shape[-1], outputs.shape[-1]}
        is_dense = any(set(matrix.shape) == sizes for matrix in matrices[last])
        all_layers = self._modules[""].named_parameters(remove_duplicate=False)
        owners = {
            owner_of(path)
            for path, parameter in all_layers
            if any(parameter is matrix for matrix in matrices[last])
        }
        is_head = is_dense and len(owners) == 1 and len(given) == BATCH
        return last if is_head and given.ndim > 1 else None

    def order(self, paths: Sequence[str]) -> tuple[str, ...]:
        """The layers that own these parameters, in the order of their last calls.

        A layer that is never called counts as called with the layer around it.
        """
        last_call = {path: index for index, path in enumerate(self._called)}

        def call_index(layer: str) -> int:
            while layer and layer not in last_call:
                layer = layer.rpartition(".")[0]
            return last_call[layer]

        layers = dict.fromkeys(path.rpartition(".")[0] for path in sorted(paths))
        return tuple(sorted(layers, key=call_index))


def run_example(
    module: TorchModuleType, x: Tensor, training: bool, name: str
) -> tuple[Tensor, bool]:
    """Run a module on a batch.

    Returns:
        The outputs, and whether random numbers were drawn.

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
    return outputs.detach(), is_random


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


def _norms(module: TorchModuleType) -> tuple[str, ...]:
    """The paths of the normalisation layers."""
    nn = pytorch().nn
    kinds = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
    return tuple(
        path for path, layer in module.named_modules() if isinstance(layer, kinds)
    )


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
